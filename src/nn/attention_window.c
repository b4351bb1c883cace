/* nn/attention_window.c -- grouped-query attention whose queries see the last `window` tokens alone: every
 * second layer, from the first, or those that the file names (GPT-OSS), or every layer (Mistral). Its passes
 * are those of nn/attention.c. */
#include "nn/attention.h"

static int64_t layers_below(const TextShape *t, int64_t x)
{
    return t->window ? x - attention_full_below(t, x) : 0;
}

static void describe(Description *d, const TextShape *t)
{
    attention_gqa.describe(d, t);
    for (int i = 0; i < d->steps; i++)
        if (d->step[i].type == STEP_CORE) d->step[i].window = (double)t->window;
}

const AttentionKind attention_window = {
    .name = "sliding window", .describe = describe, .layers_below = layers_below,
    .module_size = sizeof(Attention), .act_size = sizeof(AttentionAct), .fwd = attention_kind_fwd,
    .bwd = attention_kind_bwd, .trains = attention_kind_trains,
};
