/* data/line_index.c -- see line_index.h. */
#include "data/line_index.h"

#include "base/file_version.h"
#include "data/cache_file.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { NAME = CACHE_KEY + 8 };

void line_index_close(LineIndex *l)
{
    offsets_close(&l->from), offsets_close(&l->to), offsets_close(&l->blank);
}

/* Memory has no name, and a decompressed file is as new as its process. */
static bool name_of(char name[NAME], const FormatFile *f)
{
    char          key[CACHE_KEY];
    XXH3_state_t *x = f->mapped && !f->inflated ? XXH3_createState() : NULL;
    if (!x) return false;
    XXH3_128bits_reset(x);
    XXH3_128bits_update(x, &(int64_t){ INDEX_CACHE_VERSION }, sizeof(int64_t));
    XXH3_128bits_update(x, f->format->name, strlen(f->format->name));
    bool good = !cache_key_add_file(x, f->path);
    cache_key_text(key, x);
    snprintf(name, NAME, "%s.lines", key);
    return good;
}

typedef struct LineCounts { int64_t samples, blanks, bytes; } LineCounts;

static bool counts_are_possible(const LineCounts *c, size_t len, const FormatFile *f)
{
    int64_t most = (int64_t)f->len;
    return c->bytes == most && c->samples >= 0 && c->samples <= most && c->blanks >= 0 && c->blanks <= most &&
           len == sizeof *c + (2 * (size_t)c->samples + (size_t)c->blanks) * sizeof(uint64_t);
}

static bool copy_offsets(Offsets *o, const char **at, int64_t n)
{
    size_t bytes = (size_t)n * sizeof *o->v;
    *o = (Offsets){ malloc(bytes + 1), n, n };
    if (!o->v) return o->n = o->cap = 0, false;
    memcpy(o->v, *at, bytes);
    return *at += bytes, true;
}

/* Samples lie in the file one after the other. */
static bool offsets_are_possible(const LineIndex *l, const FormatFile *f)
{
    uint64_t end = 0;
    for (int64_t i = 0; i < l->from.n; i++) {
        if (l->from.v[i] < end || l->to.v[i] < l->from.v[i] || l->to.v[i] > f->len) return false;
        end = l->to.v[i];
    }
    for (int64_t i = 0; i < l->blank.n; i++)
        if (l->blank.v[i] > (uint64_t)l->from.n || (i && l->blank.v[i] < l->blank.v[i - 1])) return false;
    return true;
}

static bool read_offsets(LineIndex *l, const FormatFile *f, const char *bytes, size_t len)
{
    LineCounts  c;
    const char *at = bytes + sizeof c;
    if (len < sizeof c) return false;
    memcpy(&c, bytes, sizeof c);
    return counts_are_possible(&c, len, f) && copy_offsets(&l->from, &at, c.samples) &&
           copy_offsets(&l->to, &at, c.samples) && copy_offsets(&l->blank, &at, c.blanks) &&
           offsets_are_possible(l, f);
}

bool line_index_load(LineIndex *l, const FormatFile *f)
{
    char   name[NAME], *bytes;
    size_t len, most = sizeof(LineCounts) + 3 * (f->len + 1) * sizeof(uint64_t);
    if (!name_of(name, f) || !cache_file_load(&bytes, &len, name, most)) return false;
    bool good = read_offsets(l, f, bytes, len);
    if (!good) line_index_close(l);
    return free(bytes), good;
}

void line_index_save(const LineIndex *l, const FormatFile *f)
{
    char            name[NAME];
    LineCounts      c      = { l->from.n, l->blank.n, (int64_t)f->len };
    size_t          one    = sizeof *l->from.v;
    const CachePart part[] = { { &c, sizeof c },
                               { l->from.v, (size_t)l->from.n * one },
                               { l->to.v, (size_t)l->to.n * one },
                               { l->blank.v, (size_t)l->blank.n * one } };
    if (!name_of(name, f) || cache_file_save(name, part, 4)) return;
}
