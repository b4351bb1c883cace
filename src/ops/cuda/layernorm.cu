/* ops/cuda/layernorm.cu -- kernels of layernorm.c: a row lies in the registers of a warp, wide ones in those of a
 * block.
 *
 * Forward reads x once: the mean and then the squares around it are summed over registers. Backward holds a
 * row in a block; the blocks walk all rows, bring the next row while they work on this one, and keep their
 * sums for dw and db in registers, one part of 2 D floats each in the workspace at the end. Mixed dtypes, odd
 * widths and unaligned rows go through the plain kernels, one block a row. */
#include "ops/cuda/rows.cuh"

typedef struct Forward {
    View    y, x, w, b;
    float  *stat;
    int64_t stat_stride, T, D;
    float   eps;
} Forward;

template <class T, int N, bool BLOCK> static __global__ void __launch_bounds__(256) forward_packs(Forward a)
{
    __shared__ float part[32];
    constexpr int    E = Pack<T>::N;
    Team<BLOCK> team;
    int64_t     t = team.row;
    int         packs = (int)(a.D / E);
    Pack<T>     x[N];
    float       s = 0.0f, q = 0.0f;
    if (t >= a.T) return;
    const T *in = row_of<T>(a.x, t), *w = (const T *)a.w.p, *b = (const T *)a.b.p;
#pragma unroll
    for (int k = 0; k < N; k++)
        if (team.first + k * team.step < packs) x[k] = pack_stream(in + (team.first + k * team.step) * E);
#pragma unroll
    for (int k = 0; k < N; k++)
        if (team.first + k * team.step < packs)
#pragma unroll
            for (int i = 0; i < E; i++) s += to_f32(x[k].v[i]);
    float m = team.sum(s, part) / (float)a.D;
#pragma unroll
    for (int k = 0; k < N; k++)
        if (team.first + k * team.step < packs)
#pragma unroll
            for (int i = 0; i < E; i++) q += (to_f32(x[k].v[i]) - m) * (to_f32(x[k].v[i]) - m);
    float r = 1.0f / sqrtf(team.sum(q, part) / (float)a.D + a.eps);
    T    *y = row_of<T>(a.y, t);
    if (!team.first) a.stat[t * a.stat_stride] = m, a.stat[t * a.stat_stride + 1] = r;
#pragma unroll
    for (int k = 0; k < N; k++) {
        int p = team.first + k * team.step;
        if (p >= packs) continue;
        Pack<T> wk = pack_load(w + p * E), bk = pack_load(b + p * E);
        float   v[E];
#pragma unroll
        for (int i = 0; i < E; i++) v[i] = (to_f32(x[k].v[i]) - m) * r * to_f32(wk.v[i]) + to_f32(bk.v[i]);
        pack_store(y + p * E, pack_of<T>(v));
    }
}

static __global__ void forward_any(Forward a)
{
    __shared__ float part[32];
    int64_t t = blockIdx.x, x = view_row(a.x, t), y = view_row(a.y, t);
    float   s = 0.0f, q = 0.0f;
    for (int64_t i = threadIdx.x; i < a.D; i += blockDim.x) s += view_get(a.x, x + i);
    float m = block_sum(s, part) / (float)a.D;
    for (int64_t i = threadIdx.x; i < a.D; i += blockDim.x) {
        float v = view_get(a.x, x + i) - m;
        q += v * v;
    }
    float r = 1.0f / sqrtf(block_sum(q, part) / (float)a.D + a.eps);
    if (!threadIdx.x) a.stat[t * a.stat_stride] = m, a.stat[t * a.stat_stride + 1] = r;
    for (int64_t i = threadIdx.x; i < a.D; i += blockDim.x)
        view_put(a.y, y + i, (view_get(a.x, x + i) - m) * r * view_get(a.w, i) + view_get(a.b, i));
}

