/* ops/cuda/cross_entropy.cu -- kernels of cross_entropy.c: one block a row, one pass over memory each.
 *
 * ce_part   A thread keeps its running maximum and the sum of exp(z - max), EACH runs in f32 and their total
 *           in double; then the block reduces the maximum and the sums.
 * ce_join   One block: thread i joins rows i, i + 1024, ..., adds their losses in double, then a fixed tree.
 * ce_bwd    Reads and writes the same place in the same thread: dlogits may alias logits.
 * ce_grad   By the three above, where the kernel set has no kernel that reads a row once.
 *
 * Exponentials are 2^x of the hardware on a product rounded to f32: within a few ulp, and 0 where the
 * exact value would be denormal. */
#include "ops/cuda/cross_entropy.cuh"
#include "ops/cuda/kernel_set.cuh"

#include <float.h>

namespace {

enum { THREADS = 512, EACH = 4 };

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
    const KernelSet *set = cuda_of(be)->kernels;
    if (!set->ce_grad || !set->ce_grad(be, part, dlogits, logits, labels, scale))
        grad_by_parts(be, part, dlogits, logits, labels, scale);
}
