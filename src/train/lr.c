/* train/lr.c -- see lr.h. */
#include "train/lr.h"

#include <math.h>
#include <string.h>

static const char *const shapes[] = {
    [LR_COSINE] = "cosine", [LR_LINEAR] = "linear", [LR_CONSTANT] = "constant", [LR_WSD] = "wsd"
};

Status lr_open(Lr *lr, const struct cfg_optim *o, int64_t steps)
{
    *lr = (Lr){ .floor = o->min_lr, .steps = steps, .warmup = o->warmup_steps };
    while (strcmp(shapes[lr->shape], o->lr_scheduler_type)) lr->shape++;  /* config.def lists these choices */
    lr->peak[G_LLM]     = o->learning_rate;
    lr->peak[G_VIT]     = o->vit_lr > 0 ? o->vit_lr : o->learning_rate;
    lr->peak[G_ALIGNER] = o->aligner_lr > 0 ? o->aligner_lr : o->learning_rate;
    if (o->min_lr > o->learning_rate)
        return fail(E_CONFIG,
                    "optim.min_lr = %g: above optim.learning_rate = %g, where the decay begins; lower it",
                    o->min_lr, o->learning_rate);
    if (!lr->warmup) lr->warmup = (int64_t)ceil(o->warmup_ratio * (double)steps - 1e-9);
    if (lr->warmup > steps) lr->warmup = steps;
    return OK;
}

/* 1 at the peak, 0 at the floor, after the share p of the decay. */
static double decay_factor(LrShape shape, double p)
{
    switch (shape) {
    case LR_COSINE:   return 0.5 * (1.0 + cos(acos(-1.0) * p));
    case LR_CONSTANT: return 1.0;
    case LR_LINEAR:
    case LR_WSD:      return 1.0 - p;
    }
    return 1.0;
}

double lr_at(const Lr *lr, Group g, int64_t step)
{
    double  peak = lr->peak[g], floor = lr->floor < peak ? lr->floor : peak;
    int64_t from = lr->warmup;
    if (step <= lr->warmup) return peak * (double)step / (double)lr->warmup;
    if (lr->shape == LR_WSD && lr->steps - lr->steps / 5 > from) from = lr->steps - lr->steps / 5;
    if (step <= from) return peak;
    double p = step > lr->steps ? 1.0 : (double)(step - 1 - from) / (double)(lr->steps - from);
    return floor + (peak - floor) * decay_factor(lr->shape, p);
}
