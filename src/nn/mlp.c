/* nn/mlp.c -- see mlp.h. */
#include "nn/mlp.h"

#include "nn/activation.h"
#include "nn/rows.h"

static int64_t width(const Pass *c, const Mlp *m) { return m->I / mesh_size(c->env->mesh, AX_TP); }

static Label up_label(const Mlp *m)  { return m->is_shared ? L_SHARED_UP : L_MLP_UP; }
static Label act_label(const Mlp *m) { return m->is_shared ? L_SHARED_ACT : L_MLP_ACT; }

void mlp_fwd(const Pass *c, const Mlp *m, MlpAct *a, Tensor y, Tensor x, Tensor res)
{
    int64_t Ta = all_rows_count(c, x), I = width(c, m), up = activations[m->act].projections * I;
    Tensor none = { 0 };
    pass_scope(c, GRAPH_MLP);
    if (need(c, up_label(m), &a->gu, x.dtype, Ta, up)) column_linear_fwd(c, a->gu, x, m->w_gu, NULL);
    if (need_if(c, is_trainable(m->w_d), t_has(y), act_label(m), &a->h, x.dtype, Ta, I))
        activations[m->act].fwd(c->be, a->h, a->gu, none, none);
    if (!t_has(y)) return;                               /* a replay without output */
    row_linear_fwd(c, y, a->h, m->w_d, NULL, res);
}

void mlp_bwd(const Pass *c, const Mlp *m, MlpAct *a, Tensor dx, Tensor dy, Tensor x)
{
    int64_t Ta = all_rows_count(c, x), I = width(c, m), up = activations[m->act].projections * I;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor none = { 0 };
    Tensor dh  = scratch2(c, x.dtype, Ta, I);
    Tensor dgu = scratch2(c, x.dtype, Ta, up);
    bool deeper = t_has(dx) || is_trainable(m->w_gu);
    pass_scope(c, GRAPH_MLP);
    row_linear_bwd(c, deeper ? dh : none, dy, a->h, m->w_d, NULL);
    if (deeper) activations[m->act].bwd(c->be, dgu, none, dh, a->gu, none);
    if (deeper) column_linear_bwd(c, dx, dgu, x, m->w_gu, NULL);
    arena_reset(c->scratch, mark);
}

/* ---- the kind ---- */

static int64_t layers_below(const TextShape *t, int64_t x) { return x - ffn_moe.layers_below(t, x); }

static void describe(Description *d, const TextShape *t)
{
    double D = (double)t->D, I = (double)t->I, wide = activations[t->act].projections * I;
    LayerStep up = { .linear = LINEAR_FEED, .rows = ROWS_GATHERED, .makes = L_MLP_UP,
                     .param = offsetof(Mlp, w_gu), .in = D, .out = wide, .out_cut = CUT_TP };
    LayerStep down = { .linear = LINEAR_FEED, .rows = ROWS_GATHERED, .param = offsetof(Mlp, w_d), .in = I,
                       .out = D, .in_cut = CUT_TP };
    describe_step(d, up);
    int last = describe_step(d, down);
    describe_value(d, (KeptValue){ .label = L_MLP_UP, .rows = ROWS_GATHERED, .cut = CUT_TP, .cols = wide,
                                   .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_MLP_ACT, .rows = ROWS_GATHERED, .cut = CUT_TP, .cols = I,
                                   .read_by = last, .only = true });
}

static void kind_fwd(const Pass *c, const void *m, void *act, Tensor y, Tensor x, Tensor res)
{
    mlp_fwd(c, m, act, y, x, res);
}

static void kind_bwd(const Pass *c, const void *m, void *act, Tensor dx, Tensor dy, Tensor x)
{
    mlp_bwd(c, m, act, dx, dy, x);
}

const FfnKind ffn_dense = { .name = "dense", .describe = describe, .layers_below = layers_below,
                            .module_size = sizeof(Mlp), .act_size = sizeof(MlpAct), .fwd = kind_fwd,
                            .bwd = kind_bwd };
