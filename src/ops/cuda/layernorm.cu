/* ops/cuda/layernorm.cu -- kernels of layernorm.c: a row is held in the registers of a warp, a wide one in
 * those of a block.
 *
 * Forward reads x once: the mean and then the squares around it are summed over registers. Mixed dtypes, odd
 * widths and unaligned rows take forward_any, one block a row. Backward is norm_bwd.cuh. */
#include "ops/cuda/norm_bwd.cuh"

namespace {

typedef struct Forward {
    RowView    y, x, w, b;
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

}

extern "C" void cuda_layernorm_fwd(Backend *be, Tensor y, Tensor stat, Tensor x, Tensor w, Tensor b,
                                   float eps)
{
    Forward a = { view_of(y), view_of(x), view_of(w), view_of(b), (float *)stat.data, stat.s[0], x.n[0],
                  x.n[1], eps };
    if (!a.T) return;
    RowLayout l = layout_of(a.T, ceil_div(a.D * (int64_t)dtype_size((DType)x.dtype), 16));
    int    d = x.dtype;
    if (!l.fits || !packs(x) || !packs_as(y, d) || !packs_as(w, d) || !packs_as(b, d)) {
        LAUNCH(be, "layernorm_fwd", forward_any, a.T, 256, 0, a);
        return;
    }
    BY_DTYPE(d, T, BY_PACKS(l.each, N,
        if (l.block) LAUNCH(be, "layernorm_fwd", (forward_packs<T, N, true>), l.blocks, l.threads, 0, a);
        else         LAUNCH(be, "layernorm_fwd", (forward_packs<T, N, false>), l.blocks, l.threads, 0, a)));
}

extern "C" void cuda_layernorm_bwd(Backend *be, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x,
                                   Tensor w, Tensor stat, Tensor dres)
{
    norm_backward<true>(be, "layernorm_bwd", dx, dw, db, dy, x, w, stat, dres);
}
