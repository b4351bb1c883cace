/* ops/cuda/elementwise.cu -- kernels of elementwise.c: fill by 16-byte stores, the others by map.cuh. */
#include "ops/cuda/map.cuh"

namespace {

/* Dense and on 16 bytes; E is an unsigned integer of the element's size. */
template <class E> static __global__ void __launch_bounds__(MAP_THREADS) fill_packs(E *y, E value, int64_t n)
{
    int64_t packs = n / Pack<E>::N, first = (int64_t)blockIdx.x * (MAP_THREADS * MAP_UNITS) + threadIdx.x;
    Pack<E> p;
#pragma unroll
    for (int i = 0; i < Pack<E>::N; i++) p.v[i] = value;
#pragma unroll
    for (int k = 0; k < MAP_UNITS; k++)
        if (first + k * MAP_THREADS < packs) pack_store(y + (first + k * MAP_THREADS) * Pack<E>::N, p);
    int64_t last = packs * Pack<E>::N + threadIdx.x;
    if (blockIdx.x == 0 && last < n) y[last] = value;
}

template <class E> static __global__ void fill_any(RowView y, E value, int64_t rows, int64_t width)
{
    int64_t all = rows * width, first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, col;
    for (int64_t i = first; i < all; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = split_item(i, width, all, &col);
        ((E *)y.p)[view_row(y, row) + col] = value;
    }
}

template <class E> static void fill(Backend *be, Tensor y, E value)
{
    int64_t n = t_count(y), blocks = ceil_div(n / Pack<E>::N, MAP_THREADS * MAP_UNITS);
    if (t_dense(y) && (intptr_t)y.data % 16 == 0)
        LAUNCH(be, "fill", fill_packs<E>, blocks > 0 ? blocks : 1, MAP_THREADS, 0, (E *)y.data, value, n);
    else
        LAUNCH(be, "fill", fill_any<E>, cuda_blocks(be, n, 256, 16), 256, 0, view_of(y), value, count_rows(y),
               y.n[y.rank - 1]);
}

}

extern "C" void cuda_fill(Backend *be, Tensor y, float value)
{
    union { float f; int32_t i; uint32_t bits; } v32 = { value };
    union { double f; uint64_t bits; } v64 = { (double)value };
    if (!t_count(y)) return;
    if (y.dtype == I32) v32.i = (int32_t)value;
    if (y.dtype == BF16)     fill<uint16_t>(be, y, bf16_from_f32(value));
    else if (y.dtype == F64) fill<uint64_t>(be, y, v64.bits);
    else                     fill<uint32_t>(be, y, v32.bits);
}

namespace {

struct Same { __device__ float operator()(float a, float) const { return a; } };
struct Sum { __device__ float operator()(float a, float b) const { return a + b; } };
struct Times { Factor c; __device__ float operator()(float a, float) const { return factor_value(c) * a; } };
struct Mix {
    Factor ca, cb;
    __device__ float operator()(float a, float b) const
    {
        return factor_value(ca) * a + factor_value(cb) * b;
    }
};

}

/* An i32 travels as the f32 of the same bits: moved, never computed with. */
extern "C" void cuda_copy(Backend *be, Tensor y, Tensor x)
{
    if (y.dtype == I32) y.dtype = x.dtype = F32;
    map_rows<1>(be, "copy", Same{}, y, x, x);
}

extern "C" void cuda_add(Backend *be, Tensor y, Tensor a, Tensor b)
{
    map_rows<2>(be, "add", Sum{}, y, a, b);
}

extern "C" void cuda_mix(Backend *be, Tensor y, Tensor a, Tensor b, Factor ca, Factor cb)
{
    if (factor_is(ca, 0.0f))      map_rows<1>(be, "mix", Times{ cb }, y, b, b);
    else if (factor_is(cb, 0.0f)) map_rows<1>(be, "mix", Times{ ca }, y, a, a);
    else                          map_rows<2>(be, "mix", Mix{ ca, cb }, y, a, b);
}
