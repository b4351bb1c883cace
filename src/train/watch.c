/* train/watch.c -- see watch.h. */
#include "train/watch.h"

#include <stdlib.h>
#include <string.h>

Status routing_open(Routing *r, const Engine *e)
{
    const TextShape *t = &e->model.shape.text;
    *r = (Routing){ .layers = shape_sparse_layers(t), .experts = t->E, .slots = t->K };
    if (!r->layers) return OK;
    int64_t n = r->layers * r->experts;
    r->text   = calloc((size_t)(4 * n), sizeof *r->text);
    r->visual = r->text + n, r->past_text = r->visual + n, r->past_visual = r->past_text + n;
    r->layer  = calloc((size_t)r->layers, sizeof *r->layer);
    r->stage  = malloc((size_t)(e->conf.budget.tokens * r->slots) * sizeof *r->stage);
    r->kind   = malloc((size_t)e->conf.budget.tokens);
    if (!r->text || !r->layer || !r->stage || !r->kind) {
        routing_close(r);
        return fail(E_FIT, "no host memory to count the choices of %lld routers", (long long)t->L);
    }
    for (int64_t l = 0, i = 0; l < t->L; l++)
        if (shape_is_sparse(t, l)) r->layer[i++] = l;
    return OK;
}

void routing_close(Routing *r)
{
    free(r->text), free(r->layer), free(r->stage), free(r->kind);
    *r = (Routing){ 0 };
}

void routing_clear(Routing *r)
{
    for (int64_t i = 0, n = 2 * r->layers * r->experts; i < n; i++)
        r->past_text[i] += r->text[i], r->text[i] = 0;
}

void routing_forget(Routing *r)
{
    if (r->layers) memset(r->text, 0, (size_t)(4 * r->layers * r->experts) * sizeof *r->text);
}

double routing_peak(const Routing *r, int64_t layer)
{
    double most = 0, sum = 0;
    for (int64_t e = layer * r->experts; e < (layer + 1) * r->experts; e++) {
        double n = r->text[e] + r->visual[e];
        most = n > most ? n : most;
        sum += n;
    }
    return sum > 0 ? most * (double)r->experts / sum : 0;
}

static void mark_kinds(Routing *r, const Stream *s)
{
    memset(r->kind, 0, (size_t)s->budget.tokens);
    memset(r->kind, 1, (size_t)s->tokens);
    for (int64_t i = 0; i < s->visual; i++) r->kind[s->visual_row[i]] = 2;
}

/* After a forward; its choices stay until the next one. */
static void count_choices(Routing *r, Engine *e, const Stream *s)
{
    mark_kinds(r, s);
    for (int64_t i = 0; i < r->layers; i++) {
        backend_fetch(&e->be, r->stage, e->act.layer[r->layer[i]].moe.idx);
        if (e->be.sticky) return;                            /* nothing came: no numbers to count by */
        for (int64_t t = 0; t < s->tokens; t++) {
            double *row = (r->kind[t] == 2 ? r->visual : r->text) + i * r->experts;
            for (int64_t k = 0; k < r->slots; k++) row[r->stage[t * r->slots + k]] += 1;
        }
    }
}

Status by_source_open(BySource *b, const Engine *e, const Loader *l, int sources)
{
    size_t n = (size_t)sources;
    *b = (BySource){ .sources = sources, .name = calloc(n, sizeof *b->name), .row = calloc(n, sizeof *b->row),
                     .loss = calloc(n, sizeof *b->loss), .tokens = calloc(n, sizeof *b->tokens),
                     .stage = malloc((size_t)e->conf.budget.supervised * sizeof *b->stage) };
    if (!b->name || !b->row || !b->loss || !b->tokens || !b->stage) {
        by_source_close(b);
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

void by_source_close(BySource *b)
{
    free(b->name), free(b->row), free(b->loss), free(b->tokens), free(b->stage);
    *b = (BySource){ 0 };
}

void by_source_clear(BySource *b)
{
    for (int i = 0; i < b->channels; i++) b->loss[i] = 0, b->tokens[i] = 0;
}

/* Supervised rows stand in the order of the stream, so a document's are together. */
static void share_losses(BySource *b, Engine *e, const Stream *s, const LoaderDoc *doc)
{
    int64_t d = 0;
    backend_fetch(&e->be, b->stage, t_rows(e->ctx.each, 0, s->supervised));
    if (e->be.sticky) return;
    for (int64_t i = 0; i < s->supervised; i++) {
        while (s->sup_row[i] >= s->start[d + 1]) d++;
        int row = b->row[doc[d].source];
        b->loss[row] += b->stage[i], b->tokens[row]++;
    }
}

void watch_micro(const Watch *w, Engine *e, const Stream *s, int at)
{
    if (!w) return;
    if (w->routing && w->routing->layers) count_choices(w->routing, e, s);
    if (w->by && w->by->channels && s->supervised) share_losses(w->by, e, s, w->doc[at]);
}
