/* nn/fp8_weight.h -- weights in e4m3 (ops/quantize.c), as they are and transposed, kept from step to step.
 *
 * Codes are made once whenever the weight has changed, in place of once a product; they take two bytes a
 * parameter and the scales. A weight without them is quantised by its products. */
#ifndef NN_FP8_WEIGHT_H
#define NN_FP8_WEIGHT_H

#include "nn/param.h"

/* Memory for them; the whole of p is on this rank. */
void fp8_weight_open(Param *p, Arena *a, bool transposed);
void fp8_weight_refresh(Backend *be, const Param *p);        /* of p->shard.w; nothing without copies */

#endif
