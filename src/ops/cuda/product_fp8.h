/* ops/cuda/product_fp8.h -- calls of the e4m3 products as kernel sets get them (kernel_set.cuh). */
#ifndef OPS_CUDA_PRODUCT_FP8_H
#define OPS_CUDA_PRODUCT_FP8_H

#include "ops/cuda/cuda.cuh"

/* gemm_fp8 and grouped_gemm_fp8. Absent: offsets, then one b is for all rows; bias and res. The fast kernels
 * take c, bias and res in bf16, rows of all operands on 16 bytes. */
typedef struct Fp8Call { Tensor c, a, sa, b, sb, offsets, bias, res; } Fp8Call;

/* grouped_swiglu_fp8. */
typedef struct SwigluFp8Call {
    Tensor gu, h, hq, hs, a, sa, w, sw, offsets, gate;
    bool   stores_h;
} SwigluFp8Call;

/* The squares of grouped_dw_fp8, from c as it is stored. */
void dw_fp8_squares(Backend *be, Tensor squares, Tensor c);

/* grouped_dw_fp8. The fast kernels take rows of codes and of c on 16 bytes. */
typedef struct DwFp8Call { Tensor c, squares; ColumnCodes a, b; Tensor offsets; bool add; } DwFp8Call;

#endif
