/* ops/cuda/weight_decode.cuh -- elements of frozen weights from their codes (weight_code.h), eight at a
 * time. */
#ifndef OPS_CUDA_WEIGHT_DECODE_CUH
#define OPS_CUDA_WEIGHT_DECODE_CUH

#include "ops/cuda/quant.cuh"
#include "ops/weight_code.h"

#include <cuda_fp16.h>

enum { UNIT = 8 };

namespace {

__constant__ float nf4_table[16] = {
#define X(v) v,
    NF4_VALUES(X)
#undef X
};
__constant__ float dynamic_table[DYNAMIC_ZERO] = {
#define X(v) v,
    DYNAMIC_VALUES(X)
#undef X
};

}

__device__ inline float dynamic_value(int code)
{
    if (code == 255) return 1.0f;
    return code > DYNAMIC_ZERO ? dynamic_table[code - DYNAMIC_ZERO - 1]
                               : code < DYNAMIC_ZERO ? -dynamic_table[DYNAMIC_ZERO - 1 - code] : 0.0f;
}

/* A weight (N, K) of a stack. */
struct Codes {
    const uint8_t *q;
    const void    *scale;
    const int     *first;
    const float2  *group;
    int            N, K;
};

static inline Codes codes_of(const WeightCodes &z)
{
    int r = z.q.rank;
    return { (const uint8_t *)z.q.data, z.scale.data, (const int *)z.first.data, (const float2 *)z.group.data,
             (int)z.q.n[r - 2], (int)(z.q.n[r - 1] * 8 / code_bits(z.format)) };
}

/* The tables in shared memory; values twice, for odd and even threads, against bank conflicts. */
struct Tables { float value[32], map[256]; };

template <int THREADS> __device__ inline void fill_tables(Tables &t)       /* by so many threads of a block */
{
    for (int i = threadIdx.x; i < 256; i += THREADS) t.map[i] = dynamic_value(i);
    if (threadIdx.x < 32) t.value[threadIdx.x] = nf4_table[threadIdx.x / 2];
}

__device__ inline int64_t row_of_stack(const Codes &d, int e, int row) { return (int64_t)e * d.N + row; }

__device__ inline float nf4_amax(const Codes &d, const Tables &t, int e, int row, int col)
{
    int64_t all = row_of_stack(d, e, row);
    float2  of = d.group[(2 * (int64_t)d.first[all] + col) / NF4_GROUP_ELEMS];
    int     code = ((const uint8_t *)d.scale)[(all * d.K + col) / NF4_BLOCK];
    return __fadd_rn(__fmul_rn(t.map[code], of.x), of.y);
}

__device__ inline float fp8_scale(const Codes &d, int e, int row, int col)
{
    int     bands = (d.N + QUANT_GROUP - 1) / QUANT_GROUP, across = (d.K + QUANT_GROUP - 1) / QUANT_GROUP;
    int64_t band = (int64_t)e * bands + row / QUANT_GROUP;
    return ((const float *)d.scale)[band * across + col / QUANT_GROUP];
}

/* The values of four codes; GPUs before 8.9 have no conversion. */
__device__ inline void e4m3_pairs(float *x, uint32_t four)
{
#if __CUDA_ARCH__ >= 890
    #pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t pair;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)(four >> 16 * k)));
        float2 v = __half22float2(*(const __half2 *)&pair);
        x[2 * k] = v.x, x[2 * k + 1] = v.y;
    }
#else
    #pragma unroll
    for (int k = 0; k < 4; k++) x[k] = e4m3_to_f32((uint8_t)(four >> 8 * k));
#endif
}

/* The scale of eight elements from column `col`, a multiple of 8, of a row of matrix e on: they share it. */
template <int FORMAT>
__device__ inline float unit_scale(const Codes &d, const Tables &t, int e, int row, int col)
{
    if (FORMAT == CODE_NF4)  return nf4_amax(d, t, e, row, col);
    if (FORMAT == CODE_INT8) return ((const float *)d.scale)[row_of_stack(d, e, row)];
    return fp8_scale(d, e, row, col);
}

/* The codes of eight elements from the i-th on, in 32 (nf4) or 64 bits. */
template <int FORMAT> __device__ inline uint2 unit_codes(const uint8_t *q, int64_t i)
{
    if (FORMAT == CODE_NF4) return make_uint2(*(const uint32_t *)(q + i / 2), 0);
    return *(const uint2 *)(q + i);
}

/* Their values without the scale; value: Tables.value, which nf4 needs. */
template <int FORMAT> __device__ inline void unit_values(float (&x)[UNIT], uint2 two, const float *value)
{
    if (FORMAT == CODE_NF4) {
        int odd = threadIdx.x & 1;
        #pragma unroll
        for (int k = 0; k < UNIT; k++)
            x[k] = value[(two.x >> (k / 2 * 8 + (k % 2 ? 0 : 4)) & 15) * 2 + odd];
    } else if (FORMAT == CODE_FP8) {
        e4m3_pairs(x, two.x), e4m3_pairs(x + 4, two.y);
    } else {
        #pragma unroll
        for (int k = 0; k < UNIT; k++) x[k] = (float)(int8_t)((k < 4 ? two.x : two.y) >> k % 4 * 8 & 255);
    }
}

/* Eight elements in bf16. */
template <int FORMAT>
__device__ inline uint4 unit_bf16(uint2 codes, float scale, const float *value = NULL)
{
    float          x[UNIT];
    __nv_bfloat162 out[UNIT / 2];
    unit_values<FORMAT>(x, codes, value);
    #pragma unroll
    for (int k = 0; k < UNIT / 2; k++) out[k] = __floats2bfloat162_rn(x[2 * k] * scale, x[2 * k + 1] * scale);
    return *(const uint4 *)out;
}

#endif