extern "C" void cuda_layernorm_fwd(Backend *be, Tensor y, Tensor stat, Tensor x, Tensor w, Tensor b,
                                   float eps)
{
    Forward a = { view_of(y), view_of(x), view_of(w), view_of(b), (float *)stat.data, stat.s[0], x.n[0],
                  x.n[1], eps };
    if (!a.T) return;
    Layout l = layout_of(a.T, ceil_div(a.D * (int64_t)dtype_size((DType)x.dtype), 16));
    int    d = x.dtype;
    if (!l.fits || !packs(x) || !packs_as(y, d) || !packs_as(w, d) || !packs_as(b, d)) {
        LAUNCH(be, "layernorm_fwd", forward_any, a.T, 256, 0, a);
        return;
    }
    BY_DTYPE(d, T, BY_PACKS(l.each, N,
        if (l.block) LAUNCH(be, "layernorm_fwd", (forward_packs<T, N, true>), l.blocks, l.threads, 0, a);
        else         LAUNCH(be, "layernorm_fwd", (forward_packs<T, N, false>), l.blocks, l.threads, 0, a)));
}

typedef struct Backward {
    View         dx, dy, x, w, dres;
    const float *stat;
    float       *part;                  /* gridDim.x rows of D sums for dw and D for db */
    int64_t      stat_stride, T, D;
    bool         sums;
} Backward;

/* With its statistics. */
template <class T, int N> struct Row : GradRow<T, N> { float m, r; };

template <class T, int N>
__device__ inline void row_bring(Row<T, N> &row, const Backward &a, int64_t t, int packs)
{
    grad_row_bring(row, a.dy, a.x, a.dres, t, packs);
    row.m = a.stat[t * a.stat_stride], row.r = a.stat[t * a.stat_stride + 1];
}

/* mean: of g and of g * z, see layernorm.c. */
template <class T, int N>
__device__ inline void row_input_grad(const Row<T, N> &row, const Pack<T> *w, const Backward &a, int64_t t,
                                      float2 mean, int packs)
{
    constexpr int E = Pack<T>::N;
    T            *dx = row_of<T>(a.dx, t);
#pragma unroll
    for (int k = 0; k < N; k++) {
        int p = threadIdx.x + k * blockDim.x;
        if (p >= packs) continue;
        float v[E];
#pragma unroll
        for (int i = 0; i < E; i++) {
            float z = (to_f32(row.x[k].v[i]) - row.m) * row.r;
            v[i] = row.r * (to_f32(w[k].v[i]) * to_f32(row.dy[k].v[i]) - mean.x - z * mean.y);
            if (a.dres.p) v[i] += to_f32(row.dres[k].v[i]);
        }
        pack_store(dx + p * E, pack_of<T>(v));
    }
}

template <class T, int N> static __global__ void __maxnreg__(N == 1 ? 80 : 112) backward_packs(Backward a)
{
    __shared__ float part[64];
    constexpr int    E = Pack<T>::N;
    int              packs = (int)(a.D / E);
    Pack<T>          w[N];
    float            dw[N][E] = {}, db[N][E] = {};
    Row<T, N>        row, next;                             /* next: where there are registers for it */
#pragma unroll
    for (int k = 0; k < N; k++)
        if ((int)(threadIdx.x + k * blockDim.x) < packs)
            w[k] = pack_load((const T *)a.w.p + (threadIdx.x + k * blockDim.x) * E);
    if (N == 1) row_bring(next, a, blockIdx.x, packs);
    for (int64_t t = blockIdx.x; t < a.T; t += gridDim.x) {
        if (N == 1) row = next;
        else        row_bring(row, a, t, packs);
        if (N == 1 && t + gridDim.x < a.T) row_bring(next, a, t + gridDim.x, packs);
        float g = 0.0f, gz = 0.0f;
#pragma unroll
        for (int k = 0; k < N; k++)
            if ((int)(threadIdx.x + k * blockDim.x) < packs)
#pragma unroll
                for (int i = 0; i < E; i++) {
                    float dy = to_f32(row.dy[k].v[i]), z = to_f32(row.x[k].v[i]) - row.m;
                    float gi = to_f32(w[k].v[i]) * dy;
                    dw[k][i] += dy * (z * row.r);
                    db[k][i] += dy;
                    g += gi, gz += gi * z;
                }
        if (!a.dx.p) continue;
        float2 sum = block_sum2(g, gz, part);
        row_input_grad(row, w, a, t, make_float2(sum.x / (float)a.D, sum.y * row.r / (float)a.D), packs);
    }
    if (!a.sums) return;
#pragma unroll
    for (int k = 0; k < N; k++) {
        int    p = threadIdx.x + k * blockDim.x;
        float *to = a.part + blockIdx.x * 2 * a.D + p * E;
        if (p >= packs) continue;
#pragma unroll
        for (int i = 0; i < E; i += 4) {
            pack_store(to + i, pack_of<float>(dw[k] + i));
            pack_store(to + a.D + i, pack_of<float>(db[k] + i));
        }
    }
}

