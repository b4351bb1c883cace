/* ops/gemm_fp8.c -- products of matrices in e4m3 with scales (quant.h): contract, cost, CPU.
 *
 *   gemm_fp8           c (M, N) = a b' [+ bias] [+ res]      a (M, K) of quantize_rows, b (N, K) of
 *                                                            quantize_weight; res may be c
 *   grouped_gemm_fp8   c[r,:] = a[r,:] b[e]'                 a (R, K), b (E, N, K); offsets (E + 1) i32 as in
 *                                                            grouped_gemm.c: padding rows are neither read
 *                                                            nor written
 *
 *   c[m,n] = sum over groups g of K of (sa[g,m] * sb[n/128,g]) * (sum over k of g of a[m,k] b[n,k])
 *
 * With b the transposed copy of a weight this is the gradient of its input. Codes are exact in f32; both sums
 * run in f32, the inner one by itself, so that no sum of more than 128 products is rounded before it is
 * scaled (matrix units keep fewer bits inside one). The CPU adds k and g in ascending order; other devices
 * may sum a group in another order. Bias and res are added last, and the result is rounded once.
 *
 * c and res are f32 or bf16, of one dtype; bias (1, N) is either; bias and res may be absent. sa
 * (ceil(K/128), M), sb ([E,] ceil(N/128), ceil(K/128)) f32. Rows may be strided; extents may be 0. The same
 * bits on any number of threads. */
#include "ops/cpu/cpu_rows.h"
#include "ops/cpu/tile.h"
#include "ops/quant.h"

#include <limits.h>

enum { FP8_ROWS = 192 };                              /* of a tile of c; its columns are one block of b */

typedef struct Fp8Terms { Tensor a, sa, b, sb, bias, res; } Fp8Terms;

static Cost product_cost(int64_t M, int64_t N, int64_t K, Tensor c, Tensor b, Tensor sb)
{
    return (Cost){ .flops = 2.0 * (double)M * (double)N * (double)K,
                   .rd = M * (K + 4 * quant_groups(K)) + t_bytes(b) + t_bytes(sb),
                   .wr = M * N * (int64_t)dtype_size((DType)c.dtype) };
}

static bool operands_fit(Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb)
{
    int64_t M = a.n[0], K = a.n[1], N = b.n[b.rank - 2];
    bool stacks = b.rank == 2 ? sb.rank == 2 : b.rank == 3 && sb.rank == 3 && sb.n[0] == b.n[0];
    return stacks && a.rank == 2 && a.dtype == E4M3 && b.dtype == E4M3 && b.n[b.rank - 1] == K &&
           is_rows(c, M, N) && is_rows_f32(sa, quant_groups(K), M) && sb.dtype == F32 &&
           sb.n[sb.rank - 2] == quant_groups(N) && sb.n[sb.rank - 1] == quant_groups(K);
}

Cost gemm_fp8_cost(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor bias, Tensor res)
{
    REQUIRE(b.rank == 2 && operands_fit(c, a, sa, b, sb) &&
            (!t_has(res) || (res.dtype == c.dtype && t_same(res, c))) &&
            (!t_has(bias) || (t_count(bias) == b.n[0] && is_float(bias))),
            "gemm_fp8: c%s a%s sa%s b%s sb%s bias%s res%s", t_fmt(c), t_fmt(a), t_fmt(sa), t_fmt(b),
            t_fmt(sb), t_fmt(bias), t_fmt(res));
    Cost p = product_cost(a.n[0], b.n[0], a.n[1], c, b, sb);
    p.rd += opt_bytes(bias) + opt_bytes(res);
    return p;
}

Cost grouped_gemm_fp8_cost(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor offsets)
{
    int64_t E = offsets.n[0] - 1, n = expert_rows(be, a.n[0]);
    REQUIRE(b.rank == 3 && b.n[0] == E && operands_fit(c, a, sa, b, sb) && offsets.dtype == I32 &&
            a.n[0] < INT_MAX, "grouped_gemm_fp8: c%s a%s sa%s b%s sb%s offsets%s", t_fmt(c), t_fmt(a),
            t_fmt(sa), t_fmt(b), t_fmt(sb), t_fmt(offsets));
    Cost p = product_cost(n, b.n[1], a.n[1], c, b, sb);
    p.each = E ? (double)n / (double)E : 0;
    return p;
}

/* Values of all codes, in the workspace: a table is faster than arithmetic, and vectorises as a gather. */
static void fill_table(float *value)
{
    for (int i = 0; i < 256; i++) value[i] = e4m3_to_f32((uint8_t)i);
}

HOT static void decode(float *to, int64_t step, const uint8_t *code, const float *value, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i * step] = value[code[i]];
}

HOT static void add_scaled(float *acc, const float *part, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) acc[i] += scale * part[i];
}

