/* ops/cuda/adamw.cu -- kernels of adamw.c: dense streams, four elements a thread and step.
 *
 * squares Two launches per list; the list is a kernel argument. In the first a block sums one part of one
 *         tensor into the workspace; parts are of about equal length, so a large tensor has many. In the
 *         second one block adds the parts of each tensor, then the tensors. Lengths and starts alone fix the
 *         order of the sums. Squares and sums are double, loads 16 bytes.
 * adamw   A block takes 2048 elements, with all loads of a thread in flight. One thread of each block
 *         computes the clipping factor from sumsq and reads the verdict while the loads are under way; the
 *         other factors of a step come from the host (AdamStep), by value or by address. Bases not aligned
 *         for four elements are walked one element at a time.
 * set_weight   One element a thread; it runs once. */
#include "ops/cuda/runs.cuh"

#include <math.h>

namespace {

enum { THREADS = 256 };

/* BLOCKS fill an H200 four times; a list that is too short for that is cut in parts of LEAST elements. */
enum { BLOCKS = 4224, LEAST = 8192, EACH = 4, ADDERS = 1024 };

/* Tensor i has the parts from its `first` up to that of tensor i + 1; an end marker follows the last
 * tensor. */
struct Span { const float *x; int64_t n; int first; unsigned cell : 31, squared : 1; };
struct Spans { Span at[ADDENDS + 1]; int n; };
static_assert(sizeof(Spans) <= 4000, "a kernel has 4 KB for its arguments");

static Spans cut(const Addends *list)
{
    Spans   s;
    int64_t all = 0, length;
    int     first = 0;
    for (int i = 0; i < list->n; i++) all += t_count(list->at[i].x);
    length = ceil_div(all, BLOCKS) > LEAST ? ceil_div(all, BLOCKS) : LEAST;
    for (int i = 0; i < list->n; i++) {
        const Addend *from = &list->at[i];
        s.at[i] = Span{ (const float *)from->x.data, t_count(from->x), first,
                        (unsigned)from->cell & INT32_MAX, from->squared };
        first += (int)ceil_div(s.at[i].n, length);
    }
    s.at[list->n] = Span{ NULL, 0, first, 0, 0 };
    s.n = list->n;
    return s;
}

/* The last tensor that begins at or before this part; a tensor without elements begins where the next one
 * does. */
static __device__ inline int holder(const Spans &s, int part)
{
    int i = 0;
    #pragma unroll
    for (int half = ADDENDS / 2; half; half /= 2)
        if (i + half < s.n && s.at[i + half].first <= part) i += half;
    return i;
}

static __device__ inline double square(float x, bool squared) { return (double)x * (squared ? 1.0f : x); }

/* One of `parts` of a tensor, by runs of four from the first 16-byte border on; the few elements before it
 * and behind the last run go to the first threads of part 0. */
static __device__ inline double part_sum(const Span &s, int part, int parts)
{
    const float *x = s.x;
    int64_t n = s.n;
    bool    squared = s.squared;
    int64_t head = (-(intptr_t)x & 15) / 4, lane = (int64_t)part * THREADS + threadIdx.x;
    int64_t step = (int64_t)parts * THREADS, runs, rest;
    double  sum = 0.0;
    if (head > n) head = n;
    runs = (n - head) / 4, rest = head + runs * 4;
    if (lane < head) sum += square(x[lane], squared);
    if (rest + lane < n) sum += square(x[rest + lane], squared);
    for (int64_t i = lane; i < runs; i += EACH * step) {
        Run<float, 4> v[EACH];
        #pragma unroll
        for (int k = 0; k < EACH; k++)
            if (i + k * step < runs) v[k] = run_load<4>(x + head + (i + k * step) * 4);
        #pragma unroll
        for (int k = 0; k < EACH; k++)
            if (i + k * step < runs)
                #pragma unroll
                for (int j = 0; j < 4; j++) sum += square(v[k].get(j), squared);
    }
    return sum;
}

static __global__ void __launch_bounds__(THREADS) square_parts(double *part, const __grid_constant__ Spans s)
{
    __shared__ double work[32];
    int    i = holder(s, blockIdx.x), first = s.at[i].first;
    double sum = part_sum(s.at[i], (int)blockIdx.x - first, s.at[i + 1].first - first);
    sum = block_sum(sum, work);
    if (!threadIdx.x) part[blockIdx.x] = sum;
}

/* Each warp adds the parts of some tensors, the first one then the tensors; a lane takes every 32nd. */
static __global__ void __launch_bounds__(ADDERS) add_parts(double *out, double *each, const double *part,
                                                           const __grid_constant__ Spans s)
{
    __shared__ double all[BLOCKS + ADDENDS], own[ADDENDS];
    int    lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    double sum = 0.0;
    for (int i = threadIdx.x; i < s.at[s.n].first; i += ADDERS) all[i] = part[i];
    __syncthreads();
    for (int i = warp; i < s.n; i += ADDERS / 32) {
        double x = 0.0;
        for (int k = s.at[i].first + lane; k < s.at[i + 1].first; k += 32) x += all[k];
        x = warp_sum(x);
        if (lane) continue;
        own[i] = x;
        if (each) each[s.at[i].cell] = x;
    }
    __syncthreads();
    if (warp) return;
    for (int i = lane; i < s.n; i += 32) sum += own[i];
    sum = warp_sum(sum);
    if (!lane) *out += sum;
}

}

