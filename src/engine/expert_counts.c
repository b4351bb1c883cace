/* engine/expert_counts.c -- see expert_counts.h. */
#include "engine/expert_counts.h"

#include <stdlib.h>
#include <string.h>

Status expert_counts_open(ExpertCounts *r, const Engine *e)
{
    const TextShape *t = &e->model.shape.text;
    *r = (ExpertCounts){ .layers = shape_sparse_layers(t), .experts = t->E, .top_k = t->K };
    if (!r->layers) return OK;
    int64_t n = r->layers * r->experts;
    r->text   = calloc((size_t)(6 * n), sizeof *r->text);
    r->visual = r->text + n, r->past_text = r->visual + n, r->past_visual = r->past_text + n;
    r->marked = r->past_visual + n;
    r->layer  = calloc((size_t)r->layers, sizeof *r->layer);
    r->chosen  = malloc((size_t)(e->conf.budget.tokens * r->top_k) * sizeof *r->chosen);
    r->kind   = malloc((size_t)e->conf.budget.tokens);
    if (!r->text || !r->layer || !r->chosen || !r->kind) {
        expert_counts_close(r);
        return fail(E_FIT, "no host memory to count the choices of %lld routers", (long long)t->L);
    }
    for (int64_t l = 0, i = 0; l < t->L; l++)
        if (shape_is_sparse(t, l)) r->layer[i++] = l;
    return OK;
}

void expert_counts_close(ExpertCounts *r)
{
    free(r->text), free(r->layer), free(r->chosen), free(r->kind);
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

static void copy_counts(const ExpertCounts *r, double *to, const double *from)
{
    if (r->layers) memcpy(to, from, (size_t)(2 * r->layers * r->experts) * sizeof *to);
}

void expert_counts_mark(ExpertCounts *r)   { copy_counts(r, r->marked, r->text); }
void expert_counts_rewind(ExpertCounts *r) { copy_counts(r, r->text, r->marked); }

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

static void mark_kinds(ExpertCounts *r, const Stream *s)
{
    memset(r->kind, 0, (size_t)s->budget.tokens);
    memset(r->kind, 1, (size_t)s->tokens);
    for (int64_t i = 0; i < s->visual; i++) r->kind[s->visual_row[i]] = 2;
}

/* One layer's choices for the rows of the stream that this rank has. */
static void count_layer(ExpertCounts *r, double *text, double *visual, Spans rows, int64_t tokens)
{
    int64_t at = 0;
    for (int i = 0; i < rows.n; i++)
        for (int64_t t = rows.span[i].at; t < rows.span[i].at + rows.span[i].n; t++, at++) {
            double *row = r->kind[t] == 2 ? visual : text;
            for (int64_t k = 0; k < r->top_k && t < tokens; k++) row[r->chosen[at * r->top_k + k]] += 1;
        }
}

void expert_counts_add(ExpertCounts *r, Engine *e, const Stream *s, const PipeAction *a)
{
    const Chunk *c = &e->model.chunk[a->chunk];
    Spans rows = batch_rows(&e->mesh, s->budget.tokens, true);
    mark_kinds(r, s);
    for (int64_t i = 0; i < r->layers; i++) {
        if (r->layer[i] < c->from || r->layer[i] >= c->to) continue;
        backend_fetch(&e->be, r->chosen, ((const MoeAct *)e->act[a->slot].layer[r->layer[i]].ffn)->idx);
        if (e->be.sticky) return;                            /* the copy failed: there is nothing to count */
        count_layer(r, r->text + i * r->experts, r->visual + i * r->experts, rows, s->tokens);
    }
}

void expert_counts_sum_ranks(ExpertCounts *r, const Engine *e)
{
    if (r->layers) comm_host_sum(e->mesh.comm[GR_world], r->text, (int)(2 * r->layers * r->experts));
}
