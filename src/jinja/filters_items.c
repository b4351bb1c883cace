/* jinja/filters_items.c -- filters on sequences and mappings. Those that are generators in Jinja give a value
 * that is iterable and has no length. */
#include "jinja/jinja_private.h"

#include <string.h>

#define FILTER(f) static Status f(Jinja *j, Value self, const Value *a, Value *out)

static Status generator(Jinja *j, Value *out, const Value *v, size_t n)
{
    ValueStream *g;
    TAKE(j, g, 1);
    *g          = (ValueStream){ v, (uint32_t)n, NULL };
    return *out = (Value){ .kind = V_GENERATOR, .generator = g }, OK;
}

/* The n elements before the error st, with which reading beyond them fails. */
static Status lazily(Jinja *j, Status st, const Value *v, size_t n, Value *out)
{
    Value why = { 0 };
    if (st && st != E_DATA) return st;
    if (st) TRY(copy_str(j, &why, status_text(), strlen(status_text())));
    TRY(generator(j, out, v, n));
    return out->generator->error = why.s, OK;
}

static Status attribute_step(Jinja *j, Value *v, const char *s, size_t n)
{
    int64_t i      = 0;
    bool    digits = n > 0 && n < 10;
    for (size_t k = 0; k < n && digits; k++) {
        digits = s[k] >= '0' && s[k] <= '9';
        i      = i * 10 + s[k] - '0';
    }
    return get_item(j, *v, digits ? integer(i) : str(s, n), v);
}

/* An attribute "a.b.0", or the element of an index; a step that finds nothing gives `otherwise`. */
static Status attribute_or(Jinja *j, Value v, Value path, Value otherwise, Value *out)
{
    if (path.kind == V_INT) return get_item(j, v, path, out);
    TRY(want_str(path));
    for (const char *p = path.s, *end = p + path.n; p <= end;) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        size_t      n   = (size_t)((dot ? dot : end) - p);
        TRY(attribute_step(j, &v, p, n));
        if (v.kind == V_UNDEFINED && otherwise.kind != V_ABSENT && otherwise.kind != V_NONE) v = otherwise;
        p += n + 1;
    }
    return *out = v, OK;
}

static Status attribute_of(Jinja *j, Value v, Value path, Value *out)
{
    return attribute_or(j, v, path, (Value){ .kind = V_ABSENT }, out);
}

static bool is_given(Value v) { return v.kind != V_ABSENT && v.kind != V_NONE; }

static Status fold_case(Jinja *j, Value v, bool cased, Value *out)
{
    if (v.kind == V_STR && !cased) return change_case(j, out, v, CASE_LOWER);
    return *out = v, OK;
}

/* The key of an element: an attribute or the value, in lower case unless case counts. */
static Status sort_key(Jinja *j, Value v, Value attribute, bool cased, Value *out)
{
    if (is_given(attribute)) TRY(attribute_of(j, v, attribute, &v));
    return fold_case(j, v, cased, out);
}

/* The keys of sort are lists, of the values of sort(attribute='a,b') or of the element, in Jinja too: equal
 * elements are not compared further, and attributes which are nowhere defined leave the order as it is. */
static Status sort_attributes(Jinja *j, Value v, Value attributes, bool cased, Value *out)
{
    Value *key;
    size_t n = 0, len;
    if (attributes.kind != V_STR) {
        TAKE(j, key, 1);
        TRY(sort_key(j, v, attributes, cased, key));
        return *out = list(key, 1), OK;
    }
    const char *p = attributes.s, *end = p + attributes.n;
    TAKE(j, key, attributes.n + 1);
    for (; p <= end; p += len + 1) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        len               = (size_t)((comma ? comma : end) - p);
        TRY(attribute_of(j, v, str(p, len), &key[n]));
        TRY(fold_case(j, key[n], cased, &key[n]));
        n++;
    }
    return *out = list(key, n), OK;
}

