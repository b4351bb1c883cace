/* infer/predict.h -- a model folder opened to be asked: weights, tokenizer, how its pictures are sized,
 * where its answers end. What `treb generate` and `treb eval` have in common.
 *
 *   config_default(&recipe);
 *   TRY(lora_source_resolve(&recipe));                    a folder with an adapter means its base with it
 *   TRY(predict_read_pixel_bounds(&recipe, dir));             as the folder's processor file sizes pictures
 *   TRY(predict_open(&p, &recipe));                recipe.model names the folder
 *   TRY(predict_load(&p, &budget, room, log));     engine and weights */
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
    LoraSource    lora;                  /* of lora.path; rank 0: none */
    PatchShape    patch;
    int32_t       stop[MAX_STOPS];       /* the end of a turn, and what generation_config.json adds */
    int           stops;
    Engine        e;
} Predictor;

/* image.min_pixels and image.max_pixels from dir/preprocessor_config.json, where there is one. */
MUST Status predict_read_pixel_bounds(Config *recipe, const char *dir);

MUST Status predict_open(Predictor *p, const Config *recipe);              /* recipe outlives p */
MUST Status predict_load(Predictor *p, const Budget *b, DecodeCapacity room, const Log *log);
void        predict_close(Predictor *p);                                   /* twice is fine */

#endif
