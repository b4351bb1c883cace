/* jinja/value.c -- memory of a rendering, and values: truth, equality, order, conversion from JSON. */
#include "jinja/jinja_private.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct HeapBlock {
    struct HeapBlock *next;
    _Alignas(max_align_t) char bytes[];
} HeapBlock;
enum { HEAP_BLOCK = 64 << 10 };

static bool heap_grow(Heap *h, size_t bytes)
{
    size_t     size = bytes > HEAP_BLOCK / 4 ? bytes : HEAP_BLOCK;
    HeapBlock *b    = malloc(sizeof *b + size);
    if (!b) return false;
    b->next   = h->newest;
    h->newest = b, h->at = b->bytes, h->left = size;
    return true;
}

void *heap_alloc(Heap *h, size_t bytes)
{
    if (bytes > h->limit - h->used) return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    if (bytes > h->left && !heap_grow(h, bytes)) return NULL;
    void *p = h->at;
    h->at += bytes, h->left -= bytes;
    h->used = h->used + bytes < h->limit ? h->used + bytes : h->limit;
    return memset(p, 0, bytes);
}

void heap_close(Heap *h)
{
    for (HeapBlock *b = h->newest, *next; b; b = next) next = b->next, free(b);
    *h = (Heap){ 0 };
}

Status take(Jinja *j, void *out, size_t bytes)
{
    void *p = heap_alloc(&j->heap, bytes);
    memcpy(out, &p, sizeof p);
    TRY(spend(j, bytes / 64));
    return p ? OK : fail(E_FIT, "the template takes more than %zu MiB of memory", j->heap.limit >> 20);
}

Status spend(Jinja *j, size_t steps)
{
    j->steps -= (int64_t)steps;
    if (j->steps > 0) return OK;
    return fail(E_FIT, "the template takes more steps than are allowed; it may not end");
}

Value text_of(const char *s) { return str(s, strlen(s)); }
bool  is_number(Value v) { return v.kind == V_INT || v.kind == V_FLOAT || v.kind == V_BOOL; }
bool  is_view(Value v) { return v.kind == V_KEYS || v.kind == V_VALUES || v.kind == V_ITEMS; }

bool is_sequence(Value v)
{
    return v.kind == V_LIST || v.kind == V_TUPLE || v.kind == V_RANGE || v.kind == V_GENERATOR || is_view(v);
}

bool is_text(Value v, const char *word)
{
    return v.kind == V_STR && v.n == strlen(word) && !memcmp(v.s, word, v.n);
}

int64_t whole(Value v) { return v.kind == V_BOOL ? v.b : v.i; }
double  number(Value v) { return v.kind == V_FLOAT ? v.f : (double)whole(v); }

bool truth(Value v)
{
    switch (v.kind) {
    case V_ABSENT:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.b;
    case V_INT:
        return v.i != 0;
    case V_FLOAT:
        return v.f != 0;
    case V_STR:
    case V_LIST:
    case V_TUPLE:
    case V_KEYS:
    case V_VALUES:
    case V_ITEMS:
    case V_RANGE:
        return v.n != 0;
    case V_DICT:
        return v.dict->n != 0;
    default:
        return true;
    }
}

const char *type_name(Value v)
{
    static const char *const names[] = {
        [V_ABSENT]    = "NoneType",
        [V_UNDEFINED] = "Undefined",
        [V_NONE]      = "NoneType",
        [V_BOOL]      = "bool",
        [V_INT]       = "int",
        [V_FLOAT]     = "float",
        [V_STR]       = "str",
        [V_LIST]      = "list",
        [V_TUPLE]     = "tuple",
        [V_KEYS]      = "dict_keys",
        [V_VALUES]    = "dict_values",
        [V_ITEMS]     = "dict_items",
        [V_RANGE]     = "range",
        [V_DICT]      = "dict",
        [V_GENERATOR] = "generator",
        [V_NAMESPACE] = "Namespace",
        [V_MACRO]     = "Macro",
        [V_BUILTIN]   = "function",
        [V_METHOD]    = "builtin_function_or_method",
        [V_LOOP]      = "LoopContext",
        [V_CYCLER]    = "Cycler",
        [V_JOINER]    = "Joiner",
    };
    return names[v.kind];
}

Status undefined(Jinja *j, Value *out, const char *fmt, ...)
{
    char    text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    TRY(copy_str(j, out, text, strlen(text)));
    out->kind = V_UNDEFINED;
    return OK;
}

Status fail_undefined(Value v) { return fail(E_DATA, "%.*s", (int)v.n, v.s); }

bool same(Value a, Value b)
{
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case V_NONE:
        return true;
    case V_BOOL:
        return a.b == b.b;
    case V_INT:
        return a.i == b.i;
    case V_FLOAT:
        return a.f == b.f;
    case V_STR:
        return a.n == b.n && !memcmp(a.s, b.s, a.n);
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
        return a.n == b.n && a.item == b.item;
    default:
        return a.dict == b.dict;
    }
}

