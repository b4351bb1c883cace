/* ops/cuda/rmsnorm.cu -- kernels of rmsnorm.c: a row lies in the registers of a warp, wide ones in those of a
 * block.
 *
 * Forward reads x (and res) once and writes once. Backward holds a row in a block; the blocks walk all rows,
 * bring the next row while they work on this one, and keep their sums for dw in registers, one part each in
 * the workspace at the end. Mixed dtypes, odd widths and unaligned rows go through the plain kernels, one
 * block a row. */
#include "ops/cuda/rows.cuh"

typedef struct Forward {
    View    y, sum, x, res, w;
    float  *rstd;
    int64_t rstd_stride, T, D;
    float   eps;
} Forward;

template <class T, int N, bool BLOCK> static __global__ void __launch_bounds__(256) forward_packs(Forward a)
{
    __shared__ float part[32];
    constexpr int    E = Pack<T>::N;
    Team<BLOCK> team;
    int64_t     t = team.row;
    int         packs = (int)(a.D / E);
    Pack<T>     u[N];
    float       s = 0.0f;
    if (t >= a.T) return;
    const T *x = row_of<T>(a.x, t);
#pragma unroll
    for (int k = 0; k < N; k++)
        if (team.first + k * team.step < packs) u[k] = pack_stream(x + (team.first + k * team.step) * E);
    if (a.res.p) {
        const T *res = row_of<T>(a.res, t);
        T       *sum = row_of<T>(a.sum, t);
        Pack<T>  r[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            if (team.first + k * team.step < packs)
                r[k] = pack_stream(res + (team.first + k * team.step) * E);
#pragma unroll
        for (int k = 0; k < N; k++) {
            int p = team.first + k * team.step;
            if (p >= packs) continue;
            float v[E];
#pragma unroll
            for (int i = 0; i < E; i++) v[i] = to_f32(u[k].v[i]) + to_f32(r[k].v[i]);
            u[k] = pack_of<T>(v);
            pack_store(sum + p * E, u[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        if (team.first + k * team.step < packs)
#pragma unroll
            for (int i = 0; i < E; i++) s += to_f32(u[k].v[i]) * to_f32(u[k].v[i]);
    float    r = 1.0f / sqrtf(team.sum(s, part) / (float)a.D + a.eps);
    T       *y = row_of<T>(a.y, t);
    const T *w = (const T *)a.w.p;
    if (!team.first) a.rstd[t * a.rstd_stride] = r;
#pragma unroll
    for (int k = 0; k < N; k++) {
        int p = team.first + k * team.step;
        if (p >= packs) continue;
        Pack<T> wk = pack_load(w + p * E);
        float   v[E];
#pragma unroll
        for (int i = 0; i < E; i++) v[i] = to_f32(wk.v[i]) * rounded<T>(to_f32(u[k].v[i]) * r);
        pack_store(y + p * E, pack_of<T>(v));
    }
}

/* A thread reads back only what it wrote itself. */
static __global__ void forward_any(Forward a)
{
    __shared__ float part[32];
    View    in = a.res.p ? a.sum : a.x;
    int64_t t = blockIdx.x, u = view_row(in, t), x = view_row(a.x, t), res = view_row(a.res, t);
    int64_t y = view_row(a.y, t);
    float   s = 0.0f;
    for (int64_t i = threadIdx.x; i < a.D; i += blockDim.x) {
        if (a.res.p) view_put(a.sum, u + i, view_get(a.x, x + i) + view_get(a.res, res + i));
        float v = view_get(in, u + i);
        s += v * v;
    }
    float r = 1.0f / sqrtf(block_sum(s, part) / (float)a.D + a.eps);
    if (!threadIdx.x) a.rstd[t * a.rstd_stride] = r;
    for (int64_t i = threadIdx.x; i < a.D; i += blockDim.x) {
        float z = view_get(in, u + i) * r;
        view_put(a.y, y + i, view_get(a.w, i) * (a.y.f32 ? z : rounded<bf16>(z)));
    }
}

extern "C" void cuda_rmsnorm_fwd(Backend *be, Tensor y, Tensor rstd, Tensor sum, Tensor x, Tensor res,
                                 Tensor w, float eps)
{
    Forward a = { view_of(y), view_of(sum), view_of(x), view_of(res), view_of(w), (float *)rstd.data,
                  rstd.s[0], x.n[0], x.n[1], eps };
    if (!a.T) return;
    Layout l = layout_of(a.T, ceil_div(a.D * (int64_t)dtype_size((DType)x.dtype), 16));
    int    d = x.dtype;
    if (!l.fits || !packs(x) || !packs_as(y, d) || !packs_as(sum, d) || !packs_as(res, d) ||
        !packs_as(w, d)) {
        LAUNCH(be, "rmsnorm_fwd", forward_any, a.T, 256, 0, a);
        return;
    }
    BY_DTYPE(d, T, BY_PACKS(l.each, N,
        if (l.block) LAUNCH(be, "rmsnorm_fwd", (forward_packs<T, N, true>), l.blocks, l.threads, 0, a);
        else         LAUNCH(be, "rmsnorm_fwd", (forward_packs<T, N, false>), l.blocks, l.threads, 0, a)));
}

typedef struct Backward {
    View         dx, dy, x, w, dres;
    const float *rstd;
    float       *part;                  /* gridDim.x rows of D; NULL: no dw */
    int64_t      rstd_stride, T, D;
    bool         dw;
} Backward;

/* With its statistic. */
template <class T, int N> struct Row : GradRow<T, N> { float r; };

template <class T, int N>
__device__ inline void row_bring(Row<T, N> &row, const Backward &a, int64_t t, int packs)
{
    grad_row_bring(row, a.dy, a.x, a.dres, t, packs);
    row.r = a.rstd[t * a.rstd_stride];
}

template <class T, int N>
__device__ inline void row_input_grad(const Row<T, N> &row, const Pack<T> *w, const Backward &a, int64_t t,
                                      float k3, int packs)
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
            v[i] = row.r * (to_f32(w[k].v[i]) * to_f32(row.dy[k].v[i])) - to_f32(row.x[k].v[i]) * k3;
            if (a.dres.p) v[i] += to_f32(row.dres[k].v[i]);
        }
        pack_store(dx + p * E, pack_of<T>(v));
    }
}

template <class T, int N> static __global__ void __maxnreg__(N == 1 ? 80 : 112) backward_packs(Backward a)
{
    __shared__ float part[32];
    constexpr int    E = Pack<T>::N;
    int              packs = (int)(a.D / E);
    Pack<T>          w[N];
    float            dw[N][E] = {};
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
        float s = 0.0f;
#pragma unroll
        for (int k = 0; k < N; k++)
            if ((int)(threadIdx.x + k * blockDim.x) < packs)
#pragma unroll
                for (int i = 0; i < E; i++) {
                    float g = to_f32(row.dy[k].v[i]), u = to_f32(row.x[k].v[i]);
                    dw[k][i] += g * (u * row.r);
                    s += g * to_f32(w[k].v[i]) * u;
                }
        if (!a.dx.p) continue;
        float k3 = row.r * row.r * row.r / (float)a.D * block_sum(s, part);
        row_input_grad(row, w, a, t, k3, packs);
    }
    if (!a.dw) return;
#pragma unroll
    for (int k = 0; k < N; k++) {
        int p = threadIdx.x + k * blockDim.x;
        if (p >= packs) continue;
#pragma unroll
        for (int i = 0; i < E; i += 4)
            pack_store(a.part + blockIdx.x * a.D + p * E + i, pack_of<float>(dw[k] + i));
    }
}

/* Column i is always the same thread's: it may add to its part, and dx may lie over dy. */
static __global__ void backward_any(Backward a)
{
    __shared__ float part[32];
    float           *dw = a.part + blockIdx.x * a.D;
    for (int64_t t = blockIdx.x; t < a.T; t += gridDim.x) {
        int64_t dx = view_row(a.dx, t), dy = view_row(a.dy, t);
        int64_t x = view_row(a.x, t), dres = view_row(a.dres, t);
        float   r = a.rstd[t * a.rstd_stride], s = 0.0f;
        for (int64_t i = threadIdx.x; i < a.D; i += blockDim.x) {
            float g = view_get(a.dy, dy + i), u = view_get(a.x, x + i);
            s += g * view_get(a.w, i) * u;
            if (a.dw) dw[i] = (t == blockIdx.x ? 0.0f : dw[i]) + g * (u * r);
        }
        if (!a.dx.p) continue;
        float k3 = r * r * r / (float)a.D * block_sum(s, part);
        for (int64_t i = threadIdx.x; i < a.D; i += blockDim.x) {
            float v = r * (view_get(a.w, i) * view_get(a.dy, dy + i)) - view_get(a.x, x + i) * k3;
            view_put(a.dx, dx + i, a.dres.p ? view_get(a.dres, dres + i) + v : v);
        }
    }
}

extern "C" void cuda_rmsnorm_bwd(Backend *be, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w,
                                 Tensor rstd, Tensor dres)
{
    Backward a = { view_of(dx), view_of(dy), view_of(x), view_of(w), view_of(dres), (const float *)rstd.data,
                   NULL, rstd.s[0], x.n[0], x.n[1], t_has(dw) };
    if (!a.T || !(t_has(dx) || a.dw)) return;
    Walk walk = walk_of(a.T, ceil_div(a.D * (int64_t)dtype_size((DType)x.dtype), 16));
    int  d = x.dtype;
    if (a.dw) a.part = (float *)cuda_workspace(be, (size_t)(walk.blocks * a.D) * 4);
    if (be->sticky) return;
    if (!walk.fits || !packs(x) || !packs_as(dx, d) || !packs_as(dy, d) || !packs_as(dres, d) ||
        !packs_as(w, d))
        LAUNCH(be, "rmsnorm_bwd", backward_any, walk.blocks, 256, 0, a);
    else if (walk.each == 1)
        BY_DTYPE(d, T, LAUNCH(be, "rmsnorm_bwd", (backward_packs<T, 1>), walk.blocks, walk.threads, 0, a));
    else
        BY_DTYPE(d, T, LAUNCH(be, "rmsnorm_bwd", (backward_packs<T, 2>), walk.blocks, walk.threads, 0, a));
    if (a.dw) parts_add(be, "rmsnorm_bwd", dw, a.part, walk.blocks, a.D);
}
