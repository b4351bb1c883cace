/* data/parquet_row.c -- one row of a Parquet file as JSON: the cells of every column are assembled along the
 * schema. {bytes, path} of a picture becomes its bytes' data: URI. */
#include "data/parquet.h"

#include <stdlib.h>
#include <string.h>

typedef struct Cursor {
    ParquetCells cells;
    int64_t      at;
} Cursor;

typedef struct RowReader {
    const Parquet *p;
    ParquetCache  *cache;
    Cursor        *cursor; /* one for each column */
    CachedPage   **held;   /* pages whose bytes the cells point into */
    int64_t        helds, held_cap;
    MemPool        keep;
    Text          *out;
} RowReader;

/* The page in which a row begins. */
static int64_t page_of(const ParquetColumn *c, int64_t row)
{
    int64_t lo = 0, hi = c->pages;
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        if (c->page[mid].row <= row) lo = mid;
        else hi = mid;
    }
    return lo;
}

static Status hold(RowReader *r, int column, int64_t page, CachedPage **out)
{
    if (r->helds == r->held_cap) {
        int64_t      cap  = 2 * r->held_cap + 16;
        CachedPage **more = mem_pool_alloc(&r->keep, (size_t)cap * sizeof *more);
        if (r->helds) memcpy(more, r->held, (size_t)r->helds * sizeof *more);
        r->held = more, r->held_cap = cap;
    }
    TRY(parquet_cache_take(r->cache, r->p, column, page, out));
    r->held[r->helds++] = *out;
    return OK;
}

static void cells_add(RowReader *r, Cursor *c, const ParquetCell *cell, int64_t n)
{
    ParquetCell *all = mem_pool_alloc(&r->keep, (size_t)(c->cells.n + n) * sizeof *all + 1);
    if (c->cells.n) memcpy(all, c->cells.cell, (size_t)c->cells.n * sizeof *all);
    if (n) memcpy(all + c->cells.n, cell, (size_t)n * sizeof *all);
    c->cells = (ParquetCells){ all, c->cells.n + n };
}

/* A row may go on in the pages after the one it begins in. */
static Status column_read(RowReader *r, int column, int64_t row)
{
    const ParquetColumn *c      = &r->p->column[column];
    Cursor              *cursor = &r->cursor[column];
    CachedPage          *page;
    int64_t              k = page_of(c, row), i = row - c->page[k].row;
    TRY(hold(r, column, k, &page));
    if (i < 0 || i >= page->rows)
        return fail(E_DATA, "%s: Parquet: row %lld is not in its page", r->p->path, (long long)row);
    int64_t from = page->start[i], to = i + 1 < page->rows ? page->start[i + 1] : page->cells.n;
    cells_add(r, cursor, page->cells.cell + from, to - from);
    for (bool more = i + 1 == page->rows;
         more && ++k < c->pages && c->page[k].chunk == c->page[k - 1].chunk;) {
        TRY(hold(r, column, k, &page));
        for (to = 0; to < page->cells.n && page->cells.cell[to].rep; to++) {}
        cells_add(r, cursor, page->cells.cell, to);
        more = to == page->cells.n;
    }
    return OK;
}

static Status puts_(RowReader *r, const char *s) { return text_push(r->out, s, strlen(s)); }

static const ParquetCell *peek(const RowReader *r, const ParquetNode *n)
{
    const Cursor *c = &r->cursor[n->first];
    return c->at < c->cells.n ? &c->cells.cell[c->at] : NULL;
}

/* Passes one cell of every column below a node that is null or empty. */
static void pass(RowReader *r, const ParquetNode *n)
{
    if (n->column >= 0) r->cursor[n->column].at++;
    for (int i = 0; i < n->children; i++) pass(r, &n->child[i]);
}

static Status put_node(RowReader *r, const ParquetNode *n);

/* The element of a LIST: the field below its repeated group, or that group itself in the older form. */
static const ParquetNode *element_of(const ParquetNode *repeated)
{
    bool wrapped =
        repeated->children == 1 && strcmp(repeated->name, "array") &&
        !(strlen(repeated->name) > 6 && !strcmp(repeated->name + strlen(repeated->name) - 6, "_tuple"));
    return wrapped ? &repeated->child[0] : repeated;
}

static Status put_fields(RowReader *r, const ParquetNode *n);

