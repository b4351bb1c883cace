/* ops/cuda/rows.cuh -- what the row-wise kernels share: rows of any dtype and stride, rows in registers,
 * units of 16 bytes, and the ordered sum of the parts that blocks leave in the workspace.
 *
 * An op has a fast kernel for rows of one dtype that can be walked by Pack, and a plain kernel over RowViews
 * for every other mixture that its contract allows. */
#ifndef OPS_CUDA_ROWS_CUH
#define OPS_CUDA_ROWS_CUH

#include "ops/cuda/cuda.cuh"

/* Sums over rows are split among this many blocks for each that a multiprocessor holds. It is a constant, not
 * the GPU's number of multiprocessors: the order of sums depends on shapes only. */
enum { SPLIT = 132 };

/* Rows of a tensor of rank 1 to 3, f32 or bf16; p is NULL for an absent tensor. */
typedef struct RowView { char *p; int64_t s0, s1, n1; bool f32; } RowView;

static inline RowView view_of(Tensor t)
{
    RowView v = { (char *)t.data, 0, 0, 1, t.dtype == F32 };
    if (t.rank >= 2) v.s0 = t.s[0];
    if (t.rank == 3) v.s1 = t.s[1], v.n1 = t.n[1];
    return v;
}
static inline int64_t count_rows(Tensor t)
{
    return t.rank == 3 ? t.n[0] * t.n[1] : t.rank == 2 ? t.n[0] : 1;
}

/* Absent, or of this dtype and walkable by Pack. */
static inline bool packs_as(Tensor t, int dtype) { return !t_has(t) || (t.dtype == dtype && packs(t)); }

/* dst (1, count) += parts, block by block in a fixed order; part b starts at part + b * width. */
void parts_add(Backend *be, const char *op, Tensor dst, const float *part, int64_t blocks, int64_t width);

#ifdef __CUDACC__

__device__ inline int64_t view_row(RowView v, int64_t row)               /* in elements */
{
    return v.n1 == 1 ? row * v.s0 : row / v.n1 * v.s0 + row % v.n1 * v.s1;
}
__device__ inline float view_get(RowView v, int64_t at)
{
    return v.f32 ? ((const float *)v.p)[at] : to_f32(((const bf16 *)v.p)[at]);
}
__device__ inline void view_put(RowView v, int64_t at, float x)
{
    if (v.f32) ((float *)v.p)[at] = x;
    else       ((bf16 *)v.p)[at] = from_f32<bf16>(x);
}
template <class T> __device__ inline T *row_of(RowView v, int64_t row) { return (T *)v.p + view_row(v, row); }

/* n / d for n below `all`: most counts fit 32 bits, where division is cheap. */
__device__ inline int64_t divide(int64_t n, int64_t d, int64_t all)
{
    return all <= UINT32_MAX ? (int64_t)((uint32_t)n / (uint32_t)d) : n / d;
}

/* Two sums over a block with the barriers of one; `part` is 64 floats of shared memory. */
__device__ inline float2 block_sum2(float x, float y, float *part)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    x = warp_sum(x), y = warp_sum(y);
    __syncthreads();
    if (!lane) part[warp] = x, part[32 + warp] = y;
    __syncthreads();
    x = lane < warps ? part[lane] : 0.0f, y = lane < warps ? part[32 + lane] : 0.0f;
    return make_float2(warp_sum(x), warp_sum(y));
}

template <class T> __device__ inline float rounded(float x) { return to_f32(from_f32<T>(x)); }

/* A Pack of rounded floats. */
template <class T> __device__ inline Pack<T> pack_of(const float *x);
template <> __device__ inline Pack<float> pack_of<float>(const float *x)
{
    return Pack<float>{ { x[0], x[1], x[2], x[3] } };
}
template <> __device__ inline Pack<bf16> pack_of<bf16>(const float *x)
{
    Pack<bf16> y;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        __nv_bfloat162 two = __floats2bfloat162_rn(x[i], x[i + 1]);
        y.v[i] = two.x, y.v[i + 1] = two.y;
    }
    return y;
}

