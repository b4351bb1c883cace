/* ops/cuda/gelu.cu -- kernels of gelu.c: its formulas, element by element through map.cuh.
 *
 * The exact form uses the CPU's own approximation of the normal distribution, as accurate as erff and with
 * its digits in the tail, where 1 + erf would cancel. */
#include "ops/gelu.h"
#include "ops/cuda/map.cuh"

namespace {

/* P(x); also returns exp(-x^2/2) in *bell. */
__device__ static inline float normal_below(float x, float *bell)
{
    float t = fabsf(x), k = GELU_BEND * t, v = __fdividef(k, 1.0f + k), e = expf(-0.5f * x * x);
    float tail = e > 0.0f ? e * GELU_TAIL(v) : 0.0f;
    *bell = e;
    return x < 0.0f ? tail : 1.0f - tail;
}

/* sigmoid(2 z), z the argument of tanh, and its slope s (1 - s). */
__device__ static inline float tanh_sigmoid(float x, float *slope)
{
    float z = 2.0f * TANH_K * (x + TANH_CUBE * x * x * x);
    float e = expf(-fabsf(z)), d = __fdividef(1.0f, 1.0f + e);
    *slope = e * d * d;
    return z < 0.0f ? e * d : d;
}

struct TanhForward {
    __device__ float operator()(float x, float) const
    {
        float slope;
        return x * tanh_sigmoid(x, &slope);
    }
};
struct ErfForward {
    __device__ float operator()(float x, float) const
    {
        float bell;
        return x * normal_below(x, &bell);
    }
};
struct TanhBackward {
    __device__ float operator()(float dy, float x) const
    {
        float slope, s = tanh_sigmoid(x, &slope), dz = TANH_K * (1.0f + 3.0f * TANH_CUBE * x * x);
        return dy * (s + 2.0f * x * slope * dz);
    }
};
struct ErfBackward {
    __device__ float operator()(float dy, float x) const
    {
        float bell, p = normal_below(x, &bell);
        return dy * (p + x * DENSITY_0 * bell);
    }
};

}

extern "C" void cuda_gelu_fwd(Backend *be, Tensor y, Tensor x, Gelu kind)
{
    if (kind == GELU_TANH) map_rows<1>(be, "gelu_fwd", TanhForward{}, y, x, x);
    else                   map_rows<1>(be, "gelu_fwd", ErfForward{}, y, x, x);
}

extern "C" void cuda_gelu_bwd(Backend *be, Tensor dx, Tensor dy, Tensor x, Gelu kind)
{
    if (kind == GELU_TANH) map_rows<2>(be, "gelu_bwd", TanhBackward{}, dx, dy, x);
    else                   map_rows<2>(be, "gelu_bwd", ErfBackward{}, dx, dy, x);
}
