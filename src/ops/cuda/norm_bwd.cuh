/* ops/cuda/norm_bwd.cuh -- backward of layernorm.c (MEAN) and rmsnorm.c (no mean, no bias): the same kernels.
 *
 * A warp holds one row in registers, or a block a wide one, and walks rows at a fixed distance. It sums dw
 * (and db) over its rows in registers; the warps of a block add their sums in order, and each block writes
 * one part of the workspace; parts_add sums the parts in order. Rows in warps need no barrier, and the rows
 * of the warps of a multiprocessor are enough loads in flight. Mixed dtypes, odd widths and unaligned rows
 * take norm_bwd_any.
 *
 *   z = (x - m) r, or x r without a mean      g = w dy
 *   layer norm:  dx = r (g - mean(g) - z mean(g z))        RMS norm:  dx = r g - x (r^3 / D) sum(g x) */
#ifndef OPS_CUDA_NORM_BWD_CUH
#define OPS_CUDA_NORM_BWD_CUH

#include "ops/cuda/rows.cuh"

/* The most Packs of a row that a lane's registers hold beside its sums. */
template <bool MEAN> constexpr int norm_packs_most() { return MEAN ? 5 : 8; }

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

template <bool MEAN, bool BLOCK, class T, int N>
__device__ inline void norm_row_load(NormRow<T, N> &row, const NormGrad &a, const Team<BLOCK> &team,
                                     int64_t t, int packs)
{
    constexpr int E = Pack<T>::N;
    const T      *dy = row_of<T>(a.dy, t), *x = row_of<T>(a.x, t), *dres = row_of<T>(a.dres, t);
#pragma unroll
    for (int k = 0; k < N; k++) {
        int p = team.first + k * team.step;
        if (p >= packs) continue;
        row.dy[k] = pack_stream(dy + p * E);
        row.x[k]  = pack_stream(x + p * E);
        if (a.dres.p) row.dres[k] = pack_stream(dres + p * E);
    }
    if (MEAN) row.m = a.stat[t * a.stat_stride];
    row.r = a.stat[t * a.stat_stride + MEAN];
}

/* Hides from the compiler that the packs of a row are what was read before: else it keeps them unpacked, in
 * twice the registers, over the sum of the row. */
template <class T, int N> __device__ inline void packs_keep(Pack<T> (&x)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) {
        int4 *v = (int4 *)&x[k];
        asm volatile("" : "+r"(v->x), "+r"(v->y), "+r"(v->z), "+r"(v->w));
    }
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
template <bool MEAN, bool BLOCK> __device__ inline float2 norm_row_sums(float g, float gz, float *part)
{
    if (BLOCK && MEAN) return block_sum2(g, gz, part);
    return make_float2(MEAN ? warp_sum(g) : 0.0f, BLOCK ? block_sum(gz, part) : warp_sum(gz));
}

/* The sums of a thread's columns over its rows. */
template <int N, int E> struct NormSums { float dw[N][E], db[N][E]; };

/* Adds a row to the sums; returns the thread's share of the row's sums of g and of g (x - m). */
template <bool MEAN, class T, int N>
__device__ inline float2 norm_row_terms(NormSums<N, Pack<T>::N> &sums, const NormRow<T, N> &row,
                                        const Pack<T> (&w)[N], int first, int step, int packs)
{
    float g = 0.0f, gz = 0.0f;
#pragma unroll
    for (int k = 0; k < N; k++) {
        if (first + k * step >= packs) continue;
#pragma unroll
        for (int i = 0; i < Pack<T>::N; i++) {
            float dy = to_f32(row.dy[k].v[i]), z = to_f32(row.x[k].v[i]) - (MEAN ? row.m : 0.0f);
            float gi = to_f32(w[k].v[i]) * dy;
            sums.dw[k][i] += dy * (z * row.r);
            if (MEAN) sums.db[k][i] += dy, g += gi;
            gz += gi * z;
        }
    }
    return make_float2(g, gz);
}

