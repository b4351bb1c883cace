/* nn/attention.c -- norm, qkv, per-head norm and rotation, attention by segments, out-projection. */
#include "nn/attention_heads.h"

#include "nn/context.h"
#include "nn/rows.h"

#include <math.h>

static float scale_of(const Attention *m) { return 1.0f / sqrtf((float)m->C); }

static AttentionTerms terms_of(const Attention *m, bool backward)
{
    AttentionTerms t = { .scale = scale_of(m), .window = m->window };
    if (m->sinks)             t.sinks = param_w(m->sinks);
    if (m->sinks && backward) t.dsinks = param_g(m->sinks);
    return t;
}

/* Keys and values go to the cache. Prompts attend within the batch where the cache has a window alone;
 * otherwise *h becomes all that the documents have so far. Gives the segments to attend by. */
static Segments write_cache(const Pass *c, const Attention *m, Share s, Heads *h)
{
    const CacheRows *r = m->window ? &c->cache->window : &c->cache->full;
    Tensor k = attention_rows(h->k), v = attention_rows(h->v);
    cache_write(r, c->be, m->index, &k, &v);
    if (m->window && c->cache->prompts) return segments_in_window(c->batch->seg, m->window, c->batch->Ta);
    h->k = t_heads(k, 0, s.G, s.C), h->v = t_heads(v, 0, s.G, s.C);
    return r->seg;
}

static void attend_cached(const Pass *c, const Attention *m, AttentionAct *a, Tensor o, Heads h)
{
    Segments seg = write_cache(c, m, attention_share(c, m), &h);
    op_attention_fwd(c->be, o, a->lse, h.q, h.k, h.v, seg, scale_of(m));
    if (m->sinks) op_sink_fwd(c->be, o, a->lse, param_w(m->sinks));
}

/* Within the batch, or with a cache against what the documents have so far. */
static void attend(const Pass *c, const Attention *m, AttentionAct *a)
{
    Share  s = attention_share(c, m);
    Heads  h = attention_heads(m, s, a);
    Tensor o = t_heads(a->o, 0, s.H, s.C);
    if (c->cache) attend_cached(c, m, a, o, h);
    else          context_attention_fwd(c, o, a->lse, h.q, h.k, h.v, terms_of(m, false));
}

/* The output of the core behind its gate, in scratch. */
static Tensor gated_output(const Pass *c, const Attention *m, const AttentionAct *a)
{
    Share  s = attention_share(c, m);
    Tensor none = { 0 };
    if (!m->gated) return a->o;
    Tensor y = scratch2(c, (DType)a->o.dtype, a->o.n[0], a->o.n[1]);
    op_gate_fwd(c->be, t_heads(y, 0, s.H, s.C), t_heads(a->o, 0, s.H, s.C),
                attention_parts(m, s, a->qkv).gate,
                none);
    return y;
}

void attention_fwd(const Pass *c, const Attention *m, AttentionAct *a, Tensor y, Tensor x, Tensor cs)
{
    int64_t T = x.n[0], D = x.n[1], Ta = all_rows_count(c, x);
    Share s = attention_share(c, m);
    Tensor none = { 0 };
    need(c, L_STAT, &a->rstd, F32, T, 1);
    if (need_if(c, is_trainable(m->w_qkv), c->policy[L_QKV] == DROP, L_NORM, &a->n, x.dtype, T, D))
        op_rmsnorm_fwd(c->be, a->n, a->rstd, none, x, none, norm_weight(c, m->norm), m->eps);
    bool fresh = need(c, L_QKV, &a->qkv, x.dtype, Ta, attention_cols(m, s));
    if (fresh) column_linear_fwd(c, a->qkv, a->n, m->w_qkv, m->b_qkv);
    attention_rotate(c, m, a, cs, fresh);
    need(c, L_STAT, &a->lse, F32, s.H, Ta);
    if (need(c, L_CORE, &a->o, x.dtype, Ta, s.H * s.C)) attend(c, m, a);
    if (t_has(y)) row_linear_fwd(c, y, gated_output(c, m, a), m->w_o, m->b_o, none);
}

/* Before attention itself. */
static bool inputs_train(const Attention *m)
{
    return is_trainable(m->norm) || is_trainable(m->w_qkv) || is_trainable(m->b_qkv) ||
           is_trainable(m->q_norm) || is_trainable(m->k_norm) || is_trainable(m->sinks);
}

bool attention_trains(const Attention *m)
{
    return inputs_train(m) || is_trainable(m->w_o) || is_trainable(m->b_o);
}

static void core_bwd(const Pass *c, const Attention *m, const AttentionAct *a, Heads d, Tensor dout)
{
    Share  s = attention_share(c, m);
    Heads  h = attention_heads(m, s, a);
    Tensor delta = scratch2(c, F32, s.H, a->qkv.n[0]), o = t_heads(a->o, 0, s.H, s.C);
    context_attention_bwd(c, d.q, d.k, d.v, delta, dout, o, a->lse, h.q, h.k, h.v, terms_of(m, true));
}

