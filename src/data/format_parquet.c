/* data/format_parquet.c -- Parquet files: a row is a JSON object of its columns; see parquet.h. */
#include "data/format.h"

#include "data/parquet.h"
#include <stdio.h>

typedef struct ParquetFile {
    Parquet       parquet;
    ParquetCache *cache;
} ParquetFile;

static Status parquet_index(FormatFile *f, const FormatConf *conf)
{
    ParquetFile *p = mem_pool_alloc(&f->keep, sizeof *p);
    TRY(parquet_open(&p->parquet, f->path, f->bytes, f->len));
    f->self    = p;
    f->samples = p->parquet.rows;
    return parquet_cache_open(&p->cache);
}

static Status parquet_read(const FormatFile *f, int64_t i, Record *r)
{
    ParquetFile *p    = f->self;
    Text         text = { 0 };
    snprintf(r->where, sizeof r->where, "%s: row %lld", f->path, (long long)i + 1);
    Status st = parquet_row_json(&p->parquet, p->cache, i, &text);
    if (!st) r->kind = RECORD_JSON, r->text = mem_pool_copy(&r->keep, text.v, text.n), r->len = text.n;
    text_close(&text);
    return st;
}

static void parquet_close_file(FormatFile *f)
{
    ParquetFile *p = f->self;
    if (!p) return;
    parquet_cache_close(p->cache);
    parquet_close(&p->parquet);
}

const Format format_parquet = {
    .name     = "parquet",
    .suffixes = ".parquet",
    .index    = parquet_index,
    .read     = parquet_read,
    .close    = parquet_close_file,
};
