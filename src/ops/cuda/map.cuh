/* ops/cuda/map.cuh -- elementwise kernels: y from one or two inputs.
 *
 * map_rows(be, op, f, y, a, b) runs y = f(a, b) for ranks 1 to 3; with IN = 1 b is not read. Dense tensors
 * are walked as one row. A thread holds several units of 16 bytes at once and has read all of them before it
 * writes one, so y may alias an input. Odd strides and other mixtures of dtypes go element by element. */
#ifndef OPS_CUDA_MAP_CUH
#define OPS_CUDA_MAP_CUH

#include "ops/cuda/rows.cuh"

enum { MAP_THREADS = 256, MAP_UNITS = 4 };                  /* units of all inputs a thread holds */

/* Item i of rows of `per` items each: its row, and its column. */
__device__ inline int64_t split_item(int64_t i, int64_t per, int64_t all, int64_t *col)
{
    int64_t row = divide(i, per, all);
    *col = i - row * per;
    return row;
}

/* The address of unit i of U elements. Recomputed for each access, which saves registers for units. */
template <int U, class T> __device__ inline T *item_of(RowView v, int64_t i, int64_t per, int64_t rows)
{
    int64_t col;
    if (rows == 1) return (T *)v.p + i * U;
    int64_t row = split_item(i, per, rows * per, &col);
    return (T *)v.p + view_row(v, row) + col * U;
}

template <class F, class Y, class X, int IN>
static __global__ void __launch_bounds__(MAP_THREADS, 4) map_units(F f, RowView y, RowView a, RowView b,
                                                                   int64_t rows, int64_t width)
{
    constexpr int U = Wide<Y, X>::U, K = MAP_UNITS / IN;
    int64_t    per = width / U, all = rows * per;
    int64_t    first = (int64_t)blockIdx.x * (MAP_THREADS * K) + threadIdx.x;
    Unit<X, U> ua[K], ub[K];
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t i = first + k * MAP_THREADS;
        if (i >= all) continue;
        ua[k] = unit_stream<U>(item_of<U, const X>(a, i, per, rows));
        if (IN == 2) ub[k] = unit_stream<U>(item_of<U, const X>(b, i, per, rows));
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t i = first + k * MAP_THREADS;
        if (i >= all) continue;
        float v[U];
#pragma unroll
        for (int j = 0; j < U; j++) v[j] = f(unit_get(ua[k], j), IN == 2 ? unit_get(ub[k], j) : 0.0f);
        unit_store<U>(item_of<U, Y>(y, i, per, rows), v);
    }
    int64_t last = per * U + threadIdx.x;                   /* a dense tensor's odd end */
    if (blockIdx.x == 0 && rows == 1 && last < width)
        ((Y *)y.p)[last] = from_f32<Y>(f(to_f32(((const X *)a.p)[last]),
                                         IN == 2 ? to_f32(((const X *)b.p)[last]) : 0.0f));
}

template <class F, int IN>
static __global__ void map_any(F f, RowView y, RowView a, RowView b, int64_t rows, int64_t width)
{
    int64_t all = rows * width, first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, col;
    for (int64_t i = first; i < all; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = split_item(i, width, all, &col);
        float   va = view_get(a, view_row(a, row) + col);
        float   vb = IN == 2 ? view_get(b, view_row(b, row) + col) : 0.0f;
        view_put(y, view_row(y, row) + col, f(va, vb));
    }
}

/* A dense tensor as one row. */
static inline Tensor flat_of(Tensor t)
{
    int64_t n = t_count(t);
    return t_wrap(t.data, (DType)t.dtype, 1, &n);
}

/* One row may have an odd end, several may not. */
static inline bool units_fit(Tensor t)
{
    return t.rank == 1 ? (intptr_t)t.data % 16 == 0 : packs(t);
}

template <class F, class Y, class X, int IN>
static void map_launch(Backend *be, const char *op, F f, Tensor y, Tensor a, Tensor b)
{
    int64_t rows = count_rows(y), width = y.n[y.rank - 1], units = rows * (width / Wide<Y, X>::U);
    int64_t blocks = ceil_div(units, MAP_THREADS * (MAP_UNITS / IN));
    LAUNCH(be, op, (map_units<F, Y, X, IN>), blocks > 0 ? blocks : 1, MAP_THREADS, 0, f, view_of(y),
           view_of(a), view_of(b), rows, width);
}

template <int IN, class F>
static void map_rows(Backend *be, const char *op, F f, Tensor y, Tensor a, Tensor b)
{
    if (!t_count(y)) return;
    if (t_dense(y) && t_dense(a) && (IN == 1 || t_dense(b)))
        y = flat_of(y), a = flat_of(a), b = IN == 1 ? b : flat_of(b);
    bool fast = units_fit(y) && units_fit(a) && (IN == 1 || (units_fit(b) && b.dtype == a.dtype));
    if (fast && y.dtype == F32 && a.dtype == F32)        map_launch<F, float, float, IN>(be, op, f, y, a, b);
    else if (fast && y.dtype == BF16 && a.dtype == BF16) map_launch<F, bf16, bf16, IN>(be, op, f, y, a, b);
    else if (fast && y.dtype == BF16)                    map_launch<F, bf16, float, IN>(be, op, f, y, a, b);
    else if (fast)                                       map_launch<F, float, bf16, IN>(be, op, f, y, a, b);
    else
        LAUNCH(be, op, (map_any<F, IN>), cuda_blocks(be, t_count(y), 256, 16), 256, 0, f, view_of(y),
               view_of(a), view_of(b), count_rows(y), y.n[y.rank - 1]);
}

#endif
