/* ops/swiglu_cols.c -- the backward of SwiGLU in codes for all products that follow it: contract, cost, CPU.
 *
 *   swiglu_bwd_cols   dgate as swiglu_bwd of swiglu.c; (q, scale) as quantize_rows makes them of its dgu,
 *                     dgu_cols as quantize_cols makes them of it, and h_cols as that makes them of the h of
 *                     swiglu_fwd. Scales are powers of two.
 *
 * Operands as in swiglu.c, quantize.c and quantize_cols.c; each kind of codes may be absent. dgu (R, 2F) is
 * memory that may be used: its values are those of swiglu_bwd if `stores_dgu`, else undefined afterwards. dh
 * may be its first F columns. gu is not written. */
#include "ops/cpu/cpu_quant.h"

Cost swiglu_bwd_cols_cost(Backend *be, Tensor dgu, Tensor q, Tensor scale, ColumnCodes dgu_cols,
                          ColumnCodes h_cols, Tensor dgate, Tensor dh, Tensor gu, Tensor gate, Tensor offsets,
                          bool stores_dgu)
{
    int64_t R = dh.n[0], F = dh.n[1], E = offsets.n[0] - 1, n = expert_rows(be, R);
    Cost    p = swiglu_bwd_cost(be, dgu, dgate, dh, gu, gate);
    REQUIRE(offsets.dtype == I32 && (!t_has(q) || codes_fit_rows(q, scale, dgu)) &&
            (!t_has(dgu_cols.q) || column_codes_fit(dgu_cols, R, 2 * F, E)) &&
            (!t_has(h_cols.q) || column_codes_fit(h_cols, R, F, E)),
            "swiglu_bwd_cols: dgu %s q %s dgu_cols %s h_cols %s offsets %s", t_fmt(dgu), t_fmt(q),
            t_fmt(dgu_cols.q), t_fmt(h_cols.q), t_fmt(offsets));
    p.flops = (double)n * (double)F * 20.0;
    p.rd = expert_bytes(be, dh) + expert_bytes(be, gu) + expert_bytes(be, gate);
    p.wr = (stores_dgu ? expert_bytes(be, dgu) : 0) + expert_bytes(be, dgate);
    if (t_has(q))          p.wr += n * (2 * F + 4 * scale.n[0]);
    if (t_has(dgu_cols.q)) p.wr += column_codes_bytes(dgu_cols, n);
    if (t_has(h_cols.q))   p.wr += column_codes_bytes(h_cols, n);
    return p;
}

static Tensor rows_or_none(Tensor t, int64_t from, int64_t n) { return t_has(t) ? t_rows(t, from, n) : t; }

/* h of a group of columns is computed in the shared workspace. */
static void encode_h(Backend *be, ColumnCodes z, Tensor gu, Tensor gate, Tensor offsets)
{
    int64_t E = offsets.n[0] - 1, n[2] = { QUANT_GROUP, gu.n[1] / 2 };
    Tensor  none = { 0 }, all = t_wrap(cpu_shared(be), (DType)gu.dtype, 2, n);
    REQUIRE((size_t)t_bytes(all) <= CPU_SHARED, "swiglu_bwd_cols: %lld columns in the shared workspace",
            (long long)n[1]);
    for (int64_t j = 0; j < z.scale.n[0]; j++) {
        ColumnGroup g = quant_column_group(offsets.data, (int32_t)E, (int32_t)j);
        if (g.rows <= 0) continue;
        Tensor  h = t_rows(all, 0, g.rows);
        int32_t one[2] = { 0, (int32_t)g.rows };
        Tensor  off = t_wrap(one, I32, 1, &(int64_t){ 2 });
        ColumnCodes part = { t_cols(z.q, j * QUANT_GROUP, QUANT_GROUP), t_rows(z.scale, j, 1) };
        cpu_swiglu_fwd(be, h, t_rows(gu, g.row, g.rows), rows_or_none(gate, g.row, g.rows), none);
        cpu_quantize_cols(be, part, h, none, 1, off, true);
    }
}

void cpu_swiglu_bwd_cols(Backend *be, Tensor dgu, Tensor q, Tensor scale, ColumnCodes dgu_cols,
                         ColumnCodes h_cols, Tensor dgate, Tensor dh, Tensor gu, Tensor gate, Tensor offsets,
                         bool stores_dgu)
{
    int64_t R = used_rows(offsets, dgu.n[0]);
    Tensor  none = { 0 };
    (void)stores_dgu;
    cpu_swiglu_bwd(be, t_rows(dgu, 0, R), rows_or_none(dgate, 0, R), t_rows(dh, 0, R), t_rows(gu, 0, R),
                   rows_or_none(gate, 0, R));
    if (t_has(q))          cpu_quantize_rows(be, q, scale, dgu, offsets, true);
    if (t_has(dgu_cols.q)) cpu_quantize_cols(be, dgu_cols, dgu, none, 1, offsets, true);
    if (t_has(h_cols.q))   encode_h(be, h_cols, gu, gate, offsets);
}
