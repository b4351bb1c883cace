/* nn/moe_shared.c -- the experts that every token passes: a dense feed-forward beside the routed experts,
 * whose output may have a gate of one number a token. */
#include "nn/moe_private.h"

static Tensor wide(Tensor t) { return t_as3(t, t.n[0], 1, t.n[1]); }

/* y = res + sigmoid(gate) shared(x) */
static void gated_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res)
{
    int64_t T = x.n[0];
    Tensor  none = { 0 };
    if (need(c, L_SHARED_UP, &a->shared_gate, (DType)x.dtype, T, 1))
        linear_fwd(c, a->shared_gate, x, m->w_shared_gate, NULL);
    bool now = need(c, L_SHARED_ACT, &a->shared_y, (DType)x.dtype, T, x.n[1]);
    mlp_fwd(c, &m->shared, &a->shared, now ? a->shared_y : none, x, none);
    if (t_has(y)) op_gate_fwd(c->be, wide(y), wide(a->shared_y), wide(a->shared_gate), wide(res));
}

Tensor moe_shared_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor x, Tensor res, bool want)
{
    Tensor y = { 0 };
    if (!m->shared.I) return res;
    if (want) y = scratch2(c, (DType)x.dtype, x.n[0], x.n[1]);
    if (m->w_shared_gate) gated_fwd(c, m, a, y, x, res);
    else                  mlp_fwd(c, &m->shared, &a->shared, y, x, res);
    return y;
}

static void gated_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dy, Tensor x)
{
    DType  d = (DType)x.dtype;
    Tensor dout = scratch2(c, d, x.n[0], x.n[1]), dgate = scratch2(c, d, x.n[0], 1);
    op_gate_bwd(c->be, wide(dout), wide(dgate), wide(dy), wide(a->shared_y), wide(a->shared_gate));
    mlp_bwd(c, &m->shared, &a->shared, dx, dout, x);
    linear_grads(c, dgate, (Tensor){ 0 }, x, m->w_shared_gate, NULL);
    if (t_has(dx)) linear_input_grad(c, dx, dgate, (Tensor){ 0 }, m->w_shared_gate, GEMM_ACC);
}

Tensor moe_shared_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dy, Tensor x, bool want)
{
    Tensor dx = { 0 };
    if (!m->shared.I) return dx;
    if (want) dx = scratch2(c, (DType)x.dtype, x.n[0], x.n[1]);
    if (m->w_shared_gate) gated_bwd(c, m, a, dx, dy, x);
    else                  mlp_bwd(c, &m->shared, &a->shared, dx, dy, x);
    return dx;
}
