/* ops/cuda/router.cu -- kernels of router.c: one warp a token, expert e with lane e % 32.
 *
 * forward    Logits become integers of the same order, so that one instruction finds the largest of a warp
 *            and a second the lowest index that has it; K such rounds. Up to 512 experts stay in registers,
 *            longer rows are read again (from L1) in every round.
 * backward   The row is built in shared memory. A lane touches only its own experts, so no barrier is needed.
 * order      A lane's experts in ascending order, then a butterfly over the lanes: fixed. */
#include "ops/cuda/cuda.cuh"

#include <limits.h>

namespace {

enum { WARPS = 8 };

/* Rising with z: NaN ranks as -inf, -0 as 0. No logit has the key 0. */
__device__ inline unsigned key_of(float z)
{
    unsigned u = __float_as_uint(z != z ? -INFINITY : z == 0.0f ? 0.0f : z);
    return u ^ (u >> 31 ? ~0u : 0x80000000u);
}
__device__ inline float value_of(unsigned key)
{
    return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : ~0u));
}

typedef struct Pick { unsigned key; int at; } Pick;

/* The best of all lanes' picks, in every lane: the largest key, of equals the lowest index. */
__device__ inline Pick warp_pick(Pick p)
{
    unsigned top = __reduce_max_sync(~0u, p.key);
    return Pick{ top, __reduce_min_sync(~0u, p.key == top ? p.at : INT_MAX) };
}

/* A lane's part of a row in registers: key[j] is of expert 32 j + lane, 0 where there is none (any more). */
template <int N> struct InRegisters {
    unsigned key[N];

    __device__ bool load(const float *z, int E, int lane)                      /* whether there is a NaN */
    {
        bool  bad = false;
        float v[N];
        #pragma unroll
        for (int j = 0; j < N; j++) v[j] = 32 * j + lane < E ? z[32 * j + lane] : 0.0f;
        #pragma unroll
        for (int j = 0; j < N; j++) {
            bad   |= v[j] != v[j];
            key[j] = 32 * j + lane < E ? key_of(v[j]) : 0u;
        }
        return bad;
    }
    __device__ float sum(float max, int) const
    {
        float s = 0.0f;
        #pragma unroll
        for (int j = 0; j < N; j++) s += key[j] ? expf(value_of(key[j]) - max) : 0.0f;
        return s;
    }
    __device__ Pick best(int lane) const
    {
        Pick p = { 0u, INT_MAX };
        #pragma unroll
        for (int j = 0; j < N; j++)
            if (key[j] > p.key) p = Pick{ key[j], 32 * j + lane };
        return p;
    }
    __device__ void drop(Pick p, int lane)
    {
        #pragma unroll
        for (int j = 0; j < N; j++)
            if (p.at == 32 * j + lane) key[j] = 0u;
    }
};

/* The same for a row of any length: the remaining candidates are those that rank after the last pick. */
struct InMemory {
    const float *z;
    int          E;
    Pick         last;

    __device__ bool load(const float *row, int n, int lane)
    {
        bool bad = false;
        z = row, E = n, last = Pick{ ~0u, -1 };
        for (int e = lane; e < E; e += 32) bad |= z[e] != z[e];
        return bad;
    }
    __device__ float sum(float max, int lane) const
    {
        float s = 0.0f;
        for (int e = lane; e < E; e += 32) s += expf(value_of(key_of(z[e])) - max);
        return s;
    }
    __device__ Pick best(int lane) const
    {
        Pick p = { 0u, INT_MAX };
        for (int e = lane; e < E; e += 32) {
            unsigned key = key_of(z[e]);
            if ((key < last.key || (key == last.key && e > last.at)) && key > p.key) p = Pick{ key, e };
        }
        return p;
    }
    __device__ void drop(Pick p, int) { last = p; }
};

template <class Row>
static __global__ void __launch_bounds__(32 * WARPS)
route(int *idx, float *weight, float *lse, const float *z, int64_t stride, int64_t T, int E, int K,
      bool renorm)
{
    int     lane = threadIdx.x & 31;
    int64_t t = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (t >= T) return;
    Row   row;
    bool  bad = row.load(z + t * stride, E, lane);
    float max = value_of(__reduce_max_sync(~0u, row.best(lane).key));
    bad = __any_sync(~0u, bad) || max - max != 0.0f;               /* the maximum is not finite */
    float sum = warp_sum(row.sum(max, lane)), chosen = 0.0f;
    idx += t * K, weight += t * K;
    for (int from = 0; from < K; from += 32) {                     /* lane k keeps the pick of round k */
        int  n = min(32, K - from);
        Pick mine = { 0u, 0 };
        for (int k = 0; k < n; k++) {
            Pick p = warp_pick(row.best(lane));
            row.drop(p, lane);
            if (lane == k) mine = p;
        }
        float p = lane < n ? expf(value_of(mine.key) - max) : 0.0f;
        if (lane < n) idx[from + lane] = mine.at, weight[from + lane] = p;
        chosen += warp_sum(p);
    }
    float scale = bad ? NAN : 1.0f / (renorm ? chosen : sum);
    for (int k = lane; k < K; k += 32) weight[k] *= scale;         /* each lane what it wrote itself */
    if (!lane) lse[t] = bad ? NAN : max + logf(sum);
}

}

