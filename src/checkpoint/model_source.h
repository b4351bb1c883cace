/* checkpoint/model_source.h -- where a run's model comes from: a folder with weights, or dimensions and a random start.
 *
 *   model.path                    config.json, weights and tokenizer.json of that folder
 *   model.preset                  a folder with config.json and tokenizer.json, no weights read
 *   model.preset + model.path     dimensions by name (model/presets.h), the tokenizer of that folder */
#ifndef CHECKPOINT_MODEL_SOURCE_H
#define CHECKPOINT_MODEL_SOURCE_H

#include "base/config.h"
#include "base/folder.h"
#include "data/tokenizer.h"
#include "model/weights.h"

typedef struct ModelSource {
    Json       *hf;                      /* config.json */
    ModelShape  shape;
    DType       dtype;                   /* that weights and activations will have */
    const char *weights;                 /* folder to load from; NULL: a random start */
    const char *preset;                  /* of that; "": none */
    Path        folder;                  /* of the tokenizer and the files that go with it */
    Tokenizer  *tokenizer;
} ModelSource;

MUST Status model_source_open(ModelSource *s, const struct cfg_model *c);
void        model_source_close(ModelSource *s);                                /* twice is fine */
/* Adapters of the model are drawn: they are not the source's. */
MUST Status model_source_load(const ModelSource *s, Model *m, Backend *be, uint64_t seed, const Log *log);

#endif
