/* ops/cuda/auxloss.cu -- kernels of auxloss.c: router statistics per group, and the loss of pools.
 *
 * router_stats   A warp walks 32 tokens, 4 expert columns a lane, and sums in double as long as the group
 *                stays the same; a block joins the last sums of its warps. Sums of different blocks are added
 *                as integers, probabilities in fixed point, so that the order of additions does not matter.
 *                2^61 stands for probability 1 of T tokens (rounded up to a power of 2), so each addition
 *                rounds by less than T 2^-61; a sum that is not finite is marked `bad`.
 * aux_loss       A block takes 32 columns of a pool, its lines share the rows; lines, columns and pools are
 *                added in a fixed order, in double as on the CPU. */
#include "ops/cuda/cuda.cuh"

#include <math.h>

namespace {

enum { WARPS = 8, TOKENS = 32 * WARPS, LANE_COLS = 4, COLS = 32 * LANE_COLS, BATCH = 8 };

typedef unsigned long long Fixed;

/* The accumulators of all blocks, G x E each, and one part of zsum for every TOKENS tokens. */
typedef struct Tally {
    Fixed  *prob;
    double *zpart;
    int    *count, *bad;
    double  one;                                     /* fixed-point value of probability 1 */
} Tally;

typedef struct Tokens {
    const float *z, *lse;
    const int   *idx, *group;
    int64_t      stride, T;
    int          E, K, stripes;
} Tokens;

static __global__ void tally_clear(Tally y, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y.prob[i] = 0, y.count[i] = 0, y.bad[i] = 0;
}

/* Adds the sum over at most TOKENS tokens of one group; group -1 is masked. */
static __device__ inline void add_prob(Tally y, int group, int E, int col, double sum)
{
    if (group < 0 || col >= E) return;
    int64_t at = (int64_t)group * E + col;
    if (sum <= 2.0 * TOKENS) atomicAdd(&y.prob[at], (Fixed)__double2ll_rn(sum * y.one));
    else y.bad[at] = 1;
}

/* Most slots of a block are of the group of its first token: those are counted in shared memory first. */
static __device__ inline void count_slots(Tally y, Tokens x, int64_t first, int n, int *hist)
{
    int mostly = x.group[first];
    for (int e = threadIdx.x; e < x.E; e += blockDim.x) hist[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n * x.K; i += blockDim.x) {
        int group = x.group[first + i / x.K], e = x.idx[first * x.K + i];
        if (group < 0 || e < 0 || e >= x.E) continue;
        if (group == mostly) atomicAdd(&hist[e], 1);
        else atomicAdd(&y.count[(int64_t)group * x.E + e], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < x.E; e += blockDim.x)
        if (hist[e]) atomicAdd(&y.count[(int64_t)mostly * x.E + e], hist[e]);
}

/* The group a warp's tokens end with, and in sum the lane's columns of that last run; earlier runs are
 * added to the tally. group and lse are those of the lane's token. */
static __device__ inline int sum_probs(double *sum, Tally y, Tokens x, int64_t t0, int col, int group,
                                       float lse)
{
    int now = -1;
    for (int from = 0; from < 32; from += BATCH) {
        float v[BATCH][LANE_COLS];
        #pragma unroll
        for (int i = 0; i < BATCH; i++) {
            bool counts = __shfl_sync(~0u, group, from + i) >= 0;
            #pragma unroll
            for (int j = 0; j < LANE_COLS; j++)
                v[i][j] = counts && col + 32 * j < x.E ? x.z[(t0 + from + i) * x.stride + col + 32 * j]
                                                       : 0.0f;
        }
        #pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int   g = __shfl_sync(~0u, group, from + i);
            float l = __shfl_sync(~0u, lse, from + i);
            if (g != now) {
                #pragma unroll
                for (int j = 0; j < LANE_COLS; j++)
                    add_prob(y, now, x.E, col + 32 * j, sum[j]), sum[j] = 0.0;
                now = g;
            }
            if (g < 0) continue;
            #pragma unroll
            for (int j = 0; j < LANE_COLS; j++) sum[j] += expf(v[i][j] - l);
        }
    }
    return now;
}

static __global__ void __launch_bounds__(32 * WARPS) tally_tokens(Tally y, Tokens x)
{
    extern __shared__ int hist[];
    __shared__ double pile[WARPS][COLS], part[32];
    __shared__ int    ends[WARPS];
    int     lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t chunk = blockIdx.x / x.stripes, first = chunk * TOKENS, t = first + threadIdx.x;
    int     from = (int)(blockIdx.x % x.stripes) * COLS, n = (int)min((int64_t)TOKENS, x.T - first);
    int     group = t < x.T ? x.group[t] : -1;
    float   lse = t < x.T ? x.lse[t] : 0.0f;
    double  sum[LANE_COLS] = { 0.0, 0.0, 0.0, 0.0 };
    if (!from) {
        double z = block_sum(group < 0 ? 0.0 : (double)lse * lse, part);
        if (!threadIdx.x) y.zpart[chunk] = z;
        count_slots(y, x, first, n, hist);
    }
    int end = sum_probs(sum, y, x, first + 32 * warp, from + lane, group, lse);
    if (!lane) ends[warp] = end;
    for (int j = 0; j < LANE_COLS; j++) pile[warp][lane + 32 * j] = sum[j];
    __syncthreads();
    if (threadIdx.x >= COLS) return;
    double total = 0.0;
    int    now = -1;
    for (int w = 0; w < WARPS; w++) {                              /* warps that end with one group join */
        if (ends[w] != now) add_prob(y, now, x.E, from + threadIdx.x, total), total = 0.0, now = ends[w];
        total += pile[w][threadIdx.x];
    }
    add_prob(y, now, x.E, from + threadIdx.x, total);
}

/* The first block also adds the parts of zsum. */
static __global__ void __launch_bounds__(256)
tally_finish(float *count, float *prob, float *zsum, Tally y, int64_t n, int64_t chunks)
{
    __shared__ double part[32];
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        count[i] = (float)y.count[i];
        prob[i]  = y.bad[i] ? NAN : (float)((double)y.prob[i] / y.one);
    }
    if (blockIdx.x) return;
    double z = 0.0;
    for (int64_t c = threadIdx.x; c < chunks; c += blockDim.x) z += y.zpart[c];
    z = block_sum(z, part);
    if (!threadIdx.x) *zsum = (float)z;
}

}

