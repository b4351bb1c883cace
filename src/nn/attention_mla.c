/* nn/attention_mla.c -- see attention_mla.h. Keys and values are kept as the core reads them; the rotary
 * part of the keys is copied to every head. */
#include "nn/attention_mla.h"

#include "nn/attention.h"
#include "nn/context.h"
#include "nn/lora.h"
#include "nn/rows.h"

MlaShare mla_share(const Pass *c, const Mla *m)
{
    const MlaShape *s = &m->shape;
    return (MlaShare){ m->H / mesh_size(c->env->mesh, AX_TP), s->nope + s->rope, s->nope, s->rope, s->v };
}

Tensor mla_parts(Tensor t, int64_t heads, int64_t from, int64_t n)
{
    return t_cols(t_heads(t, 0, heads, t.n[1] / heads), from, n);
}

static Tensor latent_part(const Mla *m, Tensor down_kv) { return t_cols(down_kv, 0, m->shape.kv_rank); }

/* ---- forward ---- */

static void latents(const Pass *c, const Mla *m, MlaAct *a)
{
    int64_t T = a->n.n[0], kr = m->shape.kv_rank, qr = m->shape.q_rank;
    DType   d = (DType)a->n.dtype;
    Tensor  none = { 0 };
    if (qr) {
        need(c, L_STAT, &a->q_rstd, F32, T, 1);
        bool now = need(c, L_LATENT, &a->down_q, d, T, qr);
        if (now) linear_fwd(c, a->down_q, a->n, m->w_down_q, m->b_down_q);
        if (need(c, L_LATENT, &a->latent_q, d, T, qr))
            op_rmsnorm_fwd(c->be, a->latent_q, a->q_rstd, none, a->down_q, none, param_w(m->q_norm),
                           m->latent_eps);
    }
    need(c, L_STAT, &a->kv_rstd, F32, T, 1);
    if (need(c, L_LATENT, &a->down_kv, d, T, kr + m->shape.rope))
        linear_fwd(c, a->down_kv, a->n, m->w_down_kv, m->b_down_kv);
    if (need(c, L_LATENT, &a->latent_kv, d, T, kr))
        op_rmsnorm_fwd(c->be, a->latent_kv, a->kv_rstd, none, latent_part(m, a->down_kv), none,
                       param_w(m->kv_norm), m->latent_eps);
}

Tensor mla_shared_keys(const Pass *c, const Mla *m, const MlaAct *a)
{
    Tensor own = t_cols(a->down_kv, m->shape.kv_rank, m->shape.rope);
    if (mesh_size(c->env->mesh, AX_TP) > 1) {
        Tensor dense = scratch2(c, (DType)own.dtype, own.n[0], own.n[1]);
        op_copy(c->be, dense, own);
        own = all_rows(c, dense);
    }
    return t_heads(own, 0, 1, m->shape.rope);
}

static void keys_and_values(const Pass *c, const Mla *m, MlaAct *a, MlaShare s, Tensor cs)
{
    ArenaMark mark = arena_mark(c->scratch);
    Tensor kv = scratch2(c, (DType)a->k.dtype, a->k.n[0], s.H * (s.nope + s.v));
    column_linear_fwd(c, kv, a->latent_kv, m->w_up_kv, NULL);
    op_copy(c->be, mla_parts(a->k, s.H, 0, s.nope), mla_parts(kv, s.H, 0, s.nope));
    op_copy(c->be, mla_parts(a->v, s.H, 0, s.v), mla_parts(kv, s.H, s.nope, s.v));
    op_turn_fwd(c->be, mla_parts(a->k, s.H, s.nope, s.rope), mla_shared_keys(c, m, a), cs, m->pairs);
    arena_reset(c->scratch, mark);
}

/* A pass over further tokens attends to latents: it has no keys and values. */
static bool decodes_latents(const Pass *c) { return c->cache && c->cache->latent && !c->cache->prompts; }

