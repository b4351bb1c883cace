/* nn/attention.c -- norm, qkv, per-head norm and rotation, attention by segments, out-projection. */
#include "nn/attention.h"

#include "nn/context.h"
#include "nn/rows.h"

#include <math.h>

typedef struct Share { int64_t H, G, C; } Share;          /* heads of this rank */
typedef struct Heads { Tensor q, k, v; } Heads;

static Share share_of(const Pass *c, const Attention *m)
{
    int64_t tp = mesh_size(c->env->mesh, AX_TP);
    return (Share){ m->H / tp, m->G < tp ? 1 : m->G / tp, m->C };
}

static float scale_of(const Attention *m) { return 1.0f / sqrtf((float)m->C); }

/* The three parts of a (Ta, (H + 2G) C) buffer as (Ta, heads, C). */
static Heads heads_of(Share s, Tensor qkv)
{
    return (Heads){ t_heads(qkv, 0, s.H, s.C), t_heads(qkv, s.H * s.C, s.G, s.C),
                    t_heads(qkv, (s.H + s.G) * s.C, s.G, s.C) };
}

static void rotate(const Pass *c, const Attention *m, AttentionAct *a, Tensor cs)
{
    int64_t Ta = a->qkv.n[0];
    Share s = share_of(c, m);
    Heads raw = heads_of(s, a->qkv);
    need(c, L_STAT, &a->q_rstd, F32, Ta, s.H);
    need(c, L_STAT, &a->k_rstd, F32, Ta, s.G);
    bool now = need(c, L_ROPE, &a->q, a->qkv.dtype, Ta, s.H * s.C);
    now     |= need(c, L_ROPE, &a->k, a->qkv.dtype, Ta, s.G * s.C);
    if (!now) return;
    op_rope_fwd(c->be, t_heads(a->q, 0, s.H, s.C), a->q_rstd, raw.q, param_w(m->q_norm), cs, m->eps);
    op_rope_fwd(c->be, t_heads(a->k, 0, s.G, s.C), a->k_rstd, raw.k, param_w(m->k_norm), cs, m->eps);
}

/* Within the batch, or with a cache against all that the documents have so far. */
static void attend(const Pass *c, const Attention *m, AttentionAct *a)
{
    Share  s = share_of(c, m);
    Tensor o = t_heads(a->o, 0, s.H, s.C), q = t_heads(a->q, 0, s.H, s.C);
    Tensor k = a->k, v = t_cols(a->qkv, (s.H + s.G) * s.C, s.G * s.C);
    if (c->cache) cache_write(c->cache, c->be, m->index, &k, &v);
    k = t_heads(k, 0, s.G, s.C), v = t_heads(v, 0, s.G, s.C);
    if (c->cache) op_attention_fwd(c->be, o, a->lse, q, k, v, c->cache->seg, scale_of(m));
    else          context_attention_fwd(c, o, a->lse, q, k, v, scale_of(m));
}

void attention_fwd(const Pass *c, const Attention *m, AttentionAct *a, Tensor y, Tensor x, Tensor cs)
{
    int64_t T = x.n[0], D = x.n[1], Ta = all_rows_count(c, x);
    Share s = share_of(c, m);
    Tensor none = { 0 };
    need(c, L_STAT, &a->rstd, F32, T, 1);
    if (need_if(c, is_trainable(m->w_qkv), c->policy[L_QKV] == DROP, L_NORM, &a->n, x.dtype, T, D))
        op_rmsnorm_fwd(c->be, a->n, a->rstd, none, x, none, m->norm->shard.w, m->eps);
    if (need(c, L_QKV, &a->qkv, x.dtype, Ta, (s.H + 2 * s.G) * s.C))
        column_linear_fwd(c, a->qkv, a->n, m->w_qkv, m->b_qkv);
    rotate(c, m, a, cs);
    need(c, L_STAT, &a->lse, F32, s.H, Ta);
    if (need(c, L_CORE, &a->o, x.dtype, Ta, s.H * s.C)) attend(c, m, a);
    if (t_has(y)) row_linear_fwd(c, y, a->o, m->w_o, m->b_o, none);
}

/* Before attention itself. */
static bool inputs_train(const Attention *m)
{
    return is_trainable(m->norm) || is_trainable(m->w_qkv) || is_trainable(m->b_qkv) ||
           is_trainable(m->q_norm) || is_trainable(m->k_norm);
}

bool attention_trains(const Attention *m)
{
    return inputs_train(m) || is_trainable(m->w_o) || is_trainable(m->b_o);
}

/* Of the attention output's gradient: dqkv (Ta, (H + 2G) C). The caller resets scratch. */
static void attend_bwd(const Pass *c, const Attention *m, AttentionAct *a, Tensor dqkv, Tensor dout,
                       Tensor cs)
{
    int64_t Ta = a->qkv.n[0];
    DType d = (DType)a->qkv.dtype;
    Share s = share_of(c, m);
    Tensor delta = scratch2(c, F32, s.H, Ta);
    Tensor dq = scratch2(c, d, Ta, s.H * s.C), dk = scratch2(c, d, Ta, s.G * s.C);
    Heads raw = heads_of(s, a->qkv), draw = heads_of(s, dqkv);
    Tensor dq3 = t_heads(dq, 0, s.H, s.C), dk3 = t_heads(dk, 0, s.G, s.C);
    context_attention_bwd(c, dq3, dk3, draw.v, delta, t_heads(dout, 0, s.H, s.C), t_heads(a->o, 0, s.H, s.C),
                          a->lse, t_heads(a->q, 0, s.H, s.C), t_heads(a->k, 0, s.G, s.C), raw.v, scale_of(m));
    op_rope_bwd(c->be, draw.q, param_g(m->q_norm), dq3, raw.q, param_w(m->q_norm), a->q_rstd, cs);
    op_rope_bwd(c->be, draw.k, param_g(m->k_norm), dk3, raw.k, param_w(m->k_norm), a->k_rstd, cs);
}

