/* plan/view_public.c -- estimates of two public estimators for a dry run's layout; their formulas are in
 * analytic_megatron.c. */
#include "plan/analytic.h"
#include "plan/view.h"

static double layer_params(const DryRun *d)
{
    const TextShape *t = &d->shape.text;
    const struct cfg_parallel *p = &d->recipe.parallel;
    double D = (double)t->D, attention = D * (double)(t->H * t->C * 2 + t->G * t->C * 2);
    double dense = t->E ? 0 : 3 * D * (double)t->I;
    double experts = (double)t->E * 3 * D * (double)t->F;
    return (attention + dense) / (double)p->tp + experts / (double)(p->ep * p->etp) + D * (double)t->E +
           2 * D;
}

void estimates_of(Estimate e[ESTIMATES], const DryRun *d)
{
    const TextShape *t = &d->shape.text;
    const struct cfg_parallel *p = &d->recipe.parallel;
    double D = (double)t->D, S = (double)d->recipe.train.micro_tokens, pp = (double)p->pp, tp = (double)p->tp;
    double shards = p->zero ? (double)d->ranks / (double)(p->tp * p->pp) : 0;
    double params = layer_params(d) * (double)t->L / pp + D * (double)t->V / tp * (p->pp > 1 ? 1 : 2);
    double wide[ESTIMATES] = { (double)(t->I ? t->I : t->F), (double)(t->E ? t->K * t->F : t->I) };
    double cut[ESTIMATES] = { tp, tp * (double)p->cp };
    static const char *const names[ESTIMATES] = { "Megatron-LM", "Megatron Bridge" };
    for (int i = 0; i < ESTIMATES; i++) {
        MegatronAsk a = { .params = params, .sharers = shards, .tokens = S / cut[i], .h = D, .ffn = wide[i],
                          .layers = (double)t->L, .vocabulary = (double)t->V, .pp = pp,
                          .vpp = (double)d->chunks, .micros = (double)d->micros };
        MegatronEstimate m = megatron_estimate(&a);
        e[i] = (Estimate){ names[i], m.state, m.activations + m.logits };
    }
}
