/* nn/mlp.c -- see mlp.h. */
#include "nn/mlp.h"

void mlp_fwd(Ctx *c, const Mlp *m, MlpAct *a, Tensor y, Tensor x, Tensor res)
{
    int64_t T = x.n[0];
    Tensor none = { 0 };
    if (need(c, L_MLP_UP,  &a->gu, x.dtype, T, 2 * m->F)) linear_fwd(c, a->gu, x, m->w_gu, NULL);
    if (need(c, L_MLP_ACT, &a->h,  x.dtype, T, m->F))     op_swiglu_fwd(c->be, a->h, a->gu, none);
    if (!t_has(y)) return;                               /* replay: nobody wants the output */
    linear_residual(c, y, a->h, m->w_d, NULL, res);
}

void mlp_bwd(Ctx *c, const Mlp *m, MlpAct *a, Tensor dx, Tensor dy, Tensor x)
{
    ArenaMark mark = arena_mark(c->scratch);
    Tensor none = { 0 };
    Tensor dh  = scratch2(c, x.dtype, x.n[0], m->F);
    Tensor dgu = scratch2(c, x.dtype, x.n[0], 2 * m->F);
    linear_bwd(c, dh, dy, a->h, m->w_d, NULL);
    op_swiglu_bwd(c->be, dgu, none, dh, a->gu, none);
    linear_bwd(c, dx, dgu, x, m->w_gu, NULL);
    arena_reset(c->scratch, mark);
}
