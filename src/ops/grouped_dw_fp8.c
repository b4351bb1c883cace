/* ops/grouped_dw_fp8.c -- weight gradients of experts from e4m3 codes (quant.h): contract, cost, CPU.
 *
 *   c[e,m,n] = sum over groups g of e's rows of (sa[g,m] * sb[g,n/128]) * (sum over rows r of g of
 *              a[m,r] b[n,r])
 *
 * a (M, C) with scales of each column of the matrix that was quantised, sa (C/128, M); b (N, C) with scales
 * of blocks, sb (C/128, ceil(N/128)): both as quantize_cols makes them of R rows. c (E, M, N) is f32 or bf16;
 * flags: GEMM_ACC adds to c, else 0, and an expert without rows gets zeros. squares is absent, or without
 * GEMM_ACC as in grouped_squares (grouped_gemm.c). Sums as in gemm_fp8.c, groups in ascending order. */
#include "ops/cpu/coded_gemm.h"
#include "ops/cpu/cpu_quant.h"

Cost grouped_dw_fp8_cost(Backend *be, Tensor c, Tensor squares, ColumnCodes a, ColumnCodes b, Tensor offsets,
                         int64_t R, int flags)
{
    int64_t E = offsets.n[0] - 1, M = a.q.n[0], N = b.q.n[0], n = expert_rows(be, R);
    REQUIRE(c.rank == 3 && c.n[0] == E && c.n[1] == M && c.n[2] == N && is_float(c) && offsets.dtype == I32 &&
            column_codes_fit(a, R, M, E) && column_codes_fit(b, R, N, E) && a.scale.n[1] == M &&
            b.scale.n[1] == quant_groups(N) && (flags & ~GEMM_ACC) == 0 &&
            (!t_has(squares) || (!flags && squares_fit(squares, c))),
            "grouped_dw_fp8: c%s squares%s a%s b%s offsets%s", t_fmt(c), t_fmt(squares), t_fmt(a.q),
            t_fmt(b.q), t_fmt(offsets));
    return (Cost){ .flops = 2.0 * (double)n * (double)M * (double)N,
                   .rd = column_codes_bytes(a, n) + column_codes_bytes(b, n) +
                         (flags & GEMM_ACC ? t_bytes(c) : 0),
                   .wr = t_bytes(c) + opt_bytes(squares), .each = E ? (double)n / (double)E : 0 };
}

static void add_group(const CodedTile *t, const CodedTerms *x, int64_t g)
{
    float sb = ((float *)row_ptr(x->b.scale, g))[t->n / QUANT_GROUP];
    coded_add_group(t, x, g, (const float *)row_ptr(x->a.scale, g), sb);
}

static MicroCodes of_expert(ColumnCodes z, int64_t column, int64_t rows)
{
    return (MicroCodes){ .q = t_cols(z.q, column, rows),
                         .scale = t_rows(z.scale, column / QUANT_GROUP, quant_groups(rows)) };
}

void cpu_grouped_dw_fp8(Backend *be, Tensor c, Tensor squares, ColumnCodes a, ColumnCodes b, Tensor offsets,
                        int64_t R, int flags)
{
    const int32_t *off = offsets.data;
    (void)R;
    for (int64_t e = 0; e < c.n[0]; e++) {
        int64_t    rows = off[e + 1] - off[e], column = quant_column(off[e], e);
        CodedTerms x = { .value = e4m3_to_f32, .add_group = add_group, .K = rows, .factor = 1,
                         .a = of_expert(a, column, rows), .b = of_expert(b, column, rows) };
        if (flags & GEMM_ACC) x.res = t_at(c, e);
        cpu_coded_gemm(be, t_at(c, e), &x);
    }
    if (t_has(squares)) cpu_strip_squares(squares, c);
}
