/* ops/gemm_fused.cuh -- products that do the work of an op before or after them on the way.
 *
 *   gemm_residual   y = a b' + bias + res                        res another tensor than y: no copy before
 *   gemm_gelu       pre = a b' + bias, y = gelu(pre)             tanh form
 *   gemm_dgelu      dpre = (dy w) * gelu'(pre)                   tanh form
 *   gemm_bgrad      dw (+)= dy' x, db += column sums of dy       GEMM_ACC in flags: dw is added to
 *
 * Shapes, strides and dtypes as in gemm.c and gelu.c. Where cuBLASLt has no algorithm, the separate ops run;
 * which of the two depends on the shape alone. Fused, gelu sees the f32 sum before it is rounded into pre, so
 * its last bit may differ from the separate ops. */
#ifndef OPS_GEMM_FUSED_CUH
#define OPS_GEMM_FUSED_CUH

#include "ops/cuda.cuh"

void gemm_residual(Backend *be, Tensor y, Tensor res, Tensor a, Tensor b, Tensor bias);
void gemm_gelu(Backend *be, Tensor y, Tensor pre, Tensor a, Tensor b, Tensor bias);
void gemm_dgelu(Backend *be, Tensor dpre, Tensor dy, Tensor w, Tensor pre);
void gemm_bgrad(Backend *be, Tensor dw, Tensor db, Tensor dy, Tensor x, int flags);

#endif
