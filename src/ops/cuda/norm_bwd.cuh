/* ops/cuda/norm_bwd.cuh -- backward of layernorm.c (MEAN) and rmsnorm.c (no mean, no bias): the same kernels.
 *
 * A block holds one row in registers and walks every gridDim.x-th row. It loads the next row while it
 * computes the current one, sums dw (and db) over its rows in registers and at the end writes them as one
 * part of the workspace; parts_add sums the parts in order. Mixed dtypes, odd widths and unaligned rows take
 * backward_any.
 *
 *   z = (x - m) r, or x r without a mean      g = w dy
 *   layer norm:  dx = r (g - mean(g) - z mean(g z))        RMS norm:  dx = r g - x (r^3 / D) sum(g x) */
#ifndef OPS_CUDA_NORM_BWD_CUH
#define OPS_CUDA_NORM_BWD_CUH

#include "ops/cuda/rows.cuh"

/* A row of stat is (m, r) with a mean, else (r). A part holds D sums for dw, then with a mean D for db. */
typedef struct NormGrad {
    RowView      dx, dy, x, w, dres;
    const float *stat;
    float       *part;
    int64_t      stat_stride, T, D;
    bool         sums;                       /* dw or db is wanted */
} NormGrad;

/* A thread's share of one row, and the row's statistics. */
template <class T, int N> struct NormRow { Pack<T> dy[N], x[N], dres[N]; float m, r; };

template <bool MEAN, class T, int N>
__device__ inline void norm_row_load(NormRow<T, N> &row, const NormGrad &a, int64_t t, int packs)
{
    constexpr int E = Pack<T>::N;
    const T      *dy = row_of<T>(a.dy, t), *x = row_of<T>(a.x, t), *dres = row_of<T>(a.dres, t);
#pragma unroll
    for (int k = 0; k < N; k++) {
        int p = threadIdx.x + k * blockDim.x;
        if (p >= packs) continue;
        row.dy[k] = pack_stream(dy + p * E);
        row.x[k]  = pack_stream(x + p * E);
        if (a.dres.p) row.dres[k] = pack_stream(dres + p * E);
    }
    if (MEAN) row.m = a.stat[t * a.stat_stride];
    row.r = a.stat[t * a.stat_stride + MEAN];
}

/* The two factors of dx that a row's sums of g (x) and of g (x - m) (y) give: mean(g) and mean(g z), or
 * (r^3 / D) sum(g x) in y. */
template <bool MEAN> __device__ inline float2 norm_factors(float2 sum, float r, int64_t D)
{
    return MEAN ? make_float2(sum.x / (float)D, sum.y * r / (float)D)
                : make_float2(0.0f, r * r * r / (float)D * sum.y);
}
template <bool MEAN>
__device__ inline float norm_input_grad(float dy, float x, float w, float m, float r, float2 f)
{
    return MEAN ? r * (w * dy - f.x - (x - m) * r * f.y) : r * (w * dy) - x * f.y;
}
template <bool MEAN> __device__ inline float2 norm_row_sums(float g, float gz, float *part)
{
    return MEAN ? block_sum2(g, gz, part) : make_float2(0.0f, block_sum(gz, part));
}

template <bool MEAN, class T, int N>
static __global__ void __maxnreg__(N == 1 ? 80 : 112) norm_bwd_packs(NormGrad a)
{
    __shared__ float part[64];
    constexpr int    E = Pack<T>::N;
    int              packs = (int)(a.D / E);
    Pack<T>          w[N];
    float            dw[N][E] = {}, db[N][E] = {};
    NormRow<T, N>    row, next;                             /* next: where there are registers for it */
#pragma unroll
    for (int k = 0; k < N; k++)
        if ((int)(threadIdx.x + k * blockDim.x) < packs)
            w[k] = pack_load((const T *)a.w.p + (threadIdx.x + k * blockDim.x) * E);
    if (N == 1) norm_row_load<MEAN>(next, a, blockIdx.x, packs);
    for (int64_t t = blockIdx.x; t < a.T; t += gridDim.x) {
        if (N == 1) row = next;
        else        norm_row_load<MEAN>(row, a, t, packs);
        if (N == 1 && t + gridDim.x < a.T) norm_row_load<MEAN>(next, a, t + gridDim.x, packs);
        float g = 0.0f, gz = 0.0f;
#pragma unroll
        for (int k = 0; k < N; k++)
            if ((int)(threadIdx.x + k * blockDim.x) < packs)
#pragma unroll
                for (int i = 0; i < E; i++) {
                    float dy = to_f32(row.dy[k].v[i]), z = to_f32(row.x[k].v[i]) - (MEAN ? row.m : 0.0f);
                    float gi = to_f32(w[k].v[i]) * dy;
                    dw[k][i] += dy * (z * row.r);
                    if (MEAN) db[k][i] += dy, g += gi;
                    gz += gi * z;
                }
        if (!a.dx.p) continue;
        float2 f = norm_factors<MEAN>(norm_row_sums<MEAN>(g, gz, part), row.r, a.D);
        T     *dx = row_of<T>(a.dx, t);
#pragma unroll
        for (int k = 0; k < N; k++) {
            int p = threadIdx.x + k * blockDim.x;
            if (p >= packs) continue;
            float v[E];
#pragma unroll
            for (int i = 0; i < E; i++) {
                v[i] = norm_input_grad<MEAN>(to_f32(row.dy[k].v[i]), to_f32(row.x[k].v[i]), to_f32(w[k].v[i]),
                                             row.m, row.r, f);
                if (a.dres.p) v[i] += to_f32(row.dres[k].v[i]);
            }
            pack_store(dx + p * E, pack_of<T>(v));
        }
    }
    if (!a.sums) return;
#pragma unroll
    for (int k = 0; k < N; k++) {
        int    p = threadIdx.x + k * blockDim.x;
        float *to = a.part + blockIdx.x * (1 + MEAN) * a.D + p * E;
        if (p >= packs) continue;
#pragma unroll
        for (int i = 0; i < E; i += 4) {
            pack_store(to + i, pack_of<float>(dw[k] + i));
            if (MEAN) pack_store(to + a.D + i, pack_of<float>(db[k] + i));
        }
    }
}