static Status put_element(RowReader *r, const ParquetNode *repeated, const ParquetNode *element)
{
    const ParquetCell *c = peek(r, repeated);
    if (element != repeated) return put_node(r, element);
    if (repeated->column < 0) return put_fields(r, repeated);
    if (!c) return puts_(r, "null");
    r->cursor[repeated->column].at++;
    return parquet_value_json(repeated, c, r->out);
}

/* The repetitions of a node: cells whose repetition level is the node's continue it. */
static Status put_repeated(RowReader *r, const ParquetNode *n, const ParquetNode *element, bool map)
{
    const ParquetCell *c = peek(r, n);
    TRY(puts_(r, map ? "{" : "["));
    if (!c || c->def < n->max_def) {
        pass(r, n);
        return puts_(r, map ? "}" : "]");
    }
    for (bool first = true;; first = false) {
        if (!first) TRY(puts_(r, ","));
        if (map) {
            TRY(put_node(r, &n->child[0]));
            TRY(puts_(r, ":"));
            TRY(put_node(r, &n->child[1]));
        } else TRY(put_element(r, n, element));
        c = peek(r, n);
        if (!c || c->rep != n->max_rep) break;
    }
    return puts_(r, map ? "}" : "]");
}

static bool is_picture(const ParquetNode *n)
{
    bool bytes = false, path = false;
    for (int i = 0; i < n->children; i++) {
        bytes = bytes ||
                (!strcmp(n->child[i].name, "bytes") && n->child[i].type == PQ_BYTES && !n->child[i].is_text);
        path = path || !strcmp(n->child[i].name, "path");
    }
    return n->children == 2 && bytes && path;
}

/* {"path": ...} where there are no bytes, {"url": data URI} where there are. */
static Status put_picture(RowReader *r, const ParquetNode *n)
{
    const ParquetNode *bytes = &n->child[strcmp(n->child[0].name, "bytes") != 0],
                      *path  = &n->child[bytes == n->child];
    const ParquetCell *c     = peek(r, bytes);
    bool               has   = c && c->def == bytes->max_def;
    TRY(puts_(r, has ? "{\"url\":" : "{\"path\":"));
    pass(r, has ? path : bytes);
    if (has) r->cursor[bytes->column].at++;
    TRY(has ? parquet_bytes_json(c->v, c->n, r->out) : put_node(r, path));
    return puts_(r, "}");
}

static Status put_fields(RowReader *r, const ParquetNode *n)
{
    if (is_picture(n)) return put_picture(r, n);
    TRY(puts_(r, "{"));
    for (int i = 0; i < n->children; i++) {
        if (i) TRY(puts_(r, ","));
        TRY(parquet_text_json((const uint8_t *)n->child[i].name, strlen(n->child[i].name), r->out));
        TRY(puts_(r, ":"));
        TRY(put_node(r, &n->child[i]));
    }
    return puts_(r, "}");
}

static Status put_node(RowReader *r, const ParquetNode *n)
{
    const ParquetCell *c = peek(r, n);
    if (n->repeat == PQ_REPEATED) return put_repeated(r, n, n, false);
    if (!c || (n->repeat == PQ_OPTIONAL && c->def < n->max_def)) {
        pass(r, n);
        return puts_(r, "null");
    }
    if (n->column >= 0) {
        r->cursor[n->column].at++;
        return c->def == n->max_def ? parquet_value_json(n, c, r->out) : puts_(r, "null");
    }
    bool wraps = n->children == 1 && n->child[0].repeat == PQ_REPEATED && n->child[0].column < 0;
    const ParquetNode *inner = n->child;
    if (n->is_map && wraps && inner->children == 2 && inner->child[0].is_text)
        return put_repeated(r, inner, inner, true);
    if (n->is_list && n->children == 1 && inner->repeat == PQ_REPEATED)
        return put_repeated(r, inner, element_of(inner), false);
    return put_fields(r, n);
}

Status parquet_row_json(const Parquet *p, ParquetCache *cache, int64_t i, Text *out)
{
    RowReader r  = { .p = p, .cache = cache, .out = out };
    Status    st = OK;
    r.cursor     = mem_pool_alloc(&r.keep, (size_t)p->columns * sizeof *r.cursor);
    for (int c = 0; !st && c < p->columns; c++) st = column_read(&r, c, i);
    if (!st) st = put_fields(&r, &p->root);
    for (int64_t k = 0; k < r.helds; k++) parquet_cache_drop(cache, r.held[k]);
    mem_pool_close(&r.keep);
    return st;
}
