/* jinja/item.c -- attributes, elements and slices, by the rules of Jinja's immutable sandbox: an attribute is
 * looked up before an element by o.x, after it by o['x'], and methods that change their object are
 * refused. */
#include "jinja/jinja_private.h"

#include <stdio.h>
#include <string.h>

/* Jinja's name of a value's type in messages. */
static const char *type_text(Value v, char out[64])
{
    const char *module = v.kind == V_NAMESPACE || v.kind == V_CYCLER || v.kind == V_JOINER ? "jinja2.utils."
                         : v.kind == V_LOOP || v.kind == V_MACRO                           ? "jinja2.runtime."
                                                                                           : "";
    if (v.kind == V_NONE) return "None";
    snprintf(out, 64, "%s%s object", module, type_name(v));
    return out;
}

static Status no_attribute(Jinja *j, Value o, Value name, Value *out)
{
    char type[64];
    return undefined(j, out, "'%s' has no attribute '%.*s'", type_text(o, type),
                     name.n > 200 ? 200 : (int)name.n, name.s);
}

static Status no_element(Jinja *j, Value o, Value key, Value *out)
{
    char   type[64];
    Buffer b = { 0 };
    TRY(buffer_repr(j, &b, key));
    return undefined(j, out, "%s has no element %.*s", type_text(o, type), b.n > 200 ? 200 : (int)b.n, b.v);
}

/* A method bound to its object. *found is false where there is none of that name. */
static Status find_method(Jinja *j, Value o, Value name, Value *out, bool *found)
{
    const Builtin *b = method_named(o, name.s, name.n);
    Method        *m;
    bool           dunder = name.n > 4 && !memcmp(name.s, "__", 2) && !memcmp(name.s + name.n - 2, "__", 2);
    *found                = b || dunder || method_is_unsafe(o, name.s, name.n);
    if (!*found) return OK;
    if (!b)
        return undefined(j, out, "access to attribute '%.*s' of '%s' object is unsafe.",
                         name.n > 200 ? 200 : (int)name.n, name.s, type_name(o));
    TAKE(j, m, 1);
    *m          = (Method){ o, b };
    return *out = (Value){ .kind = V_METHOD, .method = m }, OK;
}

static Status find_member(Jinja *j, Value o, Value name, Value *out, bool *found)
{
    if (o.kind == V_LOOP) {
        TRY(loop_attr(j, o.loop, name, out));
        *found = out->kind != V_ABSENT;
        if (*found) return OK;
    }
    if (o.kind == V_MACRO && is_text(name, "name")) return *found = true, *out = o.macro->node->value, OK;
    if (o.kind == V_CYCLER && is_text(name, "current"))
        return *found = true, *out = o.cycler->item[o.cycler->at], OK;
    return find_method(j, o, name, out, found);
}

Status get_attr(Jinja *j, Value o, Value name, Value *out)
{
    bool found;
    if (o.kind == V_UNDEFINED) return fail_undefined(o);
    TRY(find_member(j, o, name, out, &found));
    if (found) return OK;
    const Value *v = o.kind == V_DICT || o.kind == V_NAMESPACE ? dict_find(o.dict, name) : NULL;
    return v ? (*out = *v, OK) : no_attribute(j, o, name, out);
}

static Status get_index(Jinja *j, Value o, Value key, Value *out)
{
    int64_t n, i = whole(key);
    TRY(length(j, o, &n));
    if (i < 0) i += n;
    if (i < 0 || i >= n) return no_element(j, o, key, out);
    if (o.kind != V_STR) return *out = o.item[i], OK;
    TRY(spend(j, (size_t)i / 64));
    size_t at   = chars_offset(o, (size_t)i);
    return *out = str(o.s + at, char_bytes(o.s + at)), OK;
}

Status get_item(Jinja *j, Value o, Value key, Value *out)
{
    bool found = false;
    if (o.kind == V_UNDEFINED) return fail_undefined(o);
    if (o.kind == V_DICT) {
        const Value *v = dict_find(o.dict, key);
        TRY(spend(j, (size_t)o.dict->n / 8));
        if (v) return *out = *v, OK;
    }
    bool row = o.kind == V_STR || o.kind == V_LIST || o.kind == V_TUPLE || o.kind == V_RANGE;
    if (row && (key.kind == V_INT || key.kind == V_BOOL)) return get_index(j, o, key, out);
    if (key.kind == V_STR) TRY(find_member(j, o, key, out, &found));
    if (found) return OK;
    if (key.kind == V_STR && o.kind == V_NAMESPACE) return get_attr(j, o, key, out);
    return key.kind == V_STR ? no_attribute(j, o, key, out) : no_element(j, o, key, out);
}

