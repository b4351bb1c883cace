/* nn/attention.c -- norm, qkv, per-head norm and rotation, attention by segments, out-projection. */
#include "nn/attention.h"

#include <math.h>

typedef struct Heads { Tensor q, k, v; } Heads;

/* The three parts of a (T, (H + 2G) C) buffer as (T, heads, C). */
static Heads heads_of(const Attention *m, Tensor qkv)
{
    return (Heads){ t_heads(qkv, 0, m->H, m->C), t_heads(qkv, m->H * m->C, m->G, m->C),
                    t_heads(qkv, (m->H + m->G) * m->C, m->G, m->C) };
}

static void rotate(Ctx *c, const Attention *m, AttentionAct *a, Tensor cs)
{
    int64_t T = a->qkv.n[0];
    Heads raw = heads_of(m, a->qkv);
    need(c, L_STAT, &a->q_rstd, F32, T, m->H);
    need(c, L_STAT, &a->k_rstd, F32, T, m->G);
    bool now = need(c, L_ROPE, &a->q, a->qkv.dtype, T, m->H * m->C);
    now     |= need(c, L_ROPE, &a->k, a->qkv.dtype, T, m->G * m->C);
    if (!now) return;
    op_rope_fwd(c->be, t_heads(a->q, 0, m->H, m->C), a->q_rstd, raw.q, param_w(m->q_norm), cs, m->eps);
    op_rope_fwd(c->be, t_heads(a->k, 0, m->G, m->C), a->k_rstd, raw.k, param_w(m->k_norm), cs, m->eps);
}

/* Within the batch, or with a cache against all that the documents have so far. */
static void attend(Ctx *c, const Attention *m, AttentionAct *a)
{
    Tensor   k = a->k, v = t_cols(a->qkv, (m->H + m->G) * m->C, m->G * m->C);
    Segments seg = c->cache ? c->cache->seg : c->batch->seg;
    if (c->cache) cache_write(c->cache, c->be, m->index, &k, &v);
    op_attention_fwd(c->be, t_heads(a->o, 0, m->H, m->C), a->lse, t_heads(a->q, 0, m->H, m->C),
                     t_heads(k, 0, m->G, m->C), t_heads(v, 0, m->G, m->C), seg, 1.0f / sqrtf((float)m->C));
}

void attention_fwd(Ctx *c, const Attention *m, AttentionAct *a, Tensor y, Tensor x, Tensor cs)
{
    int64_t T = x.n[0], D = x.n[1];
    Tensor none = { 0 };
    need(c, L_STAT, &a->rstd, F32, T, 1);
    if (need(c, L_NORM, &a->n, x.dtype, T, D))
        op_rmsnorm_fwd(c->be, a->n, a->rstd, none, x, none, m->norm->w, m->eps);
    if (need(c, L_QKV, &a->qkv, x.dtype, T, (m->H + 2 * m->G) * m->C))
        linear_fwd(c, a->qkv, a->n, m->w_qkv, m->b_qkv);
    rotate(c, m, a, cs);
    need(c, L_STAT, &a->lse, F32, m->H, T);
    if (need(c, L_CORE, &a->o, x.dtype, T, m->H * m->C)) attend(c, m, a);
    if (t_has(y)) linear_fwd(c, y, a->o, m->w_o, m->b_o);
}

void attention_bwd(Ctx *c, const Attention *m, AttentionAct *a, Tensor dx, Tensor dy, Tensor x, Tensor cs,
                   Tensor dres)
{
    int64_t T = x.n[0];
    DType d = (DType)x.dtype;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dout  = scratch2(c, d, T, m->H * m->C), delta = scratch2(c, F32, m->H, T);
    Tensor dq    = scratch2(c, d, T, m->H * m->C), dk    = scratch2(c, d, T, m->G * m->C);
    Tensor dqkv  = scratch2(c, d, T, a->qkv.n[1]), dn    = scratch2(c, d, T, x.n[1]);
    Heads raw = heads_of(m, a->qkv), draw = heads_of(m, dqkv);
    Tensor dq3 = t_heads(dq, 0, m->H, m->C), dk3 = t_heads(dk, 0, m->G, m->C);

    linear_bwd(c, dout, dy, a->o, m->w_o, m->b_o);
    op_attention_bwd(c->be, dq3, dk3, draw.v, delta, t_heads(dout, 0, m->H, m->C),
                     t_heads(a->o, 0, m->H, m->C), a->lse, t_heads(a->q, 0, m->H, m->C),
                     t_heads(a->k, 0, m->G, m->C), raw.v, c->batch->seg, 1.0f / sqrtf((float)m->C));
    op_rope_bwd(c->be, draw.q, param_g(m->q_norm), dq3, raw.q, param_w(m->q_norm), a->q_rstd, cs);
    op_rope_bwd(c->be, draw.k, param_g(m->k_norm), dk3, raw.k, param_w(m->k_norm), a->k_rstd, cs);
    linear_bwd(c, dn, dqkv, a->n, m->w_qkv, m->b_qkv);
    op_rmsnorm_bwd(c->be, dx, m->norm->g, dn, x, m->norm->w, a->rstd, dres);
    arena_reset(c->scratch, mark);
}