static void up_projections(const Pass *c, const Mla *m, MlaAct *a, Tensor cs)
{
    MlaShare s = mla_share(c, m);
    int64_t  Ta = all_rows_count(c, a->n);
    DType    d = (DType)a->n.dtype;
    if (need(c, L_UP_PROJ, &a->q, d, Ta, s.H * s.qk)) {
        Tensor q = mla_parts(a->q, s.H, s.nope, s.rope);
        column_linear_fwd(c, a->q, m->w_down_q ? a->latent_q : a->n, m->w_up_q, NULL);
        op_turn_fwd(c->be, q, q, cs, m->pairs);
    }
    if (decodes_latents(c)) return;
    bool now = need(c, L_UP_PROJ, &a->k, d, Ta, s.H * s.qk);
    need(c, L_UP_PROJ, &a->v, d, Ta, s.H * s.v);
    if (now) keys_and_values(c, m, a, s, cs);
}

static void attend(const Pass *c, const Mla *m, MlaAct *a)
{
    MlaShare s = mla_share(c, m);
    bool   cached = c->cache && !c->cache->latent;
    Tensor o = t_heads(a->o, 0, s.H, s.v), q = t_heads(a->q, 0, s.H, s.qk), k = a->k, v = a->v;
    if (cached) cache_write(&c->cache->full, c->be, m->index, &k, &v);
    k = t_heads(k, 0, s.H, s.qk), v = t_heads(v, 0, s.H, s.v);
    if (cached) op_attention_fwd(c->be, o, a->lse, q, k, v, c->cache->full.seg, m->scale);
    else        context_attention_fwd(c, o, a->lse, q, k, v, (AttentionTerms){ .scale = m->scale });
}

static void attend_any(const Pass *c, const Mla *m, MlaAct *a, Tensor cs)
{
    Tensor latents = c->cache && c->cache->latent ? mla_cache_latents(c, m, a, cs) : (Tensor){ 0 };
    if (decodes_latents(c)) mla_attend_latents(c, m, a, latents);
    else                    attend(c, m, a);
}

static void fwd(const Pass *c, const void *module, void *act, Tensor y, Tensor x, Tensor cs)
{
    const Mla *m = module;
    MlaAct    *a = act;
    MlaShare   s = mla_share(c, m);
    int64_t    Ta = all_rows_count(c, x);
    Tensor     none = { 0 };
    need(c, L_STAT, &a->rstd, F32, x.n[0], 1);
    if (need(c, L_NORM, &a->n, (DType)x.dtype, x.n[0], x.n[1]))
        op_rmsnorm_fwd(c->be, a->n, a->rstd, none, x, none, norm_weight(c, m->norm), m->eps);
    latents(c, m, a);
    up_projections(c, m, a, cs);
    need(c, L_STAT, &a->lse, F32, s.H, Ta);
    if (need(c, L_CORE, &a->o, (DType)x.dtype, Ta, s.H * s.v)) attend_any(c, m, a, cs);
    if (t_has(y)) row_linear_fwd(c, y, a->o, m->w_o, m->b_o, none);
}

/* ---- backward ---- */

static bool inputs_train(const Mla *m)
{
    const Param *p[] = { m->norm, m->w_down_q, m->b_down_q, m->q_norm, m->w_up_q, m->w_down_kv, m->b_down_kv,
                         m->kv_norm, m->w_up_kv };
    bool any = false;
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) any |= is_trainable(p[i]);
    return any;
}

static bool trains(const void *module)
{
    const Mla *m = module;
    return inputs_train(m) || is_trainable(m->w_o) || is_trainable(m->b_o);
}

/* Gradients of what the core reads: of q not yet rotated back; of keys and values as up_kv makes them; of the
 * shared part of the keys, this rank's T rows. */
typedef struct MlaGrads { Tensor q, kv, rope; } MlaGrads;