/* Column i is always the same thread's: it may add to its part, and dx may lie over dy. */
static __global__ void backward_any(Backward a)
{
    __shared__ float part[64];
    float           *dw = a.part + blockIdx.x * 2 * a.D, *db = dw + a.D;
    for (int64_t t = blockIdx.x; t < a.T; t += gridDim.x) {
        int64_t dx = view_row(a.dx, t), dy = view_row(a.dy, t);
        int64_t x = view_row(a.x, t), dres = view_row(a.dres, t);
        float   m = a.stat[t * a.stat_stride], r = a.stat[t * a.stat_stride + 1], g = 0.0f, gz = 0.0f;
        bool    fresh = t == blockIdx.x;
        for (int64_t i = threadIdx.x; i < a.D; i += blockDim.x) {
            float d = view_get(a.dy, dy + i), z = view_get(a.x, x + i) - m, gi = view_get(a.w, i) * d;
            g += gi, gz += gi * z;
            if (!a.sums) continue;
            dw[i] = (fresh ? 0.0f : dw[i]) + d * (z * r);
            db[i] = (fresh ? 0.0f : db[i]) + d;
        }
        if (!a.dx.p) continue;
        float2 sum = block_sum2(g, gz, part);
        float  mg = sum.x / (float)a.D, mz = sum.y * r / (float)a.D;
        for (int64_t i = threadIdx.x; i < a.D; i += blockDim.x) {
            float z = (view_get(a.x, x + i) - m) * r;
            float v = r * (view_get(a.w, i) * view_get(a.dy, dy + i) - mg - z * mz);
            view_put(a.dx, dx + i, a.dres.p ? view_get(a.dres, dres + i) + v : v);
        }
    }
}

extern "C" void cuda_layernorm_bwd(Backend *be, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x,
                                   Tensor w, Tensor stat, Tensor dres)
{
    Backward a = { view_of(dx), view_of(dy), view_of(x), view_of(w), view_of(dres), (const float *)stat.data,
                   NULL, stat.s[0], x.n[0], x.n[1], t_has(dw) || t_has(db) };
    if (!a.T || !(t_has(dx) || a.sums)) return;
    Walk walk = walk_of(a.T, ceil_div(a.D * (int64_t)dtype_size((DType)x.dtype), 16));
    int  d = x.dtype;
    if (a.sums) a.part = (float *)cuda_workspace(be, (size_t)(walk.blocks * 2 * a.D) * 4);
    if (be->sticky) return;
    if (!walk.fits || !packs(x) || !packs_as(dx, d) || !packs_as(dy, d) || !packs_as(dres, d) ||
        !packs_as(w, d))
        LAUNCH(be, "layernorm_bwd", backward_any, walk.blocks, 256, 0, a);
    else if (walk.each == 1)
        BY_DTYPE(d, T, LAUNCH(be, "layernorm_bwd", (backward_packs<T, 1>), walk.blocks, walk.threads, 0, a));
    else
        BY_DTYPE(d, T, LAUNCH(be, "layernorm_bwd", (backward_packs<T, 2>), walk.blocks, walk.threads, 0, a));
    if (t_has(dw)) parts_add(be, "layernorm_bwd", dw, a.part, walk.blocks, 2 * a.D);
    if (t_has(db)) parts_add(be, "layernorm_bwd", db, a.part + a.D, walk.blocks, 2 * a.D);
}
