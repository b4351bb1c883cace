/* ops/cuda/adamw_fp8.cu -- kernels of adamw_fp8.c.
 *
 * grid   256 threads take a block of 128 x 128; four of them share a multiprocessor
 * smem   32 KB: rounded weights wait there for the scale of their block, each thread for its own; then the
 *        codes are transposed there
 * reads  All streams once, by runs of four neighbours: a warp takes a row, a thread every eighth row. The
 *        next run is loaded before one is updated; under the first loads one thread computes the clipping
 *        factor and reads the verdict
 * other  Widths and bases that are not aligned for that go element by element, and each thread quantises the
 *        weights that it wrote */
#include "ops/cuda/adamw.cuh"
#include "ops/cuda/quant_block.cuh"

namespace {

enum { THREADS = 256 };

struct Codes { Matrices q, scale, qt, scale_t; int64_t N, K; bool pow2; };

static __device__ inline float half_to_f32(uint16_t x) { return __uint_as_float((unsigned)x << 16); }

/* The rounded weights of P into `half`, and the larger of amax and theirs. */
template <int N>
static __device__ inline uint32_t round_off(Half<N> *half, const float *P, uint32_t amax)
{
    Half<N> r;
    #pragma unroll
    for (int j = 0; j < N; j++) {
        r.v[j] = (uint16_t)near_of(__float_as_uint(P[j]));
        amax   = max(amax, quant_magnitude(half_to_f32(r.v[j])));
    }
    *half = r;
    return amax;
}

/* The runs of a thread: column `col` of rows `row`, `row` + DOWN, ... of a block; a warp takes a row. */
enum { RUN = 4, DOWN = THREADS * RUN / QUANT_GROUP, RUNS = QUANT_GROUP / DOWN };
static __device__ inline int row_of(int run) { return (int)threadIdx.x / 32 + run * DOWN; }
static __device__ inline int col_of()        { return (int)threadIdx.x % 32 * RUN; }
static __device__ inline int runs_in(const Where &w)
{
    return col_of() < w.cols && row_of(0) < w.rows ? (w.rows - row_of(0) + DOWN - 1) / DOWN : 0;
}

/* Codes of `runs` runs of a thread: into q and `code`. */
static __device__ inline void encode_runs(uint32_t (&code)[RUNS], const Half<RUN> *held, int runs,
                                          Matrices q, const Where &w, float inverse)
{
    #pragma unroll
    for (int k = 0; k < RUNS; k++) {
        if (k >= runs) continue;
        Half<RUN> x = held[k * THREADS + threadIdx.x];
        code[k] = e4m3_four(half_to_f32(x.v[0]) * inverse, half_to_f32(x.v[1]) * inverse,
                            half_to_f32(x.v[2]) * inverse, half_to_f32(x.v[3]) * inverse);
        *(uint32_t *)(at<uint8_t>(q, w.e, w.n + row_of(k)) + w.k + col_of()) = code[k];
    }
}

/* `place` is `where`, kept for the codes: the registers are for the update. */
template <class M, class G, bool SPLIT>
static __global__ void __launch_bounds__(THREADS, 4)
step_blocks(Streams<M, M, G> s, Given given, Codes z)
{
    __shared__ Half<RUN> held[RUNS * THREADS];
    __shared__ Where     place;
    __shared__ float     decided;
    static_assert(sizeof held >= CODE_WORDS * 4, "the codes take the place of the weights");
    Where    here = where(z.N, z.K);
    int      runs = runs_in(here);
    int64_t  i = (here.e * z.N + here.n + row_of(0)) * z.K + here.k + col_of();
    uint32_t amax = 0;
    Held<M, M, G, RUN, SPLIT> next, now;
    if (runs) next.load(s, i);
    if (!threadIdx.x) decided = decide(s, given.max_norm), place = here;
    __syncthreads();
    if (decided == SKIPPED) return;
    AdamFactors f = factors(given, decided);
    Half<RUN>  *slot = held + threadIdx.x;
    #pragma unroll 1
    for (; runs; runs--, i += DOWN * z.K, slot += THREADS) {
        float P[RUN];
        now = next;
        if (runs > 1) next.load(s, i + DOWN * z.K);
        now.update(s, i, f, P);
        amax = round_off(slot, P, amax);
    }
    QuantScale   scale = quant_scale(block_max(amax), z.pow2);
    const Where &w = place;
    uint32_t     code[RUNS] = { };
    encode_runs(code, held, runs_in(w), z.q, w, scale.inverse);
    store_scale(z.q, z.scale, z.qt, z.scale_t, w, scale.scale);
    if (!z.qt.p) return;
    __syncthreads();
    uint32_t *words = (uint32_t *)(void *)held;
    #pragma unroll
    for (int k = 0; k < RUNS; k++) words[code_at(row_of(k), threadIdx.x % 32)] = code[k];
    __syncthreads();
    store_transposed(z.qt, words, w);
}

template <class M, class G, bool SPLIT>
static __global__ void __launch_bounds__(THREADS) step_elements(Streams<M, M, G> s, Given given, Codes z)
{
    __shared__ float decided;
    Where    w = where(z.N, z.K);
    int64_t  first = (w.e * z.N + w.n) * z.K + w.k;
    uint32_t amax = 0;
    if (!threadIdx.x) decided = decide(s, given.max_norm);
    __syncthreads();
    if (decided == SKIPPED) return;
    AdamFactors f = factors(given, decided);
    for (int i = threadIdx.x; i < w.rows * w.cols; i += THREADS) {
        Held<M, M, G, 1, SPLIT> one;
        Half<1> half;
        float   P;
        int64_t from = first + i / w.cols * z.K + i % w.cols;
        one.load(s, from);
        one.update(s, from, f, &P);
        amax = round_off(&half, &P, amax);
    }
    QuantScale scale = quant_scale(block_max(amax), z.pow2);
    for (int i = threadIdx.x; i < w.rows * w.cols; i += THREADS) {
        int64_t n = w.n + i / w.cols, k = w.k + i % w.cols;
        uint8_t code = e4m3_from_f32(to_f32(s.w16[first + i / w.cols * z.K + i % w.cols]) * scale.inverse);
        at<uint8_t>(z.q, w.e, n)[k] = code;
        if (z.qt.p) at<uint8_t>(z.qt, w.e, k)[n] = code;
    }
    store_scale(z.q, z.scale, z.qt, z.scale_t, w, scale.scale);
}

template <class M, class G, bool SPLIT>
static void step_typed(Backend *be, int64_t blocks, bool runs, const Streams<M, M, G> &s, const Given &f,
                       const Codes &z)
{
    if (runs) LAUNCH(be, "adamw_fp8", (step_blocks<M, G, SPLIT>), blocks, THREADS, 0, s, f, z);
    else      LAUNCH(be, "adamw_fp8", (step_elements<M, G, SPLIT>), blocks, THREADS, 0, s, f, z);
}

}

extern "C" void cuda_adamw_fp8(Backend *be, Tensor q, Tensor scale, Tensor qt, Tensor scale_t, Tensor w,
                               Tensor master, Tensor m, Tensor v, Tensor g, Tensor sumsq, AdamW h, bool pow2)
{
    int64_t E = q.rank == 3 ? q.n[0] : 1, N = q.n[q.rank - 2], K = q.n[q.rank - 1];
    int64_t blocks = E * quant_groups(N) * quant_groups(K);
    bool    runs = packs(q) && (!t_has(qt) || packs(qt)) && weights_start_on(w, master, g, RUN) &&
                   starts_on(m, RUN) && starts_on(v, RUN), split = is_split(master);
    Codes   z = { matrices(q), matrices(scale), matrices(qt), matrices(scale_t), N, K, pow2 };
    Weights of = weights_of(w, master, g, sumsq, h);
    BY_DTYPE(m.dtype, M, BY_DTYPE(g.dtype, G, {
        Streams<M, M, G> s = { of, (M *)m.data, (M *)v.data };
        if (split) step_typed<M, G, true>(be, blocks, runs, s, given(h), z);
        else       step_typed<M, G, false>(be, blocks, runs, s, given(h), z);
    }));
}
