/* ops/dropout.cu -- kernel of dropout.c: a thread draws one block of four numbers and treats their elements.
 * Blocks are of the stream, so a row may begin and end inside one; where every row begins with one, the four
 * are read and written at once. */
#include "ops/cuda.cuh"

#include "base/rng.h"

typedef struct Chance { uint64_t seed, stream, first, least; int64_t stride; float scale; } Chance;

/* Not contracted to one rounding: the host's bits. */
__device__ inline float thinned(float x, uint32_t number, const Chance &h)
{
    return number >= h.least ? __fmul_rn(x, h.scale) : 0.0f;
}

template <class Y, class X, bool ADD>
static __global__ void thin(Y *y, int64_t ys, const X *x, int64_t xs, int64_t rows, int64_t cols, Chance h)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x, per = (cols + 6) / 4;      /* blocks a row may touch */
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows * per; i += step) {
        int64_t  r = i / per, b = i % per;
        uint64_t begin = h.first + (uint64_t)(r * h.stride);
        int64_t  c = 4 * b - (int64_t)(begin % 4);
        if (c >= cols) continue;
        Rng4 four = rng_block(h.seed, h.stream, begin / 4 + (uint64_t)b);
        for (int k = 0; k < 4; k++) {
            if (c + k < 0 || c + k >= cols) continue;
            float v = thinned(to_f32(x[r * xs + c + k]), four.v[k], h);
            Y    *at = &y[r * ys + c + k];
            *at = from_f32<Y>(ADD ? __fadd_rn(to_f32(*at), v) : v);
        }
    }
}

template <class Y, class X, bool ADD>
static __global__ void thin_fours(Y *y, int64_t ys, const X *x, int64_t xs, int64_t rows, int64_t cols,
                                  Chance h)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x, per = cols / 4;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows * per; i += step) {
        int64_t    r = i / per, b = i % per;
        Vec<X, 4>  in = *(const Vec<X, 4> *)(x + r * xs + 4 * b);
        Vec<Y, 4> *at = (Vec<Y, 4> *)(y + r * ys + 4 * b), out;
        if (ADD) out = *at;
        Rng4 four = rng_block(h.seed, h.stream, (h.first + (uint64_t)(r * h.stride)) / 4 + (uint64_t)b);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float v = thinned(to_f32(in.v[k]), four.v[k], h);
            out.v[k] = from_f32<Y>(ADD ? __fadd_rn(to_f32(out.v[k]), v) : v);
        }
        *at = out;
    }
}

template <class Y, class X, bool ADD> static void launch(Backend *be, Tensor y, Tensor x, Chance h)
{
    int64_t rows = x.n[0], cols = x.n[1], blocks = cuda_blocks(be, rows * (cols + 6), 1024, 16);
    if (packs(x) && packs(y) && h.first % 4 == 0 && h.stride % 4 == 0)
        LAUNCH(be, "dropout", (thin_fours<Y, X, ADD>), blocks, 256, 0, (Y *)y.data, y.s[0],
               (const X *)x.data, x.s[0], rows, cols, h);
    else
        LAUNCH(be, "dropout", (thin<Y, X, ADD>), blocks, 256, 0, (Y *)y.data, y.s[0], (const X *)x.data,
               x.s[0], rows, cols, h);
}

extern "C" void cuda_dropout(Backend *be, Tensor y, Tensor x, float p, uint64_t seed, uint64_t stream,
                             int64_t first, int64_t stride, bool add)
{
    Chance h = { seed, stream, (uint64_t)first, (uint64_t)((double)p * 0x1p32), stride, 1.0f / (1.0f - p) };
    if (!x.n[0] || !x.n[1]) return;
    BY_DTYPE(y.dtype, Y, BY_DTYPE(x.dtype, X, {
        if (add) launch<Y, X, true>(be, y, x, h);
        else     launch<Y, X, false>(be, y, x, h);
    }));
}
