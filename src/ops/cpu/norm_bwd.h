/* ops/cpu/norm_bwd.h -- the backward pass that layernorm.c and rmsnorm.c share on the CPU. */
#ifndef OPS_CPU_NORM_BWD_H
#define OPS_CPU_NORM_BWD_H

#include "ops/cpu/cpu_rows.h"

/* mean: stat is (T, 2), the mean m and the inverse deviation r of a row; else (T, 1), r alone, and db is
 * absent. */
typedef struct NormBwd { Tensor dx, dw, db, dy, x, w, stat, dres; bool mean; } NormBwd;

/* dx of one row, without dres. dx may alias dy. */
typedef void NormInputGrad(float *dx, const float *dy, const float *x, const float *w, float m, float r,
                           int64_t n);

/* dx = [dres] + input_grad, dw += sum of dy (x - m) r, db += sum of dy; dx, dw and db may be absent. */
void norm_backward(Backend *be, const char *op, const NormBwd *norm, NormInputGrad *input_grad);

#endif
