/* ops/cuda/rmsnorm.cu -- kernels of rmsnorm.c: a row is held in the registers of a warp, a wide one in those
 * of a block.
 *
 * Forward reads x (and res) once and writes once. Mixed dtypes, odd widths and unaligned rows take
 * forward_any, one block a row. Backward is norm_bwd.cuh. */
#include "ops/cuda/norm_bwd.cuh"

namespace {

typedef struct Forward {
    RowView    y, sum, x, res, w;
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
    RowView    in = a.res.p ? a.sum : a.x;
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

}

extern "C" void cuda_rmsnorm_fwd(Backend *be, Tensor y, Tensor rstd, Tensor sum, Tensor x, Tensor res,
                                 Tensor w, float eps)
{
    Forward a = { view_of(y), view_of(sum), view_of(x), view_of(res), view_of(w), (float *)rstd.data,
                  rstd.s[0], x.n[0], x.n[1], eps };
    if (!a.T) return;
    RowLayout l = layout_of(a.T, ceil_div(a.D * (int64_t)dtype_size((DType)x.dtype), 16));
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

extern "C" void cuda_rmsnorm_bwd(Backend *be, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w,
                                 Tensor rstd, Tensor dres)
{
    norm_backward<false>(be, "rmsnorm_bwd", dx, dw, Tensor{ }, dy, x, w, rstd, dres);
}