/* The parts of a block's warps, one after the other, as the block's part. */
template <bool MEAN, int N, int E>
__device__ inline void norm_warps_store(const NormSums<N, E> &sums, float *part, int packs, int64_t D)
{
    extern __shared__ float columns[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = (1 + MEAN) * (int)D;
    for (int turn = 0; turn < (int)blockDim.x / 32; turn++) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            if (warp != turn || lane + k * 32 >= packs) continue;
#pragma unroll
            for (int i = 0; i < E; i++) {
                float *to = columns + (lane + k * 32) * E + i;
                *to = (turn ? *to : 0.0f) + sums.dw[k][i];
                if (MEAN) to[D] = (turn ? to[D] : 0.0f) + sums.db[k][i];
            }
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < width; i += blockDim.x) part[i] = columns[i];
}

template <bool MEAN, int N, int E>
__device__ inline void norm_block_store(const NormSums<N, E> &sums, float *part, int packs, int64_t D)
{
#pragma unroll
    for (int k = 0; k < N; k++) {
        int    p = threadIdx.x + k * blockDim.x;
        float *to = part + p * E;
        if (p >= packs) continue;
#pragma unroll
        for (int i = 0; i < E; i += 4) {
            pack_store(to + i, pack_of<float>(sums.dw[k] + i));
            if (MEAN) pack_store(to + D + i, pack_of<float>(sums.db[k] + i));
        }
    }
}

template <bool MEAN, bool BLOCK, class T, int N>
static __global__ void __maxnreg__(BLOCK ? 112 : 248) norm_bwd_packs(NormGrad a)
{
    __shared__ float  part[64];
    constexpr int     E = Pack<T>::N;
    const Team<BLOCK> team;
    int               packs = (int)(a.D / E);
    int64_t           apart = BLOCK ? gridDim.x : (int64_t)gridDim.x * (blockDim.x / 32);
    Pack<T>           w[N];
    NormSums<N, E>    sums = {};
    NormRow<T, N>     row;
#pragma unroll
    for (int k = 0; k < N; k++)
        if (team.first + k * team.step < packs)
            w[k] = pack_load((const T *)a.w.p + (team.first + k * team.step) * E);
    for (int64_t t = team.row; t < a.T; t += apart) {
        norm_row_load<MEAN>(row, a, team, t, packs);
        float2 own = norm_row_terms<MEAN>(sums, row, w, team.first, team.step, packs);
        if (!a.dx.p) continue;
        packs_keep(row.dy), packs_keep(row.x), packs_keep(w);
        float2 f = norm_factors<MEAN>(norm_row_sums<MEAN, BLOCK>(own.x, own.y, part), row.r, a.D);
        T     *dx = row_of<T>(a.dx, t);
#pragma unroll
        for (int k = 0; k < N; k++) {
            int p = team.first + k * team.step;
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
    float *to = a.part + blockIdx.x * (1 + MEAN) * a.D;
    if (BLOCK) norm_block_store<MEAN>(sums, to, packs, a.D);
    else       norm_warps_store<MEAN>(sums, to, packs, a.D);
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
        float2 f = norm_factors<MEAN>(norm_row_sums<MEAN, true>(g, gz, part), r, a.D);
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
    RowWalk walk = walk_of(a.T, ceil_div(a.D * (int64_t)dtype_size((DType)x.dtype), 16),
                           norm_packs_most<MEAN>());
    int64_t width = (1 + MEAN) * a.D;
    int     d = x.dtype;
    bool    fast = walk.fits && packs(x) && packs_as(dx, d) && packs_as(dy, d) && packs_as(dres, d) &&
                   packs_as(w, d);
    if (!fast) walk.blocks = min_i64(a.T, 3 * SPLIT);
    if (a.sums) a.part = (float *)cuda_workspace(be, (size_t)(walk.blocks * width) * 4);
    if (be->sticky) return;
    if (!fast)
        LAUNCH(be, op, norm_bwd_any<MEAN>, walk.blocks, 256, 0, a);
    else if (walk.block)
        BY_DTYPE(d, T, LAUNCH(be, op, (norm_bwd_packs<MEAN, true, T, 2>), walk.blocks, walk.threads, 0, a));
    else
        BY_DTYPE(d, T, BY_PACKS(walk.each, N,
            constexpr int M = N < norm_packs_most<MEAN>() ? N : norm_packs_most<MEAN>();
            LAUNCH(be, op, (norm_bwd_packs<MEAN, false, T, M>), walk.blocks, walk.threads, width * 4, a)));
    if (t_has(dw)) parts_add(be, op, dw, a.part, walk.blocks, width);
    if (t_has(db)) parts_add(be, op, db, a.part + a.D, walk.blocks, width);
}

#endif
