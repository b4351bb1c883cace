/* ops/quantize_fused.c -- rows that are quantised by the op that writes them: contract, cost, CPU.
 *
 *   expand_rows_fp8   y[rows[t,k]] = x[t], as expand_rows of permute.c, and (q, scale) of the same rows as
 *                     quantize_rows makes them of y; y may be absent
 *   swiglu_bwd_fp8    dgu and dgate as swiglu_bwd of swiglu.c, and (q, scale) as quantize_rows makes them of
 *                     dgu; offsets as there: rows past the last are padding, undefined afterwards
 *
 * Codes are made of the rounded values, so they have the bits of the separate ops. Operands as in permute.c,
 * swiglu.c and quantize.c; q (R, D) e4m3, scale (ceil(D/128), R) f32. */
#include "ops/cpu/cpu_quant.h"
#include "ops/cpu/cpu_rows.h"

Cost expand_rows_fp8_cost(Backend *be, Tensor y, Tensor q, Tensor scale, Tensor x, Tensor rows, bool pow2)
{
    Tensor like = { .dtype = x.dtype, .rank = 2, .n = { q.n[0], x.n[1] } };
    Cost   p = expand_rows_cost(be, t_has(y) ? y : like, x, rows);
    REQUIRE(q.rank == 2 && q.dtype == E4M3 && q.n[1] == x.n[1] && is_float(x) &&
            (!t_has(y) || y.n[0] == q.n[0]) && is_rows_f32(scale, quant_groups(x.n[1]), q.n[0]),
            "expand_rows_fp8: y %s q %s scale %s x %s", t_fmt(y), t_fmt(q), t_fmt(scale), t_fmt(x));
    p.flops += 2.0 * (double)t_count(x);
    p.wr = (t_has(y) ? p.wr : 0) + t_bytes(q) + t_bytes(scale);
    return p;
}

Cost swiglu_bwd_fp8_cost(Backend *be, Tensor dgu, Tensor q, Tensor scale, Tensor dgate, Tensor dh, Tensor gu,
                         Tensor gate, Tensor offsets, bool pow2)
{
    Cost p = swiglu_bwd_cost(be, dgu, dgate, dh, gu, gate);
    Cost z = quantize_rows_cost(be, q, scale, dgu, offsets, pow2);
    p.flops += z.flops, p.wr += z.wr;
    return p;
}

static void expand_row(Backend *be, Tensor y, Tensor q, Tensor scale, Tensor x, int64_t t, int64_t r,
                       bool pow2)
{
    size_t bytes = (size_t)row_width(x) * dtype_size((DType)x.dtype);
    if (r < 0) return;
    if (t_has(y)) memcpy(row_ptr(y, r), row_ptr(x, t), bytes);
    cpu_quantize_row(q, scale, row_read(x, t, cpu_own(be)), r, pow2);
}

void cpu_expand_rows_fp8(Backend *be, Tensor y, Tensor q, Tensor scale, Tensor x, Tensor rows, bool pow2)
{
    int64_t K = rows.n[1];
    cpu_check_own("expand_rows_fp8", 1, x.n[1]);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(q)))
    for (int64_t t = 0; t < x.n[0]; t++)
        for (int64_t k = 0; k < K; k++)
            expand_row(be, y, q, scale, x, t, ((const int32_t *)rows.data)[t * K + k], pow2);
}

static Tensor first(Tensor t, int64_t R) { return t_has(t) ? t_rows(t, 0, R) : t; }

void cpu_swiglu_bwd_fp8(Backend *be, Tensor dgu, Tensor q, Tensor scale, Tensor dgate, Tensor dh, Tensor gu,
                        Tensor gate, Tensor offsets, bool pow2)
{
    int64_t R = used_rows(offsets, dgu.n[0]);
    cpu_swiglu_bwd(be, first(dgu, R), first(dgate, R), first(dh, R), first(gu, R), first(gate, R));
    cpu_quantize_rows(be, q, scale, dgu, offsets, pow2);
}
