/* model/step_mtp.c -- predicts one token further (DeepSeek-V3): from the hidden states of the model and the
 * embeddings of the tokens after them, through a layer of its own and the model's head.
 *
 *   x_i = w [norm(embed(id_{i+1})); norm(h_i)]       h: after the final norm
 *   y   = layer(x)                                   norm(y_i) predicts what follows id_{i+1}
 *
 * No shift crosses the border of a document (nn/batch.h): its last row has embedding 0 and no target. The
 * forward pass makes the gradients too, as the head's does, so nothing of it is kept for a backward. */
#include "model/step_private.h"

#include "nn/embed.h"

/* A pass over the batch with tokens and targets shifted by one. */
typedef struct Shifted { Pass pass; Batch batch; } Shifted;

static const Pass *shift(Shifted *s, const Pass *c)
{
    s->batch = *c->batch;
    s->batch.ids = c->batch->next_ids;
    s->batch.sup_row = c->batch->next_row, s->batch.sup_label = c->batch->next_label;
    s->batch.supervised = c->batch->next_supervised;
    s->pass = *c;
    s->pass.batch = &s->batch, s->pass.row_loss = (Tensor){ 0 };
    return &s->pass;
}

static Tensor keep(const Pass *c, int64_t cols)
{
    return t2(c->act, "MTP", c->env->dtype, c->batch->T, cols);
}

static void norm_fwd(const Pass *c, Tensor y, Tensor *rstd, Tensor x, const Param *w, float eps)
{
    Tensor none = { 0 };
    *rstd = t2(c->act, "MTP", F32, c->batch->T, 1);
    op_rmsnorm_fwd(c->be, y, *rstd, none, x, none, norm_weight(c, w), eps);
}

/* The input of the layer. */
static void join_fwd(const Pass *c, const Model *m, MtpAct *a, Tensor hidden)
{
    int64_t D = m->shape.text.D;
    a->h = keep(c, D), a->e = keep(c, D), a->joined = keep(c, 2 * D), a->x = keep(c, D), a->y = keep(c, D);
    norm_fwd(c, a->h, &a->rstd[0], hidden, m->head.norm, m->head.eps);
    embed_table_fwd(c, m->mtp.embed, a->e);
    norm_fwd(c, t_cols(a->joined, 0, D), &a->rstd[1], a->e, m->mtp.enorm, m->head.eps);
    norm_fwd(c, t_cols(a->joined, D, D), &a->rstd[2], a->h, m->mtp.hnorm, m->head.eps);
    linear_fwd(c, a->x, a->joined, m->mtp.w, NULL);
}

void mtp_fwd(const Pass *pass, const Model *m, ModelAct *a)
{
    Shifted     s;
    const Pass *c = shift(&s, pass);
    ArenaMark   mark = arena_mark(c->scratch);
    int64_t     L = m->shape.text.L;
    a->mtp.mark = arena_mark(c->act);
    join_fwd(c, m, &a->mtp, a->x[L]);
    decoder_fwd(c, &m->layer[L], &a->layer[L], a->mtp.y, a->mtp.x, a->cs);
    arena_reset(c->scratch, mark);
}

/* From the gradient of the layer's input to the embedding, and added to the gradient of the hidden states. */
static void join_bwd(const Pass *c, const Model *m, ModelAct *act, Tensor dx)
{
    const MtpAct *a = &act->mtp;
    int64_t T = c->batch->T, D = m->shape.text.D;
    Tensor  none = { 0 }, d = scratch2(c, c->env->dtype, T, 2 * D), part = scratch2(c, c->env->dtype, T, D);
    linear_bwd(c, d, dx, a->joined, m->mtp.w, NULL);
    op_rmsnorm_bwd(c->be, part, m->mtp.enorm->shard.g, t_cols(d, 0, D), a->e, norm_weight(c, m->mtp.enorm),
                   a->rstd[1], none);
    embed_table_bwd(c, m->mtp.embed, part, m->shape.text.pad_id);
    op_rmsnorm_bwd(c->be, part, m->mtp.hnorm->shard.g, t_cols(d, D, D), a->h, norm_weight(c, m->mtp.hnorm),
                   a->rstd[2], none);
    op_rmsnorm_bwd(c->be, act->dx, m->head.norm->shard.g, part, act->x[m->shape.text.L],
                   norm_weight(c, m->head.norm), a->rstd[0], act->dx);
}

void mtp_bwd(const Pass *pass, const Model *m, ModelAct *a)
{
    Shifted     s;
    const Pass *c = shift(&s, pass);
    ArenaMark   mark = arena_mark(c->scratch);
    int64_t     L = m->shape.text.L;
    Head        head = m->head;
    Tensor      none = { 0 }, d = scratch2(c, c->env->dtype, c->batch->T, m->shape.text.D);
    head.norm = m->mtp.norm;
    head_loss(c, &head, t_rows(a->loss, 1, 1), d, a->mtp.y, a->mtp_scale, true);
    ledger_enter(&c->be->ledger, PART_DECODER);
    decoder_replay(c, &m->layer[L], &a->layer[L], none, a->mtp.x, a->cs);
    decoder_bwd(c, &m->layer[L], &a->layer[L], d, d, a->mtp.x, a->cs);
    join_bwd(c, m, a, d);
    arena_reset(c->scratch, mark);
    arena_reset(c->act, a->mtp.mark);
}
