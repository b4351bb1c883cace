/* ops/cuda/adamw.cuh -- what the kernels of AdamW share: factors of a step, masters in memory, runs of
 * elements in registers. */
#ifndef OPS_CUDA_ADAMW_CUH
#define OPS_CUDA_ADAMW_CUH

#include "ops/adam_element.h"
#include "ops/cuda/runs.cuh"

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
static __device__ inline AdamFactors factors(const Given &h, float clip)
{
    AdamStep now = h.now ? *h.now : h.step;
    return AdamFactors{ (float)(1.0 - (double)now.lr * (double)h.decay), clip, h.in1, h.keep2, h.in2,
                        now.root, h.eps, now.rate };
}

/* A master as f32, with its rounded copy in w32, w16 or nowhere; of a split one the master is w16 and its 16
 * low bits. */
struct Weights {
    float        *p, *w32;
    bf16         *w16;
    uint16_t     *rest;
    const void   *g;                         /* f32 or bf16 */
    const double *sumsq;                     /* NULL: gradients stay as they are */
    const double *verdict;                   /* NULL: STEP_GOOD */
    int64_t       n;
};

static inline bool is_split(Tensor master) { return t_has(master) && master.dtype == I16; }

static Weights weights_of(Tensor w, Tensor master, Tensor g, Tensor sumsq, const AdamW &h)
{
    bool clips = t_has(sumsq) && h.max_norm > 0.0f, copies = t_has(master), split = is_split(master);
    return Weights{ split ? NULL : (float *)(copies ? master : w).data,
                    copies && w.dtype == F32 ? (float *)w.data : NULL,
                    copies && w.dtype == BF16 ? (bf16 *)w.data : NULL,
                    split ? (uint16_t *)master.data : NULL, g.data,
                    clips ? (const double *)sumsq.data : NULL, (const double *)h.verdict.data, t_count(w) };
}

static inline bool weights_start_on(Tensor w, Tensor master, Tensor g, int n)
{
    return starts_on(w, n) && (!t_has(master) || starts_on(master, n)) && starts_on(g, n);
}

static __device__ inline float clip_of(const double *sumsq, float max_norm)
{
    double clip = sumsq ? max_norm / (sqrt(*sumsq) + 1e-6) : 1.0;
    return clip < 1.0 ? (float)clip : 1.0f;
}

/* The clipping factor, or SKIPPED where the step does not update. */
enum { SKIPPED = -1 };
static __device__ inline float decide(const Weights &s, float max_norm)
{
    return s.verdict && *s.verdict != STEP_GOOD ? (float)SKIPPED : clip_of(s.sumsq, max_norm);
}

/* bits_quiet, bits_near and bits_join of tensor/dtype.h. */
static __device__ inline unsigned quiet(float x)
{
    return x != x ? 0x7fc00000u : __float_as_uint(x);
}
static __device__ inline unsigned near_of(unsigned u) { return (u + 0x8000u) >> 16 & 0xffffu; }
static __device__ inline float    joined(unsigned near, uint16_t rest)
{
    return __uint_as_float((near << 16) + (unsigned)(int)(int16_t)rest);
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

/* Stores N masters, their rounded copies and their low bits. */
template <int N, bool SPLIT>
static __device__ inline void masters_store(const Weights &s, int64_t i, float *P)
{
    if (s.w16) {
        Rounded<N> r(P);
        *(Half<N> *)(s.w16 + i) = r.near;
        if (SPLIT) *(Half<N> *)(s.rest + i) = r.rest;
    }
    if (!SPLIT) run_store<N>(s.p + i, P);
    if (s.w32) run_store<N>(s.w32 + i, P);
}

template <class M, class S, class G> struct Streams : Weights { M *m; S *v; };

/* N elements in registers. */
template <class M, class S, class G, int N, bool SPLIT> struct Held {
    Run<float, N> p;
    Run<G, N>     g;
    Half<N>       near, rest;
    Run<M, N>     m;
    Run<S, N>     v;

    __device__ void load(const Streams<M, S, G> &s, int64_t i)
    {
        if (SPLIT) near = *(const Half<N> *)(s.w16 + i), rest = *(const Half<N> *)(s.rest + i);
        else       p = run_load<N>(s.p + i);
        g = run_load<N>((const G *)s.g + i);
        m = run_load<N>(s.m + i), v = run_load<N>(s.v + i);
    }
    /* P: the masters as they are stored. */
    __device__ void update(const Streams<M, S, G> &s, int64_t i, AdamFactors f, float *P) const
    {
        float A[N], B[N];
        #pragma unroll
        for (int j = 0; j < N; j++) {
            P[j] = SPLIT ? joined(near.v[j], rest.v[j]) : p.get(j), A[j] = m.get(j), B[j] = v.get(j);
            adam_element(&P[j], &A[j], &B[j], g.get(j), f);
        }
        run_store<N>(s.m + i, A);
        run_store<N>(s.v + i, B);
        masters_store<N, SPLIT>(s, i, P);
    }
};

}

#endif
