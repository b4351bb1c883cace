/* ops/cuda/product_fp8.h -- the fast kernel of gemm_fp8 and grouped_gemm_fp8 (grouped_fp8.cu). */
#ifndef OPS_CUDA_PRODUCT_FP8_H
#define OPS_CUDA_PRODUCT_FP8_H

#include "ops/cuda/cuda.cuh"

/* Absent: offsets, then one b is for all rows; bias and res. */
typedef struct Fp8Call { Tensor c, a, sa, b, sb, offsets, bias, res; } Fp8Call;

/* c, bias and res in bf16, rows of all operands on 16 bytes; false: other operands, nothing was done. */
bool product_fp8(Backend *be, const char *what, Fp8Call x);

#endif
