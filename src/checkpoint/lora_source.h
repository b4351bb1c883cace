/* checkpoint/lora_source.h -- an existing adapter: a PEFT folder, or a checkpoint of a run with adapters in
 * any layout. It is trained further (lora.path), used with its base model, exported, or merged.
 *
 *   LoraSource l;
 *   TRY(lora_source_open(&l, path, &shape));         l.conf: open a model with it to give it these adapters
 *   TRY(lora_source_check_base(&l, base));           before the base's weights are loaded
 *   TRY(lora_source_load(&l, &model, be));           into this rank's part
 *   lora_source_close(&l);
 *
 * An open LoraSource must not be moved: conf points into it. */
#ifndef CHECKPOINT_LORA_SOURCE_H
#define CHECKPOINT_LORA_SOURCE_H

#include "model/peft.h"
#include "checkpoint/checkpoint_private.h"
#include "checkpoint/model_source.h"

typedef struct LoraSource {
    LoraConf          conf;              /* rank 0: there is no adapter */
    Path              path;
    bool              is_checkpoint;     /* lora and weights are in use; else file */
    PeftFile          file;
    CheckpointLora    lora;
    CheckpointWeights weights;           /* opened on first use */
} LoraSource;

/* Reports every name or shape that does not fit this model. On failure nothing stays open. */
MUST Status lora_source_open(LoraSource *l, const char *path, const ModelShape *s);
void        lora_source_close(LoraSource *l);                 /* may be called twice, and on a zeroed one */
bool        lora_source_is(const char *path);                 /* whether path has an adapter's files */
/* E_DATA: the adapter was made for another base. */
MUST Status lora_source_check_base(const LoraSource *l, const ModelSource *base);
MUST Status lora_source_load(LoraSource *l, Model *m, Backend *be);

/* Warns if a checkpoint was trained on other weights than these; PEFT files do not record that. */
MUST Status lora_source_warn_base(const LoraSource *l, const ModelSource *base, uint64_t seed,
                                  const Log *log);

/* Writes the adapter as a PEFT folder. base: becomes base_model_name_or_path; "": null. */
MUST Status lora_source_export(LoraSource *l, const ModelShape *s, const char *dir, const char *base);
/* Writes the weights of base with the adapter merged, in HF form. The caller adds
 * config.json and tokenizer. */
MUST Status lora_source_merge(LoraSource *l, const ModelShape *s, const char *base, const char *dir,
                              DType dtype, int64_t max_shard);

/* The folder of the base model as the adapter records it; "": not recorded. */
MUST Status lora_source_base(Path out, const char *path);
/* If model.path of the recipe is an adapter, lora.path becomes that folder and model.path its base model. */
MUST Status lora_source_resolve(Config *recipe);

#endif
