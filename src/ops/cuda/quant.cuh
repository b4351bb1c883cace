/* ops/cuda/quant.cuh -- codes of ops/quant.h by the GPU's own conversion, which gives the same bits; before
 * compute capability 8.9 there is none. */
#ifndef OPS_CUDA_QUANT_CUH
#define OPS_CUDA_QUANT_CUH

#include "ops/cuda/cuda.cuh"
#include "ops/quant.h"

__device__ inline uint32_t e4m3_pair(float low, float high)
{
#if __CUDA_ARCH__ >= 890
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    return two;
#else
    return e4m3_from_f32(low) | (uint32_t)e4m3_from_f32(high) << 8;
#endif
}
/* Codes of four elements, the first in the lowest byte. */
__device__ inline uint32_t e4m3_four(float a, float b, float c, float d)
{
    return e4m3_pair(a, b) | e4m3_pair(c, d) << 16;
}

/* The largest of `lanes` neighbouring lanes, a power of two. */
template <int LANES> __device__ inline uint32_t lanes_max(uint32_t x)
{
    #pragma unroll
    for (int o = LANES / 2; o; o >>= 1) x = max(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

/* The sum over the same. */
template <int LANES> __device__ inline float lanes_sum(float x)
{
    #pragma unroll
    for (int o = LANES / 2; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    return x;
}

#endif
