/* ops/grouped_fused_fp8.c -- the experts' e4m3 products fused with their activation, whose result is
 * quantised for the next product: contract, cost, CPU.
 *
 *   grouped_swiglu_fp8   gu[r] = a[r] w[e]', h[r] = silu(g[r]) * u[r] * gate[r], (hq, hs) = quantize_rows(h)
 *
 * Products as in gemm_fp8.c: a (R, D), w (E, 2F, D); the rest as in grouped_fused.c and quantize.c: gu (R,
 * 2F), h and hq (R, F), hs (ceil(F/128), R), powers of two. hq is made from h as it is rounded to its dtype;
 * h itself is memory that may be used, and undefined afterwards, unless `stores_h`. Rows past offsets[E] are
 * padding: they do not affect the others and are undefined afterwards. */
#include "ops/cpu/cpu_rows.h"
#include "ops/quant.h"

Cost grouped_swiglu_fp8_cost(Backend *be, Tensor gu, Tensor h, Tensor hq, Tensor hs, Tensor a, Tensor sa,
                             Tensor w, Tensor sw, Tensor offsets, Tensor gate, bool stores_h)
{
    Cost p = grouped_gemm_fp8_cost(be, gu, a, sa, w, sw, offsets);
    swiglu_fwd_cost(be, h, gu, gate, offsets);
    p.rd += expert_bytes(be, gate);
    p.wr += (stores_h ? expert_bytes(be, h) : 0) + quantize_rows_cost(be, hq, hs, h, offsets, true).wr;
    return p;
}

void cpu_grouped_swiglu_fp8(Backend *be, Tensor gu, Tensor h, Tensor hq, Tensor hs, Tensor a, Tensor sa,
                            Tensor w, Tensor sw, Tensor offsets, Tensor gate, bool stores_h)
{
    (void)stores_h;
    cpu_grouped_gemm_fp8(be, gu, a, sa, w, sw, offsets);
    cpu_swiglu_fwd(be, h, gu, gate, offsets);
    cpu_quantize_rows(be, hq, hs, h, offsets, true);
}
