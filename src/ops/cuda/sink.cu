/* ops/cuda/sink.cu -- kernels of sink.c. Lanes of a warp share a row of a head: one Pack each where heads are
 * bf16 or f32 throughout, start on 16 bytes and have a power of two of Packs, else all 32 element by element.
 * Backward sums tokens in as many parts as there are blocks, each in order, then the parts in order. */
#include "ops/cuda/rows.cuh"

namespace {

enum { WARPS = 8, THREADS = 256 };

typedef struct Sink { RowView o, dout, sink; float *lse, *part; int64_t lse_row, T; int H, C; } Sink;

/* What a row of lse becomes. */
static __device__ inline float with_sink(float lse, float sink)
{
    float top = fmaxf(lse, sink);
    return top + log1pf(expf(fminf(lse, sink) - top));
}

template <class T> static __global__ void __launch_bounds__(THREADS) sink_packs(Sink a)
{
    constexpr int E = Pack<T>::N;
    int     each = a.C / E;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, r = divide(i, each, a.T * a.H * each);
    bool    in = r < a.T * a.H;
    float  *l = in ? a.lse + r % a.H * a.lse_row + r / a.H : NULL, from = in ? *l : 0.0f;
    __syncwarp();
    if (!in) return;
    float   to = with_sink(from, view_get(a.sink, r % a.H)), by = expf(from - to), out[E];
    T      *at = row_of<T>(a.o, r) + i % each * E;
    Pack<T> x = pack_load(at);
#pragma unroll
    for (int j = 0; j < E; j++) out[j] = by * to_f32(x.v[j]);
    pack_store(at, pack_of<T>(out));
    if (!(i % each)) *l = to;
}

static __global__ void __launch_bounds__(32 * WARPS) sink_rows(Sink a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.T * a.H) return;
    float  *l = a.lse + r % a.H * a.lse_row + r / a.H, from = *l;
    float   to = with_sink(from, view_get(a.sink, r % a.H));
    int64_t at = view_row(a.o, r);
    __syncwarp();
    for (int i = threadIdx.x & 31; i < a.C; i += 32)
        view_put(a.o, at + i, expf(from - to) * view_get(a.o, at + i));
    if (!(threadIdx.x & 31)) *l = to;
}

/* Part of a lane of the dot product of dout and o; a team of `each` lanes has the row. */
template <class T> static __device__ inline float lane_dot(const Sink &a, int64_t r, int lane)
{
    constexpr int E = Pack<T>::N;
    Pack<T> x = pack_load(row_of<T>(a.o, r) + lane * E), d = pack_load(row_of<T>(a.dout, r) + lane * E);
    float   sum = 0.0f;
#pragma unroll
    for (int j = 0; j < E; j++) sum += to_f32(d.v[j]) * to_f32(x.v[j]);
    return sum;
}

static __device__ inline float lane_dot_any(const Sink &a, int64_t r, int lane)
{
    int64_t o = view_row(a.o, r), d = view_row(a.dout, r);
    float   sum = 0.0f;
    for (int i = lane; i < a.C; i += 32) sum += view_get(a.dout, d + i) * view_get(a.o, o + i);
    return sum;
}

/* Block b: tokens b T / blocks and on; part[b][h] is minus their sum. ANY: each = 32. */
template <class T, bool ANY> static __global__ void __launch_bounds__(THREADS) sink_grads(Sink a, int each)
{
    int64_t from = a.T * blockIdx.x / gridDim.x, to = a.T * (blockIdx.x + 1) / gridDim.x;
    int     teams = THREADS / each, lane = threadIdx.x % each;
    for (int h0 = 0; h0 < a.H; h0 += teams) {
        int   h = h0 + threadIdx.x / each;
        float sum = 0.0f, sink = h < a.H ? view_get(a.sink, h) : 0.0f;
#pragma unroll 4
        for (int64_t t = from; t < to; t++) {
            int64_t r = t * a.H + h;
            float   dot = h >= a.H ? 0.0f : ANY ? lane_dot_any(a, r, lane) : lane_dot<T>(a, r, lane);
            if (h < a.H) sum -= expf(sink - a.lse[h * a.lse_row + t]) * dot;
        }
        for (int o = each / 2; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
        if (h < a.H && !lane) a.part[(int64_t)blockIdx.x * a.H + h] = sum;
    }
}

static Sink args_of(Tensor o, Tensor lse, Tensor sink)
{
    Sink a = { view_of(o), {}, view_of(sink), (float *)lse.data, NULL, lse.s[0], o.n[0], (int)o.n[1],
               (int)o.n[2] };
    return a;
}

/* Packs of a head, where a team of lanes can share them; else 0. */
static int team_of(Tensor o, Tensor dout)
{
    int64_t n = o.n[2] * (int64_t)dtype_size((DType)o.dtype) / 16;
    bool    fits = packs_as(o, o.dtype) && packs_as(dout, o.dtype) && n && n <= 32 && !(n & (n - 1));
    return fits ? (int)n : 0;
}

}

extern "C" void cuda_sink_fwd(Backend *be, Tensor o, Tensor lse, Tensor sink)
{
    Sink a = args_of(o, lse, sink);
    int  each = team_of(o, Tensor{});
    if (each)
        BY_DTYPE(o.dtype, T,
            LAUNCH(be, "sink_fwd", sink_packs<T>, ceil_div(a.T * a.H * each, THREADS), THREADS, 0, a));
    else
        LAUNCH(be, "sink_fwd", sink_rows, ceil_div(a.T * a.H, WARPS), 32 * WARPS, 0, a);
}

extern "C" void cuda_sink_bwd(Backend *be, Tensor dsink, Tensor dout, Tensor o, Tensor lse, Tensor sink)
{
    Sink    a = args_of(o, lse, sink);
    int     each = team_of(o, dout);
    int64_t blocks = min_i64(a.T, 4 * SPLIT);
    if (!blocks) return;
    a.dout = view_of(dout), a.part = (float *)cuda_workspace(be, (size_t)(blocks * a.H) * 4);
    if (!a.part && !be->preparing) return;
    if (each) BY_DTYPE(o.dtype, T,
        LAUNCH(be, "sink_bwd", (sink_grads<T, false>), blocks, THREADS, 0, a, each));
    else LAUNCH(be, "sink_bwd", (sink_grads<float, true>), blocks, THREADS, 0, a, 32);
    parts_add(be, "sink_bwd", dsink, a.part, blocks, a.H);
}
