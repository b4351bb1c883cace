/* ops/cuda/sink.cu -- kernels of sink.c: forward a warp per row and head, backward a block per head, whose
 * threads sum tokens in a fixed order. */
#include "ops/cuda/rows.cuh"

namespace {

enum { WARPS = 8, THREADS = 256 };

typedef struct Sink { RowView o, dout, sink; float *lse, *dsink; int64_t lse_row, T; int H, C; } Sink;

static __global__ void __launch_bounds__(32 * WARPS) sink_rows(Sink a)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (r >= a.T * a.H) return;
    float  *l = a.lse + r % a.H * a.lse_row + r / a.H, from = *l, sink = view_get(a.sink, r % a.H);
    float   top = fmaxf(from, sink), to = top + log1pf(expf(fminf(from, sink) - top));
    int64_t at = view_row(a.o, r);
    __syncwarp();
    for (int i = threadIdx.x & 31; i < a.C; i += 32)
        view_put(a.o, at + i, expf(from - to) * view_get(a.o, at + i));
    if (!(threadIdx.x & 31)) *l = to;
}

static __global__ void __launch_bounds__(THREADS) sink_grads(Sink a)
{
    __shared__ double part[32];
    int    h = blockIdx.x;
    float  sink = view_get(a.sink, h);
    double sum = 0.0;
    for (int64_t t = threadIdx.x; t < a.T; t += THREADS) {
        int64_t o = view_row(a.o, t * a.H + h), d = view_row(a.dout, t * a.H + h);
        float   dot = 0.0f;
        for (int i = 0; i < a.C; i++) dot += view_get(a.dout, d + i) * view_get(a.o, o + i);
        sum -= (double)(expf(sink - a.lse[h * a.lse_row + t]) * dot);
    }
    sum = block_sum(sum, part);
    if (!threadIdx.x) a.dsink[h] += (float)sum;
}

static Sink args_of(Tensor o, Tensor lse, Tensor sink)
{
    Sink a = { view_of(o), {}, view_of(sink), (float *)lse.data, NULL, lse.s[0], o.n[0], (int)o.n[1],
               (int)o.n[2] };
    return a;
}

}

extern "C" void cuda_sink_fwd(Backend *be, Tensor o, Tensor lse, Tensor sink)
{
    Sink a = args_of(o, lse, sink);
    LAUNCH(be, "sink_fwd", sink_rows, ceil_div(a.T * a.H, WARPS), 32 * WARPS, 0, a);
}

extern "C" void cuda_sink_bwd(Backend *be, Tensor dsink, Tensor dout, Tensor o, Tensor lse, Tensor sink)
{
    Sink a = args_of(o, lse, sink);
    a.dout = view_of(dout), a.dsink = (float *)dsink.data;
    LAUNCH(be, "sink_bwd", sink_grads, a.H, THREADS, 0, a);
}
