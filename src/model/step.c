/* model/step.c -- forward and backward of one micro-batch through a chunk of the model. */
#include "model/step_private.h"

#include "nn/embed.h"
#include "nn/rows.h"

int64_t model_boundary_rows(const Batch *b, const Model *m, int64_t layer)
{
    return b->T + deepstack_pending(m, layer) * b->M;
}

/* Token embeddings with the visual tokens in their places. */
static void embed_fwd(const Pass *c, const Model *m, const Chunk *k, ModelAct *a)
{
    Tensor tokens = { 0 };
    if (m->vision.depth && c->batch->pictures) encode_images(c, m, a, &tokens);
    ledger_enter(&c->be->ledger, PART_DECODER);
    a->x[0] = layer_input(c, m, k, a, 0);
    unit_begin(c, m->embed->unit, false);
    embed_table_fwd(c, m->embed, a->x[0]);
    unit_end(c, m->embed->unit, false);
    if (t_has(tokens)) op_scatter_rows(c->be, a->x[0], tokens, c->batch->visual_row, false);
}

/* Whether this stage trains what predicts further tokens; it trains with the whole decoder or not at all. */
static bool trains_mtp(const Pass *c, const Model *m) { return c->mode == FORWARD && m->mtp.w; }

/* The head, or what predicts further tokens, reads the embedding. */
static bool head_is_tied(const Model *m) { return m->head.w == m->embed; }
static bool shares_embed(const Pass *c, const Model *m)
{
    return m->embed && (head_is_tied(m) || (trains_mtp(c, m) && m->mtp.embed == m->embed));
}

/* A copy of the embedding that no other unit has. */
static bool copies_embed(const Model *m) { return m->mtp.embed != m->embed && m->mtp.embed != m->head.w; }

/* The gradients of the head are made in the forward pass, so this is also the backward of its parameters; a
 * table that is the embedding too gets the rest of its gradient in embed_bwd, where backward reaches it. */
static void head_begin(const Pass *c, const Model *m, ModelAct *a)
{
    int64_t stop = backward_stop_layer(c, m);
    bool    back = model_has_backward(c, m);
    a->dx = (Tensor){ 0 };
    if (stop < m->shape.text.L)
        a->dx = t2(c->act, "GRADIENT", c->env->dtype, c->batch->T, m->shape.text.D);
    unit_begin(c, m->head.norm->unit, back);
    if (shares_embed(c, m)) unit_begin(c, m->embed->unit, back && stop < 0);
    if (!trains_mtp(c, m)) return;
    if (copies_embed(m)) unit_begin(c, m->mtp.embed->unit, true);
    unit_begin(c, m->mtp.w->unit, true);
}

static void head_end(const Pass *c, const Model *m)
{
    bool back = model_has_backward(c, m), embeds = back && backward_stop_layer(c, m) < 0;
    if (trains_mtp(c, m)) unit_end(c, m->mtp.w->unit, true);
    if (trains_mtp(c, m) && copies_embed(m)) unit_end(c, m->mtp.embed->unit, true);
    if (shares_embed(c, m) && !embeds) unit_end(c, m->embed->unit, false);
    unit_end(c, m->head.norm->unit, back);
}

/* The layer behind the last comes before the loss of the routers, of which it has one. */
static void head_fwd(const Pass *c, const Model *m, ModelAct *a, Factor scale)
{
    head_begin(c, m, a);
    if (trains_mtp(c, m)) mtp_fwd(c, m, a);
    aux_loss(c, m, &a->aux);
    head_loss(c, &m->head, t_rows(a->loss, 0, 1), a->dx, a->x[m->shape.text.L], scale,
              model_has_backward(c, m));
    if (trains_mtp(c, m)) mtp_bwd(c, m, a);
    head_end(c, m);
}

/* Takes the chunk's input from the boundary before it. The boundary's buffer receives the next micro-batch
 * before this one's backward, so the input is copied. */
static void receive_input(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, Tensor in)
{
    int64_t n = c->batch->media ? deepstack_pending(m, k->from) : 0;
    a->x[k->from] = layer_input(c, m, k, a, k->from);
    op_copy(c->be, a->x[k->from], t_rows(in, 0, c->batch->T));
    deepstack_receive(c, m, a->deepstack, k->from, n, in, "VISUAL");
}

Tensor model_output(const Pass *c, const Model *m, int chunk, ModelAct *a)
{
    const Chunk *k = &m->chunk[chunk];
    int64_t n = deepstack_pending(m, k->to);
    if (k->heads || !n) return a->x[k->to];
    Tensor out = t2(c->act, "BORDER", c->env->dtype, model_boundary_rows(c->batch, m, k->to),
                    m->shape.text.D);
    op_copy(c->be, t_rows(out, 0, c->batch->T), a->x[k->to]);
    deepstack_send(c, out, a->deepstack, k->to, c->batch->media ? n : 0);
    return out;
}

