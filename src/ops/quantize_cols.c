/* ops/quantize_cols.c -- rows of experts to e4m3 codes (quant.h) of their transpose, which sums over rows
 * read: contract, cost, CPU.
 *
 *   quantize_cols   row r is x[r], or with src x[src[r] / div], a row of zeros where src[r] < 0. Column
 *                   quant_column(offsets[e], e) + i of z.q (K, C) e4m3 has the codes of row offsets[e] + i;
 *                   C = quant_columns(R, E). The rest of an expert's last group are codes of 0; groups that
 *                   belong to no expert are not written.
 *
 * z.scale (C/128, K) f32: a group is 128 rows of one column of x; z.scale (C/128, ceil(K/128)): a group is a
 * block of 128 rows and 128 columns. x (R, K), or with src (T, K), f32 or bf16; src (R) i32; offsets (E + 1)
 * i32 as in grouped_gemm.c. Rows may be strided. pow2: scales are powers of two. Every device gives the same
 * bits. */
#include "ops/cpu/cpu_quant.h"

/* The sources of rows. */
typedef struct Source { Tensor x, src; int64_t div; } Source;

bool column_codes_fit(ColumnCodes z, int64_t R, int64_t K, int64_t E)
{
    int64_t C = quant_columns(R, E);
    return z.q.rank == 2 && z.q.dtype == E4M3 && z.q.n[0] == K && z.q.n[1] == C &&
           (is_rows_f32(z.scale, C / QUANT_GROUP, K) ||
            is_rows_f32(z.scale, C / QUANT_GROUP, quant_groups(K)));
}

int64_t column_codes_bytes(ColumnCodes z, int64_t n)
{
    return n * z.q.n[0] + (n + QUANT_GROUP - 1) / QUANT_GROUP * 4 * z.scale.n[1];
}

Cost quantize_cols_cost(Backend *be, ColumnCodes z, Tensor x, Tensor src, int64_t div, Tensor offsets,
                        bool pow2)
{
    int64_t R = t_has(src) ? t_count(src) : x.n[0], K = x.n[1], n = expert_rows(be, R);
    REQUIRE(is_float(x) && x.rank == 2 && column_codes_fit(z, R, K, offsets.n[0] - 1) && div >= 1 &&
            (!t_has(src) || (src.dtype == I32 && t_dense(src))) && offsets.dtype == I32,
            "quantize_cols: q %s scale %s x %s src %s offsets %s", t_fmt(z.q), t_fmt(z.scale), t_fmt(x),
            t_fmt(src), t_fmt(offsets));
    int64_t once = min_i64(n, x.n[0]) * K * (int64_t)dtype_size((DType)x.dtype);
    return (Cost){ .flops = 2.0 * (double)(n * K), .rd = once + opt_bytes(src),
                   .wr = column_codes_bytes(z, n) };
}

/* Rows of a group, columns from .. of each, as columns of QUANT_GROUP floats; zeros below the last row. */
static void read_columns(float *to, const Source *s, ColumnGroup g, int64_t from, int64_t n)
{
    float row[QUANT_GROUP];
    memset(to, 0, (size_t)(n * QUANT_GROUP) * sizeof *to);
    for (int64_t r = 0; r < g.rows; r++) {
        int64_t at = t_has(s->src) ? ((const int32_t *)s->src.data)[g.row + r] : g.row + r;
        if (at < 0) continue;
        const float *v = row_read(t_cols(s->x, from, n), t_has(s->src) ? at / s->div : at, row);
        for (int64_t c = 0; c < n; c++) to[c * QUANT_GROUP + r] = v[c];
    }
}

/* Group j of columns of z, rows from .. + 127 of them. */
static void encode_columns(Backend *be, ColumnCodes z, const Source *s, ColumnGroup g, int64_t j,
                           int64_t from, bool pow2)
{
    int64_t n = min_i64(z.q.n[0] - from, QUANT_GROUP);
    bool    blocks = z.scale.n[1] != z.q.n[0];
    float  *x = cpu_own(be), *scale = (float *)row_ptr(z.scale, j);
    read_columns(x, s, g, from, n);
    QuantScale of = quant_scale(cpu_quant_amax(x, n * QUANT_GROUP), pow2);
    if (blocks) scale[from / QUANT_GROUP] = of.scale;
    for (int64_t c = 0; c < n; c++) {
        float *v = x + c * QUANT_GROUP;
        if (!blocks) of = quant_scale(cpu_quant_amax(v, QUANT_GROUP), pow2);
        if (!blocks) scale[from + c] = of.scale;
        cpu_quant_encode((uint8_t *)row_ptr(z.q, from + c) + j * QUANT_GROUP, v, of.inverse, QUANT_GROUP);
    }
}

void cpu_quantize_cols(Backend *be, ColumnCodes z, Tensor x, Tensor src, int64_t div, Tensor offsets,
                       bool pow2)
{
    Source  s = { x, src, div };
    int64_t E = offsets.n[0] - 1, across = quant_groups(x.n[1]), groups = z.scale.n[0];
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(z.q)))
    for (int64_t i = 0; i < groups * across; i++) {
        ColumnGroup g = quant_column_group(offsets.data, (int32_t)E, (int32_t)(i / across));
        if (g.rows > 0) encode_columns(be, z, &s, g, i / across, i % across * QUANT_GROUP, pow2);
    }
}
