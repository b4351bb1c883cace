/* ops/adamw.cu -- kernels of adamw.c: dense streams, four elements a thread and step.
 *
 * sumsq   At most PARTS blocks leave a sum each in the workspace, one block adds these in a fixed order; the
 *         shape alone says who adds what. Squares and sums are double.
 * adamw   A block takes 2048 elements, all loads of a thread in flight. The clipping factor is worked out on
 *         the card from sumsq, by one thread of each block while the loads are under way; the other factors
 *         of a step come from the host. Bases not aligned for four are walked one element at a time. */
#include "ops/runs.cuh"

#include <math.h>

enum { THREADS = 256, PARTS = 1056, EACH = 4 };

/* The loop is over whole runs of N; the few elements behind the last go to the first threads of block 0. */
template <int N>
static __global__ void __launch_bounds__(THREADS) square_parts(double *part, const float *x, int64_t n)
{
    __shared__ double work[32];
    int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, step = (int64_t)gridDim.x * THREADS;
    int64_t runs = n / N;
    double  sum = 0.0;
    for (int64_t i = first; i < runs; i += EACH * step) {
        Run<float, N> v[EACH];
        #pragma unroll
        for (int k = 0; k < EACH; k++)
            if (i + k * step < runs) v[k] = run_load<N>(x + (i + k * step) * N);
        #pragma unroll
        for (int k = 0; k < EACH; k++)
            if (i + k * step < runs)
                #pragma unroll
                for (int j = 0; j < N; j++) sum += (double)v[k].get(j) * v[k].get(j);
    }
    if (first < n % N) sum += (double)x[runs * N + first] * x[runs * N + first];
    sum = block_sum(sum, work);
    if (!threadIdx.x) part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS) add_parts(double *out, const double *part, int parts)
{
    __shared__ double work[32];
    double sum = 0.0;
    for (int i = threadIdx.x; i < parts; i += THREADS) sum += part[i];
    sum = block_sum(sum, work);
    if (!threadIdx.x) *out += sum;
}

extern "C" void cuda_sumsq(Backend *be, Tensor out, Tensor x)
{
    int64_t n = t_count(x), parts = at_most(PARTS, ceil_div(n, THREADS * EACH * 4));
    double *part = (double *)cuda_workspace(be, PARTS * sizeof *part);
    const float *data = (const float *)x.data;
    if (starts_on(x, 4)) LAUNCH(be, "sumsq", square_parts<4>, parts, THREADS, 0, part, data, n);
    else                 LAUNCH(be, "sumsq", square_parts<1>, parts, THREADS, 0, part, data, n);
    LAUNCH(be, "sumsq", add_parts, 1, THREADS, 0, (double *)out.data, part, (int)parts);
}

/* A step's factors, worked out once in double; clip is the card's part. */
typedef struct Factors { float shrink, in1, keep2, in2, root, eps, step, max_norm; } Factors;

static Factors factors(AdamW h)
{
    double b1 = h.beta1, b2 = h.beta2;
    return Factors{ (float)(1.0 - (double)h.lr * h.decay), (float)(1.0 - b1), h.beta2, (float)(1.0 - b2),
                    (float)sqrt(1.0 - pow(b2, (double)h.step)), h.eps,
                    (float)(h.lr / (1.0 - pow(b1, (double)h.step))), h.max_norm };
}

/* p is the master or w itself; the rounded copy goes to w32 or w16, or nowhere. */
template <class M, class S> struct Streams {
    float        *p, *w32;
    bf16         *w16;
    M            *m;
    S            *v;
    const float  *g;
    const double *sumsq;                     /* NULL: gradients stay as they are */
    int64_t       n;
};

static __device__ inline float clip_of(const double *sumsq, float max_norm)
{
    double clip = sumsq ? max_norm / (sqrt(*sumsq) + 1e-6) : 1.0;
    return clip < 1.0 ? (float)clip : 1.0f;
}

