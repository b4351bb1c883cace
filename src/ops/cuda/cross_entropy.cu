/* ops/cuda/cross_entropy.cu -- kernels of cross_entropy.c: one block a row, one pass over memory each.
 *
 * ce_part   A thread keeps its running maximum and the sum of exp(z - max), EACH runs in f32 and their total
 *           in double; then the block reduces the maximum and the sums.
 * ce_join   One block: thread i joins rows i, i + 1024, ..., adds their losses in double, then a fixed tree.
 * ce_bwd    Reads and writes the same place in the same thread: dlogits may alias logits.
 * ce_grad   The blocks of a cluster hold a row in their shared memory, so that it is read once for the sums
 *           and the gradient; they read each other's maximum and sum, and join them as ce_join does.
 *
 * Exponentials are 2^x of the hardware on a product rounded to f32: within a few ulp, and 0 where the
 * exact value would be denormal. */
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/runs.cuh"

#include <float.h>

namespace {

enum { THREADS = 512, EACH = 4, PART = 3 };

/* e^x. */
static __device__ inline float exp_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504088896341f));
    return y;
}

/* Columns c .. c + N - 1; -inf past the end of the row. */
template <int N, class T> static __device__ inline Run<T, N> run_read(const T *z, int64_t c, int64_t V)
{
    float none[N];
    #pragma unroll
    for (int j = 0; j < N; j++) none[j] = -INFINITY;
    return c < V ? run_load<N>(z + c) : Run<T, N>::of(none);
}

template <class T, int N>
static __global__ void __launch_bounds__(THREADS)
row_part(double *out, const T *logits, int64_t stride, const int *labels, int64_t from, int64_t V)
{
    __shared__ float  peak[32];
    __shared__ double part[32];
    const T *z = logits + blockIdx.x * stride;
    float    max = -FLT_MAX;
    double   sum = 0.0;
    for (int64_t c = (int64_t)threadIdx.x * N; c < V; c += EACH * THREADS * N) {
        Run<T, N> v[EACH];
        float     top = max, s = 0.0f;
        #pragma unroll
        for (int k = 0; k < EACH; k++) v[k] = run_read<N>(z, c + k * THREADS * N, V);
        #pragma unroll
        for (int k = 0; k < EACH; k++)
            #pragma unroll
            for (int j = 0; j < N; j++) top = fmaxf(top, v[k].get(j));
        if (top > max) sum *= exp_of(max - top), max = top;
        #pragma unroll
        for (int k = 0; k < EACH; k++)
            #pragma unroll
            for (int j = 0; j < N; j++) s += exp_of(v[k].get(j) - max);
        sum += s;
    }
    float top = block_max(max, peak);
    sum = block_sum(sum * expf(max - top), part);
    if (threadIdx.x) return;
    int64_t label = labels[blockIdx.x], at = label - from;
    out += PART * (int64_t)blockIdx.x;
    out[0] = top, out[1] = sum, out[2] = label >= 0 && at >= 0 && at < V ? (double)to_f32(z[at]) : NAN;
}

}

extern "C" void cuda_ce_part(Backend *be, Tensor part, Tensor logits, Tensor labels, int64_t from)
{
    int64_t    n = logits.n[0], V = logits.n[1], s = logits.s[0];
    double    *out = (double *)part.data;
    const int *label = (const int *)labels.data;
    BY_DTYPE(logits.dtype, T,
             const T *z = (const T *)logits.data;
             if (packs(logits))
                 LAUNCH(be, "ce_part", (row_part<T, Pack<T>::N>), n, THREADS, 0, out, z, s, label, from, V);
             else
                 LAUNCH(be, "ce_part", (row_part<T, 1>), n, THREADS, 0, out, z, s, label, from, V));
}

namespace {

typedef struct Join {
    double       *loss;
    float        *lse, *each;
    const double *parts;
    const int    *labels;
    int64_t       n, slices;
    Factor        scale;
} Join;

/* Row i of all slices: its logsumexp, and through *target the logit of its label. */
static __device__ inline float join_row(const Join &a, int64_t i, double *target)
{
    double top = -FLT_MAX, sum = 0.0;
    *target = NAN;
    for (int64_t s = 0; s < a.slices; s++) top = fmax(top, a.parts[PART * (s * a.n + i)]);
    for (int64_t s = 0; s < a.slices; s++) {
        const double *p = a.parts + PART * (s * a.n + i);
        sum += p[1] * exp(p[0] - top);
        if (!isnan(p[2])) *target = p[2];
    }
    return (float)(top + log(sum));
}

static __global__ void __launch_bounds__(1024) join(Join a)
{
    __shared__ double part[32];
    double sum = 0.0, target;
    for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) {
        float  lse = join_row(a, i, &target);
        double e = a.labels[i] < 0 ? 0.0 : (double)lse - target;
        a.lse[i] = lse;
        if (a.each) a.each[i] = (float)e;
        sum += e;
    }
    sum = block_sum(sum, part);
    if (!threadIdx.x && a.loss) *a.loss += factor_value(a.scale) * sum;
}

}