static Status equal_items(Jinja *j, Value a, Value b, bool *out)
{
    *out = a.n == b.n;
    for (uint32_t i = 0; *out && i < a.n; i++) TRY(equal(j, a.item[i], b.item[i], out));
    return OK;
}

static Status equal_dicts(Jinja *j, const Dict *a, const Dict *b, bool *out)
{
    *out = a->n == b->n;
    TRY(spend(j, (size_t)a->n * (size_t)b->n / 8));
    for (int64_t i = 0; *out && i < a->n; i++) {
        const Value *other = dict_find(b, a->key[i]);
        *out               = other != NULL;
        if (other) TRY(equal(j, a->value[i], *other, out));
    }
    return OK;
}

Status equal(Jinja *j, Value a, Value b, bool *out)
{
    *out = false;
    TRY(spend(j, 1));
    if (j->depth > DEPTH) return fail(E_DATA, "maximum recursion depth exceeded in comparison");
    if (is_number(a) && is_number(b))
        return *out = a.kind == V_FLOAT || b.kind == V_FLOAT ? number(a) == number(b) : whole(a) == whole(b),
               OK;
    if (a.kind != b.kind) return OK;
    if (a.kind == V_UNDEFINED) return *out = true, OK;
    if (a.kind == V_STR) {
        TRY(spend(j, a.n == b.n ? a.n / 64 : 0));
        return *out = same(a, b), OK;
    }
    j->depth++;
    Status st = OK;
    if (a.kind == V_LIST || a.kind == V_TUPLE || a.kind == V_RANGE || a.kind == V_KEYS || a.kind == V_ITEMS)
        st = equal_items(j, a, b, out);
    else if (a.kind == V_DICT) st = equal_dicts(j, a.dict, b.dict, out);
    else *out = same(a, b);
    j->depth--;
    return st;
}

static const char *op_text(int op)
{
    static const char *const names[] = { "<", ">", "<=", ">=" };
    return names[op == '<' ? 0 : op == '>' ? 1 : op == OP_LE ? 2 : 3];
}

static bool ordered(int order, int op)
{
    return op == '<' ? order < 0 : op == '>' ? order > 0 : op == OP_LE ? order <= 0 : order >= 0;
}

/* Code points of UTF-8 sort as its bytes do. */
static int compare_bytes(Value a, Value b)
{
    int order = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
    return order ? order : a.n < b.n ? -1 : a.n > b.n;
}

static Status compare_items(Jinja *j, Value a, Value b, int op, bool *out)
{
    for (uint32_t i = 0; i < a.n && i < b.n; i++) {
        bool even;
        TRY(equal(j, a.item[i], b.item[i], &even));
        if (!even) return compare(j, a.item[i], b.item[i], op, out);
    }
    return *out = ordered(a.n < b.n ? -1 : a.n > b.n, op), OK;
}

Status compare(Jinja *j, Value a, Value b, int op, bool *out)
{
    TRY(spend(j, 1));
    if (a.kind == V_UNDEFINED) return fail_undefined(a);
    if (b.kind == V_UNDEFINED) return fail_undefined(b);
    if (is_number(a) && is_number(b)) {
        double x = number(a), y = number(b);
        bool   ints  = a.kind != V_FLOAT && b.kind != V_FLOAT;
        int    order = ints ? (whole(a) > whole(b)) - (whole(a) < whole(b)) : (x > y) - (x < y);
        return *out  = (ints || !(isnan(x) || isnan(y))) && ordered(order, op), OK;
    }
    if (a.kind == V_STR && b.kind == V_STR) {
        TRY(spend(j, (a.n < b.n ? a.n : b.n) / 64));
        return *out = ordered(compare_bytes(a, b), op), OK;
    }
    if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE)) return compare_items(j, a, b, op, out);
    return fail(E_DATA, "'%s' not supported between instances of '%s' and '%s'", op_text(op), type_name(a),
                type_name(b));
}

/* Keys are strings mostly; numbers are equal by value. */
const Value *dict_find(const Dict *d, Value key)
{
    for (int64_t i = 0; i < d->n; i++) {
        Value k = d->key[i];
        if (is_number(k) && is_number(key) ? number(k) == number(key) : same(k, key)) return &d->value[i];
    }
    return NULL;
}

static Status dict_reserve(Jinja *j, Dict *d, int64_t n)
{
    Value *key, *value;
    if (n <= d->cap) return OK;
    int64_t cap = n > 2 * d->cap ? n : 2 * d->cap;
    TAKE(j, key, cap);
    TAKE(j, value, cap);
    if (d->n)
        memcpy(key, d->key, (size_t)d->n * sizeof *key),
            memcpy(value, d->value, (size_t)d->n * sizeof *value);
    d->key = key, d->value = value, d->cap = cap;
    return OK;
}