extern "C" void cuda_router_stats(Backend *be, Tensor count, Tensor prob, Tensor zsum, Tensor logits,
                                  Tensor lse, Tensor idx, Tensor group)
{
    int64_t T = logits.n[0], E = logits.n[1], n = t_count(count), chunks = ceil_div(T, TOKENS);
    int64_t stripes = ceil_div(E, COLS);
    int     bits = 61;
    while (bits > 0 && T > (int64_t)1 << (61 - bits)) bits--;
    char *ws = (char *)cuda_workspace(be, (size_t)(16 * n + 8 * chunks + 8));
    Tally y = { (Fixed *)ws, (double *)(ws + 8 * n), (int *)(ws + 8 * (n + chunks)),
                (int *)(ws + 8 * (n + chunks) + 4 * n), ldexp(1.0, bits) };
    Tokens x = { (const float *)logits.data, (const float *)lse.data, (const int *)idx.data,
                 (const int *)group.data, logits.s[0], T, (int)E, (int)idx.n[1], (int)stripes };
    LAUNCH(be, "router_stats", tally_clear, ceil_div(n, 256), 256, 0, y, n);
    LAUNCH(be, "router_stats", tally_tokens, chunks * stripes, 32 * WARPS, E * 4, y, x);
    LAUNCH(be, "router_stats", tally_finish, n ? ceil_div(n, 256) : 1, 256, 0, (float *)count.data,
           (float *)prob.data, (float *)zsum.data, y, n, chunks);
}

