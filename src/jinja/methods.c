/* jinja/methods.c -- methods of lists, dicts, loops and cyclers, and the table of all methods. */
#include "jinja/jinja_private.h"

#include <math.h>
#include <string.h>

#define METHOD(f) static Status f(Jinja *j, Value self, const Value *a, Value *out)

METHOD(list_count)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < self.n; i++) {
        bool yes;
        TRY(equal(j, self.item[i], a[0], &yes));
        n += yes;
    }
    return *out = integer(n), OK;
}

METHOD(list_index)
{
    Buffer b = { 0 };
    for (uint32_t i = 0; i < self.n; i++) {
        bool yes;
        TRY(equal(j, self.item[i], a[0], &yes));
        if (yes) return *out = integer(i), OK;
    }
    TRY(buffer_repr(j, &b, a[0]));
    return fail(E_DATA, "%.*s is not in list", b.n > 200 ? 200 : (int)b.n, b.v);
}

METHOD(copy_self) { return *out = self, OK; }

METHOD(dict_items)
{
    Value *pair, *row;
    TAKE(j, pair, self.dict->n);
    TAKE(j, row, 2 * self.dict->n);
    for (int64_t i = 0; i < self.dict->n; i++) {
        row[2 * i] = self.dict->key[i], row[2 * i + 1] = self.dict->value[i];
        pair[i] = list(row + 2 * i, 2), pair[i].kind = V_TUPLE;
    }
    *out             = list(pair, (size_t)self.dict->n);
    return out->kind = V_ITEMS, OK;
}

METHOD(dict_keys)
{
    *out             = list(self.dict->key, (size_t)self.dict->n);
    return out->kind = V_KEYS, OK;
}

METHOD(dict_values)
{
    *out             = list(self.dict->value, (size_t)self.dict->n);
    return out->kind = V_VALUES, OK;
}

METHOD(dict_get)
{
    const Value *v = dict_find(self.dict, a[0]);
    TRY(spend(j, (size_t)self.dict->n / 8));
    return *out = v ? *v : a[1].kind == V_ABSENT ? none() : a[1], OK;
}

METHOD(float_is_integer) { return *out = boolean(self.kind != V_FLOAT || floor(self.f) == self.f), OK; }

static Status loop_cycle(Jinja *j, Value self, const Args *a, Value *out)
{
    if (!a->n) return fail(E_DATA, "no items for cycling given");
    return *out = a->v[self.loop->at % a->n], OK;
}

static Status loop_changed(Jinja *j, Value self, const Args *a, Value *out)
{
    Value now  = list(a->v, (size_t)a->n);
    bool  even = false;
    if (self.loop->changed.kind == V_LIST) TRY(equal(j, now, self.loop->changed, &even));
    self.loop->changed = now;
    return *out        = boolean(!even), OK;
}

METHOD(cycler_next)
{
    *out                   = self.cycler->item[self.cycler->at];
    return self.cycler->at = (self.cycler->at + 1) % self.cycler->n, OK;
}
METHOD(cycler_reset) { return self.cycler->at = 0, *out = none(), OK; }

static const Builtin list_methods[] = {
    { "count", "value", 1, list_count, 0 },
    { "index", "value", 1, list_index, 0 },
    { "copy", "", 0, copy_self, 0 },
    { 0 },
};
static const Builtin dict_methods[] = {
    { "items", "", 0, dict_items, 0 },   { "keys", "", 0, dict_keys, 0 },
    { "values", "", 0, dict_values, 0 }, { "get", "key,default", 1, dict_get, 0 },
    { "copy", "", 0, copy_self, 0 },     { 0 },
};
static const Builtin number_methods[] = { { "is_integer", "", 0, float_is_integer, 0 }, { 0 } };
static const Builtin loop_methods[]   = {
      { .name = "cycle", .raw = loop_cycle },
      { .name = "changed", .raw = loop_changed },
      { 0 },
};
static const Builtin cycler_methods[] = {
    { "next", "", 0, cycler_next, 0 },
    { "reset", "", 0, cycler_reset, 0 },
    { 0 },
};

const Builtin *builtin_named(const Builtin *table, const char *name, size_t len)
{
    for (; table->name; table++)
        if (strlen(table->name) == len && !memcmp(table->name, name, len)) return table;
    return NULL;
}

const Builtin *method_named(Value self, const char *name, size_t len)
{
    switch (self.kind) {
    case V_STR:
        if (len == 6 && !memcmp(name, "format", 6)) return &method_format;
        return builtin_named(str_methods, name, len);
    case V_TUPLE:
    case V_RANGE:
        if (len == 4 && !memcmp(name, "copy", 4)) return NULL;
        return builtin_named(list_methods, name, len);
    case V_LIST:
        return builtin_named(list_methods, name, len);
    case V_DICT:
        return builtin_named(dict_methods, name, len);
    case V_BUILTIN:
        if (len != 8 || memcmp(name, "fromkeys", 8)) return NULL;
        return self.builtin == global_named("dict", 4) ? &method_fromkeys : NULL;
    case V_FLOAT:
        return builtin_named(number_methods, name, len);
    case V_LOOP:
        return builtin_named(loop_methods, name, len);
    case V_CYCLER:
        return builtin_named(cycler_methods, name, len);
    default:
        return NULL;
    }
}

/* The methods that change a list or a dict. */
bool method_is_unsafe(Value self, const char *name, size_t len)
{
    static const char *const of_list[] = { "append", "clear",  "pop",    "reverse", "insert",
                                           "sort",   "extend", "remove", NULL };
    static const char *const of_dict[] = { "clear", "pop", "popitem", "setdefault", "update", NULL };
    const char *const       *names     = self.kind == V_LIST ? of_list : self.kind == V_DICT ? of_dict : NULL;
    for (; names && *names; names++)
        if (strlen(*names) == len && !memcmp(*names, name, len)) return true;
    return false;
}
