/* model/step_visual.c -- images to visual rows: the vision tower, visual tokens and deepstack features. */
#include "model/step_private.h"

#include "nn/visual.h"

int64_t deepstack_pending(const Model *m, int64_t from)
{
    int64_t n = m->shape.vision.deepstacks < m->shape.text.L ? m->shape.vision.deepstacks : m->shape.text.L;
    return n > from ? n - from : 0;
}

/* (M, D): rows of this rank's visual tokens. */
static Tensor visual_rows(const Pass *c, const Model *m, const char *label)
{
    return t2(c->act, label, c->env->dtype, c->batch->M, m->shape.text.D);
}

void encode_images(const Pass *c, const Model *m, ModelAct *a, Tensor *tokens)
{
    int64_t D = m->shape.text.D;
    pass_scope(c, GRAPH_VISION);
    vision_fwd(c, &m->vision, &a->vision);
    pass_scope(c, GRAPH_EAGER);
    *tokens = (Tensor){ 0 };
    if (!c->batch->media) return;
    ledger_enter(&c->be->ledger, PART_VISION);
    *tokens = visual_send(c, a->vision.out, D);
    for (int64_t f = 0; f < deepstack_pending(m, 0); f++)
        a->deepstack[f] = visual_send(c, a->vision.feature[f], D);
}

/* Gradients of visual tokens and features, from the ranks that have them, to the tower. */
void encode_images_bwd(const Pass *c, const Model *m, ModelAct *a)
{
    Tensor dout = { 0 }, dfeature[MAX_DEEPSTACK] = { 0 };
    if (c->batch->media) {
        Tensor rows = visual_rows(c, m, "GRADIENT");
        op_gather_rows(c->be, rows, a->dx, c->batch->visual_row, 1);
        dout = visual_return(c, rows);
        for (int64_t f = 0; f < deepstack_pending(m, 0); f++)
            dfeature[f] = visual_return(c, a->d_deepstack[f]);
    }
    pass_scope(c, GRAPH_VISION);
    vision_bwd(c, &m->vision, &a->vision, dout, dfeature);
    pass_scope(c, GRAPH_EAGER);
}

void deepstack_add(const Pass *c, const Model *m, ModelAct *a, int64_t l)
{
    if (c->batch->media && l < m->shape.vision.deepstacks)
        op_scatter_rows(c->be, a->x[l + 1], a->deepstack[l], c->batch->visual_row, true);
}

void deepstack_add_bwd(const Pass *c, const Model *m, ModelAct *a, int64_t l)
{
    if (!visual_grads_wanted(c, m) || !c->batch->media || l >= m->shape.vision.deepstacks) return;
    a->d_deepstack[l] = visual_rows(c, m, "GRADIENT");
    op_gather_rows(c->be, a->d_deepstack[l], a->dx, c->batch->visual_row, 1);
}

/* Feature i of a boundary lies below the T rows of the residual stream. */
static Tensor boundary_feature(const Pass *c, Tensor boundary, int64_t i)
{
    return t_rows(boundary, c->batch->T + i * c->batch->M, c->batch->M);
}

void deepstack_receive(const Pass *c, const Model *m, Tensor *feature, int64_t layer, int64_t n, Tensor from,
                       const char *label)
{
    for (int64_t i = 0; i < n; i++) {
        feature[layer + i] = visual_rows(c, m, label);
        op_copy(c->be, feature[layer + i], boundary_feature(c, from, i));
    }
}

void deepstack_send(const Pass *c, Tensor to, const Tensor *feature, int64_t layer, int64_t n)
{
    for (int64_t i = 0; i < n; i++) op_copy(c->be, boundary_feature(c, to, i), feature[layer + i]);
}
