/* engine/step_stats.c -- see watch.h. */
#include "engine/step_stats.h"

#include <stdlib.h>
#include <string.h>

Status expert_counts_open(ExpertCounts *r, const Engine *e)
{
    const TextShape *t = &e->model.shape.text;
    *r = (ExpertCounts){ .layers = shape_sparse_layers(t), .experts = t->E, .slots = t->K };
    if (!r->layers) return OK;
    int64_t n = r->layers * r->experts;
    r->text   = calloc((size_t)(4 * n), sizeof *r->text);
    r->visual = r->text + n, r->past_text = r->visual + n, r->past_visual = r->past_text + n;
    r->layer  = calloc((size_t)r->layers, sizeof *r->layer);
    r->stage  = malloc((size_t)(e->conf.budget.tokens * r->slots) * sizeof *r->stage);
    r->kind   = malloc((size_t)e->conf.budget.tokens);
    if (!r->text || !r->layer || !r->stage || !r->kind) {
        expert_counts_close(r);
        return fail(E_FIT, "no host memory to count the choices of %lld routers", (long long)t->L);
    }
    for (int64_t l = 0, i = 0; l < t->L; l++)
        if (shape_is_sparse(t, l)) r->layer[i++] = l;
    return OK;
}

void expert_counts_close(ExpertCounts *r)
{
    free(r->text), free(r->layer), free(r->stage), free(r->kind);
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

static void mark_kinds(ExpertCounts *r, const Stream *s)
{
    memset(r->kind, 0, (size_t)s->budget.tokens);
    memset(r->kind, 1, (size_t)s->tokens);
    for (int64_t i = 0; i < s->visual; i++) r->kind[s->visual_row[i]] = 2;
}

/* One layer's choices for the rows that this rank keeps of the stream. */
static void count_layer(ExpertCounts *r, double *text, double *visual, Spans rows, int64_t tokens)
{
    int64_t at = 0;
    for (int i = 0; i < rows.n; i++)
        for (int64_t t = rows.span[i].at; t < rows.span[i].at + rows.span[i].n; t++, at++) {
            double *row = r->kind[t] == 2 ? visual : text;
            for (int64_t k = 0; k < r->slots && t < tokens; k++) row[r->stage[at * r->slots + k]] += 1;
        }
}

/* After a forward; its choices stay until the slot's next one. */
static void count_choices(ExpertCounts *r, Engine *e, const Stream *s, const PipeAction *a)
{
    const Chunk *c = &e->model.chunk[a->chunk];
    Spans rows = batch_rows(&e->mesh, s->budget.tokens, true);
    mark_kinds(r, s);
    for (int64_t i = 0; i < r->layers; i++) {
        if (r->layer[i] < c->from || r->layer[i] >= c->to) continue;
        backend_fetch(&e->be, r->stage, ((const MoeAct *)e->act[a->slot].layer[r->layer[i]].ffn)->idx);
        if (e->be.sticky) return;                            /* nothing came: no numbers to count by */
        count_layer(r, r->text + i * r->experts, r->visual + i * r->experts, rows, s->tokens);
    }
}

Status source_loss_open(SourceLoss *b, const Engine *e, const Loader *l, int sources)
{
    size_t n = (size_t)sources;
    *b = (SourceLoss){ .sources = sources, .name = calloc(n, sizeof *b->name), .row = calloc(n, sizeof *b->row),
                     .loss = calloc(n, sizeof *b->loss), .tokens = calloc(n, sizeof *b->tokens),
                     .stage = malloc((size_t)e->conf.budget.supervised * sizeof *b->stage) };
    if (!b->name || !b->row || !b->loss || !b->tokens || !b->stage) {
        source_loss_close(b);
        return fail(E_FIT, "no host memory for the losses of %d sources", sources);
    }
    for (int i = 0; i < sources; i++) {
        const char *name = loader_channel(l, i);
        int k = 0;
        while (k < b->channels && strcmp(b->name[k], name)) k++;
        if (k == b->channels) b->name[b->channels++] = name;
        b->row[i] = k;
    }
    return OK;
}

void source_loss_close(SourceLoss *b)
{
    free(b->name), free(b->row), free(b->loss), free(b->tokens), free(b->stage);
    *b = (SourceLoss){ 0 };
}

void source_loss_clear(SourceLoss *b)
{
    for (int i = 0; i < b->channels; i++) b->loss[i] = 0, b->tokens[i] = 0;
}

/* Supervised rows stand in the order of the stream, so a document's are together; of these a cp rank has
 * those of its rows, and all ranks of tp the same. */
static void share_losses(SourceLoss *b, Engine *e, const Stream *s, const LoaderDoc *doc)
{
    int64_t d = 0, n = 0;
    Spans rows = batch_rows(&e->mesh, s->budget.tokens, false);
    backend_fetch(&e->be, b->stage, t_rows(e->row_loss, 0, e->forward.batch->supervised));
    if (e->be.sticky) return;
    for (int64_t i = 0; i < s->supervised; i++) {
        while (s->sup_row[i] >= s->start[d + 1]) d++;
        if (spans_find(rows, s->sup_row[i]) < 0) continue;
        int row = b->row[doc[d].source];
        b->loss[row] += b->stage[n++], b->tokens[row]++;
    }
}

void step_stats_add(const StepStats *w, Engine *e, const Stream *s, const PipeAction *a)
{
    if (!w) return;
    if (w->routing && w->routing->layers) count_choices(w->routing, e, s, a);
    bool counts = e->mesh.at[AX_TP] == 0 && e->model.chunk[a->chunk].heads && s->supervised;
    if (w->by && w->by->channels && counts) share_losses(w->by, e, s, w->doc[a->micro]);
}

void step_stats_sum_ranks(const StepStats *w, const Engine *e)
{
    Comm *world = e->mesh.comm[GR_world];
    ExpertCounts *r = w->routing;
    if (r && r->layers) comm_host_sum(world, r->text, (int)(2 * r->layers * r->experts));
    if (!w->by || !w->by->channels) return;
    comm_host_sum(world, w->by->loss, w->by->channels);
    comm_host_sum64(world, w->by->tokens, w->by->channels);
}