namespace {

/* A pool is `rows` rows of the statistics from pool * rows on; the row of layer l and group g is l G + g. */
typedef struct Pools {
    const float *count, *prob, *len;
    float       *coef;                               /* may be NULL */
    int64_t      rows, strips, L, G, E, K;
    AuxForm      form;
    Factor       coeff;
} Pools;

static __global__ void zero(float *x, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 0.0f;
}

/* N and the number of groups that have tokens, for a warp. */
static __device__ inline double tokens_of(const float *len, int64_t G, double *groups)
{
    double N = 0.0, n = 0.0;
    for (int64_t g = threadIdx.x & 31; g < G; g += 32) N += len[g], n += len[g] > 0.0f;
    *groups = warp_sum(n);
    return warp_sum(N);
}

/* The factor of a pool's sum over columns of count * prob in the loss; 0 for an empty pool. */
static __device__ inline double worth_of(Pools p, int64_t pool)
{
    double groups, N = tokens_of(p.len, p.G, &groups), f_div, p_div, share = 1.0;
    if (p.form == AUX_POOLED)     f_div = p_div = (double)p.L * N;
    else if (p.form == AUX_LAYER) f_div = (double)p.K * N, p_div = N;
    else {
        double m = p.len[pool % p.G];
        f_div = (double)p.K * m, p_div = m, share = p.form == AUX_DOCUMENT ? 1.0 / groups : m / N;
    }
    return N > 0.0 && p_div > 0.0 ? share * (double)p.E / f_div / p_div : 0.0;
}

static __global__ void __launch_bounds__(1024) pool_strip(double *part, Pools p)
{
    __shared__ double f[32][32], q[32][32];
    int     x = threadIdx.x & 31, y = threadIdx.x >> 5, lines = blockDim.x >> 5;
    int64_t pool = blockIdx.x / p.strips, e = blockIdx.x % p.strips * 32 + x, at = pool * p.rows * p.E + e;
    double  F = 0.0, P = 0.0, worth = worth_of(p, pool);
    for (int64_t r = y; e < p.E && r < p.rows; r += lines)
        F += p.count[at + r * p.E], P += p.prob[at + r * p.E];
    f[y][x] = F, q[y][x] = P;
    __syncthreads();
    F = P = 0.0;
    for (int i = 0; i < lines; i++) F += f[i][x], P += q[i][x];
    float slope = worth != 0.0 ? (float)(factor_value(p.coeff) * worth * F) : 0.0f;
    for (int64_t r = y; p.coef && e < p.E && r < p.rows; r += lines) p.coef[at + r * p.E] = slope;
    double loss = warp_sum(F * P);
    if (!threadIdx.x) part[blockIdx.x] = worth != 0.0 ? worth * loss : 0.0;
}

static __global__ void __launch_bounds__(256)
pools_add(float *out, const double *part, int64_t parts, const float *zsum, const float *len, int64_t L,
          int64_t G, Factor coeff)
{
    __shared__ double work[32];
    double groups, N = tokens_of(len, G, &groups), loss = 0.0, z = 0.0;
    for (int64_t i = threadIdx.x; i < parts; i += blockDim.x) loss += part[i];
    for (int64_t l = threadIdx.x; l < L && N > 0.0; l += blockDim.x) z += zsum[l] / N;
    loss = block_sum(loss, work);
    z = block_sum(z, work);
    if (threadIdx.x) return;
    out[0] = (float)loss, out[1] = (float)z, out[2] = (float)(factor_value(coeff) * loss);
}

}

extern "C" void cuda_aux_loss(Backend *be, Tensor out, Tensor coef, Tensor count, Tensor prob, Tensor zsum,
                              Tensor len, AuxForm form, int64_t K, Factor coeff)
{
    int64_t L = t_count(zsum), G = t_count(len), E = count.n[2], parts = 0;
    int64_t rows = form == AUX_POOLED ? L * G : form == AUX_LAYER ? G : 1;
    Pools   p = { (const float *)count.data, (const float *)prob.data, (const float *)len.data,
                  (float *)coef.data, rows, ceil_div(E, 32), L, G, E, K, form, coeff };
    if (form != AUX_NONE && L * G > 0) parts = L * G / rows * p.strips;
    double *part = (double *)cuda_workspace(be, (size_t)(8 * parts + 8));
    if (form == AUX_NONE && t_has(coef))
        LAUNCH(be, "aux_loss", zero, ceil_div(t_count(coef), 256), 256, 0, (float *)coef.data, t_count(coef));
    if (form != AUX_NONE)
        LAUNCH(be, "aux_loss", pool_strip, parts, 32 * min_i64(32, rows), 0, part, p);
    LAUNCH(be, "aux_loss", pools_add, 1, 256, 0, (float *)out.data, part, parts, (const float *)zsum.data,
           (const float *)len.data, L, G, coeff);
}