void attention_bwd(const Pass *c, const Attention *m, AttentionAct *a, Tensor dx, Tensor dy, Tensor x,
                   Tensor cs,
                   Tensor dres)
{
    bool    deeper = t_has(dx) || inputs_train(m), normed = t_has(dx) || is_trainable(m->norm);
    DType   d = (DType)x.dtype;
    Tensor  none = { 0 };
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dout = scratch2(c, d, a->o.n[0], a->o.n[1]), dqkv = scratch2(c, d, a->qkv.n[0], a->qkv.n[1]);
    Tensor dn = scratch2(c, d, x.n[0], x.n[1]);
    row_linear_bwd(c, deeper ? dout : none, dy, a->o, m->w_o, m->b_o);
    if (deeper) attend_bwd(c, m, a, dqkv, dout, cs);
    if (deeper) column_linear_bwd(c, normed ? dn : none, dqkv, a->n, m->w_qkv, m->b_qkv);
    if (normed) op_rmsnorm_bwd(c->be, dx, m->norm->shard.g, dn, x, m->norm->shard.w, a->rstd, dres);
    arena_reset(c->scratch, mark);
}

/* ---- the kind ---- */

static int64_t layers_below(const TextShape *t, int64_t x)
{
    return t->mla.kv_rank ? 0 : t->window ? x / 2 : attention_full_below(t, x);
}

static const char *lacks(const TextShape *t) { return t->gated ? "a gate on its output" : NULL; }

#define PARAM(name) ((int)offsetof(Attention, name))

static void describe_kept(Description *d, const TextShape *t, int qkv, int core, int o)
{
    double q = (double)(t->H * t->C), kv = (double)(t->G * t->C), gate = t->gated ? q : 0;
    KeptValue stat = { .label = L_STAT, .rows = ROWS_GATHERED, .cut = CUT_TP, .bytes = 4, .read_by = -1 };
    describe_value(d, (KeptValue){ .label = L_STAT, .cols = 1, .bytes = 4, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_NORM, .cols = (double)t->D, .read_by = qkv, .only = true });
    describe_value(d, (KeptValue){ .label = L_QKV, .rows = ROWS_GATHERED, .cut = CUT_TP, .cols = q + gate,
                                   .kv_cols = 2 * kv, .read_by = -1 });
    stat.cols = (double)t->H, stat.kv_cols = (double)t->G;
    if (t->qk_norm) describe_value(d, stat);
    if (t->qk_norm) describe_value(d, (KeptValue){ .label = L_ROPE, .rows = ROWS_GATHERED, .cut = CUT_TP,
                                                   .cols = q, .kv_cols = kv, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_CORE, .rows = ROWS_GATHERED, .cut = CUT_TP, .cols = q,
                                   .read_by = o });
    stat.cols = (double)t->H, stat.kv_cols = 0, stat.read_by = core;
    describe_value(d, stat);
}

/* The gate of a gated output comes out of the same product as the queries. */
static void describe(Description *d, const TextShape *t)
{
    double D = (double)t->D, C = (double)t->C, q = (double)t->H * C, kv = 2 * (double)t->G * C;
    describe_vector(d, PARAM(norm), D);
    int qkv = describe_step(d, (LayerStep){ .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED,
        .makes = L_QKV, .param = PARAM(w_qkv), .in = D, .out = q * (t->gated ? 2 : 1), .kv_out = kv,
        .out_cut = CUT_TP });
    if (t->bias)    describe_step(d, (LayerStep){ .type = STEP_VECTOR, .param = PARAM(b_qkv), .in = 1,
                                                     .out = q, .kv_out = kv, .out_cut = CUT_TP });
    if (t->qk_norm) describe_vector(d, PARAM(q_norm), C);
    if (t->qk_norm) describe_vector(d, PARAM(k_norm), C);
    int core = describe_step(d, (LayerStep){ .type = STEP_CORE, .in = q, .out = q, .kv_out = kv,
                                              .macs_pair = 2 * q });
    int o = describe_step(d, (LayerStep){ .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED,
        .param = PARAM(w_o), .in = q, .out = D, .in_cut = CUT_TP });
    if (t->bias) describe_vector(d, PARAM(b_o), D);
    describe_kept(d, t, qkv, core, o);
}

static void kind_fwd(const Pass *c, const void *m, void *act, Tensor y, Tensor x, Tensor cs)
{
    attention_fwd(c, m, act, y, x, cs);
}

static void kind_bwd(const Pass *c, const void *m, void *act, Tensor dx, Tensor dy, Tensor x, Tensor cs,
                     Tensor dres)
{
    attention_bwd(c, m, act, dx, dy, x, cs, dres);
}

static bool kind_trains(const void *m) { return attention_trains(m); }

const AttentionKind attention_gqa = {
    .name = "grouped-query (GQA)", .describe = describe, .layers_below = layers_below, .lacks = lacks,
    .module_size = sizeof(Attention), .act_size = sizeof(AttentionAct), .fwd = kind_fwd, .bwd = kind_bwd,
    .trains = kind_trains,
};