static Status keys_of(Jinja *j, Value items, Value attribute, bool cased, Value **out)
{
    TAKE(j, *out, items.n);
    for (uint32_t i = 0; i < items.n; i++) TRY(sort_key(j, items.item[i], attribute, cased, &(*out)[i]));
    return OK;
}

typedef struct Sorter {
    Jinja       *j;
    const Value *key;
    uint32_t    *spare;
    bool         reverse;
} Sorter;

/* Stable, also in reverse. */
static Status merge_sort(Sorter *s, uint32_t *order, uint32_t n)
{
    uint32_t half = n / 2, a = 0, b = half, k = 0;
    if (n < 2) return OK;
    TRY(merge_sort(s, order, half));
    TRY(merge_sort(s, order + half, n - half));
    while (a < half && b < n) {
        Value x = s->key[order[a]], y = s->key[order[b]];
        bool  later;
        TRY(s->reverse ? compare(s->j, x, y, '<', &later) : compare(s->j, y, x, '<', &later));
        s->spare[k++] = later ? order[b++] : order[a++];
    }
    while (a < half) s->spare[k++] = order[a++];
    memcpy(order, s->spare, k * sizeof *order);
    return OK;
}

static Status sorted(Jinja *j, Value items, const Value *key, bool reverse, Value *out)
{
    Sorter    s = { .j = j, .key = key, .reverse = reverse };
    uint32_t *order;
    Value    *item;
    TAKE(j, order, items.n);
    TAKE(j, s.spare, items.n);
    TAKE(j, item, items.n);
    for (uint32_t i = 0; i < items.n; i++) order[i] = i;
    TRY(merge_sort(&s, order, items.n));
    for (uint32_t i = 0; i < items.n; i++) item[i] = items.item[order[i]];
    return *out = list(item, items.n), OK;
}

FILTER(filter_sort)
{
    Value items, *key;
    TRY(iterate(j, self, &items));
    TAKE(j, key, items.n);
    for (uint32_t i = 0; i < items.n; i++) TRY(sort_attributes(j, items.item[i], a[2], truth(a[1]), &key[i]));
    return sorted(j, items, key, truth(a[0]), out);
}

static Status pairs_of(Jinja *j, Value self, Value *out)
{
    return call_builtin(j, method_named(self, "items", 5), self, &(Args){ 0 }, out);
}

FILTER(filter_dictsort)
{
    Value pairs, *key;
    if (self.kind != V_DICT) return fail(E_DATA, "'%s' object has no attribute 'items'", type_name(self));
    TRY(pairs_of(j, self, &pairs));
    TRY(keys_of(j, pairs, integer(is_text(a[1], "value")), truth(a[0]), &key));
    return sorted(j, pairs, key, truth(a[2]), out);
}

FILTER(filter_items)
{
    if (self.kind == V_UNDEFINED) return generator(j, out, NULL, 0);
    if (self.kind != V_DICT) return fail(E_DATA, "Can only get item pairs from a mapping.");
    TRY(pairs_of(j, self, out));
    return generator(j, out, out->item, out->n);
}

FILTER(filter_first)
{
    Value items;
    if (self.kind == V_GENERATOR && self.generator->n) {
        self.generator->n--;
        return *out = *self.generator->item++, OK;
    }
    TRY(iterate(j, self, &items));
    if (items.n) return *out = items.item[0], OK;
    return undefined(j, out, "No first item, sequence was empty.");
}

FILTER(filter_last)
{
    Value items;
    if (self.kind == V_GENERATOR) return fail(E_DATA, "'generator' object is not reversible");
    TRY(iterate(j, self, &items));
    if (items.n) return *out = items.item[items.n - 1], OK;
    return undefined(j, out, "No last item, sequence was empty.");
}

FILTER(filter_list) { return iterate(j, self, out); }

