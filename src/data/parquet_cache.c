/* data/parquet_cache.c -- decoded pages of one file; see parquet.h. */
#include "data/parquet.h"

#include <pthread.h>
#include <stdlib.h>

struct ParquetCache {
    pthread_mutex_t lock;
    CachedPage     *entry[PARQUET_CACHED];
    size_t          bytes;
    uint64_t        clock;
};

Status parquet_cache_open(ParquetCache **c)
{
    *c = calloc(1, sizeof **c);
    if (!*c) return fail(E_FIT, "no memory for a cache of pages");
    pthread_mutex_init(&(*c)->lock, NULL);
    return OK;
}

static void page_free(CachedPage *e)
{
    if (!e) return;
    mem_pool_close(&e->keep);
    free(e);
}

void parquet_cache_close(ParquetCache *c)
{
    if (!c) return;
    for (int i = 0; i < PARQUET_CACHED; i++) page_free(c->entry[i]);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Under the lock. NULL: the page is not there. */
static CachedPage *find(ParquetCache *c, int column, int64_t page)
{
    for (int i = 0; i < PARQUET_CACHED; i++)
        if (c->entry[i] && c->entry[i]->column == column && c->entry[i]->page == page) return c->entry[i];
    return NULL;
}

/* The slot of the page that was used longest ago and that no thread uses; -1: all are in use. */
static int oldest(const ParquetCache *c)
{
    int best = -1;
    for (int i = 0; i < PARQUET_CACHED; i++)
        if (c->entry[i] && !c->entry[i]->users && (best < 0 || c->entry[i]->used < c->entry[best]->used))
            best = i;
    return best;
}

static int empty_slot(const ParquetCache *c)
{
    for (int i = 0; i < PARQUET_CACHED; i++)
        if (!c->entry[i]) return i;
    return -1;
}

static void evict(ParquetCache *c, int slot)
{
    c->bytes -= c->entry[slot]->bytes;
    page_free(c->entry[slot]);
    c->entry[slot] = NULL;
}

/* Under the lock: makes place for the page and keeps it, unless every slot is in use. */
static void insert(ParquetCache *c, CachedPage *e)
{
    for (int slot; c->bytes + e->bytes > PARQUET_CACHE && (slot = oldest(c)) >= 0;) evict(c, slot);
    int slot = empty_slot(c);
    if (slot < 0 && (slot = oldest(c)) >= 0) evict(c, slot);
    e->column = slot < 0 ? -1 : e->column;
    if (slot < 0) return;
    c->entry[slot] = e, c->bytes += e->bytes;
}

/* The rows that begin in a page by the list of pages. */
static int64_t listed_rows(const Parquet *p, const ParquetColumn *c, int64_t page)
{
    const ParquetPage *at = &c->page[page], *next = at + 1;
    bool               last = page + 1 == c->pages || next->chunk != at->chunk;
    return (last ? parquet_group_end(p, at->chunk) : next->row) - at->row;
}

static Status decode(const Parquet *p, int column, int64_t page, CachedPage *e)
{
    const ParquetColumn *c = &p->column[column];
    ParquetHead          h;
    TRY(parquet_page(p, c, &c->page[page], false, &e->keep, &e->cells, &e->rows));
    if (e->rows != listed_rows(p, c, page))
        return fail(E_DATA, "%s: Parquet: byte %llu: a page has %lld rows, its list says %lld", p->path,
                    (unsigned long long)c->page[page].offset, (long long)e->rows,
                    (long long)listed_rows(p, c, page));
    TRY(parquet_head(p, c->page[page].offset, c->chunk[c->page[page].chunk].end, &h));
    e->start = mem_pool_alloc(&e->keep, (size_t)(e->rows + 1) * sizeof *e->start);
    for (int64_t i = 0, k = 0; i < e->cells.n; i++)
        if (!e->cells.cell[i].rep) e->start[k++] = (int32_t)i;
    e->column = column, e->page = page,
    e->bytes = (size_t)h.size + (size_t)e->cells.n * 3 * sizeof *e->cells.cell;
    return OK;
}

Status parquet_cache_take(ParquetCache *c, const Parquet *p, int column, int64_t page, CachedPage **out)
{
    pthread_mutex_lock(&c->lock);
    CachedPage *e = *out = find(c, column, page);
    if (e) e->users++, e->used = ++c->clock;
    pthread_mutex_unlock(&c->lock);
    if (e) return OK;
    e = calloc(1, sizeof *e);
    if (!e) return fail(E_FIT, "no memory for a page");
    Status st = decode(p, column, page, e);
    if (st) return page_free(e), st;
    pthread_mutex_lock(&c->lock);
    e->users = 1, e->used = ++c->clock;
    insert(c, e);
    pthread_mutex_unlock(&c->lock);
    return *out = e, OK;
}

void parquet_cache_drop(ParquetCache *c, CachedPage *e)
{
    pthread_mutex_lock(&c->lock);
    bool loose = --e->users == 0 && e->column < 0;
    pthread_mutex_unlock(&c->lock);
    if (loose) page_free(e);
}
