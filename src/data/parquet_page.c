/* data/parquet_page.c -- pages: headers, decompression, levels; see parquet.h. */
#include "data/parquet.h"

#include "data/thrift.h"
#include <string.h>

static void read_data_head(Thrift *t, ParquetHead *h)
{
    ThriftField f = { 0 };
    while (thrift_next(t, &f)) {
        if (f.id == 1) h->values = thrift_int(t, &f);
        else if (f.id == 2) h->encoding = (int)thrift_int(t, &f);
        else if (f.id == 3) h->def_encoding = (int)thrift_int(t, &f);
        else if (f.id == 4) h->rep_encoding = (int)thrift_int(t, &f);
        else thrift_skip(t, f.type);
    }
}

static void read_v2_head(Thrift *t, ParquetHead *h)
{
    ThriftField f = { 0 };
    h->v2         = true;
    while (thrift_next(t, &f)) {
        if (f.id == 1) h->values = thrift_int(t, &f);
        else if (f.id == 3) h->rows = thrift_int(t, &f);
        else if (f.id == 4) h->encoding = (int)thrift_int(t, &f);
        else if (f.id == 5) h->def_bytes = thrift_int(t, &f);
        else if (f.id == 6) h->rep_bytes = thrift_int(t, &f);
        else if (f.id == 7) h->compressed = thrift_int(t, &f);
        else thrift_skip(t, f.type);
    }
}

static Status damaged(const Parquet *p, uint64_t at, const char *what)
{
    return fail(E_DATA, "%s: Parquet: byte %llu: %s", p->path, (unsigned long long)at, what);
}

Status parquet_head(const Parquet *p, uint64_t at, uint64_t end, ParquetHead *h)
{
    Thrift      t = { p->bytes + at, p->bytes + end, false, 0 };
    ThriftField f = { 0 };
    *h            = (ParquetHead){ .type = -1, .compressed = true };
    while (thrift_next(&t, &f)) {
        if (f.id == 1) h->type = (int)thrift_int(&t, &f);
        else if (f.id == 2) h->size = thrift_int(&t, &f);
        else if (f.id == 3) h->packed = thrift_int(&t, &f);
        else if (f.type == TH_STRUCT && (f.id == 5 || f.id == 7)) read_data_head(&t, h);
        else if (f.type == TH_STRUCT && f.id == 8) read_v2_head(&t, h);
        else thrift_skip(&t, f.type);
    }
    h->body = (uint64_t)(t.at - p->bytes);
    if (t.damaged || h->type < 0 || h->size < 0 || h->packed < 0 || h->values < 0 ||
        (uint64_t)h->packed > end - h->body)
        return damaged(p, at, "the header of a page is damaged");
    if (h->size > PARQUET_PAGE_MAX || h->values > PARQUET_VALUES_MAX)
        return damaged(p, at, "a page of more than 512 MiB or 4 million values; write it with smaller pages");
    bool levels = h->def_bytes >= 0 && h->rep_bytes >= 0 && h->def_bytes <= h->size &&
                  h->rep_bytes <= h->size - h->def_bytes && h->def_bytes + h->rep_bytes <= h->packed;
    return levels ? OK : damaged(p, at, "the header of a page is damaged");
}

/* The bytes of a page, decompressed. Levels of a page of version 2 are never compressed. */
static Status page_bytes(const Parquet *p, const ParquetChunk *c, const ParquetHead *h, MemPool *keep,
                         PageBytes *out)
{
    const uint8_t *in     = p->bytes + h->body;
    size_t         levels = h->v2 ? (size_t)(h->def_bytes + h->rep_bytes) : 0;
    if (c->codec == CODEC_NONE || !h->compressed) {
        if (h->packed != h->size) return damaged(p, h->body, "the sizes of a page differ");
        return *out = (PageBytes){ in, in + h->packed }, OK;
    }
    uint8_t *bytes = mem_pool_alloc(keep, (size_t)h->size + 1);
    memcpy(bytes, in, levels);
    *out = (PageBytes){ bytes, bytes + h->size };
    if ((size_t)h->size == levels) return OK;
    TRY_CTX(codec_decode(c->codec, bytes + levels, (size_t)h->size - levels, in + levels,
                         (size_t)h->packed - levels),
            "%s: Parquet: byte %llu", p->path, (unsigned long long)h->body);
    return OK;
}

static int bit_width(int max)
{
    int w = 0;
    while (max >> w) w++;
    return w;
}

