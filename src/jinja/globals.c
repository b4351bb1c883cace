/* jinja/globals.c -- functions that every template may call. */
#include "jinja/jinja_private.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { RANGE_MAX = 100000 };

enum { MAX_MESSAGE = 12000 }; /* bytes of raise_exception's message; a Status holds somewhat more */

Status new_range(Jinja *j, int64_t from, int64_t to, int64_t step, Value *out)
{
    Value   *item;
    __int128 gap = step > 0 ? (__int128)to - from : (__int128)from - to,
             by  = step > 0 ? step : -(__int128)step;
    __int128 n   = gap > 0 ? (gap + by - 1) / by : 0;
    if (n > RANGE_MAX)
        return fail(E_DATA, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                    RANGE_MAX);
    TAKE(j, item, n + 3);
    item[0] = integer(from), item[1] = integer(to), item[2] = integer(step);
    for (int64_t i = 0; i < (int64_t)n; i++) item[i + 3] = integer(from + i * step);
    *out             = list(item + 3, (size_t)n);
    return out->kind = V_RANGE, OK;
}

static Status global_range(Jinja *j, Value self, const Value *a, Value *out)
{
    int64_t from = 0, to, step = 1;
    TRY(want_int(a[0], &to));
    if (a[1].kind != V_ABSENT) from = to;
    if (a[1].kind != V_ABSENT) TRY(want_int(a[1], &to));
    if (a[2].kind != V_ABSENT) TRY(want_int(a[2], &step));
    if (!step) return fail(E_DATA, "range() arg 3 must not be zero");
    return new_range(j, from, to, step, out);
}

static Status add_pairs(Jinja *j, Dict *d, Value v)
{
    Value items, pair;
    if (v.kind == V_DICT) {
        for (int64_t i = 0; i < v.dict->n; i++) TRY(dict_set(j, d, v.dict->key[i], v.dict->value[i]));
        return OK;
    }
    TRY(iterate(j, v, &items));
    for (uint32_t i = 0; i < items.n; i++) {
        TRY(iterate(j, items.item[i], &pair));
        if (pair.n != 2)
            return fail(E_DATA, "dictionary update sequence element #%u has length %u; 2 is required", i,
                        pair.n);
        TRY(dict_set(j, d, pair.item[0], pair.item[1]));
    }
    return OK;
}

static Status new_dict(Jinja *j, const Args *a, ValueKind kind, Value *out)
{
    Dict *d;
    TRY(dict_new(j, &d));
    if (a->n > 1) return fail(E_DATA, "dict expected at most 1 argument, got %d", a->n);
    if (a->n) TRY(add_pairs(j, d, a->v[0]));
    for (int i = 0; i < a->names; i++) TRY(dict_set(j, d, a->name[i], a->named[i]));
    return *out = (Value){ .kind = kind, .dict = d }, OK;
}

static Status global_dict(Jinja *j, Value self, const Args *a, Value *out)
{
    return new_dict(j, a, V_DICT, out);
}
static Status global_namespace(Jinja *j, Value self, const Args *a, Value *out)
{
    return new_dict(j, a, V_NAMESPACE, out);
}

static Status dict_fromkeys(Jinja *j, Value self, const Value *a, Value *out)
{
    Dict *d;
    Value keys;
    TRY(dict_new(j, &d));
    TRY(iterate(j, a[0], &keys));
    for (uint32_t i = 0; i < keys.n; i++)
        TRY(dict_set(j, d, keys.item[i], a[1].kind == V_ABSENT ? none() : a[1]));
    return *out = (Value){ .kind = V_DICT, .dict = d }, OK;
}
const Builtin method_fromkeys = { "fromkeys", "iterable,value", 1, dict_fromkeys, 0 };

static Status new_cycler(Jinja *j, const Value *item, int n, ValueKind kind, Value *out)
{
    Cycler *c;
    TAKE(j, c, 1);
    *c          = (Cycler){ item, (uint32_t)n, 0 };
    return *out = (Value){ .kind = kind, .cycler = c }, OK;
}

static Status global_cycler(Jinja *j, Value self, const Args *a, Value *out)
{
    if (!a->n) return fail(E_DATA, "at least one item has to be provided");
    return new_cycler(j, a->v, a->n, V_CYCLER, out);
}

static Status global_joiner(Jinja *j, Value self, const Value *a, Value *out)
{
    Value *by;
    TAKE(j, by, 1);
    TRY(to_str(j, by, a[0].kind == V_ABSENT ? text_of(", ") : a[0]));
    return new_cycler(j, by, 1, V_JOINER, out);
}

static Status global_raise(Jinja *j, Value self, const Value *a, Value *out)
{
    Value text;
    TRY(to_str(j, &text, a[0]));
    return fail(E_DATA, "%.*s", text.n > MAX_MESSAGE ? MAX_MESSAGE : (int)text.n, text.s);
}

static Status read_now(const char *text, struct tm *now)
{
    time_t t = time(NULL);
    if (!text) return localtime_r(&t, now), OK;
    int  n    = sscanf(text, "%d-%d-%dT%d:%d:%d", &now->tm_year, &now->tm_mon, &now->tm_mday, &now->tm_hour,
                       &now->tm_min, &now->tm_sec);
    bool sane = n >= 3 && now->tm_year > 1900 && now->tm_year < 10000 && now->tm_mon >= 1 &&
                now->tm_mon <= 12 && now->tm_mday >= 1 && now->tm_mday <= 31;
    if (!sane) return fail(E_DATA, "now: expected a time as 2026-11-15T12:00:00, got %s", text);
    now->tm_year -= 1900, now->tm_mon--, now->tm_isdst = -1;
    return mktime(now), OK; /* fills in the day of the week */
}

static Status global_strftime(Jinja *j, Value self, const Value *a, Value *out)
{
    char      format[256], text[1024];
    struct tm now = { 0 };
    TRY(want_str(a[0]));
    if (a[0].n >= sizeof format || memchr(a[0].s, 0, a[0].n))
        return fail(E_DATA, "strftime_now: the format is too long");
    memcpy(format, a[0].s, a[0].n), format[a[0].n] = 0;
    TRY(read_now(j->in->now, &now));
    return copy_str(j, out, text, strftime(text, sizeof text, format, &now));
}

static const Builtin globals[] = {
    { "range", "start,stop,step", 1, global_range, 0 },
    { .name = "dict", .raw = global_dict },
    { .name = "namespace", .raw = global_namespace },
    { .name = "cycler", .raw = global_cycler },
    { "joiner", "sep", 0, global_joiner, 0 },
    { "raise_exception", "message", 1, global_raise, 0 },
    { "strftime_now", "format", 1, global_strftime, 0 },
    { 0 },
};

const Builtin *global_named(const char *name, size_t len) { return builtin_named(globals, name, len); }
