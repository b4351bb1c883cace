/* data/sample_cache.c -- see sample_cache.h. */
#include "data/sample_cache.h"

#include <stdlib.h>

typedef struct SampleCacheRow {
    bool    used;
    int64_t epoch, position;
    size_t  bytes;
    Sample  sample;
} SampleCacheRow;

Status sample_cache_open(SampleCache *c, int64_t rows, size_t limit)
{
    *c = (SampleCache){ calloc((size_t)rows, sizeof *c->row), rows, 0, limit };
    return c->row ? OK : fail(E_FIT, "no memory for a cache of %lld samples", (long long)rows);
}

void sample_cache_clear(SampleCache *c)
{
    for (int64_t i = 0; c->row && i < c->rows; i++) {
        if (c->row[i].used) sample_close(&c->row[i].sample);
        c->row[i].used = false;
    }
    c->bytes = 0;
}

void sample_cache_close(SampleCache *c)
{
    sample_cache_clear(c);
    free(c->row);
    *c = (SampleCache){ 0 };
}

void sample_cache_put(SampleCache *c, int64_t epoch, int64_t position, Sample *s)
{
    SampleCacheRow *r = &c->row[position % c->rows];
    size_t          bytes = sample_host_bytes(s);
    if (r->used || c->bytes + bytes > c->limit) {
        sample_close(s);
        return;
    }
    *r = (SampleCacheRow){ true, epoch, position, bytes, *s };
    *s = (Sample){ 0 };
    c->bytes += bytes;
}

bool sample_cache_take(SampleCache *c, int64_t epoch, int64_t position, Sample *s)
{
    SampleCacheRow *r = &c->row[position % c->rows];
    *s = (Sample){ 0 };
    if (!r->used || r->epoch != epoch || r->position != position) return false;
    *s = r->sample;
    r->used = false;
    c->bytes -= r->bytes;
    return true;
}
