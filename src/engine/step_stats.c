/* engine/step_stats.c -- see step_stats.h. */
#include "engine/step_stats.h"

void step_stats_add(const StepStats *w, Engine *e, const Stream *s, const PipeAction *a)
{
    if (!w) return;
    if (w->experts && w->experts->layers) expert_counts_add(w->experts, e, s, a);
    bool counts = e->mesh.at[AX_TP] == 0 && e->model.chunk[a->chunk].heads && s->supervised;
    if (w->sources && w->sources->channels && counts) source_loss_add(w->sources, e, s, w->doc[a->micro]);
}

void step_stats_mark(const StepStats *w)
{
    if (w && w->experts) expert_counts_mark(w->experts);
    if (w && w->sources) source_loss_mark(w->sources);
}

void step_stats_rewind(const StepStats *w)
{
    if (w && w->experts) expert_counts_rewind(w->experts);
    if (w && w->sources) source_loss_rewind(w->sources);
}

void step_stats_sum_ranks(const StepStats *w, const Engine *e)
{
    if (w->experts) expert_counts_sum_ranks(w->experts, e);
    if (w->sources) source_loss_sum_ranks(w->sources, e);
}
