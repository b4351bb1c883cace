/* data/parquet_meta.c -- the footer of a Parquet file: schema, row groups, and the rows of every page. */
#include "data/parquet_schema.h"

#include "base/activity.h"
#include "base/grow.h"
#include <stdlib.h>
#include <string.h>

static Status damaged(const Parquet *p, const char *what)
{
    return fail(E_DATA, "%s: Parquet: %s", p->path, what);
}

typedef struct SchemaReader {
    Parquet              *p;
    const ParquetElement *e;
    size_t                n, at;
    int                   depth;
} SchemaReader;

static Status read_node(SchemaReader *r, ParquetNode *node, const ParquetNode *parent)
{
    if (r->at >= r->n || r->depth > 24) return damaged(r->p, "the schema is damaged or too deep");
    const ParquetElement *e    = &r->e[r->at++];
    bool                  leaf = e->children <= 0 && parent;
    if (e->repeat < 0 || e->repeat > 2 || (leaf && (e->type < 0 || e->type > PQ_FIXED)) ||
        e->children > PARQUET_COLUMNS || e->length < 0)
        return damaged(r->p, "the schema is damaged");
    *node         = (ParquetNode){ .repeat      = parent ? (ParquetRepeat)e->repeat : PQ_REQUIRED,
                                   .type        = (ParquetType)e->type,
                                   .type_length = e->length,
                                   .children    = leaf ? 0 : e->children,
                                   .column      = -1 };
    node->name    = mem_pool_copy(&r->p->keep, e->name.v ? e->name.v : "", e->name.n);
    parquet_annotate(node, e);
    node->max_def = (parent ? parent->max_def : 0) + (node->repeat != PQ_REQUIRED);
    node->max_rep = (parent ? parent->max_rep : 0) + (node->repeat == PQ_REPEATED);
    node->first   = r->p->columns;
    if (leaf) return node->column = r->p->columns++, OK;
    if (node->children <= 0) return damaged(r->p, "a group of the schema is empty");
    node->child = mem_pool_alloc(&r->p->keep, (size_t)node->children * sizeof *node->child);
    r->depth++;
    for (int i = 0; i < node->children; i++) TRY(read_node(r, &node->child[i], node));
    return r->depth--, OK;
}

static void list_leaves(Parquet *p, const ParquetNode *n)
{
    if (n->column >= 0) p->column[n->column].leaf = n;
    for (int i = 0; i < n->children; i++) list_leaves(p, &n->child[i]);
}

static Status read_schema(Parquet *p, Thrift *t, const ThriftField *f)
{
    ThriftType type;
    size_t     n = thrift_list(t, f, &type);
    if (type != TH_STRUCT || !n || n > 2 * PARQUET_COLUMNS) return damaged(p, "the schema is damaged");
    ParquetElement *e = calloc(n, sizeof *e);
    SchemaReader    r = { p, e, n, 0, 0 };
    if (!e) return fail(E_FIT, "no memory for a schema");
    for (size_t i = 0; i < n; i++) e[i] = parquet_element(t);
    Status st = t->damaged ? damaged(p, "the footer is damaged") : read_node(&r, &p->root, NULL);
    if (!st && r.at != n) st = damaged(p, "the schema is damaged");
    if (!st && !p->columns) st = damaged(p, "there are no columns");
    free(e);
    if (st) return st;
    p->column = mem_pool_alloc(&p->keep, (size_t)p->columns * sizeof *p->column);
    return list_leaves(p, &p->root), OK;
}

/* Fields of a column's metadata that are used. */
static Status read_chunk(const Parquet *p, Thrift *t, ParquetChunk *c)
{
    ThriftField f    = { 0 };
    int64_t     size = -1, data = -1, dictionary = -1, codec = 0;
    while (thrift_next(t, &f)) {
        if (f.id == 4) codec = thrift_int(t, &f);
        else if (f.id == 7) size = thrift_int(t, &f);
        else if (f.id == 9) data = thrift_int(t, &f);
        else if (f.id == 11) dictionary = thrift_int(t, &f);
        else thrift_skip(t, f.type);
    }
    int64_t begin = dictionary > 0 && dictionary < data ? dictionary : data;
    if (t->damaged || begin < 4 || size < 0 || (uint64_t)begin > p->len ||
        (uint64_t)size > p->len - (uint64_t)begin)
        return *c = (ParquetChunk){ .outside = true }, OK;
    *c = (ParquetChunk){ .begin = (uint64_t)begin, .end = (uint64_t)(begin + size), .codec = (Codec)codec };
    return OK;
}

static Status read_column(Parquet *p, Thrift *t, ParquetChunk *c)
{
    ThriftField f     = { 0 };
    bool        found = false;
    int64_t     index = 0, bytes = 0;
    while (thrift_next(t, &f)) {
        if (f.id == 3 && f.type == TH_STRUCT) {
            TRY(read_chunk(p, t, c));
            found = true;
        } else if (f.id == 1) return damaged(p, "columns in other files are not read");
        else if (f.id == 4) index = thrift_int(t, &f);
        else if (f.id == 5) bytes = thrift_int(t, &f);
        else thrift_skip(t, f.type);
    }
    c->index = index, c->index_bytes = bytes;
    return found && !t->damaged ? OK : damaged(p, "the footer is damaged");
}

static Status read_columns(Parquet *p, Thrift *t, const ThriftField *f, int group)
{
    ThriftType type;
    size_t     n = thrift_list(t, f, &type);
    if (n != (size_t)p->columns || type != TH_STRUCT)
        return damaged(p, "a row group has another number of columns");
    for (size_t i = 0; i < n; i++) TRY(read_column(p, t, &p->column[i].chunk[group]));
    return OK;
}

