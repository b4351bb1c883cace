/* ops/cpu/coded_gemm.c -- see coded_gemm.h. */
#include "ops/cpu/coded_gemm.h"

#include "ops/cpu/tile.h"

HOT static void decode(float *to, int64_t step, const uint8_t *code, const float *value, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i * step] = value[code[i]];
}

HOT static void add_scaled(float *acc, const float *part, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) acc[i] += scale * part[i];
}

void coded_add_group(const CodedTile *t, const CodedTerms *x, int64_t g, const float *sa, float sb)
{
    int64_t k = g * QUANT_GROUP, K = min_i64(x->K - k, QUANT_GROUP);
    for (int64_t r = 0; r < t->rows; r++)
        decode(t->a + r * K, 1, (const uint8_t *)row_ptr(x->a.q, t->m + r) + k, t->value, K);
    for (int64_t n = 0; n < t->cols; n++)
        decode(t->b + n, QUANT_GROUP, (const uint8_t *)row_ptr(x->b.q, t->n + n) + k, t->value, K);
    tile_mul(false, t->part, QUANT_GROUP, t->a, K, 1, t->b, QUANT_GROUP, t->rows, t->cols, K);
    for (int64_t r = 0; r < t->rows; r++)
        add_scaled(t->acc + r * QUANT_GROUP, t->part + r * QUANT_GROUP, sa[t->m + r] * sb, t->cols);
}

static void tile_end(const CodedTile *t, const CodedTerms *x, Tensor c)
{
    float *old = t->part, *bias = t->part + QUANT_GROUP;
    for (int64_t r = 0; r < t->rows; r++) {
        Tensor row = t_cols(t_rows(c, t->m + r, 1), t->n, t->cols);
        float *acc = t->acc + r * QUANT_GROUP;
        for (int64_t i = 0; i < t->cols; i++) acc[i] *= x->factor;
        if (t_has(x->bias)) rows_add(acc, acc, row_read(t_cols(x->bias, t->n, t->cols), 0, bias), t->cols);
        if (t_has(x->res))
            rows_add(acc, acc, row_read(t_cols(t_rows(x->res, t->m + r, 1), t->n, t->cols), 0, old), t->cols);
        tile_write(row.data, (DType)row.dtype, row.s[0], acc, QUANT_GROUP, 1, t->cols);
    }
}

/* Values of all codes, in the workspace: a table is faster than arithmetic, and vectorises as a gather. */
static void run_tile(float *ws, Tensor c, const CodedTerms *x, int64_t m, int64_t rows, int64_t n)
{
    enum { SIDE = CODED_TILE * QUANT_GROUP };
    CodedTile t = { m, rows, n, min_i64(c.n[1] - n, QUANT_GROUP), ws, ws + SIDE, ws + 2 * SIDE, ws + 3 * SIDE,
                    ws + 4 * SIDE };
    memset(t.acc, 0, sizeof *t.acc * SIDE);
    for (int i = 0; i < 256; i++) t.value[i] = x->value((uint8_t)i);
    for (int64_t g = 0; g < quant_groups(x->K); g++) x->add_group(&t, x, g);
    tile_end(&t, x, c);
}

static bool is_large(int64_t M, int64_t N, int64_t K) { return (double)M * (double)N * (double)K > 1e6; }

void cpu_coded_gemm(Backend *be, Tensor c, const CodedTerms *x)
{
    int64_t M = c.n[0], across = quant_groups(c.n[1]), down = ceil_div(M, CODED_TILE);
    #pragma omp parallel for schedule(dynamic) if (is_large(M, c.n[1], x->K))
    for (int64_t i = 0; i < across * down; i++) {
        int64_t m = i / across * CODED_TILE;
        activity_mark();
        run_tile(cpu_own(be), c, x, m, min_i64(M - m, CODED_TILE), i % across * QUANT_GROUP);
    }
}

/* Expert e's rows in tiles: the i-th of all tiles of its rows and columns. */
static void run_expert(Backend *be, Tensor c, const CodedTerms *x, int64_t first, int64_t rows)
{
    int64_t across = quant_groups(c.n[1]), down = ceil_div(rows, CODED_TILE);
    #pragma omp for schedule(dynamic) nowait
    for (int64_t i = 0; i < across * down; i++) {
        int64_t m = i / across * CODED_TILE;
        activity_mark();
        run_tile(cpu_own(be), c, x, first + m, min_i64(rows - m, CODED_TILE), i % across * QUANT_GROUP);
    }
}

void cpu_coded_grouped(Backend *be, Tensor c, const CodedTerms *all, Tensor offsets,
                       CodedTerms (*of)(const CodedTerms *all, int64_t e))
{
    const int32_t *off = offsets.data;
    int64_t E = offsets.n[0] - 1;
    REQUIRE(off[0] >= 0 && off[E] <= c.n[0], "a product of experts: rows %d .. %d of c%s", off[0], off[E],
            t_fmt(c));
    #pragma omp parallel if (is_large(off[E] - off[0], c.n[1], all->K))
    for (int64_t e = 0; e < E; e++) {
        CodedTerms x = of(all, e);
        run_expert(be, c, &x, off[e], off[e + 1] - off[e]);
    }
}
