/* plan/analytic_megatron.c -- the memory that Megatron-LM and Megatron-Bridge estimate for the same run, by
 * their formulas.
 *
 * Both take 18 bytes a parameter, or 6 and 12 over the ranks that share the optimizer, of the fullest stage;
 * for activations s b h (18 + 4 ffn / h) a layer: sequence parallelism and recomputed attention are assumed.
 * The width of a feed-forward is the dense one in Megatron-LM, that of a token's experts in Bridge. They
 * know nothing of MLA, of normed queries, of rows copied for experts, imbalance, exchange or replays. */
#include "plan/analytic_private.h"

#include <math.h>

static double fullest(const Task *task, const Candidate *c)
{
    LayerTable table;
    Task       own = task_with_layers(task, &table), *t = &own;
    double     most = 0;
    for (int i = 0; i < c->pp; i++) {
        StageLayers l;
        StageParams p;
        stage_layers(&l, t, c, i);
        stage_params(&p, t, c, &l);
        most = fmax(most, params_here(p.trained));
    }
    return most;
}

MegatronEstimate megatron_estimate(const MegatronAsk *a)
{
    MegatronEstimate e = { .state = a->params * (a->sharers > 0 ? 6 + 12 / a->sharers : 18) };
    e.activations = a->tokens * a->h * (18 + 4 * a->ffn / a->h) * a->layers;
    if (a->vpp > 1) e.activations *= 1 + (a->pp - 1) / (a->pp * a->vpp);
    else if (a->micros < a->pp) e.activations *= a->micros / a->pp;
    if (a->pp <= 1) e.logits = 4 * a->tokens * a->h * (1 + a->vocabulary / a->h);
    e.total = e.state + e.activations + e.logits;
    return e;
}

MegatronEstimate analytic_megatron(const Task *t, const Candidate *c, bool bridge)
{
    const TextShape *m = &t->model->text;
    double I = (double)m->I, wide = m->E ? (double)(m->K * m->F + m->shared) : I;
    MegatronAsk a = { .params = fullest(t, c), .sharers = c->zero ? task_dp(t, c) * c->cp : 0,
                      .tokens = (double)t->seq * c->mbs / ((double)c->tp * (bridge ? c->cp : 1)),
                      .h = (double)m->D, .ffn = bridge || I == 0 ? wide : I,
                      .layers = (double)(m->L + m->mtp),
                      .vocabulary = (double)m->V, .pp = c->pp, .vpp = c->vpp, .micros = task_micros(t, c) };
    return megatron_estimate(&a);
}
