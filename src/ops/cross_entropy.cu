/* ops/cross_entropy.cu -- kernels of cross_entropy.c: one block a row, one pass over memory each.
 *
 * ce_fwd    A thread keeps the maximum of what it saw and the sum of exp(z - max) under it, the sum of EACH
 *           runs in f32, of all in double; then the block agrees on a maximum. A second kernel of one block
 *           adds the losses of all rows: thread i rows i, i + 1024, ... in double, then a fixed tree.
 * ce_bwd    Reads and writes the same place in the same thread: in place is no special case.
 *
 * Exponentials are 2^x of the hardware on a product rounded to f32: within a few ulp where they weigh, 0
 * where the exact value would be denormal. */
#include "ops/runs.cuh"

#include <float.h>

enum { THREADS = 512, EACH = 4 };

/* e^x. */
static __device__ inline float exp_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504088896341f));
    return y;
}

/* Columns c .. c + N - 1; past the end of the row what weighs nothing. */
template <int N, class T> static __device__ inline Run<T, N> run_read(const T *z, int64_t c, int64_t V)
{
    float none[N];
    #pragma unroll
    for (int j = 0; j < N; j++) none[j] = -INFINITY;
    return c < V ? run_load<N>(z + c) : Run<T, N>::of(none);
}

template <class T, int N>
static __global__ void __launch_bounds__(THREADS)
row_lse(float *lse, const T *logits, int64_t stride, int64_t V)
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
    if (!threadIdx.x) lse[blockIdx.x] = (float)(top + log(sum));
}

/* A label that is none of the row's makes the loss NaN instead of reading elsewhere. */
template <class T>
static __device__ inline double row_loss(const T *logits, int64_t stride, int64_t V, int64_t i, float lse,
                                         int label)
{
    return label < V ? (double)lse - to_f32(logits[i * stride + label]) : NAN;
}

template <class T>
static __global__ void __launch_bounds__(1024)
add_losses(double *loss, const float *lse, const T *logits, int64_t stride, const int *labels, int64_t n,
           int64_t V, float scale)
{
    __shared__ double part[32];
    double sum = 0.0;
    #pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += labels[i] < 0 ? 0.0 : row_loss(logits, stride, V, i, lse[i], labels[i]);
    sum = block_sum(sum, part);
    if (!threadIdx.x) *loss += scale * sum;
}

extern "C" void cuda_ce_fwd(Backend *be, Tensor loss, Tensor lse, Tensor logits, Tensor labels, float scale)
{
    int64_t n = logits.n[0], V = logits.n[1], s = logits.s[0];
    float  *l = (float *)lse.data;
    BY_DTYPE(logits.dtype, T,
             const T *z = (const T *)logits.data;
             if (packs(logits)) LAUNCH(be, "ce_fwd", (row_lse<T, Pack<T>::N>), n, THREADS, 0, l, z, s, V);
             else               LAUNCH(be, "ce_fwd", (row_lse<T, 1>), n, THREADS, 0, l, z, s, V);
             LAUNCH(be, "ce_fwd", add_losses<T>, 1, 1024, 0, (double *)loss.data, l, z, s,
                    (const int *)labels.data, n, V, scale));
}

template <class T>
static __global__ void each_loss(float *each, const T *logits, int64_t stride, const float *lse,
                                 const int *labels, int64_t n, int64_t V)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) each[i] = labels[i] < 0 ? 0.0f : (float)row_loss(logits, stride, V, i, lse[i], labels[i]);
}

extern "C" void cuda_ce_rows(Backend *be, Tensor each, Tensor logits, Tensor lse, Tensor labels)
{
    int64_t n = logits.n[0];
    BY_DTYPE(logits.dtype, T,
             LAUNCH(be, "ce_rows", each_loss<T>, ceil_div(n, 256), 256, 0, (float *)each.data,
                    (const T *)logits.data, logits.s[0], (const float *)lse.data, (const int *)labels.data, n,
                    logits.n[1]));
}

typedef struct Gradient {
    void        *d;
    const void  *z;
    const float *lse;
    const int   *labels;
    int64_t      ds, zs, V;
    float        scale;
} Gradient;

/* O of dlogits, T of logits. */
template <class O, class T, int N> static __global__ void __launch_bounds__(THREADS) row_gradient(Gradient g)
{
    O       *d = (O *)g.d + blockIdx.x * g.ds;
    const T *z = (const T *)g.z + blockIdx.x * g.zs;
    float    lse = g.lse[blockIdx.x], scale = g.scale;
    int      label = g.labels[blockIdx.x];
    if (label < 0) {
        const float zeros[N] = { 0.0f };
        for (int64_t c = (int64_t)threadIdx.x * N; c < g.V; c += THREADS * N) run_store<N>(d + c, zeros);
        return;
    }
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

extern "C" void cuda_ce_bwd(Backend *be, Tensor dlogits, Tensor logits, Tensor lse, Tensor labels,
                            float scale)
{
    Gradient g = { dlogits.data, logits.data, (const float *)lse.data, (const int *)labels.data, dlogits.s[0],
                   logits.s[0], logits.n[1], scale };
    bool aligned = packs(dlogits) && packs(logits);
    BY_DTYPE(dlogits.dtype, O, BY_DTYPE(logits.dtype, T, gradient<O, T>(be, g, logits.n[0], aligned)));
}
