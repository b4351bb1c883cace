/* ops/cuda/product_fp8.h -- calls of the e4m3 products as kernel sets get them (kernel_set.cuh). */
#ifndef OPS_CUDA_PRODUCT_FP8_H
#define OPS_CUDA_PRODUCT_FP8_H

#include "ops/cuda/cuda.cuh"

/* gemm_fp8 and grouped_gemm_fp8. Absent: offsets, then one b is for all rows; bias and res. The fast kernels
 * take c, bias and res in bf16, rows of all operands on 16 bytes. */
typedef struct Fp8Call { Tensor c, a, sa, b, sb, offsets, bias, res; } Fp8Call;

/* grouped_swiglu_fp8. */
typedef struct SwigluFp8Call { Tensor gu, h, hq, hs, a, sa, w, sw, offsets, gate; bool pow2; } SwigluFp8Call;

#endif
