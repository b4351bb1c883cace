/* nn/moe.c -- router, experts and their backward on one rank. */
#include "nn/moe.h"

/* Which experts, with what weight, and where each (token, slot) lands when rows are sorted by expert. All of
 * it is pinned: a replay that decided again could decide otherwise. */
static void route(Ctx *c, const Moe *m, MoeAct *a, Tensor x)
{
    int64_t T = x.n[0], R = T * m->K;
    Tensor none = { 0 };
    bool now = need(c, L_ROUTE, &a->logits, F32, T, m->E);
    need(c, L_ROUTE, &a->lse,     F32, T, 1);
    need(c, L_ROUTE, &a->idx,     I32, T, m->K);
    need(c, L_ROUTE, &a->weight,  F32, T, m->K);
    need(c, L_ROUTE, &a->offsets, I32, m->E + 1, 1);
    need(c, L_ROUTE, &a->rows,    I32, T, m->K);
    need(c, L_ROUTE, &a->src,     I32, R, 1);
    need(c, L_ROUTE, &a->gate,    F32, R, 1);
    if (!now) return;
    op_gemm(c->be, a->logits, x, m->w_router->w, none, GEMM_NT);
    tap(c, "router.logits", m->index, a->logits);
    op_router_fwd(c->be, a->idx, a->weight, a->lse, a->logits, m->renorm);
    if (c->aux)
        op_router_stats(c->be, t_at(c->aux->count, m->index), t_at(c->aux->prob, m->index),
                        t_rows(c->aux->zsum, m->index, 1), a->logits, a->lse, a->idx, c->batch->group);
    op_moe_index(c->be, a->offsets, a->rows, a->src, a->idx);
    op_gather_rows(c->be, a->gate, t_as2(a->weight, R, 1), a->src, 1);
}

void moe_fwd(Ctx *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res)
{
    int64_t R = x.n[0] * m->K, D = x.n[1];
    route(c, m, a, x);
    if (need(c, L_DISPATCH, &a->x, x.dtype, R, D))
        op_gather_rows(c->be, a->x, x, a->src, m->K);
    if (need(c, L_GATE_UP, &a->gu, x.dtype, R, 2 * m->F))
        op_grouped_gemm(c->be, a->gu, a->x, m->w_gu->w, a->offsets, GEMM_NT);
    if (need(c, L_ACT, &a->h, x.dtype, R, m->F))
        op_swiglu_fwd(c->be, a->h, a->gu, a->gate);
    if (!t_has(y)) return;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor out = scratch2(c, x.dtype, R, D);
    op_grouped_gemm(c->be, out, a->h, m->w_d->w, a->offsets, GEMM_NT);
    op_combine(c->be, y, out, a->rows, res);
    arena_reset(c->scratch, mark);
}

/* From the gradient of the expert rows' gates and of the auxiliary losses to router weights and dx. */
static void route_bwd(Ctx *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dgate, Tensor x)
{
    int64_t T = x.n[0];
    Tensor none = { 0 };
    Tensor dweight = scratch2(c, F32, T, m->K), dlogits = scratch2(c, x.dtype, T, m->E);
    float  zcoef   = c->batch->real ? c->aux->z_coeff / (float)c->batch->real : 0.0f;
    op_gather_rows(c->be, t_as2(dweight, T * m->K, 1), dgate, a->rows, 1);
    op_router_bwd(c->be, dlogits, dweight, a->weight, a->idx, a->logits, a->lse, t_at(c->aux->coef, m->index),
                  c->batch->group, zcoef, m->renorm);
    if (t_has(m->w_router->g))
        op_gemm(c->be, m->w_router->g, dlogits, x, none, param_grad_flags(m->w_router));
    op_gemm(c->be, dx, dlogits, m->w_router->w, none, GEMM_NN | GEMM_ACC);
}

void moe_bwd(Ctx *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dy, Tensor x)
{
    int64_t R = x.n[0] * m->K, D = x.n[1];
    DType d = (DType)x.dtype;
    Tensor none = { 0 };
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dout = scratch2(c, d, R, D), dh = scratch2(c, d, R, m->F), dgu = scratch2(c, d, R, 2 * m->F);
    Tensor dgate = scratch2(c, F32, R, 1);
    op_gather_rows(c->be, dout, dy, a->src, m->K);
    op_grouped_gemm(c->be, dh, dout, m->w_d->w, a->offsets, GEMM_NN);
    if (t_has(m->w_d->g)) op_grouped_gemm(c->be, m->w_d->g, dout, a->h, a->offsets, param_grad_flags(m->w_d));
    op_swiglu_bwd(c->be, dgu, dgate, dh, a->gu, a->gate);
    if (t_has(m->w_gu->g))
        op_grouped_gemm(c->be, m->w_gu->g, dgu, a->x, a->offsets, param_grad_flags(m->w_gu));
    op_grouped_gemm(c->be, dout, dgu, m->w_gu->w, a->offsets, GEMM_NN);      /* dout is spent: now d(a->x) */
    op_combine(c->be, dx, dout, a->rows, none);
    route_bwd(c, m, a, dx, dgate, x);
    arena_reset(c->scratch, mark);
}
