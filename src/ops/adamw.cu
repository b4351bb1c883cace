/* ops/adamw.cu -- kernels of adamw.c: dense streams, four elements a thread and step.
 *
 * sumsq   At most PARTS blocks leave a sum each in the workspace, one block adds these in a fixed order; the
 *         shape alone says who adds what. Squares and sums are double.
 * adamw   A block takes 2048 elements, all loads of a thread in flight. The clipping factor is worked out on
 *         the card from sumsq, by one thread of each block while the loads are under way; the other factors
 *         of a step come from the host. Bases not aligned for four are walked one element at a time.
 * set_weight   one element a thread; it runs once. */
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

static __global__ void __launch_bounds__(THREADS) add_parts(double *out, double *each, const double *part,
                                                            int parts)
{
    __shared__ double work[32];
    double sum = 0.0;
    for (int i = threadIdx.x; i < parts; i += THREADS) sum += part[i];
    sum = block_sum(sum, work);
    if (threadIdx.x) return;
    *out += sum;
    if (each) *each = sum;
}

extern "C" void cuda_sumsq(Backend *be, Tensor out, Tensor each, Tensor x)
{
    int64_t n = t_count(x), parts = at_most(PARTS, ceil_div(n, THREADS * EACH * 4));
    double *part = (double *)cuda_workspace(be, PARTS * sizeof *part);
    const float *data = (const float *)x.data;
    if (starts_on(x, 4)) LAUNCH(be, "sumsq", square_parts<4>, parts, THREADS, 0, part, data, n);
    else                 LAUNCH(be, "sumsq", square_parts<1>, parts, THREADS, 0, part, data, n);
    LAUNCH(be, "sumsq", add_parts, 1, THREADS, 0, (double *)out.data, (double *)each.data, part,
           (int)parts);
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

/* A master as f32, with its rounded copy in w32, w16 or nowhere; SPLIT: w16 and the rest it lacks. */
template <class M, class S> struct Streams {
    float        *p, *w32;
    bf16         *w16;
    uint16_t     *rest;
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

/* Every product and sum is spelled out: no two ways to store the state may be compiled to different ones. */
static __device__ inline void adam(float &p, float &m, float &v, float grad, float clip, Factors f)
{
    float g = __fmul_rn(grad, clip);
    m = __fmaf_rn(f.in1, __fsub_rn(g, m), m);
    v = __fmaf_rn(__fmul_rn(f.in2, g), g, __fmul_rn(f.keep2, v));
    float slope = __fdiv_rn(m, __fadd_rn(__fdiv_rn(__fsqrt_rn(v), f.root), f.eps));
    p = __fmaf_rn(-f.step, slope, __fmul_rn(p, f.shrink));
}

/* bits_quiet, bits_near and bits_join of tensor/dtype.h. */
static __device__ inline unsigned quiet(float x)
{
    return x != x ? 0x7fc00000u : __float_as_uint(x);
}
static __device__ inline unsigned near_of(unsigned u) { return (u + 0x8000u) >> 16 & 0xffffu; }
static __device__ inline float    joined(unsigned near, unsigned rest)
{
    return __uint_as_float((near - (rest >> 15)) << 16 | rest);
}

/* N neighbours of 16 bits each. */
template <int N> struct alignas(N * 2) Half { uint16_t v[N]; };

/* p on its way to memory: quiet, with its rounded form and what that lacks. */
template <int N> struct Rounded {
    Half<N> near, rest;
    __device__ explicit Rounded(float *p)
    {
        #pragma unroll
        for (int j = 0; j < N; j++) {
            unsigned u = quiet(p[j]);
            p[j] = __uint_as_float(u), near.v[j] = (uint16_t)near_of(u), rest.v[j] = (uint16_t)u;
        }
    }
};

/* N elements in registers. */
template <class M, class S, int N, bool SPLIT> struct Held {
    Run<float, N> p, g;
    Half<N>       near, rest;
    Run<M, N>     m;
    Run<S, N>     v;

    __device__ void load(const Streams<M, S> &s, int64_t i)
    {
        if (SPLIT) near = *(const Half<N> *)(s.w16 + i), rest = *(const Half<N> *)(s.rest + i);
        else       p = run_load<N>(s.p + i);
        g = run_load<N>(s.g + i);
        m = run_load<N>(s.m + i), v = run_load<N>(s.v + i);
    }
    __device__ void update(const Streams<M, S> &s, int64_t i, float clip, Factors f) const
    {
        float P[N], A[N], B[N];
        #pragma unroll
        for (int j = 0; j < N; j++) {
            P[j] = SPLIT ? joined(near.v[j], rest.v[j]) : p.get(j), A[j] = m.get(j), B[j] = v.get(j);
            adam(P[j], A[j], B[j], g.get(j), clip, f);
        }
        run_store<N>(s.m + i, A);
        run_store<N>(s.v + i, B);
        if (s.w16) {
            Rounded<N> r(P);
            *(Half<N> *)(s.w16 + i) = r.near;
            if (SPLIT) *(Half<N> *)(s.rest + i) = r.rest;
        }
        if (!SPLIT) run_store<N>(s.p + i, P);
        if (s.w32) run_store<N>(s.w32 + i, P);
    }
};

/* A thread has HELD runs of N, THREADS runs apart. The few elements behind the last whole run go one by one
 * to the first threads of the last block. */
enum { HELD = 2 };

template <class M, class S, int N, bool SPLIT>
static __global__ void __launch_bounds__(THREADS, 4) step_all(Streams<M, S> s, Factors f)
{
    __shared__ float shared;
    Held<M, S, N, SPLIT> h[HELD];
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
        Held<M, S, 1, SPLIT> one;
        one.load(s, whole + threadIdx.x);
        one.update(s, whole + threadIdx.x, clip, f);
    }
}

template <class M, class S, bool SPLIT>
static void step_typed(Backend *be, Tensor w, Tensor master, Tensor m, Tensor v, Tensor g, Tensor sumsq,
                       AdamW h)
{
    bool    clips = t_has(sumsq) && h.max_norm > 0.0f, copies = t_has(master);
    bool    by4 = starts_on(w, 4) && (!copies || starts_on(master, 4)) && starts_on(m, 4) &&
                  starts_on(v, 4) && starts_on(g, 4);
    int64_t each = (by4 ? 4 : 1) * HELD * THREADS, blocks = ceil_div(t_count(w), each);
    Factors f = factors(h);
    Streams<M, S> s = { SPLIT ? NULL : (float *)(copies ? master : w).data,
                        copies && w.dtype == F32 ? (float *)w.data : NULL,
                        copies && w.dtype == BF16 ? (bf16 *)w.data : NULL,
                        SPLIT ? (uint16_t *)master.data : NULL, (M *)m.data, (S *)v.data,
                        (const float *)g.data, clips ? (const double *)sumsq.data : NULL, t_count(w) };
    if (by4) LAUNCH(be, "adamw", (step_all<M, S, 4, SPLIT>), blocks, THREADS, 0, s, f);
    else     LAUNCH(be, "adamw", (step_all<M, S, 1, SPLIT>), blocks, THREADS, 0, s, f);
}

extern "C" void cuda_adamw(Backend *be, Tensor w, Tensor master, Tensor m, Tensor v, Tensor g, Tensor sumsq,
                           AdamW h)
{
    if (t_has(master) && master.dtype == I16)
        BY_DTYPE(m.dtype, M,
                 BY_DTYPE(v.dtype, S, step_typed<M, S, true>(be, w, master, m, v, g, sumsq, h)));
    else
        BY_DTYPE(m.dtype, M,
                 BY_DTYPE(v.dtype, S, step_typed<M, S, false>(be, w, master, m, v, g, sumsq, h)));
}

static __global__ void __launch_bounds__(THREADS) set_all(float *w32, uint16_t *w16, float *p, uint16_t *rest,
                                                          const float *x, int64_t n)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float v = x[i];
        if (w16) {
            Rounded<1> r(&v);
            w16[i] = r.near.v[0];
            if (rest) rest[i] = r.rest.v[0];
        } else w32[i] = v;
        if (p) p[i] = v;
    }
}

extern "C" void cuda_set_weight(Backend *be, Tensor w, Tensor master, Tensor x)
{
    bool wide = w.dtype == F32, split = t_has(master) && master.dtype == I16;
    LAUNCH(be, "set_weight", set_all, cuda_blocks(be, t_count(w), THREADS, 16), THREADS, 0,
           wide ? (float *)w.data : NULL, wide ? NULL : (uint16_t *)w.data,
           split ? NULL : (float *)master.data, split ? (uint16_t *)master.data : NULL, (const float *)x.data,
           t_count(w));
}