static MlaGrads core_bwd(const Pass *c, const Mla *m, const MlaAct *a, Tensor dout, Tensor cs)
{
    MlaShare s = mla_share(c, m);
    int64_t  Ta = a->q.n[0];
    DType    d = (DType)a->q.dtype;
    MlaGrads g = { scratch2(c, d, Ta, s.H * s.qk), scratch2(c, d, Ta, s.H * (s.nope + s.v)),
                   scratch2(c, d, a->n.n[0], s.rope) };
    Tensor dk = scratch2(c, d, Ta, s.H * s.qk), delta = scratch2(c, F32, s.H, Ta);
    context_attention_bwd(c, t_heads(g.q, 0, s.H, s.qk), t_heads(dk, 0, s.H, s.qk),
                          mla_parts(g.kv, s.H, s.nope, s.v), delta, t_heads(dout, 0, s.H, s.v),
                          t_heads(a->o, 0, s.H, s.v), a->lse, t_heads(a->q, 0, s.H, s.qk),
                          t_heads(a->k, 0, s.H, s.qk), t_heads(a->v, 0, s.H, s.v),
                          (AttentionTerms){ .scale = m->scale });
    Tensor q = mla_parts(g.q, s.H, s.nope, s.rope), all = part_rows(c, g.rope);
    op_turn_bwd(c->be, q, q, cs, m->pairs);
    op_copy(c->be, mla_parts(g.kv, s.H, 0, s.nope), mla_parts(dk, s.H, 0, s.nope));
    op_turn_bwd(c->be, t_heads(all, 0, 1, s.rope), mla_parts(dk, s.H, s.nope, s.rope), cs, m->pairs);
    sum_rows(c, g.rope, all);
    return g;
}

/* dn is overwritten. */
static void queries_bwd(const Pass *c, const Mla *m, const MlaAct *a, Tensor dn, Tensor dq)
{
    Tensor none = { 0 };
    DType  d = (DType)a->n.dtype;
    if (!m->w_down_q) {
        column_linear_bwd(c, dn, dq, a->n, m->w_up_q, NULL);
        return;
    }
    Tensor dlatent = scratch2(c, d, a->n.n[0], m->shape.q_rank);
    column_linear_bwd(c, dlatent, dq, a->latent_q, m->w_up_q, NULL);
    op_rmsnorm_bwd(c->be, dlatent, param_g(m->q_norm), dlatent, a->down_q, param_w(m->q_norm), a->q_rstd,
                   none);
    linear_bwd(c, dn, dlatent, a->n, m->w_down_q, m->b_down_q);
}

/* dn is added to. */
static void keys_bwd(const Pass *c, const Mla *m, const MlaAct *a, Tensor dn, MlaGrads g)
{
    int64_t T = a->n.n[0], kr = m->shape.kv_rank;
    DType   d = (DType)a->n.dtype;
    Tensor  none = { 0 }, dlatent = scratch2(c, d, T, kr), ddown = scratch2(c, d, T, kr + m->shape.rope);
    column_linear_bwd(c, dlatent, g.kv, a->latent_kv, m->w_up_kv, NULL);
    op_rmsnorm_bwd(c->be, latent_part(m, ddown), param_g(m->kv_norm), dlatent, latent_part(m, a->down_kv),
                   param_w(m->kv_norm), a->kv_rstd, none);
    op_copy(c->be, t_cols(ddown, kr, m->shape.rope), g.rope);
    Tensor d_a_out = lora_d_a_out(c, ddown, m->w_down_kv);
    linear_grads(c, ddown, d_a_out, a->n, m->w_down_kv, m->b_down_kv);
    linear_input_grad(c, dn, ddown, d_a_out, m->w_down_kv, GEMM_ACC);
}

static void bwd(const Pass *c, const void *module, void *act, Tensor dx, Tensor dy, Tensor x, Tensor cs,
                Tensor dres)
{
    const Mla *m = module;
    MlaAct    *a = act;
    bool       deeper = t_has(dx) || inputs_train(m);
    DType      d = (DType)x.dtype;
    Tensor     none = { 0 };
    ArenaMark  mark = arena_mark(c->scratch);
    Tensor     dout = scratch2(c, d, a->o.n[0], a->o.n[1]), dn = scratch2(c, d, x.n[0], x.n[1]);
    row_linear_bwd(c, deeper ? dout : none, dy, a->o, m->w_o, m->b_o);
    if (deeper) {
        MlaGrads g = core_bwd(c, m, a, dout, cs);
        queries_bwd(c, m, a, dn, g.q);
        keys_bwd(c, m, a, dn, g);
    }
    if (t_has(dx) || is_trainable(m->norm))
        op_rmsnorm_bwd(c->be, dx, m->norm->shard.g, dn, x, norm_weight(c, m->norm), a->rstd, dres);
    arena_reset(c->scratch, mark);
}

