/* nn/cache.c -- see cache.h. */
#include "nn/cache.h"

static void layout_slots(const Cache *c, CacheRows *r, Arena *a)
{
    if (!r->rows) return;
    r->at     = t1(a, "cache", I32, c->tokens);
    r->starts = t1(a, "cache", I32, c->docs + 1);
    r->used   = t1(a, "cache", I32, c->docs);
}

void cache_layout(Cache *c, Arena *a)
{
    c->starts = t1(a, "cache", I32, c->docs + 1);
    layout_slots(c, &c->full, a);
    layout_slots(c, &c->window, a);
}

void cache_layout_rows(const Cache *c, CacheRows *r, Arena *a, DType d, int64_t layers, int64_t width)
{
    if (r->rows) r->kv = t3(a, "cache", d, layers, r->rows, width);
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
static void count_pairs(Segments *s, const CachePass *p, const CacheSlots *of, int64_t rows)
{
    s->longest = p->T, s->keys = 0, s->pairs = 0;
    if (!p->start) s->keys = rows, s->pairs = (double)p->T * (double)rows / (double)p->n;
    for (int64_t i = 0; p->start && i < p->n; i++) {
        double fresh = p->start[i + 1] - p->start[i], old = of->used[i] - fresh;
        s->pairs += fresh * old + fresh * (fresh + 1) / 2;
        s->keys  += of->used[i];
    }
}

static void upload_slots(const Cache *c, CacheRows *r, Backend *be, const CachePass *p, const CacheSlots *of)
{
    if (!r->rows) return;
    r->fill = t_rows(r->at, 0, p->T);
    r->seg  = (Segments){ .starts = t_rows(c->starts, 0, p->n + 1),
                          .n = p->n,
                          .causal = r == &c->full,
                          .kv_starts = t_rows(r->starts, 0, p->n + 1),
                          .kv_used = t_rows(r->used, 0, p->n) };
    count_pairs(&r->seg, p, of, r->rows);
    if (!p->start) return;
    backend_upload(be, r->fill, of->at);
    backend_upload(be, t_rows(r->starts, 0, p->n), of->slot);
    backend_upload(be, r->seg.kv_used, of->used);
}

void cache_upload(Cache *c, Backend *be, const CachePass *p)
{
    REQUIRE(p->n <= c->docs && p->T <= c->tokens, "cache: %lld documents and %lld rows into %lld and %lld",
            (long long)p->n, (long long)p->T, (long long)c->docs, (long long)c->tokens);
    c->prompts = p->prompts;
    upload_slots(c, &c->full, be, p, &p->full);
    upload_slots(c, &c->window, be, p, &p->window);
    if (!p->start) return;
    backend_upload(be, t_rows(c->starts, 0, p->n + 1), p->start);
    if (!t_has(c->state)) return;
    backend_upload(be, t_rows(c->doc, 0, p->n), p->doc);
    backend_upload(be, t_rows(c->kept, 0, p->n), p->kept);
}

void cache_write(const CacheRows *r, Backend *be, int layer, Tensor *k, Tensor *v)
{
    int64_t at = 2 * (layer - r->first);
    Tensor  keys = t_at(r->kv, at), values = t_cols(t_at(r->kv, at + 1), 0, v->n[1]);
    op_scatter_rows(be, keys, *k, r->fill, false);
    op_scatter_rows(be, values, *v, r->fill, false);
    *k = keys, *v = values;
}

Tensor cache_write_latents(const CacheRows *r, Backend *be, int layer, Tensor x)
{
    Tensor rows = t_at(r->kv, layer - r->first);
    op_scatter_rows(be, rows, x, r->fill, false);
    return rows;
}
