/* engine/flops.h -- the matrix work that a micro-batch needs, by part of the model, from counts alone.
 *
 * This is the model's work and nothing else: no masked tail, no replay, causal attention by its exact pairs,
 * the vision tower by its patches. MFU is this over time; what was done in fact is in the ledger, which
 * equals it when a stream fills its budgets and nothing is replayed (tests/test_flops.c). */
#ifndef ENGINE_FLOPS_H
#define ENGINE_FLOPS_H

#include "model/model.h"

typedef struct Load {                    /* of one micro-batch */
    int64_t tokens, patches, supervised;
    double  pairs, vpairs;               /* attending (query, key) pairs: text, vision */
} Load;

typedef struct Flops { double part[PART_N]; } Flops;

/* What one of each costs. */
typedef struct Rates { Flops token, patch, supervised, pair, vpair; } Rates;
typedef struct ModelWork {
    Rates forward;
    Rates text, sees;                    /* forward and backward of text alone; of text with pictures */
} ModelWork;

/* Of the whole model, whatever part of it a rank has. Backward: a weight that trains has its gradient, one
 * with adapters theirs; and the gradient goes through it where something before it trains. What no gradient
 * reaches costs its forward alone. lora: NULL or of rank 0: none. */
MUST Status work_open(ModelWork *w, const ModelShape *s, const bool *frozen, const LoraConf *lora);

Load  load_of(const Stream *s);
Flops flops_forward(const ModelWork *w, const Load *l);
Flops flops_train(const ModelWork *w, const Load *l);

void   flops_add(Flops *sum, const Flops *f);
double flops_sum(const Flops *f);

#endif
