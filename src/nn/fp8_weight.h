/* nn/fp8_weight.h -- weights in e4m3 (ops/quantize.c), as they are and transposed, kept from step to step.
 *
 * Copies are made once whenever the weight has changed, in place of once a product; they take two bytes a
 * parameter and the scales. A weight whose shard is gathered for use (ZeRO) has none: its products quantise
 * it. */
#ifndef NN_FP8_WEIGHT_H
#define NN_FP8_WEIGHT_H

#include "nn/param.h"

/* Memory for them; p->shard.w is whole. */
void fp8_weight_open(Param *p, Arena *a, bool transposed);
void fp8_weight_refresh(Backend *be, const Param *p);        /* of p->shard.w; nothing without copies */

#endif
