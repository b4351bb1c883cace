/* data/parquet_index.c -- the OffsetIndex of a column chunk: where its pages lie and which row each begins
 * with, so that opening a file reads no page. An index is used only where it can be true: its pages lie in
 * the chunk, in order, with rows in order. Whether its rows are those of a page is checked when the page is
 * decoded. */
#include "data/parquet.h"

#include "data/thrift.h"

static ParquetPage read_location(Thrift *t, int64_t first_row)
{
    ThriftField f    = { 0 };
    ParquetPage page = { .row = -1 };
    while (thrift_next(t, &f)) {
        if (f.id == 1) page.offset = (uint64_t)thrift_int(t, &f);
        else if (f.id == 3) page.row = thrift_int(t, &f);
        else thrift_skip(t, f.type);
    }
    if (page.row < 0 || page.row > INT64_MAX / 2) t->damaged = true;
    else page.row += first_row;
    return page;
}

/* A page may begin no row, where the row before it fills several pages. */
static bool follows(const ParquetPage *page, const ParquetPage *before, const ParquetChunk *chunk,
                    int64_t end)
{
    if (page->offset < chunk->begin || page->offset >= chunk->end || page->row > end) return false;
    return !before || (page->offset > before->offset && page->row >= before->row);
}

static Status read_locations(const Parquet *p, ParquetColumn *c, int group, Thrift *t, size_t n, bool *good)
{
    int64_t first = p->group_row[group], end = parquet_group_end(p, group), before = c->pages;
    *good = true;
    for (size_t i = 0; *good && i < n; i++) {
        ParquetPage page = read_location(t, first);
        page.chunk       = group;
        *good = !t->damaged && follows(&page, i ? &c->page[c->pages - 1] : NULL, &c->chunk[group], end) &&
                (i || page.row == first);
        if (*good) TRY(parquet_page_add(c, page));
    }
    if (!*good) c->pages = before;
    return OK;
}

/* A dictionary lies before the first data page. */
static Status find_dictionary(const Parquet *p, ParquetChunk *chunk, uint64_t first_page)
{
    ParquetHead h;
    if (first_page == chunk->begin) return OK;
    TRY(parquet_head(p, chunk->begin, chunk->end, &h));
    if (h.type == PAGE_DICTIONARY) chunk->dictionary = chunk->begin, chunk->has_dictionary = true;
    return OK;
}

Status parquet_index_read(const Parquet *p, ParquetColumn *c, int group, bool *found)
{
    ParquetChunk *chunk = &c->chunk[group];
    int64_t       pages = c->pages;
    ThriftField   f     = { 0 };
    ThriftType    type;
    *found = false;
    if (chunk->index < 4 || chunk->index_bytes <= 0 || (uint64_t)chunk->index > p->len ||
        (uint64_t)chunk->index_bytes > p->len - (uint64_t)chunk->index)
        return OK;
    const uint8_t *at = p->bytes + chunk->index;
    Thrift         t  = { at, at + chunk->index_bytes, false, 0 };
    while (thrift_next(&t, &f)) {
        if (f.id != 1 || f.type != TH_LIST || *found) {
            thrift_skip(&t, f.type);
            continue;
        }
        size_t n = thrift_list(&t, &f, &type);
        if (t.damaged || type != TH_STRUCT || !n) break;
        TRY(read_locations(p, c, group, &t, n, found));
        if (!*found) break;
    }
    if (t.damaged) *found = false, c->pages = pages;
    return *found ? find_dictionary(p, chunk, c->page[pages].offset) : OK;
}