extern "C" void cuda_ce_join(Backend *be, Tensor loss, Tensor lse, Tensor each, Tensor parts, Tensor labels,
                             Factor scale)
{
    int64_t n = t_count(labels);
    Join a = { (double *)loss.data, (float *)lse.data, (float *)each.data, (const double *)parts.data,
               (const int *)labels.data, n, n ? parts.n[0] / n : 1, scale };
    LAUNCH(be, "ce_join", join, 1, 1024, 0, a);
}

namespace {

typedef struct Gradient {
    void        *d;
    const void  *z;
    const float *lse;
    const int   *labels;
    int64_t      ds, zs, V, from;
    Factor       scale;
} Gradient;

/* O is the dtype of dlogits, T of logits. */
template <class O, class T, int N> static __global__ void __launch_bounds__(THREADS) row_gradient(Gradient g)
{
    O       *d = (O *)g.d + blockIdx.x * g.ds;
    const T *z = (const T *)g.z + blockIdx.x * g.zs;
    float    lse = g.lse[blockIdx.x], scale = factor_value(g.scale);
    int64_t  label = g.labels[blockIdx.x];
    if (label < 0) {
        const float zeros[N] = { 0.0f };
        for (int64_t c = (int64_t)threadIdx.x * N; c < g.V; c += THREADS * N) run_store<N>(d + c, zeros);
        return;
    }
    label -= g.from;                                             /* its column, or one outside the slice */
    for (int64_t c = (int64_t)threadIdx.x * N; c < g.V; c += EACH * THREADS * N) {
        Run<T, N> v[EACH];
        #pragma unroll
        for (int k = 0; k < EACH; k++) v[k] = run_read<N>(z, c + k * THREADS * N, g.V);
        #pragma unroll
        for (int k = 0; k < EACH; k++) {
            int64_t at = c + k * THREADS * N;
            float   x[N];
            #pragma unroll
            for (int j = 0; j < N; j++) x[j] = scale * exp_of(v[k].get(j) - lse);
            if (at <= label && label < at + N)
                #pragma unroll
                for (int j = 0; j < N; j++)
                    if (at + j == label) x[j] -= scale;
            if (at < g.V) run_store<N>(d + at, x);
        }
    }
}

template <class O, class T> static void gradient(Backend *be, Gradient g, int64_t n, bool aligned)
{
    constexpr int N = sizeof(O) == 4 && sizeof(T) == 4 ? 4 : 8;
    if (aligned) LAUNCH(be, "ce_bwd", (row_gradient<O, T, N>), n, THREADS, 0, g);
    else         LAUNCH(be, "ce_bwd", (row_gradient<O, T, 1>), n, THREADS, 0, g);
}

}

extern "C" void cuda_ce_bwd(Backend *be, Tensor dlogits, Tensor logits, Tensor lse, Tensor labels,
                            int64_t from, Factor scale)
{
    Gradient g = { dlogits.data, logits.data, (const float *)lse.data, (const int *)labels.data, dlogits.s[0],
                   logits.s[0], logits.n[1], from, scale };
    bool aligned = packs(dlogits) && packs(logits);
    BY_DTYPE(dlogits.dtype, O, BY_DTYPE(logits.dtype, T, gradient<O, T>(be, g, logits.n[0], aligned)));
}

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

/* Rows that are too wide or not aligned. */
static void grad_by_parts(Backend *be, Tensor part, Tensor dlogits, Tensor logits, Tensor labels,
                          Factor scale)
{
    int64_t n = logits.n[0], one[2] = { n, 1 };
    Tensor  none = {}, lse = t_wrap(cuda_workspace(be, (size_t)n * sizeof(float)), F32, 2, one);
    cuda_ce_part(be, part, logits, labels, 0);
    cuda_ce_join(be, none, lse, none, part, labels, scale);
    cuda_ce_bwd(be, dlogits, logits, lse, labels, 0, scale);
}

}

extern "C" void cuda_ce_grad(Backend *be, Tensor part, Tensor dlogits, Tensor logits, Tensor labels,
                             Factor scale)
{
    WholeRows a = { { dlogits.data, logits.data, NULL, (const int *)labels.data, dlogits.s[0], logits.s[0],
                      logits.n[1], 0, scale }, (double *)part.data, 0 };
    bool done = false;
    if (packs(logits) && packs(dlogits))
        BY_DTYPE(dlogits.dtype, O,
                 BY_DTYPE(logits.dtype, T, done = grad_whole_rows<O, T>(be, a, logits.n[0])));
    if (!done) grad_by_parts(be, part, dlogits, logits, labels, scale);
}
