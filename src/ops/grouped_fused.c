/* ops/grouped_fused.c -- the experts' grouped products fused with their activation: contract, cost, CPU.
 *
 *   grouped_swiglu    gu[r] = a[r] w[e]', h[r] = silu(g[r]) * u[r] * gate[r]       w (E, 2F, D)
 *   grouped_dswiglu   dh[r] = dout[r] w[e], from it dgu and dgate as swiglu_bwd     w (E, D, F)
 *
 * A LoRA term adds to gu and to dh before rounding: + low_rank[r] lora.w[e]', + low_rank[r] lora.w[e].
 * Shapes, strides and dtypes as in grouped_gemm.c (GEMM_NT, GEMM_NN) and swiglu.c. No output lies over an
 * input; dgu in particular is not gu. dh is rounded to the dtype of dgu and is no output: the CPU computes it
 * in the first F columns of dgu. Rows past offsets[E] are padding: they do not affect the others and are
 * undefined afterwards. */
#include "ops/cpu/cpu_rows.h"

Cost grouped_swiglu_cost(Backend *be, Tensor gu, Tensor h, Tensor a, Tensor w, Tensor offsets, Tensor gate,
                         LoraTerm lora)
{
    Cost p = grouped_gemm_cost(be, gu, a, w, offsets, lora, GEMM_NT);
    swiglu_fwd_cost(be, h, gu, gate, offsets);
    p.rd += expert_bytes(be, gate);
    p.wr += expert_bytes(be, h);
    return p;
}

Cost grouped_dswiglu_cost(Backend *be, Tensor dgu, Tensor dgate, Tensor dout, Tensor w, Tensor offsets,
                          Tensor gu, Tensor gate, LoraTerm lora)
{
    REQUIRE(dgu.rank == 2 && dgu.n[1] % 2 == 0 && (!t_count(dgu) || dgu.data != gu.data),
            "grouped_dswiglu: dgu%s gu%s", t_fmt(dgu), t_fmt(gu));
    Tensor dh = t_cols(dgu, 0, dgu.n[1] / 2);
    Cost   p = grouped_gemm_cost(be, dh, dout, w, offsets, lora, GEMM_NN);
    swiglu_bwd_cost(be, dgu, dgate, dh, gu, gate);
    p.rd += expert_bytes(be, gu) + expert_bytes(be, gate);
    p.wr  = expert_bytes(be, dgu) + expert_bytes(be, dgate);
    return p;
}

/* t without its padding rows. */
static Tensor used(Tensor t, Tensor offsets)
{
    const int32_t *off = offsets.data;
    return t_has(t) ? t_rows(t, off[0], off[offsets.n[0] - 1] - off[0]) : t;
}

void cpu_grouped_swiglu(Backend *be, Tensor gu, Tensor h, Tensor a, Tensor w, Tensor offsets, Tensor gate,
                        LoraTerm lora)
{
    cpu_grouped_gemm(be, gu, a, w, offsets, lora, GEMM_NT);
    cpu_swiglu_fwd(be, h, gu, gate, offsets);
}

void cpu_grouped_dswiglu(Backend *be, Tensor dgu, Tensor dgate, Tensor dout, Tensor w, Tensor offsets,
                         Tensor gu, Tensor gate, LoraTerm lora)
{
    Tensor dh = t_cols(dgu, 0, dgu.n[1] / 2);
    cpu_grouped_gemm(be, dh, dout, w, offsets, lora, GEMM_NN);
    cpu_swiglu_bwd(be, used(dgu, offsets), used(dgate, offsets), used(dh, offsets), used(gu, offsets),
                   used(gate, offsets));
}