static bool packed_levels(PageBytes *b, int width, uint32_t *out, int64_t n)
{
    size_t bytes = ((size_t)n * (size_t)width + 7) / 8; /* BIT_PACKED, highest bit first */
    if (bytes > (size_t)(b->end - b->at)) return false;
    for (int64_t i = 0; i < n; i++) {
        out[i] = 0;
        for (int k = 0; k < width; k++) {
            size_t bit = (size_t)i * (size_t)width + (size_t)k;
            out[i]     = out[i] << 1 | (uint32_t)(b->at[bit / 8] >> (7 - bit % 8) & 1);
        }
    }
    return b->at += bytes, true;
}

/* One kind of levels; `bytes` is their length in a page of version 2, -1 where the page stores it. */
static bool read_levels(PageBytes *b, int max, int encoding, int64_t bytes, uint32_t *out, int64_t n)
{
    uint32_t stored;
    if (!max && bytes <= 0) return memset(out, 0, (size_t)n * sizeof *out), true;
    if (bytes < 0 && encoding == 4) return packed_levels(b, bit_width(max), out, n);
    if (bytes < 0) {
        if (b->end - b->at < 4) return false;
        memcpy(&stored, b->at, 4);
        b->at += 4, bytes = stored;
    }
    if (bytes > b->end - b->at) return false;
    PageBytes own = { b->at, b->at + bytes };
    b->at += bytes;
    if (!max) return memset(out, 0, (size_t)n * sizeof *out), true;
    if (!parquet_runs(&own, bit_width(max), out, n)) return false;
    for (int64_t i = 0; i < n; i++)
        if (out[i] > (uint32_t)max) return false;
    return true;
}

static Status levels_of(const Parquet *p, const ParquetColumn *c, const ParquetHead *h, PageBytes *b,
                        MemPool *keep, ParquetCells *out, int64_t *rows, int64_t *present)
{
    int64_t   n     = h->values;
    uint32_t *level = mem_pool_alloc(keep, (size_t)n * sizeof *level + 1);
    out->cell = mem_pool_alloc(keep, (size_t)n * sizeof *out->cell + 1), out->n = n;
    *rows = *present = 0;
    if (!read_levels(b, c->leaf->max_rep, h->rep_encoding, h->v2 ? h->rep_bytes : -1, level, n))
        return damaged(p, h->body, "the repetition levels of a page are damaged");
    for (int64_t i = 0; i < n; i++) out->cell[i].rep = (uint16_t)level[i], *rows += level[i] == 0;
    if (!read_levels(b, c->leaf->max_def, h->def_encoding, h->v2 ? h->def_bytes : -1, level, n))
        return damaged(p, h->body, "the definition levels of a page are damaged");
    for (int64_t i = 0; i < n; i++)
        out->cell[i].def = (uint16_t)level[i], *present += level[i] == (uint32_t)c->leaf->max_def;
    return OK;
}

static Status dictionary_of(const Parquet *p, const ParquetColumn *c, const ParquetChunk *chunk,
                            MemPool *keep, ParquetCells *out)
{
    ParquetHead h;
    PageBytes   b;
    *out = (ParquetCells){ 0 };
    if (!chunk->has_dictionary) return OK;
    TRY(parquet_head(p, chunk->dictionary, chunk->end, &h));
    TRY(page_bytes(p, chunk, &h, keep, &b));
    out->cell = mem_pool_alloc(keep, (size_t)h.values * sizeof *out->cell + 1), out->n = h.values;
    return parquet_values(c->leaf, 0, b, NULL, out->cell, out->n, keep);
}

/* Values are stored for the cells that are not null; the others keep an empty one. */
static void spread_values(ParquetCells *cells, const ParquetCell *value, int max_def)
{
    for (int64_t i = 0, k = 0; i < cells->n; i++)
        if (cells->cell[i].def == max_def) cells->cell[i].n = value[k].n, cells->cell[i].i = value[k++].i;
}

Status parquet_page(const Parquet *p, const ParquetColumn *c, const ParquetPage *page, bool levels_only,
                    MemPool *keep, ParquetCells *out, int64_t *rows)
{
    const ParquetChunk *chunk = &c->chunk[page->chunk];
    ParquetHead         h;
    PageBytes           b;
    ParquetCells        dict = { 0 };
    int64_t             present;
    TRY(parquet_head(p, page->offset, chunk->end, &h));
    TRY(page_bytes(p, chunk, &h, keep, &b));
    TRY(levels_of(p, c, &h, &b, keep, out, rows, &present));
    if (levels_only) return OK;
    if (h.encoding == 2 || h.encoding == 8) TRY(dictionary_of(p, c, chunk, keep, &dict));
    ParquetCell *value = mem_pool_alloc(keep, (size_t)present * sizeof *value + 1);
    TRY_CTX(parquet_values(c->leaf, h.encoding, b, &dict, value, present, keep), "%s: Parquet", p->path);
    return spread_values(out, value, c->leaf->max_def), OK;
}