FILTER(filter_reverse)
{
    const Value bound[3] = { none(), none(), integer(-1) };
    Value       items;
    if (self.kind == V_STR) return get_slice(j, self, bound, out);
    TRY(iterate(j, self, &items));
    TRY(get_slice(j, items, bound, &items));
    if (self.kind == V_GENERATOR) return *out = items, OK;
    return generator(j, out, items.item, items.n);
}

FILTER(filter_join)
{
    Buffer b = { 0 };
    Value  items, by, v;
    TRY(iterate(j, self, &items));
    TRY(to_str(j, &by, a[0].kind == V_ABSENT ? text_of("") : a[0]));
    for (uint32_t i = 0; i < items.n; i++) {
        v = items.item[i];
        if (a[1].kind != V_ABSENT && a[1].kind != V_NONE) TRY(attribute_of(j, v, a[1], &v));
        if (i) TRY(buffer_put(j, &b, by.s, by.n));
        TRY(buffer_value(j, &b, v));
    }
    return *out = buffer_str(&b), OK;
}

FILTER(filter_sum)
{
    Value items, v;
    TRY(iterate(j, self, &items));
    *out = a[1].kind == V_ABSENT ? integer(0) : a[1];
    for (uint32_t i = 0; i < items.n; i++) {
        v = items.item[i];
        if (a[0].kind != V_ABSENT && a[0].kind != V_NONE) TRY(attribute_of(j, v, a[0], &v));
        TRY(binary(j, '+', *out, v, out));
    }
    return OK;
}

static Status extreme(Jinja *j, Value self, const Value *a, int op, Value *out)
{
    Value items, *key;
    bool  better;
    TRY(iterate(j, self, &items));
    if (!items.n) return undefined(j, out, "No aggregated item, sequence was empty.");
    TRY(keys_of(j, items, a[1], truth(a[0]), &key));
    uint32_t best = 0;
    for (uint32_t i = 1; i < items.n; i++) {
        TRY(compare(j, key[i], key[best], op, &better));
        if (better) best = i;
    }
    return *out = items.item[best], OK;
}
FILTER(filter_min) { return extreme(j, self, a, '<', out); }
FILTER(filter_max) { return extreme(j, self, a, '>', out); }

FILTER(filter_unique)
{
    Value    items, *key, *kept;
    uint32_t n = 0;
    TRY(iterate(j, self, &items));
    TRY(keys_of(j, items, a[1], truth(a[0]), &key));
    TAKE(j, kept, items.n);
    for (uint32_t i = 0; i < items.n; i++) {
        bool seen;
        if (key[i].kind == V_LIST || key[i].kind == V_DICT)
            return fail(E_DATA, "unhashable type: '%s'", type_name(key[i]));
        TRY(contains(j, key[i], list(key, n), &seen));
        if (!seen) kept[n] = items.item[i], key[n++] = key[i];
    }
    return generator(j, out, kept, n);
}

FILTER(filter_batch)
{
    Value   items, *rows, *cell;
    int64_t size;
    TRY(iterate(j, self, &items));
    TRY(want_int(a[0], &size));
    if (size < 1) return fail(E_DATA, "batch: a size above 0 is expected");
    bool   fill = a[1].kind != V_ABSENT && a[1].kind != V_NONE;
    size_t n    = ((size_t)items.n + (size_t)size - 1) / (size_t)size;
    TAKE(j, rows, n);
    if (fill && size > (1 << 20)) return fail(E_FIT, "batch: the size is too large");
    TAKE(j, cell, items.n + (fill ? (size_t)size : 0));
    if (items.n) memcpy(cell, items.item, items.n * sizeof *cell);
    for (int64_t i = 0; fill && i < size; i++) cell[items.n + i] = a[1];
    for (size_t i = 0; i < n; i++) {
        size_t left = items.n - i * (size_t)size;
        rows[i]     = list(cell + i * (size_t)size, fill || left > (size_t)size ? (size_t)size : left);
    }
    return generator(j, out, rows, n);
}

