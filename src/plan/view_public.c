/* plan/view_public.c -- what two public estimators say, by their own formulas: 6 + 12 / shards bytes a parameter
 * of the fullest shard, and activations of a dense layer whose feed-forward is as wide as a token's experts
 * together (Bridge) or as one of them (Megatron-LM). They take sequence parallel and flash attention for granted
 * and know neither rows of experts, uneven routing, buffers, offload nor full recompute. */
#include "plan/view.h"

static double layer_params(const DryRun *d)
{
    const TextShape *t = &d->shape.text;
    const struct cfg_parallel *p = &d->recipe.parallel;
    double D = (double)t->D, attention = D * (double)(t->H * t->C * 2 + t->G * t->C * 2);
    double dense = t->E ? 0 : 3 * D * (double)t->F;
    double experts = (double)t->E * 3 * D * (double)t->I;
    return (attention + dense) / (double)p->tp + experts / (double)(p->ep * p->etp) + D * (double)t->E + 2 * D;
}

void estimates_of(Estimate e[ESTIMATES], const DryRun *d)
{
    const TextShape *t = &d->shape.text;
    const struct cfg_parallel *p = &d->recipe.parallel;
    double D = (double)t->D, S = (double)d->recipe.train.micro_tokens, pp = (double)p->pp, tp = (double)p->tp;
    double shards = p->zero ? (double)d->ranks / (double)(p->tp * p->pp) : 1;
    double params = layer_params(d) * (double)t->L / pp + D * (double)t->V / tp * (p->pp > 1 ? 1 : 2);
    double state = params * (6 + 12 / shards);
    double wide[ESTIMATES] = { (double)(t->E ? t->I : t->F), (double)(t->E ? t->K * t->I : t->F) };
    double cut[ESTIMATES] = { tp, tp * (double)p->cp };
    static const char *const names[ESTIMATES] = { "Megatron-LM", "Megatron Bridge" };
    for (int i = 0; i < ESTIMATES; i++) {
        double layer = S * D * (18 + 4 * wide[i] / D);
        double all = layer * (double)t->L * (d->chunks > 1 ? 1 + (pp - 1) / (pp * d->chunks) : 1);
        if (p->pp == 1) all += 4 * S * D * (1 + (double)t->V / D);
        if (p->pp > 1 && d->micros < p->pp && d->chunks == 1) all *= (double)d->micros / pp;
        e[i] = (Estimate){ names[i], state, all / cut[i] };
    }
}
