/* ops/cuda/cross_entropy_hopper.cu -- ce_grad of cross_entropy.c on Hopper GPUs: the blocks of a cluster hold
 * a row in their shared memory, so that it is read once for the sums and the gradient; they read each other's
 * maximum and sum, and join them as ce_join does. */
#include "ops/cuda/cross_entropy.cuh"
#include "ops/cuda/hopper.cuh"

namespace {

/* Blocks that share a row, threads of a block, and the most columns of a block, in runs of 16 bytes. */
enum { CLUSTER = 8, HOLDERS = 256, HELD_MOST = 12 << 10 };

typedef struct WholeRows {
    Gradient g;                                                  /* lse is unused, from is 0 */
    double  *part;
    int      each;                                               /* runs of a block */
} WholeRows;

typedef struct Peak { float max; double sum; } Peak;            /* of some logits: sum of exp(z - max) */

/* Joins the peaks of all threads of the block. */
static __device__ inline Peak block_peak(Peak p)
{
    __shared__ float  peak[32];
    __shared__ double part[32];
    Peak all = { block_max(p.max, peak), 0.0 };
    all.sum = block_sum(p.sum * expf(p.max - all.max), part);
    return all;
}

/* Joins the peaks of the cluster's blocks; they must not end before all have done this. */
static __device__ inline Peak cluster_peak(Peak p)
{
    __shared__ Peak own;
    int lane = threadIdx.x % 32;
    if (!threadIdx.x) own = p;
    cluster_sync();
    Peak     one = { -INFINITY, 0.0 };
    uint32_t at = smem_of(smem_at(&own), lane % CLUSTER);
    if (lane < CLUSTER) one = { cluster_load_f32(at), cluster_load_f64(at + offsetof(Peak, sum)) };
    Peak all = { warp_max(one.max), 0.0 };
    all.sum = warp_sum(one.sum * expf(one.max - all.max));
    return all;
}

/* Copies a thread's runs of a row, every HOLDERS-th of `runs`, to shared memory, all in flight at once. */
template <int N, class T> static __device__ inline void hold_runs(Run<T, N> *held, const T *z, int runs)
{
    static_assert(sizeof *held == 16, "runs of 16 bytes");
    for (int i = threadIdx.x; i < runs; i += HOLDERS)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(smem_at(held + i)), "l"(z + i * N));
    asm volatile("cp.async.wait_all;" ::: "memory");
}

template <class T, int N> static __device__ inline Peak held_peak(const Run<T, N> *held, int runs)
{
    float  max = -FLT_MAX;
    double sum = 0.0;
    #pragma unroll 4
    for (int i = threadIdx.x; i < runs; i += HOLDERS)
        #pragma unroll
        for (int j = 0; j < N; j++) max = fmaxf(max, held[i].get(j));
    #pragma unroll 2
    for (int i = threadIdx.x; i < runs; i += HOLDERS) {
        float s = 0.0f;
        #pragma unroll
        for (int j = 0; j < N; j++) s += exp_of(held[i].get(j) - max);
        sum += s;
    }
    return Peak{ max, sum };
}

/* Stores the gradient of a run; label: its column from the run's first on. */
template <int N, class O, class T>
static __device__ inline void run_gradient(O *d, Run<T, N> v, int label, float lse, float scale)
{
    float x[N];
    #pragma unroll
    for (int j = 0; j < N; j++) x[j] = scale * exp_of(v.get(j) - lse);
    if (0 <= label && label < N)
        #pragma unroll
        for (int j = 0; j < N; j++)
            if (j == label) x[j] -= scale;
    run_store<N>(d, x);
}

/* The gradient of a row without a label, whatever its logits. */
template <int N, class O> static __device__ inline void zero_runs(O *d, int runs)
{
    const float zeros[N] = { 0.0f };
    for (int i = threadIdx.x; i < runs; i += HOLDERS) run_store<N>(d + i * N, zeros);
}

template <class O, class T, int N>
static __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(HOLDERS) whole_rows(WholeRows a)
{
    extern __shared__ __align__(16) char smem[];
    Run<T, N> *held = (Run<T, N> *)smem;
    int64_t    row = blockIdx.x / CLUSTER;
    int        first = cluster_rank() * a.each, runs = max(min(a.each, (int)(a.g.V / N) - first), 0);
    int        label = a.g.labels[row];
    const T   *z = (const T *)a.g.z + row * a.g.zs;
    O         *d = (O *)a.g.d + row * a.g.ds + (int64_t)first * N;
    bool       writes = !threadIdx.x && !first;
    double     target = writes && label >= 0 && label < a.g.V ? (double)to_f32(z[label]) : NAN;
    hold_runs(held, z + (int64_t)first * N, runs);
    Peak  all = cluster_peak(block_peak(held_peak(held, runs)));
    float lse = (float)(all.max + log(all.sum)), scale = factor_value(a.g.scale);
    cluster_arrive_all();
    if (writes) {
        double *out = a.part + PART * row;
        out[0] = all.max, out[1] = all.sum, out[2] = target;
    }
    if (label < 0)
        zero_runs<N>(d, runs);
    else
        #pragma unroll 2
        for (int i = threadIdx.x; i < runs; i += HOLDERS)
            run_gradient<N>(d + i * N, held[i], label - (first + i) * N, lse, scale);
    cluster_wait_all();
}

template <class O, class T> static bool grad_whole_rows(Backend *be, WholeRows a, int64_t n)
{
    constexpr int N = Pack<T>::N;
    int64_t each = ceil_div(a.g.V / N, CLUSTER);
    a.each = (int)each;
    if (!each || each > HELD_MOST) return false;
    LAUNCH(be, "ce_grad", (whole_rows<O, T, N>), n * CLUSTER, HOLDERS, (size_t)each * 16, a);
    return true;
}

}

/* False: rows that are too wide or not aligned. */
bool hopper_ce_grad(Backend *be, Tensor part, Tensor dlogits, Tensor logits, Tensor labels, Factor scale)
{
    WholeRows a = { { dlogits.data, logits.data, NULL, (const int *)labels.data, dlogits.s[0], logits.s[0],
                      logits.n[1], 0, scale }, (double *)part.data, 0 };
    bool done = false;
    if (packs(logits) && packs(dlogits))
        BY_DTYPE(dlogits.dtype, O,
                 BY_DTYPE(logits.dtype, T, done = grad_whole_rows<O, T>(be, a, logits.n[0])));
    return done;
}