static __device__ inline void adam(float &p, float &m, float &v, float grad, float clip, Factors f)
{
    float g = grad * clip;
    m += f.in1 * (g - m);
    v  = f.keep2 * v + f.in2 * g * g;
    p  = p * f.shrink - f.step * (m / (sqrtf(v) / f.root + f.eps));
}

/* N elements in registers. */
template <class M, class S, int N> struct Held {
    Run<float, N> p, g;
    Run<M, N>     m;
    Run<S, N>     v;

    __device__ void load(const Streams<M, S> &s, int64_t i)
    {
        p = run_load<N>(s.p + i), g = run_load<N>(s.g + i);
        m = run_load<N>(s.m + i), v = run_load<N>(s.v + i);
    }
    __device__ void update(const Streams<M, S> &s, int64_t i, float clip, Factors f) const
    {
        float P[N], A[N], B[N];
        #pragma unroll
        for (int j = 0; j < N; j++) {
            P[j] = p.get(j), A[j] = m.get(j), B[j] = v.get(j);
            adam(P[j], A[j], B[j], g.get(j), clip, f);
        }
        run_store<N>(s.p + i, P);
        run_store<N>(s.m + i, A);
        run_store<N>(s.v + i, B);
        if (s.w16) run_store<N>(s.w16 + i, P);
        if (s.w32) run_store<N>(s.w32 + i, P);
    }
};

/* A thread has HELD runs of N, THREADS runs apart. The few elements behind the last whole run go one by one
 * to the first threads of the last block. */
enum { HELD = 2 };

template <class M, class S, int N>
static __global__ void __launch_bounds__(THREADS, 4) step_all(Streams<M, S> s, Factors f)
{
    __shared__ float shared;
    Held<M, S, N> h[HELD];
    int64_t at = ((int64_t)blockIdx.x * HELD * THREADS + threadIdx.x) * N, whole = s.n / N * N;
    #pragma unroll
    for (int k = 0; k < HELD; k++)
        if (at + k * THREADS * N < whole) h[k].load(s, at + k * THREADS * N);
    if (!threadIdx.x) shared = clip_of(s.sumsq, f.max_norm);
    __syncthreads();
    float clip = shared;
    #pragma unroll
    for (int k = 0; k < HELD; k++)
        if (at + k * THREADS * N < whole) h[k].update(s, at + k * THREADS * N, clip, f);
    if (blockIdx.x == gridDim.x - 1 && whole + threadIdx.x < s.n) {
        Held<M, S, 1> one;
        one.load(s, whole + threadIdx.x);
        one.update(s, whole + threadIdx.x, clip, f);
    }
}

template <class M, class S>
static void step_typed(Backend *be, Tensor w, Tensor master, Tensor m, Tensor v, Tensor g, Tensor sumsq,
                       AdamW h)
{
    bool    clips = t_has(sumsq) && h.max_norm > 0.0f, copies = t_has(master);
    bool    by4 = starts_on(w, 4) && (!copies || starts_on(master, 4)) && starts_on(m, 4) &&
                  starts_on(v, 4) && starts_on(g, 4);
    int64_t each = (by4 ? 4 : 1) * HELD * THREADS, blocks = ceil_div(t_count(w), each);
    Factors f = factors(h);
    Streams<M, S> s = { (float *)(copies ? master : w).data,
                        copies && w.dtype == F32 ? (float *)w.data : NULL,
                        copies && w.dtype == BF16 ? (bf16 *)w.data : NULL, (M *)m.data, (S *)v.data,
                        (const float *)g.data, clips ? (const double *)sumsq.data : NULL, t_count(w) };
    if (by4) LAUNCH(be, "adamw", (step_all<M, S, 4>), blocks, THREADS, 0, s, f);
    else     LAUNCH(be, "adamw", (step_all<M, S, 1>), blocks, THREADS, 0, s, f);
}

extern "C" void cuda_adamw(Backend *be, Tensor w, Tensor master, Tensor m, Tensor v, Tensor g, Tensor sumsq,
                           AdamW h)
{
    BY_DTYPE(m.dtype, M, BY_DTYPE(v.dtype, S, step_typed<M, S>(be, w, master, m, v, g, sumsq, h)));
}