/* Bounds of a slice of n elements, as Python's slice.indices(). */
static Status slice_bounds(const Value v[3], int64_t n, int64_t *from, int64_t *to, int64_t *step)
{
    int64_t *bound[] = { from, to };
    for (int i = 0; i < 3; i++)
        if (v[i].kind != V_NONE && v[i].kind != V_INT && v[i].kind != V_BOOL)
            return fail(E_DATA, "slice indices must be integers or None or have an __index__ method");
    *step = v[2].kind == V_NONE ? 1 : whole(v[2]);
    if (!*step) return fail(E_DATA, "slice step cannot be zero");
    if (*step < -n) *step = -n - 1;
    if (*step > n) *step = n + 1;
    int64_t low = *step < 0 ? -1 : 0, high = *step < 0 ? n - 1 : n;
    for (int i = 0; i < 2; i++) {
        int64_t x = v[i].kind == V_NONE ? ((i == 0) == (*step > 0) ? low : high) : whole(v[i]);
        if (v[i].kind != V_NONE && x < 0) x = x < -n ? low : x + n;
        *bound[i] = x < low ? low : x > high ? high : x;
    }
    return OK;
}

static Status slice_str(Jinja *j, Value o, int64_t from, int64_t to, int64_t step, Value *out)
{
    Value  chars;
    Buffer b = { 0 };
    if (step == 1) {
        if (to < from) to = from;
        size_t a    = chars_offset(o, (size_t)from);
        Value  rest = str(o.s + a, o.n - a);
        return *out = str(rest.s, chars_offset(rest, (size_t)(to - from))), OK;
    }
    TRY(iterate(j, o, &chars));
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        TRY(buffer_put(j, &b, chars.item[i].s, chars.item[i].n));
    return *out = buffer_str(&b), OK;
}

Status get_slice(Jinja *j, Value o, const Value bound[3], Value *out)
{
    int64_t n = 0, from = 0, to = 0, step = 1;
    Value  *item;
    size_t  k = 0;
    if (o.kind == V_UNDEFINED) return fail_undefined(o);
    if (o.kind == V_DICT) return fail(E_DATA, "unhashable type: 'slice'");
    if (o.kind != V_STR && o.kind != V_LIST && o.kind != V_TUPLE && o.kind != V_RANGE)
        return fail(E_DATA, "'%s' object is not subscriptable", type_name(o));
    TRY(length(j, o, &n));
    TRY(slice_bounds(bound, n, &from, &to, &step));
    TRY(spend(j, o.n / 64));
    if (o.kind == V_STR) return slice_str(j, o, from, to, step, out);
    if (o.kind == V_RANGE) {
        int64_t first = o.item[-3].i, by = o.item[-1].i;
        return new_range(j, first + from * by, first + to * by, step * by, out);
    }
    *out = o;
    if (step == 1) return out->item += from, out->n = (uint32_t)(to > from ? to - from : 0), OK;
    TAKE(j, item, o.n);
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) item[k++] = o.item[i];
    return out->item = item, out->n = (uint32_t)k, OK;
}

static Status neighbour(Jinja *j, const Loop *l, int64_t at, const char *which, Value *out)
{
    if (at >= 0 && at < l->n) return *out = l->item[at], OK;
    return undefined(j, out, "there is no %s item", which);
}

/* V_ABSENT where a loop has no such attribute. */
Status loop_attr(Jinja *j, Loop *l, Value name, Value *out)
{
    bool all = is_text(name, "length") || is_text(name, "revindex") || is_text(name, "revindex0");
    *out     = (Value){ .kind = V_ABSENT };
    if (all || is_text(name, "last") || is_text(name, "nextitem"))
        TRY(loop_pull(j, l, all ? INT64_MAX : l->at + 2));
    if (is_text(name, "previtem")) return neighbour(j, l, l->at - 1, "previous", out);
    if (is_text(name, "nextitem")) return neighbour(j, l, l->at + 1, "next", out);
    const struct {
        const char *name;
        Value       value;
    } attrs[] = {
        { "index", integer(l->at + 1) },
        { "index0", integer(l->at) },
        { "first", boolean(l->at == 0) },
        { "last", boolean(l->at + 1 == l->n) },
        { "length", integer(l->n) },
        { "revindex", integer(l->n - l->at) },
        { "revindex0", integer(l->n - l->at - 1) },
        { "depth", integer(l->depth + 1) },
        { "depth0", integer(l->depth) },
    };
    for (size_t i = 0; i < sizeof attrs / sizeof *attrs; i++)
        if (is_text(name, attrs[i].name)) *out = attrs[i].value;
    return OK;
}
