/* checkpoint/model_source.h -- where a run's model comes from: a folder with weights, or a shape and random
 * weights.
 *
 *   model.path                    config.json, weights and tokenizer.json of that folder, or of a hub id in
 * the local Hugging Face cache (checkpoint/hub_cache.h); a checkpoint of a run with or without the model in
 * HF form model.preset = a folder       its config.json and tokenizer.json; weights are random model.preset +
 * model.path     the shape by name (model/presets.h), the tokenizer of that folder */
#ifndef CHECKPOINT_MODEL_SOURCE_H
#define CHECKPOINT_MODEL_SOURCE_H

#include "base/config.h"
#include "base/folder.h"
#include "data/tokenizer.h"
#include "model/weights.h"

typedef struct ModelSource {
    Json       *hf;                      /* config.json */
    ModelShape  shape;
    DType       dtype;                   /* of weights and activations in memory */
    const char *weights;                 /* folder to load weights from; NULL: random weights */
    bool        is_checkpoint;           /* weights is a checkpoint without the model in HF form */
    const char *preset;                  /* model.preset; "": none */
    Path        folder;                  /* of the tokenizer and its companion files */
    char       *snapshot; /* the folder of a hub id in the local cache; NULL: model.path is a folder */
    Tokenizer  *tokenizer;
} ModelSource;

/* Folder of the config.json, tokenizer and picture sizes of a model or a checkpoint: the folder itself, or
 * its state/, or for a checkpoint of an older build the model folder that the recipe of its run names. */
MUST Status model_source_files(Path out, const char *path);
MUST Status model_source_open(ModelSource *s, const struct cfg_model *c);
void        model_source_close(ModelSource *s);                          /* may be called twice */
/* Loads or initializes the weights. Adapters of the model are initialized at random in both cases. */
MUST Status model_source_load(const ModelSource *s, Model *m, Backend *be, uint64_t seed, const Log *log);

#endif
