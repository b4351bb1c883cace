/* engine/graph_cache.c -- see graph_cache.h. */
#include "engine/graph_cache.h"

#include "base/grow.h"

#include <stdlib.h>

Status graph_cache_open(GraphCache *g, Backend *be, Shard *s, size_t limit)
{
    *g = (GraphCache){ .be = be, .shard = s, .limit = limit, .phases = true, .most = GRAPHS_MOST,
                       .marks = calloc((size_t)shard_marks_count(s), sizeof *g->marks) };
    return g->marks ? OK : fail(E_FIT, "no host memory for the marks of a step");
}

void graph_cache_close(GraphCache *g)
{
    for (int i = 0; i < g->n; i++) {
        backend_graph_close(g->be, g->at[i].graph);
        free(g->at[i].before), free(g->at[i].after);
    }
    free(g->at), free(g->marks);
    *g = (GraphCache){ 0 };
}

static CapturedGraph *find_graph(const GraphCache *g, const GraphKey *k)
{
    size_t marks = (size_t)shard_marks_key(g->shard) * sizeof *g->marks;
    for (int i = 0; i < g->n; i++)
        if (!memcmp(&g->at[i].key, k, sizeof *k) && !memcmp(g->at[i].before, g->marks, marks))
            return &g->at[i];
    return NULL;
}

static int32_t *copy_marks(const GraphCache *g)
{
    size_t   bytes = (size_t)shard_marks_count(g->shard) * sizeof *g->marks;
    int32_t *p = malloc(bytes);
    return p ? memcpy(p, g->marks, bytes) : NULL;
}

/* Without memory for it the key is not remembered and runs eagerly. */
static void remember(GraphCache *g, const GraphKey *k)
{
    if (g->n >= g->most || !GROW(g->at, g->cap, g->n + 1)) return;
    CapturedGraph *c = &g->at[g->n];
    *c = (CapturedGraph){ .key = *k, .before = copy_marks(g), .after = copy_marks(g) };
    if (c->before && c->after) g->n++;
    else                       free(c->before), free(c->after);
}

/* The parts of a graph are not timed apart: passes count as the decoder. */
static Part timed_part(const GraphKey *k)
{
    return k->phase == GRAPH_NORM || k->phase == GRAPH_UPDATE ? PART_OPTIM : PART_DECODER;
}

static void launch(GraphCache *g, CapturedGraph *c)
{
    Ledger *l = &g->be->ledger;
    ledger_enter(l, timed_part(&c->key));
    backend_graph_launch(g->be, c->graph);
    ledger_enter(l, c->work.part);
    g->counts.launched++;
}

/* `work` holds what the ledger had before, until the capture ends. */
static void capture(GraphCache *g, CapturedGraph *c)
{
    g->capturing = c;
    c->work = g->be->ledger;
    shard_marks_read(g->shard, c->before);
    backend_graph_begin(g->be);
}

bool graph_cache_begin(GraphCache *g, const GraphKey *k)
{
    if (!g->phases || g->be->preparing || g->be->sticky) return false;
    shard_marks_read(g->shard, g->marks);
    CapturedGraph *c = find_graph(g, k);
    if (c && c->graph) {
        launch(g, c);
        ledger_add(&g->be->ledger, &c->work, 1);
        shard_marks_advance(g->shard, c->before, c->after);
        return true;
    }
    if (c && g->bytes < g->limit) {
        capture(g, c);
        return false;
    }
    if (!c) remember(g, k);
    g->counts.eager++;
    return false;
}

void graph_cache_end(GraphCache *g)
{
    CapturedGraph *c = g->capturing;
    Ledger work;
    size_t bytes = 0;
    if (!c) return;
    g->capturing = NULL;
    c->graph = backend_graph_end(g->be, &bytes);
    if (!c->graph) return;
    work = g->be->ledger;
    g->be->ledger.launches = c->work.launches;               /* nothing of it was launched yet */
    ledger_add(&work, &c->work, -1);
    c->work = work;
    shard_marks_read(g->shard, c->after);
    g->bytes += bytes, g->counts.captured++;
    launch(g, c);
}