/* Column i always belongs to the same thread, which may therefore add to its part, and dx may alias dy. */
template <bool MEAN> static __global__ void norm_bwd_any(NormGrad a)
{
    __shared__ float part[64];
    float           *dw = a.part + blockIdx.x * (1 + MEAN) * a.D, *db = dw + a.D;
    for (int64_t t = blockIdx.x; t < a.T; t += gridDim.x) {
        int64_t dx = view_row(a.dx, t), dy = view_row(a.dy, t);
        int64_t x = view_row(a.x, t), dres = view_row(a.dres, t);
        float   m = MEAN ? a.stat[t * a.stat_stride] : 0.0f, r = a.stat[t * a.stat_stride + MEAN];
        float   g = 0.0f, gz = 0.0f;
        bool    first = t == blockIdx.x;
        for (int64_t i = threadIdx.x; i < a.D; i += blockDim.x) {
            float d = view_get(a.dy, dy + i), z = view_get(a.x, x + i) - m, gi = view_get(a.w, i) * d;
            g += gi, gz += gi * z;
            if (!a.sums) continue;
            dw[i] = (first ? 0.0f : dw[i]) + d * (z * r);
            if (MEAN) db[i] = (first ? 0.0f : db[i]) + d;
        }
        if (!a.dx.p) continue;
        float2 f = norm_factors<MEAN>(norm_row_sums<MEAN>(g, gz, part), r, a.D);
        for (int64_t i = threadIdx.x; i < a.D; i += blockDim.x) {
            float v = norm_input_grad<MEAN>(view_get(a.dy, dy + i), view_get(a.x, x + i), view_get(a.w, i), m,
                                            r, f);
            view_put(a.dx, dx + i, a.dres.p ? view_get(a.dres, dres + i) + v : v);
        }
    }
}

/* Without MEAN stat is (T, 1) and db is absent. */
template <bool MEAN>
static void norm_backward(Backend *be, const char *op, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x,
                          Tensor w, Tensor stat, Tensor dres)
{
    NormGrad a = { view_of(dx), view_of(dy), view_of(x), view_of(w), view_of(dres), (const float *)stat.data,
                   NULL, stat.s[0], x.n[0], x.n[1], t_has(dw) || t_has(db) };
    if (!a.T || !(t_has(dx) || a.sums)) return;
    RowWalk walk = walk_of(a.T, ceil_div(a.D * (int64_t)dtype_size((DType)x.dtype), 16));
    int64_t width = (1 + MEAN) * a.D;
    int     d = x.dtype;
    if (a.sums) a.part = (float *)cuda_workspace(be, (size_t)(walk.blocks * width) * 4);
    if (be->sticky) return;
    if (!walk.fits || !packs(x) || !packs_as(dx, d) || !packs_as(dy, d) || !packs_as(dres, d) ||
        !packs_as(w, d))
        LAUNCH(be, op, norm_bwd_any<MEAN>, walk.blocks, 256, 0, a);
    else if (walk.each == 1)
        BY_DTYPE(d, T, LAUNCH(be, op, (norm_bwd_packs<MEAN, T, 1>), walk.blocks, walk.threads, 0, a));
    else
        BY_DTYPE(d, T, LAUNCH(be, op, (norm_bwd_packs<MEAN, T, 2>), walk.blocks, walk.threads, 0, a));
    if (t_has(dw)) parts_add(be, op, dw, a.part, walk.blocks, width);
    if (t_has(db)) parts_add(be, op, db, a.part + a.D, walk.blocks, width);
}

#endif
