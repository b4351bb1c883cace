/* data/ids.c -- see ids.h. */
#include "data/ids.h"

#include "base/grow.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Status ids_reserve(Ids *s, int64_t more)
{
    return GROW(s->v, s->cap, s->n + more) ? OK : fail(E_FIT, "no memory for %lld token ids",
                                                       (long long)(s->n + more));
}

Status ids_push(Ids *s, int32_t id) { return ids_repeat(s, id, 1); }

Status ids_push_many(Ids *s, const int32_t *v, int64_t n)
{
    TRY(ids_reserve(s, n));
    if (n) memcpy(s->v + s->n, v, (size_t)n * sizeof *v);
    s->n += n;
    return OK;
}

Status ids_repeat(Ids *s, int32_t id, int64_t n)
{
    TRY(ids_reserve(s, n));
    for (int64_t i = 0; i < n; i++) s->v[s->n++] = id;
    return OK;
}

void ids_close(Ids *s)
{
    free(s->v);
    *s = (Ids){ 0 };
}

static Status text_reserve(Text *s, size_t more)
{
    return GROW(s->v, s->cap, s->n + more) ? OK : fail(E_FIT, "no memory for %zu bytes of text", s->n + more);
}

Status text_push(Text *s, const char *v, size_t n)
{
    TRY(text_reserve(s, n));
    if (n) memcpy(s->v + s->n, v, n);
    s->n += n;
    return OK;
}

Status text_printf(Text *s, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    Status st = n < 0 ? fail(E_OTHER, "cannot format text") : text_reserve(s, (size_t)n + 1);
    if (!st) vsnprintf(s->v + s->n, (size_t)n + 1, fmt, again), s->n += (size_t)n;
    va_end(again);
    return st;
}

void text_close(Text *s)
{
    free(s->v);
    *s = (Text){ 0 };
}
