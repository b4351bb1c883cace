/* nn/cache.c -- see cache.h. */
#include "nn/cache.h"

void cache_layout(Cache *c, Arena *a, DType d, int64_t layers, int64_t width)
{
    c->kv        = t3(a, "cache", d, 2 * layers, c->rows, width);
    c->at        = t1(a, "cache", I32, c->tokens);
    c->starts    = t1(a, "cache", I32, c->docs + 1);
    c->kv_starts = t1(a, "cache", I32, c->docs + 1);
    c->used      = t1(a, "cache", I32, c->docs);
}

void cache_layout_states(Cache *c, Arena *a, DType d, int64_t layers, int64_t heads, int64_t size,
                         int64_t rows, int64_t cols)
{
    c->state = t3(a, "cache", F32, layers * c->docs, heads, size);
    c->tail  = t3(a, "cache", d, layers * c->docs, rows, cols);
    c->doc   = t1(a, "cache", I32, c->docs);
    c->kept  = t1(a, "cache", I32, c->docs);
}

static Tensor docs_of(const Cache *c, Tensor t, int64_t linear)
{
    return t_rows(t, (linear - c->first_linear) * c->docs, c->docs);
}

Tensor cache_state(const Cache *c, int64_t linear) { return docs_of(c, c->state, linear); }
Tensor cache_tail(const Cache *c, int64_t linear)  { return docs_of(c, c->tail, linear); }

/* (query, key) pairs and keys are what attention costs. A dry run passes no borders: it is charged as if
 * every row attended to a whole slot. */
static void count_pairs(Segments *s, const CachePass *p, int64_t rows)
{
    s->longest = p->T, s->keys = 0, s->pairs = 0;
    if (!p->start) s->keys = rows, s->pairs = (double)p->T * (double)rows / (double)p->n;
    for (int64_t i = 0; p->start && i < p->n; i++) {
        double fresh = p->start[i + 1] - p->start[i], old = p->used[i] - fresh;
        s->pairs += fresh * old + fresh * (fresh + 1) / 2;
        s->keys  += p->used[i];
    }
}

void cache_upload(Cache *c, Backend *be, const CachePass *p)
{
    REQUIRE(p->n <= c->docs && p->T <= c->tokens, "cache: %lld documents and %lld rows into %lld and %lld",
            (long long)p->n, (long long)p->T, (long long)c->docs, (long long)c->tokens);
    c->fill = t_rows(c->at, 0, p->T);
    c->seg = (Segments){ .starts = t_rows(c->starts, 0, p->n + 1),
                         .n = p->n,
                         .causal = true,
                         .kv_starts = t_rows(c->kv_starts, 0, p->n + 1),
                         .kv_used = t_rows(c->used, 0, p->n) };
    count_pairs(&c->seg, p, c->rows);
    if (!p->start) return;
    backend_upload(be, c->fill, p->at);
    backend_upload(be, c->seg.starts, p->start);
    backend_upload(be, t_rows(c->kv_starts, 0, p->n), p->slot);
    backend_upload(be, c->seg.kv_used, p->used);
    if (!t_has(c->state)) return;
    backend_upload(be, t_rows(c->doc, 0, p->n), p->doc);
    backend_upload(be, t_rows(c->kept, 0, p->n), p->kept);
}

void cache_write(const Cache *c, Backend *be, int layer, Tensor *k, Tensor *v)
{
    int64_t at = 2 * (layer - c->first_layer);
    Tensor  keys = t_at(c->kv, at), values = t_cols(t_at(c->kv, at + 1), 0, v->n[1]);
    op_scatter_rows(be, keys, *k, c->fill, false);
    op_scatter_rows(be, values, *v, c->fill, false);
    *k = keys, *v = values;
}
