/* train/lr.h -- the learning rate of a step: warm-up, then a decay that ends with the run.
 *
 * Steps s count from 1 to S. Over W warm-up steps the rate is peak s / W: the first step has a rate above 0
 * and step W has the peak. After the warm-up, with p = (s - 1 - W) / (S - W), which stays below 1,
 *   cosine     floor + (peak - floor) (1 + cos pi p) / 2
 *   linear     floor + (peak - floor) (1 - p)
 *   constant   peak
 *   wsd        peak, then linear to floor over the last fifth of the run
 * so no step has a rate of 0. A group's floor is min_lr, or its peak where that is lower. */
#ifndef TRAIN_LR_H
#define TRAIN_LR_H

#include "base/config.h"
#include "nn/param.h"

typedef enum { LR_COSINE, LR_LINEAR, LR_CONSTANT, LR_WSD } LrShape;

typedef struct Lr {
    LrShape shape;
    double  peak[GROUP_N], floor;
    int64_t steps, warmup;
} Lr;

/* steps: of the whole run. */
MUST Status lr_open(Lr *lr, const struct cfg_optim *o, int64_t steps);
double      lr_at(const Lr *lr, Group g, int64_t step);

#endif