/* Tile of rows m .. and the columns of block `block`: its sums in acc, QUANT_GROUP a row. */
typedef struct Fp8Tile { int64_t m, rows, n, cols; float *acc, *part, *a, *b, *value; } Fp8Tile;

static void tile_group(const Fp8Tile *t, const Fp8Terms *x, int64_t g)
{
    int64_t k = g * QUANT_GROUP, K = min_i64(x->a.n[1] - k, QUANT_GROUP);
    float   sb = ((float *)row_ptr(x->sb, t->n / QUANT_GROUP))[g];
    const float *sa = (const float *)row_ptr(x->sa, g);
    for (int64_t r = 0; r < t->rows; r++)
        decode(t->a + r * K, 1, (const uint8_t *)row_ptr(x->a, t->m + r) + k, t->value, K);
    for (int64_t n = 0; n < t->cols; n++)
        decode(t->b + n, QUANT_GROUP, (const uint8_t *)row_ptr(x->b, t->n + n) + k, t->value, K);
    tile_mul(false, t->part, QUANT_GROUP, t->a, K, 1, t->b, QUANT_GROUP, t->rows, t->cols, K);
    for (int64_t r = 0; r < t->rows; r++)
        add_scaled(t->acc + r * QUANT_GROUP, t->part + r * QUANT_GROUP, sa[t->m + r] * sb, t->cols);
}

static void tile_end(const Fp8Tile *t, const Fp8Terms *x, Tensor c)
{
    float *old = t->part, *bias = t->part + QUANT_GROUP;
    for (int64_t r = 0; r < t->rows; r++) {
        Tensor row = t_cols(t_rows(c, t->m + r, 1), t->n, t->cols);
        float *acc = t->acc + r * QUANT_GROUP;
        if (t_has(x->bias)) rows_add(acc, acc, row_read(t_cols(x->bias, t->n, t->cols), 0, bias), t->cols);
        if (t_has(x->res))
            rows_add(acc, acc, row_read(t_cols(t_rows(x->res, t->m + r, 1), t->n, t->cols), 0, old), t->cols);
        tile_write(row.data, (DType)row.dtype, row.s[0], acc, QUANT_GROUP, 1, t->cols);
    }
}

static void run_tile(float *ws, Tensor c, const Fp8Terms *x, int64_t m, int64_t rows, int64_t n)
{
    enum { SIDE = FP8_ROWS * QUANT_GROUP };
    Fp8Tile t = { m, rows, n, min_i64(c.n[1] - n, QUANT_GROUP), ws, ws + SIDE, ws + 2 * SIDE, ws + 3 * SIDE,
                  ws + 4 * SIDE };
    memset(t.acc, 0, sizeof *t.acc * SIDE);
    fill_table(t.value);
    for (int64_t g = 0; g < x->sa.n[0]; g++) tile_group(&t, x, g);
    tile_end(&t, x, c);
}

static bool is_large(int64_t M, int64_t N, int64_t K) { return (double)M * (double)N * (double)K > 1e6; }

void cpu_gemm_fp8(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor bias, Tensor res)
{
    Fp8Terms x = { a, sa, b, sb, bias, res };
    int64_t  M = c.n[0], across = quant_groups(c.n[1]), down = ceil_div(M, FP8_ROWS);
    #pragma omp parallel for schedule(dynamic) if (is_large(M, c.n[1], a.n[1]))
    for (int64_t i = 0; i < across * down; i++) {
        int64_t m = i / across * FP8_ROWS;
        activity_mark();
        run_tile(cpu_own(be), c, &x, m, min_i64(M - m, FP8_ROWS), i % across * QUANT_GROUP);
    }
}

/* Expert e's rows in tiles: the i-th of all tiles of its rows and columns. */
static void run_expert(Backend *be, Tensor c, Fp8Terms x, int64_t first, int64_t rows)
{
    int64_t across = quant_groups(c.n[1]), down = ceil_div(rows, FP8_ROWS);
    #pragma omp for schedule(dynamic) nowait
    for (int64_t i = 0; i < across * down; i++) {
        int64_t m = i / across * FP8_ROWS;
        activity_mark();
        run_tile(cpu_own(be), c, &x, first + m, min_i64(rows - m, FP8_ROWS), i % across * QUANT_GROUP);
    }
}

void cpu_grouped_gemm_fp8(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor offsets)
{
    const int32_t *off = offsets.data;
    int64_t E = b.n[0];
    REQUIRE(off[0] >= 0 && off[E] <= a.n[0], "grouped_gemm_fp8: rows %d .. %d of a%s", off[0], off[E],
            t_fmt(a));
    #pragma omp parallel if (is_large(off[E] - off[0], c.n[1], a.n[1]))
    for (int64_t e = 0; e < E; e++)
        run_expert(be, c, (Fp8Terms){ .a = a, .sa = sa, .b = t_at(b, e), .sb = t_at(sb, e) }, off[e],
                   off[e + 1] - off[e]);
}
