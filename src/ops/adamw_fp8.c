/* ops/adamw_fp8.c -- adamw of a weight that is kept in e4m3 too: contract, cost, CPU.
 *
 *   adamw_fp8   adamw of w (ops/adamw.c), then quantize_weight of the new w (ops/quantize.c)
 *
 * q ([E,] N, K) says which matrix, or stack of them, the elements of w are in order. w is bf16; m and v have
 * one type. w, master, m, v, g and sumsq are otherwise as of adamw: dense, and of one shape, such as (N K).
 * q, scale, qt and scale_t are as of quantize_weight, but q must be there. With a verdict other than
 * STEP_GOOD codes and scales stay as they are too: w has not changed. The bits are those of the two ops, on
 * every device; a GPU reads no weight twice. */
#include "ops/cpu/cpu_adamw.h"

/* w as the matrices that q has. */
static Tensor matrices_of(Tensor w, Tensor q) { return t_wrap(w.data, (DType)w.dtype, q.rank, q.n); }

Cost adamw_fp8_cost(Backend *be, Tensor q, Tensor scale, Tensor qt, Tensor scale_t, Tensor w, Tensor master,
                    Tensor m, Tensor v, Tensor g, Tensor sumsq, AdamW h, bool pow2)
{
    REQUIRE(t_has(q) && w.dtype == BF16 && m.dtype == v.dtype && t_count(q) == t_count(w),
            "adamw_fp8: q %s w %s m %s v %s", t_fmt(q), t_fmt(w), t_fmt(m), t_fmt(v));
    Cost step  = adamw_cost(be, w, master, m, v, g, sumsq, h);
    Cost codes = quantize_weight_cost(be, q, scale, qt, scale_t, matrices_of(w, q), pow2);
    return (Cost){ .flops = step.flops + codes.flops, .rd = step.rd, .wr = step.wr + codes.wr };
}

void cpu_adamw_fp8(Backend *be, Tensor q, Tensor scale, Tensor qt, Tensor scale_t, Tensor w, Tensor master,
                   Tensor m, Tensor v, Tensor g, Tensor sumsq, AdamW h, bool pow2)
{
    if (t_has(h.verdict) && *(const double *)h.verdict.data != STEP_GOOD) return;
    cpu_adamw(be, w, master, m, v, g, sumsq, h);
    cpu_quantize_weight(be, q, scale, qt, scale_t, matrices_of(w, q), pow2);
}
