/* checkpoint/lora_source.h -- an adapter that exists already: a folder of PEFT's, or a checkpoint of a run with
 * adapters, of any layout. To go on from (lora.path), to use with its base, to export, to merge.
 *
 *   LoraSource l;
 *   TRY(lora_source_open(&l, path, &shape));         l.conf: what a model is opened with to have it
 *   TRY(lora_source_check_base(&l, base));                before that is loaded
 *   TRY(lora_source_load(&l, &model, be));           into the part that this rank has
 *   lora_source_close(&l);
 *
 * An open one must not be moved: conf points into it. */
#ifndef CHECKPOINT_LORA_SOURCE_H
#define CHECKPOINT_LORA_SOURCE_H

#include "model/peft.h"
#include "checkpoint/checkpoint_private.h"
#include "checkpoint/model_source.h"

typedef struct LoraSource {
    LoraConf  conf;                   /* rank 0: there is none */
    PeftFile  file;
    Path         path;
    bool         is_state;               /* of a checkpoint; else the file */
    CheckpointLora state;
    CheckpointWeights  tensors;                /* its, once they are wanted */
} LoraSource;

/* Or it is closed. All that can be wrong with its names and shapes beside this model is heard of here. */
MUST Status lora_source_open(LoraSource *l, const char *path, const ModelShape *s);
void        lora_source_close(LoraSource *l);                 /* twice is fine, and of a zeroed one */
bool        lora_source_is(const char *path);                 /* by its looks */
/* Before it is used beside a base, which is a folder, or NULL: drawn. E_DATA: it was made for another one. */
MUST Status lora_source_check_base(const LoraSource *l, const char *base);
MUST Status lora_source_load(LoraSource *l, Model *m, Backend *be);

/* Warns where a checkpoint was trained on other weights than these; a folder of PEFT's does not know. */
MUST Status lora_source_warn_base(const LoraSource *l, const ModelSource *base, uint64_t seed, const Log *log);

/* PEFT's folder of it. base: what it is for; "": nothing is said. */
MUST Status lora_source_export(LoraSource *l, const ModelShape *s, const char *dir, const char *base);
/* The base with it added in, in HF form but for the configuration and other files beside. */
MUST Status lora_source_merge(LoraSource *l, const ModelShape *s, const char *base, const char *dir,
                              DType dtype, int64_t max_shard);

/* Where the weights that it was trained on are: a folder, "" when it does not say. */
MUST Status lora_source_base(Path out, const char *path);
/* A recipe whose model.path is an adapter: that becomes lora.path, and the model its base. */
MUST Status lora_source_resolve(Config *recipe);

#endif
