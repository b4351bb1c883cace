/* engine/flops.h -- FLOPs that the model needs for a micro-batch, by part of the model, from counts alone.
 *
 * Padding rows and recomputed work do not count; causal attention counts its exact pairs, the vision tower
 * its patches. MFU is these FLOPs over time. FLOPs that were executed are in the ledger, which equals these
 * when a stream fills its budgets and nothing is recomputed (tests/test_flops.c). */
#ifndef ENGINE_FLOPS_H
#define ENGINE_FLOPS_H

#include "model/model.h"

typedef struct Load {                    /* of one micro-batch */
    int64_t tokens, patches, supervised;
    double  pairs, vpairs;               /* attending (query, key) pairs: text, vision */
} Load;

typedef struct Flops { double part[PART_N]; } Flops;

/* FLOPs of one token, patch, supervised token, and pair. */
typedef struct Rates { Flops token, patch, supervised, pair, vpair; } Rates;
typedef struct ModelWork {
    Rates forward;
    Rates text, sees;                    /* forward and backward: text alone; text with pictures */
} ModelWork;

/* Rates of the whole model, also where a rank has a part of it. Backward takes the gradient of a weight that
 * trains, or of its adapters, and the gradient of its input where something before it trains (model/walk.h).
 * lora: NULL or of rank 0: none. */
MUST Status work_open(ModelWork *w, const ModelShape *s, const bool *frozen, const LoraConf *lora);

Load  load_of(const Stream *s);
Flops flops_forward(const ModelWork *w, const Load *l);
Flops flops_train(const ModelWork *w, const Load *l);

void   flops_add(Flops *sum, const Flops *f);
double flops_sum(const Flops *f);

#endif
