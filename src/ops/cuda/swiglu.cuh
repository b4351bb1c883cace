/* ops/cuda/swiglu.cuh -- one element of swiglu.c, for the kernels that compute it: alone (swiglu.cu) or at
 * the end of a product (grouped_fused.cu). */
#ifndef OPS_CUDA_SWIGLU_CUH
#define OPS_CUDA_SWIGLU_CUH

#include "ops/cuda/cuda.cuh"

/* T: the type that what it is a factor of is rounded to. For bf16 the GPU's own power of two will do, whose
 * argument has an error of 1e-7 |x|. */
template <class T> __device__ inline float exp_for(float x);
template <> __device__ inline float exp_for<float>(float x) { return expf(x); }
template <> __device__ inline float exp_for<bf16>(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}

template <class T> __device__ inline float sigmoid(float x)
{
    float s, y = 1.0f + exp_for<T>(-x);
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(y));       /* y >= 1; 0 where it is 1e38 and more */
    return s;
}

template <class T> __device__ inline float swiglu(float g, float u, float gate)
{
    return g * sigmoid<T>(g) * u * gate;
}

/* dg and du; returns what the element adds to dgate. */
template <class T>
__device__ inline float dswiglu(float *dg, float *du, float dh, float g, float u, float gate)
{
    float s = sigmoid<T>(g), d = dh * gate;
    *dg = d * u * s * (1.0f + g * (1.0f - s));
    *du = d * g * s;
    return dh * (g * s * u);
}

/* swiglu_bwd of rows *from .. *used - 1, addresses of the device; NULL: from 0; of all. */
void swiglu_bwd_used(Backend *be, Tensor dgu, Tensor dgate, Tensor dh, Tensor gu, Tensor gate,
                     const int *used, const int *from);

#endif
