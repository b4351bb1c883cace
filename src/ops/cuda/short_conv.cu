/* ops/cuda/short_conv.cu -- kernels of short_conv.c: a thread per column, which walks a run of rows and keeps
 * the last K in registers. Any strides and dtypes. */
#include "ops/cuda/segment.cuh"

namespace {

enum { THREADS = 128, MAX_K = 16, RUN = 32, RUNS = 128 };

typedef struct Conv {
    RowView y, x, w, before, dx, dbefore, dy;
    float  *part;
    Borders at;
    int64_t T, run;                                       /* rows of a block */
    int     C, cols, K;
} Conv;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline int64_t column(RowView v, int64_t row, int col, int C)
{
    return row * v.s0 + col / C * v.s1 + col % C;
}

/* Input of a row; rows before 0 are `before`. */
__device__ inline float input(const Conv &c, int64_t row, int col)
{
    return row < 0 ? view_get(c.before, column(c.before, row + c.K - 1, col, c.C))
                   : view_get(c.x, column(c.x, row, col, c.C));
}

/* The first row that row t of segment s sees. */
__device__ inline int64_t first_seen(const Conv &c, int s, int64_t t)
{
    int64_t from = c.at.starts[s];
    if (c.before.p && segment_of(c.at, 0) == s) from = 1 - c.K;
    return max(from, t - c.K + 1);
}

/* Sum of the taps of row t; *first: what it sees; outside: T. */
__device__ inline float taps(const Conv &c, const float *w, int64_t t, int col, int64_t *first)
{
    int   s = segment_of(c.at, t);
    float p = 0.0f;
    *first = s < 0 ? c.T : first_seen(c, s, t);
    for (int64_t row = *first; row <= t; row++) p += w[row - t + c.K - 1] * input(c, row, col);
    return p;
}

__device__ inline void load_taps(const Conv &c, float *w, int col)
{
    for (int k = 0; k < c.K; k++) w[k] = view_get(c.w, col * c.w.s0 + k);
}

static __global__ void __launch_bounds__(THREADS) conv_rows(Conv c)
{
    int64_t blocks = (c.cols + THREADS - 1) / THREADS, from = blockIdx.x / blocks * c.run, first;
    int     col = (int)(blockIdx.x % blocks) * THREADS + threadIdx.x;
    float   w[MAX_K];
    if (col >= c.cols) return;
    load_taps(c, w, col);
    for (int64_t t = from; t < from + c.run && t < c.T; t++) {
        float p = taps(c, w, t, col, &first);
        view_put(c.y, column(c.y, t, col, c.C), p * sigmoid(p));
    }
}

/* dp of row t, and what it sees. */
__device__ inline float slope(const Conv &c, const float *w, int64_t t, int col, int64_t *first)
{
    float p = taps(c, w, t, col, first), s = sigmoid(p);
    return *first > t ? 0.0f : view_get(c.dy, column(c.dy, t, col, c.C)) * s * (1.0f + p * (1.0f - s));
}

/* Of row t (negative: before): what rows t .. t + K - 1 make of it. */
__device__ inline float input_grad(const Conv &c, const float *w, const float *dp, const int64_t *first,
                                   int64_t t)
{
    float d = 0.0f;
    for (int64_t row = max(t, (int64_t)0); row < t + c.K && row < c.T; row++)
        if (first[row % c.K] <= t) d += w[t - row + c.K - 1] * dp[row % c.K];
    return d;
}

/* Rows of a block from the last to the first; its sums of taps to its part. */
static __global__ void __launch_bounds__(THREADS) conv_grads(Conv c)
{
    int64_t blocks = (c.cols + THREADS - 1) / THREADS, block = blockIdx.x / blocks, from = block * c.run;
    int64_t to = min(from + c.run, c.T), first[MAX_K];
    int     col = (int)(blockIdx.x % blocks) * THREADS + threadIdx.x;
    float   w[MAX_K], dp[MAX_K], dw[MAX_K] = {};
    if (col >= c.cols) return;
    load_taps(c, w, col);
    for (int64_t t = min(to + c.K - 2, c.T - 1); t >= from; t--) {
        int64_t *seen = &first[t % c.K];
        dp[t % c.K] = slope(c, w, t, col, seen);
        if (t >= to) continue;
        for (int64_t row = *seen; row <= t; row++) dw[row - t + c.K - 1] += dp[t % c.K] * input(c, row, col);
        view_put(c.dx, column(c.dx, t, col, c.C), input_grad(c, w, dp, first, t));
    }
    for (int64_t t = -1; !block && c.dbefore.p && t > -c.K; t--)
        view_put(c.dbefore, column(c.dbefore, t + c.K - 1, col, c.C), input_grad(c, w, dp, first, t));
    for (int k = 0; c.part && k < c.K; k++) c.part[(block * c.cols + col) * c.K + k] = dw[k];
}

static Conv args_of(Tensor x, Tensor w, Tensor before, Segments seg)
{
    Conv c = {};
    c.x = view_of(x), c.w = view_of(w), c.before = view_of(before), c.at = borders_of(seg), c.T = x.n[0];
    c.C = (int)x.n[2], c.cols = (int)(x.n[1] * x.n[2]), c.K = (int)w.n[1];
    return c;
}

static int64_t blocks_of(const Conv &c) { return ceil_div(c.T, c.run) * ceil_div(c.cols, THREADS); }

}

extern "C" void cuda_short_conv_fwd(Backend *be, Tensor y, Tensor x, Tensor w, Tensor before, Segments seg)
{
    Conv c = args_of(x, w, before, seg);
    c.y = view_of(y), c.run = RUN;
    LAUNCH(be, "short_conv_fwd", conv_rows, blocks_of(c), THREADS, 0, c);
}

/* A thread's ring holds K rows, so a run has at least as many; runs are as many as to keep the parts of dw
 * small, however long the stream. */
extern "C" void cuda_short_conv_bwd(Backend *be, Tensor dx, Tensor dw, Tensor dbefore, Tensor dy, Tensor x,
                                    Tensor w, Tensor before, Segments seg)
{
    Conv c = args_of(x, w, before, seg);
    c.dx = view_of(dx), c.dbefore = view_of(dbefore), c.dy = view_of(dy);
    c.run = max(ceil_div(c.T, RUNS), (int64_t)RUN);
    int64_t parts = ceil_div(c.T, c.run), n = (int64_t)c.cols * c.K;
    c.part = t_has(dw) ? (float *)cuda_workspace(be, (size_t)(RUNS * n) * sizeof(float)) : NULL;
    if (be->sticky) return;
    LAUNCH(be, "short_conv_bwd", conv_grads, blocks_of(c), THREADS, 0, c);
    Tensor flat = dw;
    flat.n[0] = 1, flat.n[1] = n, flat.s[0] = n;
    if (t_has(dw)) parts_add(be, "short_conv_bwd", flat, c.part, parts, n);
}