/* U elements of any dtype, in whole Packs: where f32 and bf16 meet, 8. */
template <class T, int U> struct Unit { Pack<T> k[U / Pack<T>::N]; };

template <int U, class T> __device__ inline Unit<T, U> unit_stream(const T *p)
{
    Unit<T, U> u;
#pragma unroll
    for (int i = 0; i < U / Pack<T>::N; i++) u.k[i] = pack_stream(p + i * Pack<T>::N);
    return u;
}
template <int U, class T> __device__ inline Unit<T, U> unit_load(const T *p)
{
    Unit<T, U> u;
#pragma unroll
    for (int i = 0; i < U / Pack<T>::N; i++) u.k[i] = pack_load(p + i * Pack<T>::N);
    return u;
}
template <class T, int U> __device__ inline float unit_get(const Unit<T, U> &u, int i)
{
    return to_f32(u.k[i / Pack<T>::N].v[i % Pack<T>::N]);
}
template <int U, class T> __device__ inline void unit_store(T *p, const float *x)
{
#pragma unroll
    for (int i = 0; i < U; i += Pack<T>::N) pack_store(p + i, pack_of<T>(x + i));
}
template <class A, class B> struct Wide {
    static constexpr int U = sizeof(A) == 2 || sizeof(B) == 2 ? 8 : 4;
};

/* The threads that hold a row: a warp, or the whole block. Pack k of a thread is pack first + k * step of the
 * row. */
template <bool BLOCK> struct Team {
    int     first, step;
    int64_t row;
    __device__ Team()
    {
        first = BLOCK ? threadIdx.x : threadIdx.x & 31;
        step  = BLOCK ? blockDim.x : 32;
        row   = BLOCK ? blockIdx.x : (int64_t)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    }
    __device__ float sum(float x, float *part) const { return BLOCK ? block_sum(x, part) : warp_sum(x); }
};

#endif

/* Launch configuration for rows of `packs` Packs held in registers; fits: false if they are too long. */
typedef struct RowLayout { bool fits, block; int threads, each; int64_t blocks; } RowLayout;

static inline RowLayout layout_of(int64_t rows, int64_t packs)
{
    RowLayout l = { true, packs > 256, 128, 0, 0 };
    while (l.block && packs > 8 * l.threads && l.threads < 256) l.threads *= 2;
    l.fits   = packs <= 8 * 256;
    l.each   = (int)ceil_div(packs, l.block ? l.threads : 32);
    l.blocks = l.block ? rows : ceil_div(rows, l.threads / 32);
    return l;
}

/* BY_PACKS(count, N, statement): the statement with N as a constant not below count, 8 at most. */
#define BY_PACKS(count, N, ...)                                        \
    do {                                                               \
        int packs_ = (count);                                          \
        if (packs_ <= 1)      { constexpr int N = 1; __VA_ARGS__; }    \
        else if (packs_ <= 2) { constexpr int N = 2; __VA_ARGS__; }    \
        else if (packs_ <= 3) { constexpr int N = 3; __VA_ARGS__; }    \
        else if (packs_ <= 5) { constexpr int N = 5; __VA_ARGS__; }    \
        else                  { constexpr int N = 8; __VA_ARGS__; }    \
    } while (0)

/* Launch configuration of a backward that holds a row in a warp, or one of more than `most` Packs a lane in a
 * block with two Packs a thread, and sums over rows in registers. As many blocks as fit on the GPU at once
 * walk all rows: by their registers, 8 to 24 warps a multiprocessor, or 576 threads. */
typedef struct RowWalk { bool fits, block; int threads, each; int64_t blocks; } RowWalk;

static inline RowWalk walk_of(int64_t rows, int64_t packs, int most)
{
    RowWalk w = { packs <= 2 * 512, packs > most * 32, 256, (int)ceil_div(packs, 32), 0 };
    if (w.block && w.fits) w.threads = (int)ceil_div(ceil_div(packs, 2), 32) * 32;
    int64_t held = w.block ? 576 / w.threads : w.each > 2 ? 1 : 4 - w.each;
    w.blocks = min_i64(w.block ? rows : ceil_div(rows, w.threads / 32), SPLIT * (held > 0 ? held : 1));
    return w;
}

#endif
