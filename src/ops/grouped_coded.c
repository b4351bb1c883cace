/* ops/grouped_coded.c -- the experts' products with a frozen weight in codes (ops/weight_code.h): contract,
 * cost, CPU.
 *
 *   grouped_coded           grouped_gemm with the decoded weight, GEMM_NT or GEMM_NN, without GEMM_ACC
 *   grouped_swiglu_coded    grouped_swiglu with it
 *   grouped_dswiglu_coded   grouped_dswiglu with it
 *
 * The weight is a stack of a matrix for each expert, and is decoded to the dtype of a into `panel`, which
 * holds some of its matrices (n, N, K), n >= 1: as many as it holds, whose rows are then multiplied, before
 * the next ones; or one after another while products run (ops/cuda/code_ring.cuh). No bit depends on n.
 * Scales of fp8 are powers of two, or NaN, as the quantisation makes them. */
#include "ops/coded_panel.h"
#include "ops/cpu/cpu_rows.h"
#include "ops/weight_code.h"

/* The decoded weight, whose elements are nowhere. */
static Tensor decoded(Tensor a, WeightCodes z, Tensor panel)
{
    int64_t n[3] = { z.q.n[0], z.q.n[1], z.q.n[2] * 8 / code_bits(z.format) };
    REQUIRE(z.q.rank == 3 && panel.rank == 3 && panel.dtype == a.dtype && t_dense(panel) && panel.n[0] > 0 &&
            panel.n[1] == n[1] && panel.n[2] == n[2], "grouped_coded: a %s codes %s panel %s", t_fmt(a),
            t_fmt(z.q), t_fmt(panel));
    return t_wrap(panel.data, (DType)a.dtype, 3, n);
}

/* Codes are read in place of the elements. */
static Cost of_codes(Cost p, WeightCodes z, Tensor w)
{
    p.rd += code_bytes(z.format, t_count(w)) - t_bytes(w);
    return p;
}

Cost grouped_coded_cost(Backend *be, Tensor c, Tensor a, WeightCodes w, Tensor panel, Tensor offsets,
                        LoraTerm lora, int flags)
{
    Tensor like = decoded(a, w, panel);
    REQUIRE(flags == GEMM_NT || flags == GEMM_NN, "grouped_coded: flags %d", flags);
    return of_codes(grouped_gemm_cost(be, c, a, like, offsets, lora, flags), w, like);
}

Cost grouped_swiglu_coded_cost(Backend *be, Tensor gu, Tensor h, Tensor a, WeightCodes w, Tensor panel,
                               Tensor offsets, Tensor gate, LoraTerm lora)
{
    Tensor like = decoded(a, w, panel);
    return of_codes(grouped_swiglu_cost(be, gu, h, a, like, offsets, gate, lora), w, like);
}

Cost grouped_dswiglu_coded_cost(Backend *be, Tensor dgu, Tensor dgate, Tensor dout, WeightCodes w,
                                Tensor panel, Tensor offsets, Tensor gu, Tensor gate, LoraTerm lora)
{
    Tensor like = decoded(dout, w, panel);
    return of_codes(grouped_dswiglu_cost(be, dgu, dgate, dout, like, offsets, gu, gate, lora), w, like);
}

static bool decode_next(Backend *be, CodedPanel *p, WeightCodes z, Tensor panel, Tensor offsets,
                        LoraTerm lora)
{
    if (!coded_panel_next(p, z, panel, offsets, lora)) return false;
    cpu_decode_weight(be, p->w, z, coded_panel_at(p));
    return true;
}

void cpu_grouped_coded(Backend *be, Tensor c, Tensor a, WeightCodes w, Tensor panel, Tensor offsets,
                       LoraTerm lora, int flags)
{
    for (CodedPanel p = { 0 }; decode_next(be, &p, w, panel, offsets, lora);)
        cpu_grouped_gemm(be, c, a, p.w, p.offsets, p.lora, flags);
}

void cpu_grouped_swiglu_coded(Backend *be, Tensor gu, Tensor h, Tensor a, WeightCodes w, Tensor panel,
                              Tensor offsets, Tensor gate, LoraTerm lora)
{
    for (CodedPanel p = { 0 }; decode_next(be, &p, w, panel, offsets, lora);)
        cpu_grouped_swiglu(be, gu, h, a, p.w, p.offsets, gate, p.lora);
}

void cpu_grouped_dswiglu_coded(Backend *be, Tensor dgu, Tensor dgate, Tensor dout, WeightCodes w,
                               Tensor panel, Tensor offsets, Tensor gu, Tensor gate, LoraTerm lora)
{
    for (CodedPanel p = { 0 }; decode_next(be, &p, w, panel, offsets, lora);)
        cpu_grouped_dswiglu(be, dgu, dgate, dout, p.w, p.offsets, gu, gate, p.lora);
}
