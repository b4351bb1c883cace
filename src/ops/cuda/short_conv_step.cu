/* ops/cuda/short_conv_step.cu -- kernels of short_conv_step.c: a thread per column and document. */
#include "ops/cuda/segment.cuh"

namespace {

enum { THREADS = 128, MAX_K = 16 };

typedef struct ConvStep {
    RowView y, x, w, tail;
    Borders at;
    const int32_t *used, *doc, *kept;
    int64_t T;
    int     C, cols, K;
} ConvStep;

__device__ inline int64_t column(RowView v, int64_t row, int col, int C)
{
    return row * v.s0 + col / C * v.s1 + col % C;
}

static __global__ void __launch_bounds__(THREADS) step_columns(ConvStep c)
{
    int     blocks = (c.cols + THREADS - 1) / THREADS, i = blockIdx.x / blocks;
    int     col = blockIdx.x % blocks * THREADS + threadIdx.x;
    int64_t from = c.at.starts[i], to = c.at.starts[i + 1], home = c.doc[i] * c.tail.s0 + col;
    float   w[MAX_K], last[MAX_K], keep[MAX_K];
    if (col >= c.cols) return;
    for (int k = 0; k < c.K; k++) w[k] = view_get(c.w, col * c.w.s0 + k);
    for (int k = 0; k < c.K - 1; k++)
        keep[k] = last[k] = c.used[i] == to - from ? 0.0f : view_get(c.tail, home + k * c.tail.s1);
    for (int64_t t = from; t < to; t++) {
        float p = 0.0f;
        last[c.K - 1] = view_get(c.x, column(c.x, t, col, c.C));
        for (int k = 0; k < c.K; k++) p += w[k] * last[k];
        view_put(c.y, column(c.y, t, col, c.C), p / (1.0f + expf(-p)));
        for (int k = 0; k < c.K - 1; k++) last[k] = last[k + 1];
        for (int k = 0; t < from + c.kept[i] && k < c.K - 1; k++) keep[k] = last[k];
    }
    for (int k = 0; k < c.K - 1; k++) view_put(c.tail, home + k * c.tail.s1, keep[k]);
}

static __global__ void __launch_bounds__(THREADS) clear_outside(ConvStep c)
{
    int64_t t = blockIdx.x;
    if (segment_of(c.at, t) >= 0) return;
    for (int col = threadIdx.x; col < c.cols; col += THREADS) view_put(c.y, column(c.y, t, col, c.C), 0.0f);
}

}

extern "C" void cuda_short_conv_step(Backend *be, Tensor y, Tensor tail, Tensor x, Tensor w, Segments seg,
                                     Tensor doc, Tensor kept)
{
    ConvStep c = { view_of(y), view_of(x), view_of(w), view_of(tail), borders_of(seg),
                   (const int32_t *)seg.kv_used.data, (const int32_t *)doc.data, (const int32_t *)kept.data,
                   x.n[0], (int)x.n[2], (int)(x.n[1] * x.n[2]), (int)w.n[1] };
    LAUNCH(be, "short_conv_step", clear_outside, c.T, THREADS, 0, c);
    LAUNCH(be, "short_conv_step", step_columns, seg.n * ceil_div(c.cols, THREADS), THREADS, 0, c);
}
