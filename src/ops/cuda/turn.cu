/* ops/cuda/turn.cu -- kernels of turn.c: a warp per row and head of the output, any strides and dtypes; where
 * all have one dtype and start on 16 bytes, a thread per two Packs of a row and head. */
#include "ops/cuda/rows.cuh"

namespace {

enum { WARPS = 8, THREADS = 256 };

typedef struct Turn { RowView y, x; const float *cs; int64_t cs_stride, rows; int H, Hx, R; bool pairs;
                      } Turn;

/* Components p and q of pair j. */
static __device__ inline int pair_first(const Turn &a, int j)  { return a.pairs ? 2 * j : j; }
static __device__ inline int pair_second(const Turn &a, int j) { return a.pairs ? 2 * j + 1 : a.R / 2 + j; }

/* E pairs from pair j on, in two Packs: neighbours, or one of each half. */
template <class T> struct Pairs {
    static constexpr int E = Pack<T>::N;
    float u[E], v[E];

    static __device__ inline int second(const Turn &a) { return a.pairs ? E : a.R / 2; }

    __device__ inline void add(const Turn &a, const T *row)
    {
        Pack<T> k[2] = { pack_load(row), pack_load(row + second(a)) };
#pragma unroll
        for (int i = 0; i < E; i++) {
            u[i] += a.pairs ? to_f32(k[2 * i / E].v[2 * i % E]) : to_f32(k[0].v[i]);
            v[i] += a.pairs ? to_f32(k[(2 * i + 1) / E].v[(2 * i + 1) % E]) : to_f32(k[1].v[i]);
        }
    }
    __device__ inline void put(const Turn &a, T *row) const
    {
        float out[2][E];
#pragma unroll
        for (int i = 0; i < E; i++) {
            if (a.pairs) out[2 * i / E][2 * i % E] = u[i], out[(2 * i + 1) / E][(2 * i + 1) % E] = v[i];
            else         out[0][i] = u[i], out[1][i] = v[i];
        }
        pack_store(row, pack_of<T>(out[0])), pack_store(row + second(a), pack_of<T>(out[1]));
    }
    /* By the angle of each pair; BACK: the other way. */
    template <bool BACK> __device__ inline void turn(const float *c, const float *s)
    {
#pragma unroll
        for (int i = 0; i < E; i++) {
            float x = u[i], y = v[i], sine = BACK ? -s[i] : s[i];
            u[i] = x * c[i] - y * sine, v[i] = y * c[i] + x * sine;
        }
    }
};

/* Backward with one head of y: heads of x are summed. */
template <class T, bool BACK> static __global__ void __launch_bounds__(THREADS) turn_packs(Turn a)
{
    constexpr int E = Pack<T>::N;
    int     per = a.R / 2 / E;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, r = divide(i, per, a.rows * per), t;
    if (r >= a.rows) return;
    t = divide(r, a.H, a.rows);
    int j = (int)(i - r * per) * E, at = pair_first(a, j), each = BACK && a.Hx != a.H ? a.Hx : 1;
    const float *cs = a.cs + t * a.cs_stride;
    Pairs<T> p = {};
    for (int h = 0; h < each; h++)
        p.add(a, row_of<T>(a.x, BACK ? r * each + h : a.Hx == a.H ? r : t) + at);
    p.template turn<BACK>(cs + j, cs + a.R / 2 + j);
    p.put(a, row_of<T>(a.y, r) + at);
}

static __global__ void __launch_bounds__(32 * WARPS) turn_rows(Turn a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.rows) return;
    int64_t      y = view_row(a.y, r), x = view_row(a.x, a.Hx == a.H ? r : r / a.H);
    const float *cs = a.cs + r / a.H * a.cs_stride;
    for (int j = threadIdx.x & 31; j < a.R / 2; j += 32) {
        int   p = pair_first(a, j), q = pair_second(a, j);
        float u = view_get(a.x, x + p), v = view_get(a.x, x + q), c = cs[j], s = cs[a.R / 2 + j];
        view_put(a.y, y + p, u * c - v * s);
        view_put(a.y, y + q, v * c + u * s);
    }
}

/* y is dx, x is dy, whose heads are summed where dx has one. */
static __global__ void __launch_bounds__(32 * WARPS) turn_back(Turn a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.rows) return;
    int          each = a.Hx == a.H ? 1 : a.Hx;
    const float *cs = a.cs + r / a.H * a.cs_stride;
    for (int j = threadIdx.x & 31; j < a.R / 2; j += 32) {
        int   p = pair_first(a, j), q = pair_second(a, j);
        float u = 0.0f, v = 0.0f, c = cs[j], s = cs[a.R / 2 + j];
        for (int h = 0; h < each; h++) {
            int64_t x = view_row(a.x, r * each + h);
            u += view_get(a.x, x + p), v += view_get(a.x, x + q);
        }
        int64_t y = view_row(a.y, r);
        view_put(a.y, y + p, u * c + v * s);
        view_put(a.y, y + q, v * c - u * s);
    }
}

static Turn args_of(Tensor y, Tensor x, Tensor cs, bool pairs)
{
    Turn a = { view_of(y), view_of(x), (const float *)cs.data, cs.s[0], count_rows(y), (int)y.n[1],
               (int)x.n[1],
               (int)y.n[2], pairs };
    return a;
}

/* Two Packs of a row at a time: whole ones, in either half. */
static bool by_packs(Tensor y, Tensor x)
{
    int64_t wide = 16 / (int64_t)dtype_size((DType)y.dtype);
    return packs_as(y, y.dtype) && packs_as(x, y.dtype) && y.n[2] % (2 * wide) == 0;
}

static int64_t pack_blocks(const Turn &a, Tensor y)
{
    return ceil_div(a.rows * (a.R / 2 * (int64_t)dtype_size((DType)y.dtype) / 16), THREADS);
}

}

extern "C" void cuda_turn_fwd(Backend *be, Tensor y, Tensor x, Tensor cs, bool pairs)
{
    Turn a = args_of(y, x, cs, pairs);
    if (by_packs(y, x))
        BY_DTYPE(y.dtype, T,
            LAUNCH(be, "turn_fwd", (turn_packs<T, false>), pack_blocks(a, y), THREADS, 0, a));
    else
        LAUNCH(be, "turn_fwd", turn_rows, ceil_div(a.rows, WARPS), 32 * WARPS, 0, a);
}

extern "C" void cuda_turn_bwd(Backend *be, Tensor dx, Tensor dy, Tensor cs, bool pairs)
{
    Turn a = args_of(dx, dy, cs, pairs);
    if (by_packs(dx, dy))
        BY_DTYPE(dx.dtype, T,
            LAUNCH(be, "turn_bwd", (turn_packs<T, true>), pack_blocks(a, dx), THREADS, 0, a));
    else
        LAUNCH(be, "turn_bwd", turn_back, ceil_div(a.rows, WARPS), 32 * WARPS, 0, a);
}
