/* ops/normal.cu -- kernel of normal.c: a thread draws one block of four, the host's arithmetic word for
 * word. */
#include "ops/cuda.cuh"

#include "base/rng.h"

template <class T> static __global__ void draw(T *y, int64_t n, uint64_t seed, uint64_t stream, float std)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t b = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; b * 4 < n; b += step) {
        float four[4];
        rng_normals(four, rng_block(seed, stream, (uint64_t)b));
        for (int i = 0; i < 4; i++)
            if (b * 4 + i < n) y[b * 4 + i] = from_f32<T>(0.0f + std * four[i]);
    }
}

extern "C" void cuda_normal(Backend *be, Tensor y, uint64_t seed, uint64_t stream, float std)
{
    int64_t n = t_count(y);
    BY_DTYPE(y.dtype, T,
             LAUNCH(be, "normal", draw<T>, cuda_blocks(be, n, 1024, 8), 256, 0, (T *)y.data, n, seed, stream,
                    std));
}