/* ---- the kind ---- */

static int64_t layers_below(const TextShape *t, int64_t x)
{
    return t->mla.kv_rank ? attention_full_below(t, x) : 0;
}

#define PARAM(name) ((int)offsetof(Mla, name))

static void describe_kept(Description *d, const TextShape *t, int norm, int core, int o)
{
    const MlaShape *m = &t->mla;
    double D = (double)t->D, H = (double)t->H, q = (double)m->q_rank, kv = (double)m->kv_rank;
    double qk = (double)(m->nope + m->rope), v = (double)m->v, rope = (double)m->rope;
    KeptValue stat = { .label = L_STAT, .cols = q ? 3 : 2, .bytes = 4, .read_by = -1 };
    describe_value(d, stat);
    describe_value(d, (KeptValue){ .label = L_NORM, .cols = D, .read_by = norm + 1 });
    /* The projections are kept before and after their norms. */
    describe_value(d, (KeptValue){ .label = L_LATENT, .cols = 2 * q + 2 * kv + rope, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_UP_PROJ, .rows = ROWS_GATHERED, .cols = H * (2 * qk + v),
                                   .cut = CUT_TP, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_CORE, .rows = ROWS_GATHERED, .cols = H * v, .cut = CUT_TP,
                                   .read_by = o });
    describe_value(d, (KeptValue){ .label = L_STAT, .rows = ROWS_GATHERED, .cols = H, .cut = CUT_TP,
                                   .bytes = 4, .read_by = core });
}

static void describe(Description *d, const TextShape *t)
{
    const MlaShape *m = &t->mla;
    double D = (double)t->D, H = (double)t->H, q = (double)m->q_rank, kv = (double)m->kv_rank;
    double qk = (double)(m->nope + m->rope), v = (double)m->v, rope = (double)m->rope;
    LayerStep down = { .linear = LINEAR_ATTENTION, .makes = L_LATENT, .in = D };
    LayerStep up = { .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED, .makes = L_UP_PROJ,
                     .out_cut = CUT_TP };
    int norm = describe_vector(d, PARAM(norm), D), down_q = norm;
    if (q) {
        down.out = q, down.param = PARAM(w_down_q);
        down_q = describe_step(d, down);
        if (t->bias) down_q = describe_vector(d, PARAM(b_down_q), q);
        down_q = describe_vector(d, PARAM(q_norm), q);
    }
    up.in = q ? q : D, up.out = H * qk, up.reads = 1u << down_q, up.param = PARAM(w_up_q);
    int up_q = describe_step(d, up);
    down.out = kv + rope, down.reads = 1u << norm, down.param = PARAM(w_down_kv);
    describe_step(d, down);
    if (t->bias) describe_vector(d, PARAM(b_down_kv), kv + rope);
    describe_vector(d, PARAM(kv_norm), kv);
    up.in = kv, up.out = H * (double)(m->nope + m->v), up.reads = 0, up.param = PARAM(w_up_kv);
    int up_kv = describe_step(d, up);
    int core = describe_step(d, (LayerStep){ .type = STEP_CORE, .in = H * qk, .out = H * v,
        .kv_out = H * (qk + v), .macs_pair = H * (qk + v), .reads = 1u << up_q | 1u << up_kv });
    int o = describe_step(d, (LayerStep){ .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED,
                                             .param = PARAM(w_o), .in = H * v, .out = D, .in_cut = CUT_TP });
    if (t->bias) describe_vector(d, PARAM(b_o), D);
    describe_kept(d, t, norm, core, o);
}

const AttentionKind attention_mla = {
    .name = "multi-head latent (MLA)", .describe = describe, .layers_below = layers_below,
    .module_size = sizeof(Mla), .act_size = sizeof(MlaAct), .fwd = fwd, .bwd = bwd, .trains = trains,
};
