/* engine/step_stats.c -- see step_stats.h. */
#include "engine/step_stats.h"

bool step_stats_count_experts(const StepStats *w) { return w && w->experts && w->experts->layers; }

bool step_stats_has_rows(const Engine *e)
{
    bool heads = false;
    for (int i = 0; i < e->model.chunks; i++) heads |= e->model.chunk[i].heads;
    return heads && e->mesh.at[AX_TP] == 0;
}

void step_stats_add(const StepStats *w, const Engine *e, int slot, Stream *const *micro, int n)
{
    const ResultBlock *b = &e->results.slot[slot];
    if (step_stats_count_experts(w)) expert_counts_add(w->experts, b);
    if (w && w->codes) code_losses_add(w->codes, b);
    if (!w || !w->sources || !w->sources->channels || !step_stats_has_rows(e)) return;
    for (int i = 0; i < n; i++)
        source_loss_add(w->sources, e, micro[i], w->doc[i], step_results_row_loss(&e->results, b, i).data);
}

void step_stats_sum_ranks(const StepStats *w, const Engine *e)
{
    if (w->experts) expert_counts_sum_ranks(w->experts, e);
    if (w->codes) code_losses_sum_ranks(w->codes, e);
    if (w->sources) source_loss_sum_ranks(w->sources, e);
}
