/* ops/cuda/normal.cu -- kernels of normal.c: a thread draws one block of four numbers with the arithmetic of
 * the CPU. A row may begin and end inside a block. */
#include "ops/cuda/cuda.cuh"

#include "base/rng.h"

namespace {

struct Normals  { __device__ void operator()(float *four, Rng4 b) const { rng_normals(four, b); } };
struct Uniforms {                                            /* between -1 and 1, exact */
    __device__ void operator()(float *four, Rng4 b) const
    {
        for (int k = 0; k < 4; k++) four[k] = 2.0f * rng_unit(b.v[k]) - 1.0f;
    }
};

template <class T, class Numbers>
static __global__ void draw(T *y, int64_t rows, int64_t cols, uint64_t seed, uint64_t stream, uint64_t first,
                            int64_t stride, float spread, Numbers numbers)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x, per = (cols + 6) / 4;      /* blocks a row may touch */
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows * per; i += step) {
        float four[4];
        int64_t  r = i / per, b = i % per;
        uint64_t begin = first + (uint64_t)(r * stride);
        int64_t  c = 4 * b - (int64_t)(begin % 4);
        if (c >= cols) continue;
        numbers(four, rng_block(seed, stream, begin / 4 + (uint64_t)b));
        for (int k = 0; k < 4; k++)
            if (c + k >= 0 && c + k < cols) y[r * cols + c + k] = from_f32<T>(0.0f + spread * four[k]);
    }
}

template <class Numbers>
static void launch(Backend *be, const char *name, Tensor y, uint64_t seed, uint64_t stream, uint64_t first,
                   int64_t stride, float spread, Numbers numbers)
{
    int64_t cols = y.n[y.rank - 1], rows = cols ? t_count(y) / cols : 0;
    int64_t blocks = cuda_blocks(be, rows * ((cols + 6) / 4) * 4, 1024, 8);
    BY_DTYPE(y.dtype, T,
             LAUNCH(be, name, (draw<T, Numbers>), blocks, 256, 0, (T *)y.data, rows, cols, seed, stream,
                    first, stride, spread, numbers));
}

}

extern "C" void cuda_normal(Backend *be, Tensor y, uint64_t seed, uint64_t stream, uint64_t first,
                            int64_t stride, float std)
{
    launch(be, "normal", y, seed, stream, first, stride, std, Normals());
}

extern "C" void cuda_uniform(Backend *be, Tensor y, uint64_t seed, uint64_t stream, uint64_t first,
                             int64_t stride, float bound)
{
    launch(be, "uniform", y, seed, stream, first, stride, bound, Uniforms());
}