static void chunk_fwd(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, Tensor in)
{
    if (k->embeds) embed_fwd(c, m, k, a);
    else           receive_input(c, m, k, a, in);
    layers_fwd(c, m, k, a);
}

void model_hidden_states(const Pass *c, const Model *m, int chunk, ModelAct *a, Tensor in)
{
    ledger_enter(&c->be->ledger, PART_DECODER);
    chunk_fwd(c, m, &m->chunk[chunk], a, in);
}

void model_forward(const Pass *pass, const Model *m, int chunk, ModelAct *a, Factor scale, Tensor in)
{
    const Chunk *k = &m->chunk[chunk];
    Pass own = *pass, *c = &own;
    own.dropout_seed = c->mode == FORWARD ? a->dropout_seed : NULL;
    a->loss = t1(c->act, label_name(L_STAT), F64, 2);
    op_fill(c->be, a->loss, 0.0f);
    own.aux = aux_open(c, m, k, &a->aux);
    ledger_enter(&c->be->ledger, PART_DECODER);
    if (c->mode == FORWARD) offload_chunk_begin(c);
    chunk_fwd(c, m, k, a, in);
    if (k->heads) head_fwd(c, m, a, scale);
    else          aux_loss(c, m, &a->aux);
    if (c->mode == FORWARD) offload_chunk_end(c, backward_follows(c, k));
}

/* Marks the parameters that this backward gave a gradient. */
static void mark_has_grad(const Model *m, bool visual)
{
    for (int i = 0; i < m->params.n; i++) {
        Param *p = m->params.p[i];
        p->step.has_grad |= !p->frozen && !p->unused && (p->group == G_LLM || visual);
    }
}

/* From the gradient of the decoder's input to the embedding table, and to the tower. */
static void embed_bwd(const Pass *c, const Model *m, ModelAct *a)
{
    if (!shares_embed(c, m)) unit_begin(c, m->embed->unit, true);
    if (t_has(m->embed->shard.g)) embed_table_bwd(c, m->embed, a->dx, m->shape.text.pad_id);
    unit_end(c, m->embed->unit, true);
    if (visual_grads_wanted(c, m)) encode_images_bwd(c, m, a);
}

/* Deepstack features whose gradients cross the boundary before `layer`. */
static int64_t features_sent_back(const Pass *c, const Model *m, int64_t layer)
{
    return visual_grads_wanted(c, m) && c->batch->media ? deepstack_pending(m, layer) : 0;
}

/* Takes the gradient of the chunk's output from the boundary behind it. */
static void receive_output_grad(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, Tensor din)
{
    a->dx = t2(c->act, "GRADIENT", c->env->dtype, c->batch->T, m->shape.text.D);
    op_copy(c->be, a->dx, t_rows(din, 0, c->batch->T));
    deepstack_receive(c, m, a->d_deepstack, k->to, features_sent_back(c, m, k->to), din, "GRADIENT");
}

void model_input_grad(const Pass *c, const Model *m, int chunk, const ModelAct *a, Tensor dout)
{
    const Chunk *k = &m->chunk[chunk];
    if (backward_stop_layer(c, m) >= k->from) return;
    op_copy(c->be, t_rows(dout, 0, c->batch->T), a->dx);
    deepstack_send(c, dout, a->d_deepstack, k->from, features_sent_back(c, m, k->from));
}

void model_backward(const Pass *pass, const Model *m, int chunk, ModelAct *a, Tensor din)
{
    const Chunk *k = &m->chunk[chunk];
    Pass own = *pass, *c = &own;
    own.aux = t_has(a->aux.out) ? &a->aux : NULL, own.dropout_seed = a->dropout_seed;
    if (backward_stop_layer(c, m) >= k->to + k->heads) return;
    ledger_enter(&c->be->ledger, PART_DECODER);
    if (!k->heads) receive_output_grad(c, m, k, a, din);
    layers_bwd(c, m, k, a);
    if (k->embeds && backward_stop_layer(c, m) < 0) embed_bwd(c, m, a);
    mark_has_grad(m, visual_grads_wanted(c, m));
}

void model_head_begin(const Pass *c, const Model *m)
{
    unit_begin(c, m->head.norm->unit, false);
    if (head_is_tied(m)) unit_begin(c, m->embed->unit, false);
}

void model_head_end(const Pass *c, const Model *m)
{
    if (head_is_tied(m)) unit_end(c, m->embed->unit, false);
    unit_end(c, m->head.norm->unit, false);
}

void model_logits(const Pass *c, const Model *m, ModelAct *a, Tensor y, int64_t from)
{
    ArenaMark mark = arena_mark(c->scratch);
    model_head_begin(c, m);
    head_logits(c, &m->head, y, all_rows(c, a->x[m->shape.text.L]), from);
    model_head_end(c, m);
    arena_reset(c->scratch, mark);
}
