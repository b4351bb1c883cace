/* ops/gemm.c -- matrix products and column sums: contract, cost, CPU.
 *
 *   gemm     c (M, N) = op(a) op(b) [+ bias] [+ c]
 *              GEMM_NT  a (M, K), b (N, K)     y  = x w'      forward of a linear layer
 *              GEMM_NN  a (M, K), b (K, N)     dx = dy w      its input gradient
 *              GEMM_TN  a (K, M), b (K, N)     dw += dy' x    its weight gradient, with GEMM_ACC
 *   gemm_scaled   c (M, N) = scale op(a) op(b) [+ c]          the narrow sides of an adapter
 *              with dropout (ops.h) of its input (a in NT, b in TN) or of the input's gradient (the product
 *              in NN)
 *   colsum   y (1, N) += sum over rows of x (T, N)            its bias gradient; y is f32
 *
 * a and b share a dtype, f32 or bf16; c is either, bias (1, N) is either or absent. Rows may be strided.
 * Sums run in f32 and are rounded once. M, N and K may be 0; an empty K leaves 0, the bias, or c.
 * c aliases neither input. Bits are the same on any number of threads.
 *
 * The tiles are our own (tile.c): they are as fast as OpenBLAS on the CPUs its packaged build supports, five
 * times as fast on others, and need no memory or locks of a library. */
#include "ops/dropout.h"
#include "ops/cpu/few_rows.h"
#include "ops/cpu/gemm_bf16.h"

#include <limits.h>

static int64_t inner(Tensor a, int flags) { return (flags & GEMM_MODE) == GEMM_TN ? a.n[0] : a.n[1]; }

Cost gemm_cost(Backend *be, Tensor c, Tensor a, Tensor b, Tensor bias, int flags)
{
    int     mode = flags & GEMM_MODE;
    int64_t M = a.n[mode == GEMM_TN], K = inner(a, flags), N = b.n[mode != GEMM_NT];
    bool    shapes = c.rank == 2 && a.rank == 2 && b.rank == 2 && c.n[0] == M && c.n[1] == N &&
                     b.n[mode == GEMM_NT] == K && M < INT_MAX && N < INT_MAX && K < INT_MAX;
    REQUIRE(mode <= GEMM_TN && shapes && a.dtype == b.dtype && is_float(a) && is_float(c),
            "gemm %s: c%s a%s b%s", gemm_mode(flags), t_fmt(c), t_fmt(a), t_fmt(b));
    REQUIRE(!t_has(bias) || (t_count(bias) == N && is_float(bias)), "gemm: c%s bias%s",
            t_fmt(c), t_fmt(bias));
    return (Cost){ .flops = 2.0 * (double)M * (double)N * (double)K,
                   .rd    = t_bytes(a) + t_bytes(b) + (t_has(bias) ? t_bytes(bias) : 0) +
                            (flags & GEMM_ACC ? t_bytes(c) : 0),
                   .wr    = t_bytes(c) };
}

Cost gemm_scaled_cost(Backend *be, Tensor c, Tensor a, Tensor b, float scale, Dropout drop, int flags)
{
    dropout_check(drop, "gemm_scaled");
    return gemm_cost(be, c, a, b, (Tensor){ 0 }, flags);
}

/* Computes c in tiles, one thread each. */
static void in_tiles(Bf16Path path, Backend *be, Tensor c, Terms all)
{
    Tiling  t = gemm_tiling(c.n[0], c.n[1], 1);
    int64_t across = (c.n[1] + t.n - 1) / t.n, down = (c.n[0] + t.m - 1) / t.m;
    bool    large = (double)c.n[0] * (double)c.n[1] * (double)inner(all.a, all.flags) > GEMM_SMALL;
    #pragma omp parallel for schedule(dynamic) if (large)
    for (int64_t i = 0; i < across * down; i++) {
        activity_mark();
        int64_t m = i / across * t.m, rows = c.n[0] - m < t.m ? c.n[0] - m : t.m;
        int64_t n = i % across * t.n, cols = c.n[1] - n < t.n ? c.n[1] - n : t.n;
        gemm_tile(path, cpu_own(be), t_cols(t_rows(c, m, rows), n, cols),
                  terms_of_tile(all, m, rows, n, cols));
    }
}

