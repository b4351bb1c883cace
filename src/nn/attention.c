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
    return is_trainable(m->norm) || is_trainable(m->w_qkv) || is_trainable(m->b_qkv) || is_trainable(m->q_norm) || is_trainable(m->k_norm);
}

bool attention_trains(const Attention *m) { return inputs_train(m) || is_trainable(m->w_o) || is_trainable(m->b_o); }

/* Of the attention output's gradient: dqkv (Ta, (H + 2G) C). The caller resets scratch. */
static void attend_bwd(const Pass *c, const Attention *m, AttentionAct *a, Tensor dqkv, Tensor dout, Tensor cs)
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

void attention_bwd(const Pass *c, const Attention *m, AttentionAct *a, Tensor dx, Tensor dy, Tensor x, Tensor cs,
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