Status dict_set(Jinja *j, Dict *d, Value key, Value value)
{
    if (key.kind == V_LIST || key.kind == V_DICT)
        return fail(E_DATA, "unhashable type: '%s'", type_name(key));
    TRY(spend(j, (size_t)d->n / 8 + 1));
    Value *old = (Value *)dict_find(d, key);
    if (old) return *old = value, OK;
    TRY(dict_reserve(j, d, d->n + 1));
    d->key[d->n] = key, d->value[d->n++] = value;
    return OK;
}

Status dict_new(Jinja *j, Dict **d)
{
    TAKE(j, *d, 1);
    (*d)->item = -1;
    return OK;
}

static Status from_object(Jinja *j, Value *out, const Json *v)
{
    const char *key;
    size_t      len;
    Json       *value;
    Dict       *d;
    TRY(dict_new(j, &d));
    TRY(dict_reserve(j, d, (int64_t)json_object_size(v)));
    json_object_keylen_foreach((Json *)v, key, len, value)
    {
        d->key[d->n] = str(key, len);
        TRY(from_json(j, &d->value[d->n++], value));
    }
    *out = (Value){ .kind = V_DICT, .dict = d };
    return OK;
}

static Status from_array(Jinja *j, Value *out, const Json *v)
{
    size_t n = json_array_size(v);
    Value *item;
    TAKE(j, item, n);
    for (size_t i = 0; i < n; i++) TRY(from_json(j, &item[i], json_array_get(v, i)));
    return *out = list(item, n), OK;
}

/* Texts stay where they are: the JSON outlives the rendering. */
Status from_json(Jinja *j, Value *out, const Json *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return from_object(j, out, v);
    case JSON_ARRAY:
        return from_array(j, out, v);
    case JSON_STRING:
        if (json_string_length(v) > UINT32_MAX) return fail(E_FIT, "a text of more than 4 GiB");
        return *out = str(json_string_value(v), json_string_length(v)), OK;
    case JSON_INTEGER:
        return *out = integer(json_integer_value(v)), OK;
    case JSON_REAL:
        return *out = real(json_real_value(v)), OK;
    case JSON_TRUE:
        return *out = boolean(true), OK;
    case JSON_FALSE:
        return *out = boolean(false), OK;
    default:
        return *out = none(), OK;
    }
}

Status length(Jinja *j, Value v, int64_t *n)
{
    switch (v.kind) {
    case V_STR:
        TRY(spend(j, v.n / 64));
        return *n = (int64_t)chars_count(v), OK;
    case V_LIST:
    case V_TUPLE:
    case V_KEYS:
    case V_VALUES:
    case V_ITEMS:
    case V_RANGE:
        return *n = v.n, OK;
    case V_DICT:
        return *n = v.dict->n, OK;
    case V_LOOP:
        TRY(loop_pull(j, v.loop, INT64_MAX));
        return *n = v.loop->n, OK;
    case V_UNDEFINED:
        return *n = 0, OK;
    default:
        return fail(E_DATA, "object of type '%s' has no len()", type_name(v));
    }
}

static Status iterate_str(Jinja *j, Value s, Value *out)
{
    Value *item;
    size_t n = chars_count(s);
    TAKE(j, item, n);
    for (size_t i = 0, at = 0; i < n; i++) {
        size_t bytes = char_bytes(s.s + at);
        item[i]      = str(s.s + at, bytes), at += bytes;
    }
    return *out = list(item, n), OK;
}

Status iterate(Jinja *j, Value v, Value *out)
{
    TRY(spend(j, 1));
    if (v.kind == V_GENERATOR) {
        const char *error = v.generator->error;
        *out              = list(v.generator->item, v.generator->n);
        *v.generator      = (ValueStream){ 0 };
        return error ? fail(E_DATA, "%s", error) : OK;
    }
    if (is_sequence(v)) return *out = list(v.item, v.n), OK;
    if (v.kind == V_STR) return iterate_str(j, v, out);
    if (v.kind == V_DICT) return *out = list(v.dict->key, (size_t)v.dict->n), OK;
    if (v.kind == V_UNDEFINED) return *out = list(NULL, 0), OK;
    return fail(E_DATA, "'%s' object is not iterable", type_name(v));
}

Status copy_str(Jinja *j, Value *out, const char *s, size_t n)
{
    char *copy;
    if (n > UINT32_MAX) return fail(E_FIT, "a text of more than 4 GiB");
    TAKE(j, copy, n + 1);
    if (n) memcpy(copy, s, n);
    return *out = str(copy, n), OK;
}

Status join_str(Jinja *j, Value *out, const Value *v, int n)
{
    size_t bytes = 0, at = 0;
    char  *copy;
    for (int i = 0; i < n; i++) bytes += v[i].n;
    if (bytes > UINT32_MAX) return fail(E_FIT, "a text of more than 4 GiB");
    TAKE(j, copy, bytes + 1);
    for (int i = 0; i < n; at += v[i++].n)
        if (v[i].n) memcpy(copy + at, v[i].s, v[i].n);
    return *out = str(copy, bytes), OK;
}
