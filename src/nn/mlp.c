/* nn/mlp.c -- see mlp.h. */
#include "nn/mlp.h"

#include "nn/rows.h"

static int64_t width(const Pass *c, const Mlp *m) { return m->F / mesh_size(c->env->mesh, AX_TP); }

void mlp_fwd(const Pass *c, const Mlp *m, MlpAct *a, Tensor y, Tensor x, Tensor res)
{
    int64_t Ta = all_rows_count(c, x), F = width(c, m);
    Tensor none = { 0 };
    if (need(c, L_MLP_UP,  &a->gu, x.dtype, Ta, 2 * F)) column_linear_fwd(c, a->gu, x, m->w_gu, NULL);
    if (need_if(c, is_trainable(m->w_d), t_has(y), L_MLP_ACT, &a->h, x.dtype, Ta, F))
        op_swiglu_fwd(c->be, a->h, a->gu, none);
    if (!t_has(y)) return;                               /* replay: nobody wants the output */
    row_linear_fwd(c, y, a->h, m->w_d, NULL, res);
}

void mlp_bwd(const Pass *c, const Mlp *m, MlpAct *a, Tensor dx, Tensor dy, Tensor x)
{
    int64_t Ta = all_rows_count(c, x), F = width(c, m);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor none = { 0 };
    Tensor dh  = scratch2(c, x.dtype, Ta, F);
    Tensor dgu = scratch2(c, x.dtype, Ta, 2 * F);
    bool deeper = t_has(dx) || is_trainable(m->w_gu);
    row_linear_bwd(c, deeper ? dh : none, dy, a->h, m->w_d, NULL);
    if (deeper) op_swiglu_bwd(c->be, dgu, none, dh, a->gu, none);
    if (deeper) column_linear_bwd(c, dx, dgu, x, m->w_gu, NULL);
    arena_reset(c->scratch, mark);
}
