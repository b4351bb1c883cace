/* ops/cuda/grouped_fp8.h -- the fast kernel of grouped_gemm_fp8 (grouped_fp8.cu). */
#ifndef OPS_CUDA_GROUPED_FP8_H
#define OPS_CUDA_GROUPED_FP8_H

#include "ops/cuda/cuda.cuh"

/* c in bf16, rows of all operands on 16 bytes; false: other operands, nothing was done. */
bool grouped_fp8(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor offsets);

#endif
