/* ops/cuda/adamw.cu -- kernels of adamw.c: dense streams, four elements a thread and step.
 *
 * squares Two launches per list; the list is a kernel argument. In the first a block sums one part of one
 *         tensor into the workspace; parts are of about equal length, so a large tensor has many. In the
 *         second one block adds the parts of each tensor, then the tensors. Lengths, starts and types alone
 *         fix the order of the sums. Squares and sums are double, loads four elements.
 * adamw   A block takes 2048 elements, with all loads of a thread in flight. One thread of each block
 *         computes the clipping factor from sumsq and reads the verdict while the loads are under way; the
 *         other factors of a step come from the host (AdamStep), by value or by address. Bases not aligned
 *         for four elements are walked one element at a time.
 * set_weight   One element a thread; it runs once. */
#include "ops/cuda/adamw.cuh"

#include <math.h>

namespace {

enum { THREADS = 256 };

/* BLOCKS fill an H200 four times; a list that is too short for that is cut in parts of LEAST elements. */
enum { BLOCKS = 4224, LEAST = 8192, EACH = 4, ADDERS = 1024 };

/* Tensor i has the parts from its `first` up to that of tensor i + 1; an end marker follows the last
 * tensor. */
struct Span { const void *x; int64_t n; int first; unsigned cell : 30, squared : 1, half : 1; };
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
        s.at[i] = Span{ from->x.data, t_count(from->x), first, (unsigned)from->cell & INT32_MAX >> 1,
                        from->squared, from->x.dtype == BF16 };
        first += (int)ceil_div(s.at[i].n, length);
    }
    s.at[list->n] = Span{ NULL, 0, first, 0, 0, 0 };
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

/* One of `parts` of a tensor, by runs of four from the first border of such a run on; the few elements before
 * it and behind the last run go to the first threads of part 0. */
template <class T> static __device__ inline double part_sum(const Span &s, int part, int parts)
{
    const T *x = (const T *)s.x;
    int64_t n = s.n;
    bool    squared = s.squared;
    int64_t head = (-(intptr_t)x & (4 * (int)sizeof(T) - 1)) / (int)sizeof(T);
    int64_t lane = (int64_t)part * THREADS + threadIdx.x, step = (int64_t)parts * THREADS, runs, rest;
    double  sum = 0.0;
    if (head > n) head = n;
    runs = (n - head) / 4, rest = head + runs * 4;
    if (lane < head) sum += square(to_f32(x[lane]), squared);
    if (rest + lane < n) sum += square(to_f32(x[rest + lane]), squared);
    for (int64_t i = lane; i < runs; i += EACH * step) {
        Run<T, 4> v[EACH];
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

static __global__ void __launch_bounds__(THREADS) square_parts(double *out, const __grid_constant__ Spans s)
{
    __shared__ double work[32];
    int    i = holder(s, blockIdx.x), first = s.at[i].first;
    int    part = (int)blockIdx.x - first, parts = s.at[i + 1].first - first;
    double sum = s.at[i].half ? part_sum<bf16>(s.at[i], part, parts) : part_sum<float>(s.at[i], part, parts);
    sum = block_sum(sum, work);
    if (!threadIdx.x) out[blockIdx.x] = sum;
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

/* A thread has HELD runs of N, THREADS runs apart. The few elements behind the last whole run go one by one
 * to the first threads of the last block. */
enum { HELD = 2 };

template <class M, class S, class G, int N, bool SPLIT>
static __global__ void __launch_bounds__(THREADS, 4) step_all(Streams<M, S, G> s, Given given)
{
    __shared__ float shared;
    AdamFactors f = factors(given, 1.0f);
    Held<M, S, G, N, SPLIT> h[HELD];
    float   p[N];
    int64_t at = ((int64_t)blockIdx.x * HELD * THREADS + threadIdx.x) * N, whole = s.n / N * N;
    #pragma unroll
    for (int k = 0; k < HELD; k++)
        if (at + k * THREADS * N < whole) h[k].load(s, at + k * THREADS * N);
    if (!threadIdx.x) shared = decide(s, given.max_norm);
    __syncthreads();
    if (shared == SKIPPED) return;
    f.clip = shared;
    #pragma unroll
    for (int k = 0; k < HELD; k++)
        if (at + k * THREADS * N < whole) h[k].update(s, at + k * THREADS * N, f, p);
    if (blockIdx.x == gridDim.x - 1 && whole + threadIdx.x < s.n) {
        Held<M, S, G, 1, SPLIT> one;
        one.load(s, whole + threadIdx.x);
        one.update(s, whole + threadIdx.x, f, p);
    }
}

template <class M, class S, class G, bool SPLIT>
static void step_typed(Backend *be, Tensor w, Tensor master, Tensor m, Tensor v, Tensor g, Tensor sumsq,
                       AdamW h)
{
    bool    by4 = weights_start_on(w, master, g, 4) && starts_on(m, 4) && starts_on(v, 4);
    int64_t each = (by4 ? 4 : 1) * HELD * THREADS, blocks = ceil_div(t_count(w), each);
    Given   f = given(h);
    Streams<M, S, G> s = { weights_of(w, master, g, sumsq, h), (M *)m.data, (S *)v.data };
    if (by4) LAUNCH(be, "adamw", (step_all<M, S, G, 4, SPLIT>), blocks, THREADS, 0, s, f);
    else     LAUNCH(be, "adamw", (step_all<M, S, G, 1, SPLIT>), blocks, THREADS, 0, s, f);
}

}

extern "C" void cuda_adamw(Backend *be, Tensor w, Tensor master, Tensor m, Tensor v, Tensor g, Tensor sumsq,
                           AdamW h)
{
    bool split = is_split(master);
    BY_DTYPE(m.dtype, M, BY_DTYPE(v.dtype, S, BY_DTYPE(g.dtype, G,
        if (split) step_typed<M, S, G, true>(be, w, master, m, v, g, sumsq, h);
        else       step_typed<M, S, G, false>(be, w, master, m, v, g, sumsq, h))));
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
