/* engine/scope_cache.c -- see scope_cache.h. */
#include "engine/scope_cache.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_words(const int64_t *w, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint64_t)w[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 32;
    return h;
}

static ScopeGraph *find_graph(ScopeCache *s, uint64_t hash)
{
    const OpQueue *q = &s->queue;
    for (int i = 0; i < s->n; i++) {
        int at = (s->next + i) % s->n;
        ScopeGraph *g = &s->at[at];
        if (g->hash != hash || g->words != q->words || memcmp(g->key, q->key, q->words * sizeof *q->key))
            continue;
        s->next = at + 1;
        return g;
    }
    return NULL;
}

/* Without memory for it the key is not remembered and runs eagerly. */
static void remember(ScopeCache *s, uint64_t hash)
{
    const OpQueue *q = &s->queue;
    size_t   bytes = q->words * sizeof *q->key;
    int64_t *key = s->n < s->most && GROW(s->at, s->cap, s->n + 1) ? malloc(bytes) : NULL;
    if (key) s->at[s->n++] = (ScopeGraph){ hash, memcpy(key, q->key, bytes), q->words, NULL };
}

static void launch(ScopeCache *s, ScopeGraph *g)
{
    backend_graph_launch(s->be, g->graph);
    s->of->counts.launched++;
}

static void capture(ScopeCache *s, ScopeGraph *g)
{
    int64_t launches = s->be->ledger.launches;
    size_t  bytes = 0;
    backend_graph_begin(s->be);
    op_queue_play(&s->queue);
    g->graph = backend_graph_end(s->be, &bytes);
    s->be->ledger.launches = launches;                       /* nothing of it was launched yet */
    if (!g->graph) return;
    s->of->bytes += bytes, s->of->counts.captured++;
    launch(s, g);
}

static void run_queued(ScopeCache *s)
{
    uint64_t    hash = hash_words(s->queue.key, s->queue.words);
    ScopeGraph *g = find_graph(s, hash);
    if (g && g->graph) {
        launch(s, g);
        return;
    }
    if (g && s->of->bytes < s->of->limit) {
        capture(s, g);
        return;
    }
    if (!g) remember(s, hash);
    s->of->counts.eager++;
    op_queue_play(&s->queue);
}

/* One op is no work for a graph. */
static void run_queue(void *self)
{
    ScopeCache *s = self;
    if (s->be->sticky)         ;
    else if (s->queue.n == 1)  op_queue_play(&s->queue);
    else                       run_queued(s);
    op_queue_clear(&s->queue);
}

void scope_cache_open(ScopeCache *s, GraphCache *of, unsigned scopes)
{
    *s = (ScopeCache){ .be = of->be, .of = of, .most = SCOPE_GRAPHS_MOST,
                       .queue = { .scopes = scopes, .run = run_queue, .self = s } };
    s->be->queue = &s->queue;
}

void scope_cache_close(ScopeCache *s)
{
    if (!s->be) return;
    for (int i = 0; i < s->n; i++) backend_graph_close(s->be, s->at[i].graph), free(s->at[i].key);
    free(s->at);
    op_queue_close(&s->queue);
    s->be->queue = NULL, s->be->ops = s->be->device->ops;
    *s = (ScopeCache){ 0 };
}