/* Of the gradient of what w_o reads: dqkv. The caller resets scratch. */
static void attend_bwd(const Pass *c, const Attention *m, AttentionAct *a, Tensor dqkv, Tensor dout,
                       Tensor cs)
{
    int64_t Ta = a->qkv.n[0];
    DType d = (DType)a->qkv.dtype;
    Share s = attention_share(c, m);
    Heads to = attention_parts(m, s, dqkv), grads = to;
    Tensor d3 = t_heads(dout, 0, s.H, s.C);
    if (m->q_norm) {
        grads.q = t_heads(scratch2(c, d, Ta, s.H * s.C), 0, s.H, s.C);
        grads.k = t_heads(scratch2(c, d, Ta, s.G * s.C), 0, s.G, s.C);
    }
    if (m->gated)
        op_gate_bwd(c->be, d3, to.gate, d3, t_heads(a->o, 0, s.H, s.C), attention_parts(m, s, a->qkv).gate);
    core_bwd(c, m, a, grads, d3);
    attention_unrotate(c, m, a, dqkv, grads, cs);
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
    row_linear_bwd(c, deeper ? dout : none, dy, gated_output(c, m, a), m->w_o, m->b_o);
    if (deeper) attend_bwd(c, m, a, dqkv, dout, cs);
    if (deeper) column_linear_bwd(c, normed ? dn : none, dqkv, a->n, m->w_qkv, m->b_qkv);
    if (normed) op_rmsnorm_bwd(c->be, dx, m->norm->shard.g, dn, x, norm_weight(c, m->norm), a->rstd, dres);
    arena_reset(c->scratch, mark);
}

/* ---- the kind ---- */

static int64_t layers_below(const TextShape *t, int64_t x)
{
    return t->mla.kv_rank ? 0 : attention_full_below(t, x);
}

#define PARAM(name) ((int)offsetof(Attention, name))

static void describe_kept(Description *d, const TextShape *t, int qkv, int core, int o)
{
    double q = (double)(t->H * t->C), kv = (double)(t->G * t->C), gate = t->gated ? q : 0;
    KeptValue stat = { .label = L_STAT, .rows = ROWS_GATHERED, .cut = CUT_TP, .bytes = 4, .read_by = -1 };
    describe_value(d, (KeptValue){ .label = L_STAT, .cols = 1, .bytes = 4, .read_by = -1 });
    describe_value(d, (KeptValue){ .label = L_NORM, .cols = (double)t->D, .read_by = qkv, .only = true });
    describe_value(d, (KeptValue){ .label = L_QKV, .rows = ROWS_GATHERED, .cut = CUT_TP, .cols = q + gate,
                                   .kv_cols = 2 * kv, .read_by = -1 });
    stat.cols = t->qk_norm_wide ? 2 : (double)t->H, stat.kv_cols = t->qk_norm_wide ? 0 : (double)t->G;
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
                                                     .out = q * (t->gated ? 2 : 1), .kv_out = kv,
                                                     .out_cut = CUT_TP });
    if (t->qk_norm) describe_vector(d, PARAM(q_norm), t->qk_norm_wide ? q : C);
    if (t->qk_norm) describe_vector(d, PARAM(k_norm), t->qk_norm_wide ? kv / 2 : C);
    if (t->sinks) describe_step(d, (LayerStep){ .type = STEP_VECTOR, .param = PARAM(sinks), .in = 1,
                                                .out = (double)t->H, .out_cut = CUT_TP });
    int core = describe_step(d, (LayerStep){ .type = STEP_CORE, .in = q, .out = q, .kv_out = kv,
                                              .macs_pair = 2 * q });
    int o = describe_step(d, (LayerStep){ .linear = LINEAR_ATTENTION, .rows = ROWS_GATHERED,
        .param = PARAM(w_o), .in = q, .out = D, .in_cut = CUT_TP });
    if (t->bias && !t->no_o_bias) describe_vector(d, PARAM(b_o), D);
    describe_kept(d, t, qkv, core, o);
}

void attention_kind_fwd(const Pass *c, const void *m, void *act, Tensor y, Tensor x, Tensor cs)
{
    attention_fwd(c, m, act, y, x, cs);
}

void attention_kind_bwd(const Pass *c, const void *m, void *act, Tensor dx, Tensor dy, Tensor x, Tensor cs,
                        Tensor dres)
{
    attention_bwd(c, m, act, dx, dy, x, cs, dres);
}

bool attention_kind_trains(const void *m) { return attention_trains(m); }

const AttentionKind attention_gqa = {
    .name = "grouped-query (GQA)", .describe = describe, .layers_below = layers_below,
    .module_size = sizeof(Attention), .act_size = sizeof(AttentionAct), .fwd = attention_kind_fwd,
    .bwd = attention_kind_bwd,
    .trains = attention_kind_trains,
};
