/* engine/expert_counts.c -- see expert_counts.h. */
#include "engine/expert_counts.h"

#include <stdlib.h>
#include <string.h>

Status expert_counts_open(ExpertCounts *r, const Engine *e)
{
    const TextShape *t = &e->model.shape.text;
    *r = (ExpertCounts){ .layers = shape_routers(t), .experts = t->E };
    if (!r->layers) return OK;
    int64_t n = r->layers * r->experts;
    r->text   = calloc((size_t)(4 * n), sizeof *r->text);
    r->visual = r->text + n, r->past_text = r->visual + n, r->past_visual = r->past_text + n;
    r->layer  = calloc((size_t)r->layers, sizeof *r->layer);
    if (!r->text || !r->layer) {
        expert_counts_close(r);
        return fail(E_FIT, "no host memory to count the choices of %lld routers", (long long)t->L);
    }
    for (int64_t l = 0, i = 0; l < shape_layers(t); l++)
        if (shape_is_sparse(t, l)) r->layer[i++] = l;
    return OK;
}

void expert_counts_close(ExpertCounts *r)
{
    free(r->text), free(r->layer);
    *r = (ExpertCounts){ 0 };
}

void expert_counts_end_line(ExpertCounts *r)
{
    for (int64_t i = 0, n = 2 * r->layers * r->experts; i < n; i++)
        r->past_text[i] += r->text[i], r->text[i] = 0;
}

void expert_counts_reset(ExpertCounts *r)
{
    if (r->layers) memset(r->text, 0, (size_t)(4 * r->layers * r->experts) * sizeof *r->text);
}

double expert_counts_imbalance(const ExpertCounts *r, int64_t layer)
{
    double most = 0, sum = 0;
    for (int64_t e = layer * r->experts; e < (layer + 1) * r->experts; e++) {
        double n = r->text[e] + r->visual[e];
        most = n > most ? n : most;
        sum += n;
    }
    return sum > 0 ? most * (double)r->experts / sum : 0;
}

void expert_counts_add(ExpertCounts *r, const ResultBlock *b)
{
    for (int64_t l = 0; l < r->layers; l++) {
        const int32_t *all = step_results_counts(b, l, COUNT_ALL).data;
        const int32_t *visual = step_results_counts(b, l, COUNT_VISUAL).data;
        for (int64_t e = 0; e < r->experts; e++) {
            r->visual[l * r->experts + e] += visual[e];
            r->text[l * r->experts + e]   += all[e] - visual[e];
        }
    }
}

void expert_counts_sum_ranks(ExpertCounts *r, const Engine *e)
{
    if (r->layers) comm_host_sum(e->mesh.comm[GR_world], r->text, (int)(2 * r->layers * r->experts));
}
