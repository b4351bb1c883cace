/* ops/cpu/cpu_quant.h -- quantisation of a row, for the ops that quantise what they write. */
#ifndef OPS_CPU_QUANT_H
#define OPS_CPU_QUANT_H

#include "ops/quant.h"

/* Row r of q and its scales, column r of `scale`, from x in f32 (quantize.c). */
void cpu_quantize_row(Tensor q, Tensor scale, const float *x, int64_t r, bool pow2);

#endif