static Status read_group(Parquet *p, Thrift *t, int group)
{
    ThriftField f     = { 0 };
    int64_t     rows  = -1;
    bool        found = false;
    while (thrift_next(t, &f)) {
        if (f.id == 1) {
            TRY(read_columns(p, t, &f, group));
            found = true;
        } else if (f.id == 3) rows = thrift_int(t, &f);
        else thrift_skip(t, f.type);
    }
    if (t->damaged || !found || rows < 0 || rows > INT64_MAX / 2 - p->rows)
        return damaged(p, "a row group is damaged");
    p->group_row[group] = p->rows;
    p->rows += rows;
    return OK;
}

static Status read_groups(Parquet *p, Thrift *t, const ThriftField *f)
{
    ThriftType type;
    size_t     n = thrift_list(t, f, &type);
    if (!p->columns || (n && type != TH_STRUCT) || n > 1 << 20) return damaged(p, "the footer is damaged");
    p->group_row = mem_pool_alloc(&p->keep, (n + 1) * sizeof *p->group_row);
    for (int i = 0; i < p->columns; i++)
        p->column[i].chunk = mem_pool_alloc(&p->keep, (n + 1) * sizeof *p->column[i].chunk);
    for (; (size_t)p->groups < n; p->groups++) TRY(read_group(p, t, p->groups));
    return OK;
}

static Status encrypted(const Parquet *p)
{
    return damaged(p, "the file is encrypted, which is not read; write it again without encryption");
}

static Status read_footer(Parquet *p)
{
    uint32_t    size;
    ThriftField f = { 0 };
    if (p->len >= 12 && !memcmp(p->bytes + p->len - 4, "PARE", 4)) return encrypted(p);
    if (p->len < 12 || memcmp(p->bytes, "PAR1", 4) || memcmp(p->bytes + p->len - 4, "PAR1", 4))
        return damaged(
            p, "the file does not begin and end with PAR1: it may be truncated or another format");
    memcpy(&size, p->bytes + p->len - 8, 4);
    if (size > p->len - 12) return damaged(p, "the footer is longer than the file");
    Thrift t = { p->bytes + p->len - 8 - size, p->bytes + p->len - 8, false, 0 };
    while (thrift_next(&t, &f)) {
        if (f.id == 2 && f.type == TH_LIST) TRY(read_schema(p, &t, &f));
        else if (f.id == 4 && f.type == TH_LIST) TRY(read_groups(p, &t, &f));
        else if (f.id == 8) return encrypted(p);             /* its columns, with this footer in the clear */
        else thrift_skip(&t, f.type);
    }
    return t.damaged || !p->columns ? damaged(p, "the footer is damaged") : OK;
}

int64_t parquet_group_end(const Parquet *p, int group)
{
    return group + 1 < p->groups ? p->group_row[group + 1] : p->rows;
}

Status parquet_page_add(ParquetColumn *c, ParquetPage page)
{
    if (!GROW(c->page, c->page_cap, c->pages + 1)) return fail(E_FIT, "no memory for an index of pages");
    c->page[c->pages++] = page;
    return OK;
}

/* The rows that begin in a page: from its header, or by its repetition levels. */
static Status page_rows(const Parquet *p, const ParquetColumn *c, const ParquetPage *page,
                        const ParquetHead *h, int64_t *rows)
{
    ParquetCells cells;
    MemPool      keep = { 0 };
    *rows             = h->v2 ? h->rows : h->values;
    if (h->v2 || !c->leaf->max_rep) return OK;
    Status st = parquet_page(p, c, page, true, &keep, &cells, rows);
    mem_pool_close(&keep);
    return st;
}

static Status index_chunk(Parquet *p, ParquetColumn *c, int group)
{
    ParquetChunk *chunk = &c->chunk[group];
    int64_t       row = p->group_row[group], end = parquet_group_end(p, group), rows;
    bool          indexed;
    if (row == end) return OK;
    if (chunk->outside) return damaged(p, "a column lies outside the file");
    TRY(parquet_index_read(p, c, group, &indexed));
    if (indexed) return OK;
    for (uint64_t at = chunk->begin; at < chunk->end && row < end;) {
        ParquetHead h;
        TRY(parquet_head(p, at, chunk->end, &h));
        if (h.type == PAGE_DICTIONARY) chunk->dictionary = at, chunk->has_dictionary = true;
        if (h.type == PAGE_DATA || h.type == PAGE_DATA_V2) {
            ParquetPage page = { at, row, group };
            TRY(page_rows(p, c, &page, &h, &rows));
            if (rows < 0 || rows > end - row)
                return damaged(p, "a column has more values than the row group has rows");
            TRY(parquet_page_add(c, page));
            row += rows;
        }
        at = h.body + (uint64_t)h.packed;
        activity_mark();
    }
    return row == end ? OK : damaged(p, "a column has fewer values than the row group has rows");
}

Status parquet_open(Parquet *p, const char *path, const void *bytes, size_t len)
{
    *p        = (Parquet){ .path = path, .bytes = bytes, .len = len };
    Status st = read_footer(p);
    for (int c = 0; !st && c < p->columns; c++)
        for (int g = 0; !st && g < p->groups; g++) st = index_chunk(p, &p->column[c], g);
    if (st) parquet_close(p);
    return st;
}

void parquet_close(Parquet *p)
{
    for (int i = 0; p->column && i < p->columns; i++) free(p->column[i].page);
    mem_pool_close(&p->keep);
    *p = (Parquet){ 0 };
}
