/* nn/decoder.c -- see decoder.h. */
#include "nn/decoder.h"

/* h = x + branch and its norm; the branch lies where h will. A replay may have dropped either: with h kept
 * only the norm is repeated. */
static void middle(const Pass *c, const Decoder *m, DecoderAct *a, Tensor x, Tensor cs)
{
    int64_t T = x.n[0], D = x.n[1];
    Tensor none = { 0 };
    need(c, L_STAT, &a->rstd, F32, T, 1);
    bool fresh = need(c, L_RESID, &a->h, x.dtype, T, D);
    bool again = need(c, L_MLP_NORM, &a->n, x.dtype, T, D);
    attention_fwd(c, &m->attn, &a->attn, fresh ? a->h : none, x, cs);
    if (fresh)      op_rmsnorm_fwd(c->be, a->n, a->rstd, a->h, x, a->h, m->norm->shard.w, m->attn.eps);
    else if (again) op_rmsnorm_fwd(c->be, a->n, a->rstd, none, a->h, none, m->norm->shard.w, m->attn.eps);
}

void decoder_fwd(const Pass *c, const Decoder *m, DecoderAct *a, Tensor y, Tensor x, Tensor cs)
{
    middle(c, m, a, x, cs);
    if (m->sparse) moe_fwd(c, &m->moe, &a->moe, y, a->n, a->h);
    else           mlp_fwd(c, &m->mlp, &a->mlp, y, a->n, a->h);
}

void decoder_replay(const Pass *c, const Decoder *m, DecoderAct *a, Tensor y, Tensor x, Tensor cs)
{
    Pass replay;
    if (!replay_begin(&replay, c, L_STAT, L_MLP_ACT)) return;
    decoder_fwd(&replay, m, a, y, x, cs);
    replay_end(c);
}

void decoder_bwd(const Pass *c, const Decoder *m, DecoderAct *a, Tensor dx, Tensor dy, Tensor x, Tensor cs)
{
    bool below = t_has(dx) || attention_trains(&m->attn), normed = below || is_trainable(m->norm);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor none = { 0 };
    Tensor dn = scratch2(c, x.dtype, x.n[0], x.n[1]), dh = scratch2(c, x.dtype, x.n[0], x.n[1]);
    if (m->sparse) moe_bwd(c, &m->moe, &a->moe, normed ? dn : none, dy, a->n);
    else           mlp_bwd(c, &m->mlp, &a->mlp, normed ? dn : none, dy, a->n);
    if (normed) op_rmsnorm_bwd(c->be, dh, m->norm->shard.g, dn, a->h, m->norm->shard.w, a->rstd, dy);
    if (below)  attention_bwd(c, &m->attn, &a->attn, dx, dh, x, cs, dh);
    arena_reset(c->scratch, mark);
}
