/* ops/cuda/router_sigmoid.cu -- kernels of router_sigmoid.c: one warp a token, its row in shared memory,
 * expert e with lane e % 32. Sums run over a lane's experts in ascending order, then over the lanes:
 * fixed. */
#include "ops/cuda/cuda.cuh"

#include <limits.h>

namespace {

enum { WARPS = 4, THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) log_sigmoid(float *z, int64_t stride, int64_t T, int E)
{
    int64_t all = T * E, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < all; i += step) {
        float *p = z + i / E * stride + i % E, x = *p;
        *p = x < 0.0f ? x - log1pf(expf(x)) : -log1pf(expf(-x));
    }
}

/* The largest of v[0 .. n-1], of equals the lowest index, in every lane; it becomes NaN, which is not
 * taken. */
__device__ inline int take_largest(float *v, int n, int lane)
{
    float top = -INFINITY;
    int   at = INT_MAX;
    for (int i = lane; i < n; i += 32)
        if (v[i] == v[i] && (at == INT_MAX || v[i] > top)) top = v[i], at = i;
    for (int d = 16; d; d >>= 1) {
        float other = __shfl_xor_sync(~0u, top, d);
        int   where = __shfl_xor_sync(~0u, at, d);
        if (other > top || (other == top && where < at)) top = other, at = where;
    }
    if (!lane) v[at] = NAN;
    __syncwarp();
    return at;
}

__device__ inline float two_largest(const float *v, int n)
{
    float a = -INFINITY, b = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (v[i] > a) b = a, a = v[i];
        else if (v[i] > b) b = v[i];
    }
    return n > 1 ? a + b : a;
}

__device__ inline void mask_groups(float *v, float *score, float *kept, int E, RouterGroups g, int lane)
{
    int each = E / g.groups;
    for (int i = lane; i < g.groups; i += 32) score[i] = two_largest(v + i * each, each), kept[i] = 0.0f;
    __syncwarp();
    for (int i = 0; i < g.top; i++) {
        int best = take_largest(score, g.groups, lane);
        if (!lane) kept[best] = 1.0f;
    }
    __syncwarp();
    for (int e = lane; e < E; e += 32)
        if (kept[e / each] == 0.0f) v[e] = -INFINITY;
    __syncwarp();
}

typedef struct Select {
    int         *idx;
    float       *weight;
    const float *z, *bias;
    int64_t      stride, T;
    int          E, K;
    RouterGroups groups;
    bool         renorm;
    float        scale;
} Select;

static __global__ void __launch_bounds__(32 * WARPS) select_rows(Select a)
{
    extern __shared__ float rows[];
    int     lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t t = (int64_t)blockIdx.x * (blockDim.x >> 5) + warp;
    if (t >= a.T) return;
    const float *z = a.z + t * a.stride;
    float       *v = rows + 3 * warp * a.E, sum = 0.0f;
    bool         bad = false;
    for (int e = lane; e < a.E; e += 32) {
        float s = expf(z[e]) + (a.bias ? a.bias[e] : 0.0f);
        bad |= s != s;
        v[e] = s != s ? -INFINITY : s;
    }
    __syncwarp();
    bad = __any_sync(~0u, bad);
    if (a.groups.groups > 1) mask_groups(v, v + a.E, v + 2 * a.E, a.E, a.groups, lane);
    for (int k = 0; k < a.K; k++) {
        int best = take_largest(v, a.E, lane);
        sum += expf(z[best]);
        if (!lane) a.idx[t * a.K + k] = best;
    }
    __syncwarp();
    for (int k = lane; k < a.K; k += 32) {
        float s = expf(z[a.idx[t * a.K + k]]);
        a.weight[t * a.K + k] = bad ? NAN : a.scale * (a.renorm ? s / (sum + 1e-20f) : s);
    }
}

typedef struct Selected {
    const float *g, *weight, *z, *lse, *coef;
    const int   *idx, *group;
    int64_t      zs, cs, T;
    int          E, K;
    Factor       zcoef;
    bool         renorm;
    float        scale;
} Selected;

