/* model/step.c -- forward and backward of one micro-batch through the whole model. */
#include "model/model.h"

static bool sees(const Ctx *c, const Model *m) { return m->vision.depth && c->batch->has_media; }

/* Token embeddings with the visual tokens in their places. */
static void embed_fwd(Ctx *c, const Model *m, ModelAct *a)
{
    c->be->ledger.part = PART_DECODER;
    a->x[0] = t2(c->act, label_name(L_INPUT), c->dtype, c->batch->T, m->shape.text.D);
    op_embed_fwd(c->be, a->x[0], m->embed->w, c->batch->ids);
    if (sees(c, m)) op_scatter_rows(c->be, a->x[0], a->vision.out, c->batch->visual_row, false);
    a->cs = t2(c->act, "ROPE_TABLE", F32, c->batch->T, m->shape.text.C);
    op_rope_table(c->be, a->cs, c->batch->pos, m->inv, m->axis);
}

/* Statistics of all routers live until backward: the pooled loss needs every layer's before the first. */
static void aux_open(Ctx *c, const Model *m, Aux *x)
{
    int64_t L = shape_sparse_layers(&m->shape.text), G = c->batch->groups, E = m->shape.text.E;
    if (!L) return;
    x->count = t3(c->act, label_name(L_STAT), F32, L, G, E);
    x->prob  = t3(c->act, label_name(L_STAT), F32, L, G, E);
    x->coef  = t3(c->act, label_name(L_STAT), F32, L, G, E);
    x->zsum  = t1(c->act, label_name(L_STAT), F32, L);
    x->out   = t1(c->act, label_name(L_STAT), F32, 3);
    c->aux   = x;
}

void model_forward(Ctx *c, const Model *m, ModelAct *a, float scale)
{
    int64_t L = m->shape.text.L, D = m->shape.text.D;
    a->loss = t1(c->act, label_name(L_STAT), F64, 1);
    op_fill(c->be, a->loss, 0.0f);
    aux_open(c, m, &a->aux);
    if (sees(c, m)) vision_fwd(c, &m->vision, &a->vision);
    embed_fwd(c, m, a);
    for (int64_t l = 0; l < L; l++) {
        ArenaMark mark = arena_mark(c->scratch);
        a->x[l + 1] = t2(c->act, label_name(L_INPUT), c->dtype, c->batch->T, D);
        decoder_fwd(c, &m->layer[l], &a->layer[l], a->x[l + 1], a->x[l], a->cs);
        tap(c, "decoder.out", (int)l, a->x[l + 1]);
        if (sees(c, m) && l < m->vision.deepstacks)          /* deepstack joins after the whole layer */
            op_scatter_rows(c->be, a->x[l + 1], a->vision.feature[l], c->batch->visual_row, true);
        arena_reset(c->scratch, mark);
    }
    if (t_has(a->aux.out))
        op_aux_loss(c->be, a->aux.out, a->aux.coef, a->aux.count, a->aux.prob, a->aux.zsum, c->batch->group_len,
                    a->aux.form, m->shape.text.K, a->aux.coeff);
    a->dx = c->pass == EVAL ? (Tensor){ 0 } : t2(c->act, "GRADIENT", c->dtype, c->batch->T, D);
    head_loss(c, &m->head, a->loss, a->dx, a->x[L], scale);
}

/* From the gradient of the decoder's input to the embedding table, and to the visual tokens. */
static void embed_bwd(Ctx *c, const Model *m, ModelAct *a, Tensor dvisual)
{
    int64_t pad = m->shape.text.pad_id;
    if (t_has(dvisual)) op_gather_rows(c->be, dvisual, a->dx, c->batch->visual_row, 1);
    if (t_has(m->embed->g)) op_embed_bwd(c->be, m->embed->g, a->dx, c->batch->ids, pad);
}

static bool vision_trains(const Model *m) { return !m->frozen[G_VIT] || !m->frozen[G_ALIGNER]; }

static void mark_live(const Model *m, bool media)
{
    for (int i = 0; i < m->params.n; i++) {
        Param *p = m->params.p[i];
        p->live |= t_has(p->g) && !p->idle && (p->group == G_LLM || media);
    }
}

void model_backward(Ctx *c, const Model *m, ModelAct *a)
{
    Tensor dvisual = { 0 }, dfeature[MAX_DEEPSTACK] = { 0 };
    bool through = sees(c, m) && vision_trains(m);
    for (int f = -1; through && f < m->vision.deepstacks && f < m->shape.text.L; f++)
        *(f < 0 ? &dvisual : &dfeature[f]) = t2(c->act, "GRADIENT", c->dtype, c->batch->N, m->vision.out);
    c->be->ledger.part = PART_DECODER;
    for (int64_t l = m->shape.text.L - 1; l >= 0; l--) {
        if (through && l < m->vision.deepstacks)
            op_gather_rows(c->be, dfeature[l], a->dx, c->batch->visual_row, 1);
        decoder_bwd(c, &m->layer[l], &a->layer[l], a->dx, a->dx, a->x[l], a->cs);
    }
    embed_bwd(c, m, a, dvisual);
    if (through) vision_bwd(c, &m->vision, &a->vision, dvisual, dfeature);
    mark_live(m, through);
}

void model_logits(Ctx *c, const Model *m, ModelAct *a, Tensor y, int64_t from)
{
    head_logits(c, &m->head, y, a->x[m->shape.text.L], from);
}
