/* train/flops.h -- the matrix work that a micro-batch needs, by part of the model, from counts alone.
 *
 * This is the model's work and nothing else: no masked tail, no replay, causal attention by its exact pairs,
 * the vision tower by its patches. MFU is this over time; what was done in fact is in the ledger, which
 * equals it when a stream fills its budgets and nothing is replayed (tests/test_flops.c). */
#ifndef TRAIN_FLOPS_H
#define TRAIN_FLOPS_H

#include "model/model.h"

typedef struct Load {                    /* of one micro-batch */
    int64_t tokens, patches, supervised;
    double  pairs, vpairs;               /* attending (query, key) pairs: text, vision */
} Load;

typedef struct Flops { double part[PART_N]; } Flops;

Load  load_of(const Stream *s);
Flops flops_forward(const ModelShape *m, const Load *l);
/* Forward and backward. A frozen part costs its forward, and the gradient through it where something before
 * it trains; a part that no gradient reaches costs its forward alone. */
Flops flops_train(const ModelShape *m, const bool frozen[GROUP_N], const Load *l);

void   flops_add(Flops *sum, const Flops *f);
double flops_sum(const Flops *f);

#endif
