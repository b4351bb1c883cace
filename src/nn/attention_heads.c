/* nn/attention_heads.c -- see attention_heads.h. Where a head is normed as a whole and rotates in part, two
 * passes over it do what one does otherwise. */
#include "nn/attention_heads.h"

Share attention_share(const Pass *c, const Attention *m)
{
    int64_t tp = mesh_size(c->env->mesh, AX_TP);
    return (Share){ m->H / tp, m->G < tp ? 1 : m->G / tp, m->C };
}

static int64_t query_cols(const Attention *m, Share s) { return s.H * s.C * (m->gated ? 2 : 1); }

int64_t attention_cols(const Attention *m, Share s) { return query_cols(m, s) + 2 * s.G * s.C; }

Heads attention_parts(const Attention *m, Share s, Tensor qkv)
{
    int64_t q = query_cols(m, s);
    Heads   h = { .k = t_heads(qkv, q, s.G, s.C), .v = t_heads(qkv, q + s.G * s.C, s.G, s.C) };
    Tensor  both = t_heads(qkv, 0, s.H, q / s.H);
    h.q = t_cols(both, 0, s.C);
    if (m->gated) h.gate = t_cols(both, s.C, s.C);
    return h;
}

Heads attention_heads(const Attention *m, Share s, const AttentionAct *a)
{
    Heads h = attention_parts(m, s, a->qkv);
    if (m->q_norm) h.q = t_heads(a->q, 0, s.H, s.C), h.k = t_heads(a->k, 0, s.G, s.C);
    return h;
}

/* Angles of zero: a rotation by them leaves the norm alone. */
static Tensor no_angles(const Pass *c, int64_t rows, int64_t C)
{
    Tensor cs = scratch2(c, F32, 1, C);
    op_fill(c->be, t_cols(cs, 0, C / 2), 1.0f);
    op_fill(c->be, t_cols(cs, C / 2, C / 2), 0.0f);
    cs.n[0] = rows, cs.s[0] = 0;
    return cs;
}

static void turn(const Pass *c, const Attention *m, Tensor heads, Tensor cs, bool back)
{
    Tensor x = t_cols(heads, 0, m->R), none = { 0 };
    if (back) op_rope_bwd(c->be, x, none, x, none, none, none, cs);
    else      op_rope_fwd(c->be, x, none, x, none, cs, 0);
}

Tensor attention_rows(Tensor heads)
{
    heads.rank = 2, heads.n[1] *= heads.n[2], heads.n[2] = 1, heads.s[1] = 1;
    return heads;
}

/* Of one of queries and keys: `to` is normed and rotated, raw is not. */
static void norm_rotate(const Pass *c, const Attention *m, Tensor to, Tensor rstd, Tensor raw, const Param *w,
                        Tensor cs)
{
    Tensor heads = t_heads(to, 0, raw.n[1], raw.n[2]), none = { 0 }, weight = norm_weight(c, w);
    bool   whole = m->R == m->C && !m->wide;
    if (m->wide) op_rmsnorm_fwd(c->be, to, rstd, none, attention_rows(raw), none, weight, m->eps);
    else op_rope_fwd(c->be, heads, rstd, raw, weight, whole ? cs : no_angles(c, raw.n[0], m->C), m->eps);
    if (!whole) turn(c, m, heads, cs, false);
}

void attention_rotate(const Pass *c, const Attention *m, AttentionAct *a, Tensor cs, bool fresh)
{
    int64_t Ta = a->qkv.n[0];
    Share s = attention_share(c, m);
    Heads raw = attention_parts(m, s, a->qkv);
    if (!m->q_norm) {
        if (fresh) turn(c, m, raw.q, cs, false), turn(c, m, raw.k, cs, false);
        return;
    }
    need(c, L_STAT, &a->q_rstd, F32, Ta, m->wide ? 1 : s.H);
    need(c, L_STAT, &a->k_rstd, F32, Ta, m->wide ? 1 : s.G);
    bool now = need(c, L_ROPE, &a->q, (DType)a->qkv.dtype, Ta, s.H * s.C);
    now     |= need(c, L_ROPE, &a->k, (DType)a->qkv.dtype, Ta, s.G * s.C);
    if (!now) return;
    norm_rotate(c, m, a->q, a->q_rstd, raw.q, m->q_norm, cs);
    norm_rotate(c, m, a->k, a->k_rstd, raw.k, m->k_norm, cs);
}

static void unrotate(const Pass *c, const Attention *m, Tensor to, Tensor d, Tensor raw, const Param *w,
                     Tensor rstd, Tensor cs)
{
    Tensor none = { 0 }, weight = w ? norm_weight(c, w) : none;
    bool   whole = m->R == m->C;
    if (!w || m->wide || !whole) turn(c, m, d, cs, true);
    if (!w) return;
    if (m->wide)
        op_rmsnorm_bwd(c->be, attention_rows(to), param_g(w), attention_rows(d), attention_rows(raw), weight,
                       rstd, none);
    else
        op_rope_bwd(c->be, to, param_g(w), d, raw, weight, rstd, whole ? cs : no_angles(c, d.n[0], m->C));
}

void attention_unrotate(const Pass *c, const Attention *m, const AttentionAct *a, Tensor dqkv, Heads d,
                        Tensor cs)
{
    Share s = attention_share(c, m);
    Heads raw = attention_parts(m, s, a->qkv), to = attention_parts(m, s, dqkv);
    unrotate(c, m, to.q, d.q, raw.q, m->q_norm, a->q_rstd, cs);
    unrotate(c, m, to.k, d.k, raw.k, m->k_norm, a->k_rstd, cs);
}