template <class O>
static __global__ void __launch_bounds__(32 * WARPS) select_back(O *dz, int64_t stride, Selected a)
{
    extern __shared__ float rows[];
    int     lane = threadIdx.x & 31, warp = threadIdx.x >> 5, E = a.E, K = a.K;
    int64_t t = (int64_t)blockIdx.x * (blockDim.x >> 5) + warp;
    if (t >= a.T) return;
    int          at = a.group ? a.group[t] : 0;
    float       *d = rows + warp * E, lse = a.lse[t], mean = 0.0f, part = 0.0f;
    float        shift = at >= 0 ? 2.0f * factor_value(a.zcoef) * lse : 0.0f;
    const float *z = a.z + t * a.zs, *c = a.coef && at >= 0 ? a.coef + at * a.cs : NULL,
        *w = a.weight + t * K;
    for (int e = lane; e < E; e += 32) {
        d[e] = c || shift != 0.0f ? expf(z[e] - lse) : 0.0f;
        if (c) part += d[e] * c[e];
    }
    part = warp_sum(part);
    for (int e = lane; e < E; e += 32) d[e] *= (c ? c[e] - part : 0.0f) + shift;
    for (int k = 0; a.g && a.renorm && k < K; k++) mean += w[k] * a.g[t * K + k] / a.scale;
    for (int k = 0; a.g && k < K; k++) {
        int e = a.idx[t * K + k];
        if (e >= 0 && (e & 31) == lane) d[e] += w[k] * (a.g[t * K + k] - mean);
    }
    for (int e = lane; e < E; e += 32) dz[t * stride + e] = from_f32<O>(d[e] * -expm1f(z[e]));
}

/* Warps of a block whose rows of `floats` fit its shared memory. */
static int warps_for(int64_t floats)
{
    int64_t fit = min_i64(WARPS, 48 * 1024 / (4 * floats));
    return fit ? (int)fit : 1;
}

}

extern "C" void cuda_log_sigmoid(Backend *be, Tensor z)
{
    LAUNCH(be, "log_sigmoid", log_sigmoid, cuda_blocks(be, t_count(z), THREADS, 16), THREADS, 0,
           (float *)z.data, z.s[0], z.n[0], (int)z.n[1]);
}

extern "C" void cuda_select_fwd(Backend *be, Tensor idx, Tensor weight, Tensor logits, Tensor bias,
                                RouterGroups groups, bool renorm, float scale)
{
    Select a = { (int *)idx.data, (float *)weight.data, (const float *)logits.data, (const float *)bias.data,
                 logits.s[0], logits.n[0], (int)logits.n[1], (int)idx.n[idx.rank - 1], groups, renorm,
                     scale };
    int warps = warps_for(3 * a.E);
    LAUNCH(be, "select_fwd", select_rows, ceil_div(a.T, warps), 32 * warps, warps * 3 * a.E * 4, a);
}

extern "C" void cuda_select_bwd(Backend *be, Tensor dlogits, Tensor dweight, Tensor weight, Tensor idx,
                                Tensor logits, Tensor lse, Tensor coef, Tensor group, Factor zcoef,
                                bool renorm, float scale)
{
    Selected a = { (const float *)dweight.data, (const float *)weight.data, (const float *)logits.data,
                   (const float *)lse.data, (const float *)coef.data, (const int *)idx.data,
                   (const int *)group.data, logits.s[0], coef.s[0], logits.n[0], (int)logits.n[1],
                   (int)idx.n[idx.rank - 1], zcoef, renorm, scale };
    int warps = warps_for(a.E);
    BY_DTYPE(dlogits.dtype, O, LAUNCH(be, "select_bwd", select_back<O>, ceil_div(a.T, warps), 32 * warps,
                                      warps * a.E * 4, (O *)dlogits.data, dlogits.s[0], a));
}
