/* ops/gemm_fused.c -- products fused with the op before or after them: contract, cost, CPU.
 *
 *   gemm_residual   y = a b' + bias + res               res another tensor than y
 *   gemm_gelu       pre = a b' + bias, y = gelu(pre)
 *   gemm_dgelu      dpre = (dy w) * gelu'(pre)
 *
 * Shapes, strides and dtypes as in gemm.c and gelu.c. A device may compute y and dpre from
 * unrounded sums, so their last bit may differ between devices. */
#include "ops/cpu/cpu.h"

static Cost product(Tensor c, Tensor a, Tensor b, int flags, Tensor bias)
{
    return gemm_cost(NULL, c, a, b, bias, flags);
}

Cost gemm_residual_cost(Backend *be, Tensor y, Tensor res, Tensor a, Tensor b, Tensor bias)
{
    Cost p = product(y, a, b, GEMM_NT, bias);
    REQUIRE(t_same(y, res) && y.data != res.data, "gemm_residual: y%s res%s", t_fmt(y), t_fmt(res));
    p.rd += t_bytes(res);
    return p;
}

Cost gemm_gelu_cost(Backend *be, Tensor y, Tensor pre, Tensor a, Tensor b, Tensor bias, Gelu kind)
{
    Cost p = product(pre, a, b, GEMM_NT, bias);
    REQUIRE(t_same(y, pre) && y.data != pre.data, "gemm_gelu: y%s pre%s", t_fmt(y), t_fmt(pre));
    p.wr += t_bytes(y);
    return p;
}

Cost gemm_dgelu_cost(Backend *be, Tensor dpre, Tensor dy, Tensor w, Tensor pre, Gelu kind)
{
    Cost p = product(dpre, dy, w, GEMM_NN, (Tensor){ 0 });
    REQUIRE(t_same(dpre, pre) && dpre.data != pre.data, "gemm_dgelu: dpre%s pre%s", t_fmt(dpre), t_fmt(pre));
    p.rd += t_bytes(pre);
    return p;
}

void cpu_gemm_residual(Backend *be, Tensor y, Tensor res, Tensor a, Tensor b, Tensor bias)
{
    cpu_copy(be, y, res);
    cpu_gemm(be, y, a, b, bias, GEMM_NT | GEMM_ACC);
}

void cpu_gemm_gelu(Backend *be, Tensor y, Tensor pre, Tensor a, Tensor b, Tensor bias, Gelu kind)
{
    cpu_gemm(be, pre, a, b, bias, GEMM_NT);
    cpu_gelu_fwd(be, y, pre, kind);
}

void cpu_gemm_dgelu(Backend *be, Tensor dpre, Tensor dy, Tensor w, Tensor pre, Gelu kind)
{
    cpu_gemm(be, dpre, dy, w, (Tensor){ 0 }, GEMM_NN);
    cpu_gelu_bwd(be, dpre, dpre, pre, kind);
}
