/* model/step_aux.c -- auxiliary losses of the routers of a chunk. */
#include "model/step_private.h"

static int64_t moe_layers_between(const Model *m, int64_t from, int64_t to)
{
    int64_t n = 0;
    for (int64_t l = from; l < to; l++) n += shape_is_sparse(&m->shape.text, l);
    return n;
}

const Aux *aux_open(const Pass *c, const Model *m, const Chunk *k, Aux *x)
{
    int64_t to = k->to + (k->heads && c->mode == FORWARD ? m->shape.text.mtp : 0);
    int64_t L = moe_layers_between(m, k->from, to), G = c->batch->groups, E = m->shape.text.E;
    if (!L) return NULL;
    x->first = moe_layers_between(m, 0, k->from);
    x->stat  = t1(c->act, label_name(L_STAT), F32, L * (2 * G * E + 1));
    x->count = t_as3(t_rows(x->stat, 0, L * G * E), L, G, E);
    x->prob  = t_as3(t_rows(x->stat, L * G * E, L * G * E), L, G, E);
    x->zsum  = t_rows(x->stat, 2 * L * G * E, L);
    x->coef  = t3(c->act, label_name(L_STAT), F32, L, G, E);
    x->out   = t1(c->act, label_name(L_STAT), F32, 3);
    if (t_has(x->so_far)) {
        x->so_far = t_rows(x->so_far, x->first, L);
        x->scaled = t3(c->act, label_name(L_STAT), F32, L, G, E);
    }
    return x;
}

/* The counts that enter the balance loss: of this micro-batch, or of the step so far, scaled to the tokens of
 * this micro-batch. */
static Tensor balance_counts(const Pass *c, const Aux *x)
{
    if (!t_has(x->so_far)) return x->count;
    op_mix(c->be, x->so_far, x->so_far, x->count, factor(x->keep), factor(1));
    op_mix(c->be, x->scaled, x->so_far, x->so_far, x->part, factor(0));
    return x->scaled;
}

/* Each rank counted its own tokens: the statistics of a micro-batch are the sum over the ranks that share it,
 * those of a step the sum over all. */
void aux_loss(const Pass *c, const Model *m, const Aux *x)
{
    const Mesh *mesh = c->env->mesh;
    if (!t_has(x->out)) return;
    if (mesh) comm_all_reduce(mesh->comm[GR_tp_cp], x->stat, RED_SUM);
    if (mesh && t_has(x->so_far)) comm_all_reduce(mesh->comm[GR_dp], x->count, RED_SUM);
    op_aux_loss(c->be, x->out, x->coef, balance_counts(c, x), x->prob, x->zsum, c->batch->group_len, x->form,
                m->shape.text.K, x->coeff);
}