extern "C" void cuda_squares(Backend *be, Tensor out, Tensor each, const Addends *list)
{
    Spans   s = cut(list);
    double *part = (double *)cuda_workspace(be, (BLOCKS + ADDENDS) * sizeof *part);
    LAUNCH(be, "squares", square_parts, s.at[s.n].first, THREADS, 0, part, s);
    LAUNCH(be, "squares", add_parts, s.n > 0, ADDERS, 0, (double *)out.data, (double *)each.data, part, s);
}

namespace {

/* What a kernel is given: constants of a run; the step's values, or their address. */
typedef struct Given {
    float in1, keep2, in2, eps, decay, max_norm;
    AdamStep        step;
    const AdamStep *now;
} Given;

static Given given(AdamW h)
{
    return Given{ (float)(1.0 - (double)h.beta1), h.beta2, (float)(1.0 - (double)h.beta2), h.eps, h.decay,
                  h.max_norm, adam_step(&h), h.now };
}

/* A step's factors in a kernel. lr * decay is exact in double, so shrink has the bits of the CPU's. */
typedef struct Factors { float shrink, in1, keep2, in2, root, eps, step; } Factors;

static __device__ inline Factors factors(const Given &h)
{
    AdamStep now = h.now ? *h.now : h.step;
    return Factors{ (float)(1.0 - (double)now.lr * (double)h.decay), h.in1, h.keep2, h.in2, now.root, h.eps,
                    now.rate };
}

/* A master as f32, with its rounded copy in w32, w16 or nowhere. SPLIT: the master is w16 and its 16 low
 * bits. */
template <class M, class S> struct Streams {
    float        *p, *w32;
    bf16         *w16;
    uint16_t     *rest;
    M            *m;
    S            *v;
    const float  *g;
    const double *sumsq;                     /* NULL: gradients stay as they are */
    const double *verdict;                   /* NULL: STEP_GOOD */
    int64_t       n;
};

static __device__ inline float clip_of(const double *sumsq, float max_norm)
{
    double clip = sumsq ? max_norm / (sqrt(*sumsq) + 1e-6) : 1.0;
    return clip < 1.0 ? (float)clip : 1.0f;
}

/* The clipping factor, or SKIPPED where the step does not update. */
enum { SKIPPED = -1 };
template <class M, class S> static __device__ inline float decide(const Streams<M, S> &s, float max_norm)
{
    return s.verdict && *s.verdict != STEP_GOOD ? (float)SKIPPED : clip_of(s.sumsq, max_norm);
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

/* p as it is stored: with quiet NaNs, its bf16 and the remaining 16 bits. */
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
static __global__ void __launch_bounds__(THREADS, 4) step_all(Streams<M, S> s, Given given)
{
    __shared__ float shared;
    Factors f = factors(given);
    Held<M, S, N, SPLIT> h[HELD];
    int64_t at = ((int64_t)blockIdx.x * HELD * THREADS + threadIdx.x) * N, whole = s.n / N * N;
    #pragma unroll
    for (int k = 0; k < HELD; k++)
        if (at + k * THREADS * N < whole) h[k].load(s, at + k * THREADS * N);
    if (!threadIdx.x) shared = decide(s, given.max_norm);
    __syncthreads();
    float clip = shared;
    if (clip == SKIPPED) return;
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
    Given   f = given(h);
    Streams<M, S> s = { SPLIT ? NULL : (float *)(copies ? master : w).data,
                        copies && w.dtype == F32 ? (float *)w.data : NULL,
                        copies && w.dtype == BF16 ? (bf16 *)w.data : NULL,
                        SPLIT ? (uint16_t *)master.data : NULL, (M *)m.data, (S *)v.data,
                        (const float *)g.data, clips ? (const double *)sumsq.data : NULL,
                        (const double *)h.verdict.data, t_count(w) };
    if (by4) LAUNCH(be, "adamw", (step_all<M, S, 4, SPLIT>), blocks, THREADS, 0, s, f);
    else     LAUNCH(be, "adamw", (step_all<M, S, 1, SPLIT>), blocks, THREADS, 0, s, f);
}

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

namespace {

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

}

extern "C" void cuda_set_weight(Backend *be, Tensor w, Tensor master, Tensor x)
{
    bool wide = w.dtype == F32, split = t_has(master) && master.dtype == I16;
    LAUNCH(be, "set_weight", set_all, cuda_blocks(be, t_count(w), THREADS, 16), THREADS, 0,
           wide ? (float *)w.data : NULL, wide ? NULL : (uint16_t *)w.data,
           split ? NULL : (float *)master.data, split ? (uint16_t *)master.data : NULL, (const float *)x.data,
           t_count(w));
}
