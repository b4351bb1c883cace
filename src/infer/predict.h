/* infer/predict.h -- a model opened for inference: weights, tokenizer, image sizes, stop tokens. Shared by
 * `treb generate` and `treb eval`.
 *
 *   config_default(&recipe);
 *   TRY(lora_source_resolve(&recipe));                an adapter as model.path becomes its base model with
 *                                                     the adapter
 *   TRY(predict_open(&p, &recipe));                   recipe.model names the folder; sizes of pictures that
 *                                                     the recipe does not set become those of the folder
 *   TRY(predict_load(&p, &conf));                     engine and weights
 *
 * Each rank of a world opens its own. What fails on one rank is to be agreed on after predict_open and after
 * predict_load. */
#ifndef INFER_PREDICT_H
#define INFER_PREDICT_H

#include "base/config.h"
#include "data/image.h"
#include "infer/generate.h"
#include "checkpoint/lora_source.h"
#include "checkpoint/model_source.h"

typedef struct Predictor {
    const Config *recipe;
    ModelSource   source;
    LoraSource    lora;                  /* of lora.path; conf.rank 0: none */
    PatchShape    patch;
    int32_t       stop[MAX_STOPS];       /* end of turn, and eos_token_id of generation_config.json */
    int           stops;
    Engine        e;
} Predictor;

typedef struct PredictConf {
    Budget         budget;
    DecodeCapacity capacity;
    Comm          *world;                /* NULL or of one rank: no ranks; else see infer/layout.h */
    bool           one_document;
    const Log     *log;
} PredictConf;

MUST Status predict_open(Predictor *p, Config *recipe);                    /* recipe outlives p */
MUST Status predict_load(Predictor *p, const PredictConf *conf);           /* collective over the world */
void        predict_close(Predictor *p);                                   /* may be called twice */

#endif