void gemm_with(Bf16Path path, Backend *be, Tensor c, Tensor a, Tensor b, Tensor bias, int flags)
{
    in_tiles(path, be, c, (Terms){ .a = a, .b = b, .bias = bias, .scale = 1.0f, .flags = flags });
}

static void few_rows(Backend *be, Tensor c, Terms all)
{
    enum { COLS = 64 };
    bool large = (double)t_count(all.b) > FEW_SMALL;
    #pragma omp parallel for schedule(static) if (large)
    for (int64_t n = 0; n < c.n[1]; n += COLS) {
        int64_t cols = c.n[1] - n < COLS ? c.n[1] - n : COLS;
        few_rows_tile(cpu_own(be), t_cols(c, n, cols), terms_of_tile(all, 0, c.n[0], n, cols));
    }
}

static void product(Backend *be, Tensor c, Terms all)
{
    bool few = (all.flags & GEMM_MODE) == GEMM_NT && c.n[0] <= FEW_ROWS && !(all.drop.p > 0);
    if (few) few_rows(be, c, all);
    else     in_tiles(BF16_AUTO, be, c, all);
}

void cpu_gemm(Backend *be, Tensor c, Tensor a, Tensor b, Tensor bias, int flags)
{
    product(be, c, (Terms){ .a = a, .b = b, .bias = bias, .scale = 1.0f, .flags = flags });
}

void cpu_gemm_scaled(Backend *be, Tensor c, Tensor a, Tensor b, float scale, Dropout drop, int flags)
{
    product(be, c, (Terms){ .a = a, .b = b, .scale = scale, .drop = drop, .flags = flags });
}

Cost colsum_cost(Backend *be, Tensor y, Tensor x)
{
    REQUIRE(x.rank == 2 && y.dtype == F32 && t_count(y) == x.n[1] && is_float(x), "colsum: y%s x%s",
            t_fmt(y), t_fmt(x));
    return (Cost){ .flops = (double)t_count(x), .rd = t_bytes(x) + t_bytes(y), .wr = t_bytes(y) };
}

HOT static void sum_rows(float *sum, Tensor x, int64_t from, int64_t to)
{
    int64_t N = x.n[1];
    for (int64_t i = 0; i < N; i++) sum[i] = 0.0f;
    for (int64_t r = from; r < to; r++) {
        const float    *f = (const float *)row_ptr(x, r);
        const uint16_t *h = (const uint16_t *)f;
        if (x.dtype == F32) for (int64_t i = 0; i < N; i++) sum[i] += f[i];
        else                for (int64_t i = 0; i < N; i++) sum[i] += bf16_to_f32(h[i]);
    }
}

HOT static void sum_chunks(float *y, const float *part, int64_t N)
{
    for (int c = 0; c < CPU_CHUNKS; c++)
        for (int64_t i = 0; i < N; i++) y[i] += part[c * N + i];
}

void cpu_colsum(Backend *be, Tensor y, Tensor x)
{
    enum { COLS = 4096 };                               /* the sums of a chunk stay in L1 */
    float *part = cpu_shared(be);
    for (int64_t n = 0; n < x.n[1]; n += COLS) {
        int64_t cols = x.n[1] - n < COLS ? x.n[1] - n : COLS;
        Tensor  xc = t_cols(x, n, cols);
        #pragma omp parallel for if (t_count(xc) > 1 << 15)
        for (int c = 0; c < CPU_CHUNKS; c++)
            sum_rows(part + c * cols, xc, chunk_begin(x.n[0], c), chunk_begin(x.n[0], c + 1));
        sum_chunks((float *)y.data + n, part, cols);
    }
}