FILTER(filter_slice)
{
    Value   items, *rows, *cell;
    int64_t n;
    size_t  at = 0, used = 0;
    TRY(iterate(j, self, &items));
    TRY(want_int(a[0], &n));
    if (n < 1 || n > (1 << 20)) return fail(E_DATA, "slice: a number above 0 is expected");
    bool fill = a[1].kind != V_ABSENT && a[1].kind != V_NONE;
    TAKE(j, rows, n);
    TAKE(j, cell, items.n + (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        size_t extra = items.n % (size_t)n, len = items.n / (size_t)n + ((size_t)i < extra);
        Value *row = cell + used;
        if (len) memcpy(row, items.item + at, len * sizeof *row);
        at += len;
        if (fill && (size_t)i >= extra) row[len++] = a[1];
        rows[i] = list(row, len), used += len;
    }
    return generator(j, out, rows, (size_t)n);
}

/* map('upper'), map('replace', 'a', 'b'), map(attribute='x', default=y) */
static Status map_one(Jinja *j, Value v, const Args *a, const Builtin *f, Value *out)
{
    Args rest = { a->v + 1, a->n - 1, a->name, a->named, a->names };
    if (f) return call_builtin(j, f, v, &rest, out);
    bool otherwise = a->names == 2 && is_text(a->name[1], "default");
    return attribute_or(j, v, a->named[0], otherwise ? a->named[1] : (Value){ .kind = V_ABSENT }, out);
}

/* The elements of v for a filter that reads them one by one, and the error that follows them. */
static Status read_stream(Jinja *j, Value v, Value *items, Status *after)
{
    *after = OK;
    if (v.kind != V_GENERATOR) return iterate(j, v, items);
    const char *error = v.generator->error;
    *items            = list(v.generator->item, v.generator->n);
    *v.generator      = (ValueStream){ 0 };
    if (error) *after = fail(E_DATA, "%s", error);
    return OK;
}

static Status map_items(Jinja *j, Value self, const Args *a, Value **out, size_t *n)
{
    Value          items, *item;
    const Builtin *f = NULL;
    Status         after;
    if (!self.kind || !truth(self)) return OK;
    if (a->n) {
        TRY(want_str(a->v[0]));
        f = filter_named(a->v[0].s, a->v[0].n);
        if (!f) return fail(E_DATA, "No filter named '%.*s'.", (int)a->v[0].n, a->v[0].s);
    } else if (!a->names || !is_text(a->name[0], "attribute"))
        return fail(E_DATA, "map requires a filter argument");
    TRY(read_stream(j, self, &items, &after));
    TAKE(j, item, items.n);
    for (*out = item; *n < items.n; ++*n) TRY(map_one(j, items.item[*n], a, f, &item[*n]));
    return after;
}

static Status filter_map(Jinja *j, Value self, const Args *a, Value *out)
{
    Value *item = NULL;
    size_t n    = 0;
    Status st   = map_items(j, self, a, &item, &n);
    return lazily(j, st, item, n, out);
}

/* Keeps the elements whose test gives `want`; the test is the argument after `skip`, or truth. */
static Status choose_items(Jinja *j, Value self, const Args *a, int skip, bool want, Value **out, size_t *n)
{
    Value          items, *kept, v, yes;
    const Builtin *test = NULL;
    Status         after;
    if (!truth(self)) return OK;
    if (a->n > skip) {
        TRY(want_str(a->v[skip]));
        test = test_named(a->v[skip].s, a->v[skip].n);
        if (!test) return fail(E_DATA, "No test named '%.*s'.", (int)a->v[skip].n, a->v[skip].s);
    } else if (skip && !a->n) return fail(E_DATA, "Missing parameter for attribute name");
    Args rest = { a->v + skip + 1, a->n - skip - 1, a->name, a->named, a->names };
    TRY(read_stream(j, self, &items, &after));
    TAKE(j, kept, items.n);
    *out = kept;
    for (uint32_t i = 0; i < items.n; i++) {
        v = items.item[i];
        if (skip) TRY(attribute_of(j, v, a->v[0], &v));
        if (test) TRY(call_builtin(j, test, v, &rest, &yes));
        else yes = v;
        if (truth(yes) == want) kept[(*n)++] = items.item[i];
    }
    return after;
}

static Status choose(Jinja *j, Value self, const Args *a, int skip, bool want, Value *out)
{
    Value *kept = NULL;
    size_t n    = 0;
    Status st   = choose_items(j, self, a, skip, want, &kept, &n);
    return lazily(j, st, kept, n, out);
}

static Status filter_select(Jinja *j, Value self, const Args *a, Value *out)
{
    return choose(j, self, a, 0, true, out);
}
static Status filter_reject(Jinja *j, Value self, const Args *a, Value *out)
{
    return choose(j, self, a, 0, false, out);
}
static Status filter_selectattr(Jinja *j, Value self, const Args *a, Value *out)
{
    return choose(j, self, a, 1, true, out);
}
static Status filter_rejectattr(Jinja *j, Value self, const Args *a, Value *out)
{
    return choose(j, self, a, 1, false, out);
}

static Status group_keys(Jinja *j, Value items, const Value *a, Value **out)
{
    TAKE(j, *out, items.n);
    for (uint32_t i = 0; i < items.n; i++) {
        Value v;
        TRY(attribute_or(j, items.item[i], a[0], a[1], &v));
        TRY(fold_case(j, v, truth(a[2]), &(*out)[i]));
    }
    return OK;
}

/* (key, elements) for each key, in the order of the keys. */
FILTER(filter_groupby)
{
    Value    items, *key, *group, *cell, order, *sorted_key;
    uint32_t n = 0;
    TRY(iterate(j, self, &items));
    TRY(group_keys(j, items, a, &key));
    TRY(sorted(j, items, key, false, &order));
    TRY(group_keys(j, order, a, &sorted_key));
    TAKE(j, group, items.n);
    TAKE(j, cell, 2 * (size_t)items.n);
    for (uint32_t i = 0, from = 0; i < order.n; i++) {
        bool even = false;
        if (i + 1 < order.n) TRY(equal(j, sorted_key[i], sorted_key[i + 1], &even));
        if (even) continue;
        TRY(attribute_or(j, order.item[from], a[0], a[1], &cell[2 * n]));
        cell[2 * n + 1] = list(order.item + from, i + 1 - from);
        group[n] = list(cell + 2 * n, 2), group[n++].kind = V_TUPLE;
        from = i + 1;
    }
    return *out = list(group, n), OK;
}

const Builtin item_filters[] = {
    { "batch", "linecount,fill_with", 1, filter_batch, 0 },
    { "dictsort", "case_sensitive,by,reverse", 0, filter_dictsort, 0 },
    { "first", "", 0, filter_first, 0 },
    { "groupby", "attribute,default,case_sensitive", 1, filter_groupby, 0 },
    { "items", "", 0, filter_items, 0 },
    { "join", "d,attribute", 0, filter_join, 0 },
    { "last", "", 0, filter_last, 0 },
    { "list", "", 0, filter_list, 0 },
    { .name = "map", .raw = filter_map },
    { "max", "case_sensitive,attribute", 0, filter_max, 0 },
    { "min", "case_sensitive,attribute", 0, filter_min, 0 },
    { .name = "reject", .raw = filter_reject },
    { .name = "rejectattr", .raw = filter_rejectattr },
    { "reverse", "", 0, filter_reverse, 0 },
    { .name = "select", .raw = filter_select },
    { .name = "selectattr", .raw = filter_selectattr },
    { "slice", "slices,fill_with", 1, filter_slice, 0 },
    { "sort", "reverse,case_sensitive,attribute", 0, filter_sort, 0 },
    { "sum", "attribute,start", 0, filter_sum, 0 },
    { "unique", "case_sensitive,attribute", 0, filter_unique, 0 },
    { 0 },
};
