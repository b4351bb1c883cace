/* ops/cuda/exchange.cu -- kernels of exchange.c: integers, one thread an element, so no result depends on the
 * order of threads.
 *
 * moe_regroup   One block per chunk (source, expert): it sums the counts of the chunks before it in both
 *               orders, a few hundred, then numbers its rows. */
#include "ops/cuda/cuda.cuh"

enum { THREADS = 256 };

static __global__ void pack(int *meta, const int *idx, const int *weight, int64_t n, int K, int times,
                            int plus)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    int64_t t = i / K, k = i % K;
    meta[t * 2 * K + k]     = idx[i] < 0 ? -1 : idx[i] * times + plus;
    meta[t * 2 * K + K + k] = weight[i];
}

extern "C" void cuda_moe_pack(Backend *be, Tensor meta, Tensor idx, Tensor weight, int64_t times,
                              int64_t plus)
{
    int64_t n = t_count(idx);
    LAUNCH(be, "moe_pack", pack, ceil_div(n, THREADS), THREADS, 0, (int *)meta.data, (const int *)idx.data,
           (const int *)weight.data, n, (int)idx.n[1], (int)times, (int)plus);
}

static __global__ void unpack(int *key, int *gate, const int *meta, int64_t n, int K, int base)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    int64_t at = i / K * 2 * K + i % K;
    key[i] = meta[at] < 0 ? -1 : meta[at] - base;
    if (gate) gate[i] = meta[at + K];
}

extern "C" void cuda_moe_unpack(Backend *be, Tensor key, Tensor gate, Tensor meta, int64_t base)
{
    int64_t n = t_count(key);
    LAUNCH(be, "moe_unpack", unpack, ceil_div(n, THREADS), THREADS, 0, (int *)key.data, (int *)gate.data,
           (const int *)meta.data, n, (int)key.n[1], (int)base);
}

static __global__ void owner_mask(int *mask, const int *key, int64_t n, int K, int G, int keys, int etp,
                                  int first, int members)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    int        g = (int)(i % G), lo = first + g * members, hi = lo + members, found = -1;
    const int *v = key + i / G * K;
    for (int k = 0; k < K; k++) {
        int owner = v[k] / keys * etp;
        if (v[k] >= 0 && owner < hi && owner + etp > lo) found = g;
    }
    mask[i] = found;
}

extern "C" void cuda_expert_owner_mask(Backend *be, Tensor mask, Tensor key, int64_t keys, int64_t etp,
                                       int64_t first, int64_t members)
{
    int64_t n = t_count(mask);
    LAUNCH(be, "expert_owner_mask", owner_mask, ceil_div(n, THREADS), THREADS, 0, (int *)mask.data,
           (const int *)key.data, n, (int)key.n[1], (int)mask.n[1], (int)keys, (int)etp, (int)first,
           (int)members);
}

/* Integers of this size are exact in a double, in any order of additions. */
static __device__ inline int block_count(int x, double *part) { return (int)block_sum((double)x, part); }

static __global__ void __launch_bounds__(THREADS)
regroup(int *offsets, int *rows, const int *count, int S, int E, int64_t capacity)
{
    __shared__ double part[32];
    int s = blockIdx.x / E, e = blockIdx.x % E, came = 0, goes = 0, all = 0, n = count[blockIdx.x];
    for (int i = threadIdx.x; i < S * E; i += THREADS) {
        int c = count[i], si = i / E, ei = i % E;
        if (i < (int)blockIdx.x) came += c;
        if (ei < e || (ei == e && si < s)) goes += c;
        all += c;
    }
    came = block_count(came, part), goes = block_count(goes, part), all = block_count(all, part);
    if (!s && !threadIdx.x) offsets[e] = goes;
    if (!blockIdx.x && !threadIdx.x) offsets[E] = all;
    for (int j = threadIdx.x; j < n && came + j < capacity; j += THREADS) rows[came + j] = goes + j;
}

extern "C" void cuda_moe_regroup(Backend *be, Tensor offsets, Tensor rows, Tensor count)
{
    LAUNCH(be, "moe_regroup", regroup, t_count(count), THREADS, 0, (int *)offsets.data, (int *)rows.data,
           (const int *)count.data, (int)count.n[0], (int)count.n[1], t_count(rows));
}

static __global__ void expand_rows(int *out, const int *rows, int64_t n, int P, int64_t stride)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    int r = rows[i / P];
    out[i] = r < 0 ? -1 : (int)(r + i % P * stride);
}

extern "C" void cuda_expand_etp_rows(Backend *be, Tensor out, Tensor rows, int64_t stride)
{
    int64_t n = t_count(out);
    LAUNCH(be, "expand_etp_rows", expand_rows, ceil_div(n, THREADS), THREADS, 0, (int *)out.data,
           (const int *)rows.data, n, (int)(out.n[1] / rows.n[1]), stride);
}