#define ROUTE(Row)                                                                                    \
    LAUNCH(be, "router_fwd", route<Row>, ceil_div(T, WARPS), 32 * WARPS, 0, (int *)idx.data,          \
           (float *)weight.data, (float *)lse.data, (const float *)logits.data, logits.s[0], T, (int)E, \
           (int)K, renorm)

extern "C" void cuda_router_fwd(Backend *be, Tensor idx, Tensor weight, Tensor lse, Tensor logits,
                                bool renorm)
{
    int64_t T = logits.n[0], E = logits.n[1], K = idx.n[idx.rank - 1];
    if      (E <= 32)  ROUTE(InRegisters<1>);
    else if (E <= 64)  ROUTE(InRegisters<2>);
    else if (E <= 128) ROUTE(InRegisters<4>);
    else if (E <= 256) ROUTE(InRegisters<8>);
    else if (E <= 512) ROUTE(InRegisters<16>);
    else               ROUTE(InMemory);
}

namespace {

/* What backward reads; g, coef and group may be NULL. */
typedef struct Routed {
    const float *g, *weight, *z, *lse, *coef;
    const int   *idx, *group;
    int64_t      zs, cs, T;
    int          E, K;
    Factor       zcoef;
    bool         renorm;
} Routed;

/* row[e] = p_e (c_e + shift - sum_j p_j c_j) of the lane's experts; c may be NULL. */
__device__ inline void spread(float *row, const float *z, float lse, const float *c, float shift, int E,
                              int lane)
{
    float mean = 0.0f;
    for (int e = lane; e < E; e += 32) {
        row[e] = expf(z[e] - lse);
        if (c) mean += row[e] * c[e];
    }
    mean = c ? warp_sum(mean) : 0.0f;
    for (int e = lane; e < E; e += 32) row[e] *= c ? c[e] + shift - mean : shift;
}

template <class O>
static __global__ void __launch_bounds__(32 * WARPS) route_back(O *dz, int64_t stride, Routed r)
{
    extern __shared__ float rows[];
    int     lane = threadIdx.x & 31, warp = threadIdx.x >> 5, E = r.E, K = r.K;
    int64_t t = (int64_t)blockIdx.x * (blockDim.x >> 5) + warp;
    if (t >= r.T) return;
    int          at = r.group ? r.group[t] : 0;
    float       *row = rows + warp * E, mean = 0.0f, lse = r.lse[t];
    float        shift = at >= 0 ? 2.0f * factor_value(r.zcoef) * lse : 0.0f;
    const float *c = r.coef && at >= 0 ? r.coef + at * r.cs : NULL;
    const float *w = r.weight + t * K, *g = r.g + t * K;
    if (r.g) {
        for (int k = lane; k < K; k += 32) mean += w[k] * g[k];
        mean = warp_sum(mean);
    }
    if (!r.renorm) shift -= mean, mean = 0.0f;                    /* every logit gets a gradient */
    if (c || shift != 0.0f) spread(row, r.z + t * r.zs, lse, c, shift, E, lane);
    else for (int e = lane; e < E; e += 32) row[e] = 0.0f;
    for (int k = 0; r.g && k < K; k++) {
        int e = r.idx[t * K + k];
        if (e >= 0 && (e & 31) == lane) row[e] += w[k] * (g[k] - mean);
    }
    dz += t * stride;
    for (int e = lane; e < E; e += 32) dz[e] = from_f32<O>(row[e]);
}

}

extern "C" void cuda_router_bwd(Backend *be, Tensor dlogits, Tensor dweight, Tensor weight, Tensor idx,
                                Tensor logits, Tensor lse, Tensor coef, Tensor group, Factor zcoef,
                                bool renorm)
{
    int64_t T = logits.n[0], E = logits.n[1], fit = min_i64(WARPS, 48 * 1024 / (4 * E));
    int     warps = fit ? (int)fit : 1;                          /* above 12288 experts one row a block */
    Routed  r = { (const float *)dweight.data, (const float *)weight.data, (const float *)logits.data,
                  (const float *)lse.data, (const float *)coef.data, (const int *)idx.data,
                  (const int *)group.data, logits.s[0], coef.s[0], T, (int)E, (int)idx.n[idx.rank - 1],
                  zcoef, renorm };
    BY_DTYPE(dlogits.dtype, O, LAUNCH(be, "router_bwd", route_back<O>, ceil_div(T, warps), 32 * warps,
                                      warps * E * 4, (O *)dlogits.data, dlogits.s[0], r));
}
