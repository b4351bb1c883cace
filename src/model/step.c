/* model/step.c -- forward and backward of one micro-batch through the whole model. */
#include "model/model.h"

static bool sees(const Ctx *c, const Model *m) { return m->vision.depth && c->batch->has_media; }
static bool vision_trains(const Model *m) { return !m->frozen[G_VIT] || !m->frozen[G_ALIGNER]; }

/* Text through a frozen decoder teaches nobody: then nothing goes back at all. */
static bool goes_back(const Ctx *c, const Model *m)
{
    return c->pass != EVAL && (!m->frozen[G_LLM] || (sees(c, m) && vision_trains(m)));
}

/* Token embeddings with the visual tokens in their places. */
static void embed_fwd(Ctx *c, const Model *m, ModelAct *a)
{
    ledger_enter(&c->be->ledger, PART_DECODER);
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

/* Outputs are pushed before scratch is marked: in evaluation both may be the same arena. */
void model_hidden(Ctx *c, const Model *m, ModelAct *a)
{
    int64_t L = m->shape.text.L, D = m->shape.text.D;
    if (sees(c, m)) vision_fwd(c, &m->vision, &a->vision);
    embed_fwd(c, m, a);
    for (int64_t l = 0; l < L; l++) {
        bool spent = c->pass == EVAL && l > 0;               /* nobody will read this layer's input again */
        a->x[l + 1] = spent ? a->x[l - 1] : t2(c->act, label_name(L_INPUT), c->dtype, c->batch->T, D);
        ArenaMark mark = arena_mark(c->scratch);
        decoder_fwd(c, &m->layer[l], &a->layer[l], a->x[l + 1], a->x[l], a->cs);
        tap(c, "decoder.out", (int)l, a->x[l + 1]);
        if (sees(c, m) && l < m->vision.deepstacks)          /* deepstack joins after the whole layer */
            op_scatter_rows(c->be, a->x[l + 1], a->vision.feature[l], c->batch->visual_row, true);
        arena_reset(c->scratch, mark);
    }
}

/* The counts that the balance loss is made of: of this micro-batch, or of the step as far as it has come. */
static Tensor aux_counts(Ctx *c, const Aux *x)
{
    if (!t_has(x->so_far)) return x->count;
    op_mix(c->be, x->so_far, x->so_far, x->count, x->keep, x->add);
    return x->so_far;
}

void model_forward(Ctx *c, const Model *m, ModelAct *a, float scale)
{
    int64_t L = m->shape.text.L, D = m->shape.text.D;
    a->loss = t1(c->act, label_name(L_STAT), F64, 1);
    op_fill(c->be, a->loss, 0.0f);
    aux_open(c, m, &a->aux);
    model_hidden(c, m, a);
    if (t_has(a->aux.out))
        op_aux_loss(c->be, a->aux.out, a->aux.coef, aux_counts(c, &a->aux), a->aux.prob, a->aux.zsum,
                    c->batch->group_len, a->aux.form, m->shape.text.K, a->aux.coeff);
    a->dx = goes_back(c, m) ? t2(c->act, "GRADIENT", c->dtype, c->batch->T, D) : (Tensor){ 0 };
    head_loss(c, &m->head, a->loss, a->dx, a->x[L], scale);
}

/* From the gradient of the decoder's input to the embedding table, and to the visual tokens. */
static void embed_bwd(Ctx *c, const Model *m, ModelAct *a, Tensor dvisual)
{
    int64_t pad = m->shape.text.pad_id;
    if (t_has(dvisual)) op_gather_rows(c->be, dvisual, a->dx, c->batch->visual_row, 1);
    if (t_has(m->embed->g)) op_embed_bwd(c->be, m->embed->g, a->dx, c->batch->ids, pad);
}

/* What this pass gave a gradient to. A gradient that no product has written yet becomes zero. */
static void mark_live(const Model *m, Backend *be, bool back, bool media)
{
    for (int i = 0; i < m->params.n; i++) {
        Param *p = m->params.p[i];
        p->live |= back && t_has(p->g) && !p->idle && (p->group == G_LLM || media);
        if (p->fresh) op_fill(be, p->g, 0.0f);
        p->fresh = false;
    }
}

void model_backward(Ctx *c, const Model *m, ModelAct *a)
{
    Tensor dvisual = { 0 }, dfeature[MAX_DEEPSTACK] = { 0 };
    bool through = sees(c, m) && vision_trains(m);
    if (!t_has(a->dx)) {
        mark_live(m, c->be, false, false);
        return;
    }
    for (int f = -1; through && f < m->vision.deepstacks && f < m->shape.text.L; f++)
        *(f < 0 ? &dvisual : &dfeature[f]) = t2(c->act, "GRADIENT", c->dtype, c->batch->N, m->vision.out);
    ledger_enter(&c->be->ledger, PART_DECODER);
    for (int64_t l = m->shape.text.L - 1; l >= 0; l--) {
        if (through && l < m->vision.deepstacks)
            op_gather_rows(c->be, dfeature[l], a->dx, c->batch->visual_row, 1);
        decoder_bwd(c, &m->layer[l], &a->layer[l], a->dx, a->dx, a->x[l], a->cs);
    }
    embed_bwd(c, m, a, dvisual);
    if (through) vision_bwd(c, &m->vision, &a->vision, dvisual, dfeature);
    mark_live(m, c->be, true, through);
}

void model_logits(Ctx *c, const Model *m, ModelAct *a, Tensor y, int64_t from)
{
    head_logits(c, &m->head, y, a->x[m->shape.text.L], from);
}
