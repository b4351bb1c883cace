/* jinja/tojson.c -- the filter tojson: json.dumps with its arguments. */
#include "jinja/jinja_private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct Dump {
    Jinja *j;
    Buffer b;
    bool   ascii, sort;
    Value  indent, comma, colon; /* indent: V_ABSENT or the text of one level */
    int    level;
} Dump;

static Status dump(Dump *d, Value v);

static Status put_char(Dump *d, const char *s, int32_t c)
{
    char text[16];
    if (c == '"' || c == '\\') snprintf(text, sizeof text, "\\%c", (char)c);
    else if (c < 32) {
        const char *named = c == '\n'   ? "\\n"
                            : c == '\t' ? "\\t"
                            : c == '\r' ? "\\r"
                            : c == '\b' ? "\\b"
                            : c == '\f' ? "\\f"
                                        : NULL;
        if (named) return buffer_puts(d->j, &d->b, named);
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    } else if (c < 0x7f || !d->ascii) return buffer_put(d->j, &d->b, s, char_bytes(s));
    else if (c == 0x7f) return buffer_put(d->j, &d->b, s, 1);
    else if (c < 0x10000) snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + (((unsigned)c - 0x10000) >> 10),
                 0xdc00 + (((unsigned)c - 0x10000) & 0x3ff));
    return buffer_puts(d->j, &d->b, text);
}

static Status put_string(Dump *d, Value v)
{
    TRY(buffer_puts(d->j, &d->b, "\""));
    for (uint32_t at = 0; at < v.n; at += (uint32_t)char_bytes(v.s + at))
        TRY(put_char(d, v.s + at, char_at(v.s + at)));
    return buffer_puts(d->j, &d->b, "\"");
}

static Status put_line(Dump *d)
{
    if (d->indent.kind != V_STR) return OK;
    TRY(buffer_puts(d->j, &d->b, "\n"));
    for (int i = 0; i < d->level; i++) TRY(buffer_put(d->j, &d->b, d->indent.s, d->indent.n));
    return OK;
}

static Status put_number(Dump *d, Value v)
{
    if (v.kind == V_FLOAT && isnan(v.f)) return buffer_puts(d->j, &d->b, "NaN");
    if (v.kind == V_FLOAT && isinf(v.f)) return buffer_puts(d->j, &d->b, v.f < 0 ? "-Infinity" : "Infinity");
    return buffer_number(d->j, &d->b, v);
}

static Status put_key(Dump *d, Value k)
{
    if (k.kind == V_STR) return put_string(d, k);
    if (k.kind != V_NONE && !is_number(k))
        return fail(E_DATA, "keys must be str, int, float, bool or None, not %s", type_name(k));
    TRY(buffer_puts(d->j, &d->b, "\""));
    TRY(dump(d, k));
    return buffer_puts(d->j, &d->b, "\"");
}

/* The order of the keys: an array of indices, sorted where the caller asks for it. */
static Status key_order(Dump *d, const Dict *o, int64_t **order)
{
    TAKE(d->j, *order, o->n + 1);
    for (int64_t i = 0; i < o->n; i++) {
        int64_t k    = i;
        bool    less = d->sort;
        for (; k > 0 && less; k--) {
            TRY(compare(d->j, o->key[i], o->key[(*order)[k - 1]], '<', &less));
            if (!less) break;
            (*order)[k] = (*order)[k - 1];
        }
        (*order)[k] = i;
    }
    return OK;
}

static Status put_dict(Dump *d, const Dict *o)
{
    int64_t *order;
    if (!o->n) return buffer_puts(d->j, &d->b, "{}");
    TRY(key_order(d, o, &order));
    TRY(buffer_puts(d->j, &d->b, "{"));
    d->level++;
    for (int64_t i = 0; i < o->n; i++) {
        if (i) TRY(buffer_put(d->j, &d->b, d->comma.s, d->comma.n));
        TRY(put_line(d));
        TRY(put_key(d, o->key[order[i]]));
        TRY(buffer_put(d->j, &d->b, d->colon.s, d->colon.n));
        TRY(dump(d, o->value[order[i]]));
    }
    d->level--;
    TRY(put_line(d));
    return buffer_puts(d->j, &d->b, "}");
}

static Status put_list(Dump *d, Value v)
{
    if (!v.n) return buffer_puts(d->j, &d->b, "[]");
    TRY(buffer_puts(d->j, &d->b, "["));
    d->level++;
    for (uint32_t i = 0; i < v.n; i++) {
        if (i) TRY(buffer_put(d->j, &d->b, d->comma.s, d->comma.n));
        TRY(put_line(d));
        TRY(dump(d, v.item[i]));
    }
    d->level--;
    TRY(put_line(d));
    return buffer_puts(d->j, &d->b, "]");
}

static Status dump(Dump *d, Value v)
{
    TRY(spend(d->j, 1));
    if (d->level > DEPTH)
        return fail(E_DATA, "maximum recursion depth exceeded while encoding a JSON object");
    switch (v.kind) {
    case V_NONE:
        return buffer_puts(d->j, &d->b, "null");
    case V_BOOL:
        return buffer_puts(d->j, &d->b, v.b ? "true" : "false");
    case V_INT:
    case V_FLOAT:
        return put_number(d, v);
    case V_STR:
        return put_string(d, v);
    case V_LIST:
    case V_TUPLE:
        return put_list(d, v);
    case V_DICT:
        return put_dict(d, v.dict);
    default:
        return fail(E_DATA, "Object of type %s is not JSON serializable", type_name(v));
    }
}

static Status read_indent(Dump *d, Value v)
{
    static const char spaces[] = "                                                                ";
    if (v.kind == V_STR) return d->indent = v, OK;
    if (!is_number(v) || v.kind == V_FLOAT) return OK;
    int64_t n = whole(v) < 0 ? 0 : whole(v);
    if (n > 64) return fail(E_DATA, "tojson: an indent of more than 64");
    return d->indent = str(spaces, (size_t)n), OK;
}

/* tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) */
Status filter_tojson(Jinja *j, Value self, const Value *a, Value *out)
{
    Dump d = { .j = j, .ascii = truth(a[0]), .sort = truth(a[3]), .colon = text_of(": ") };
    TRY(read_indent(&d, a[1]));
    d.comma = text_of(d.indent.kind == V_STR ? "," : ", ");
    bool row = a[2].kind == V_LIST || a[2].kind == V_TUPLE;
    if (row && a[2].n == 2 && a[2].item[0].kind == V_STR && a[2].item[1].kind == V_STR)
        d.comma = a[2].item[0], d.colon = a[2].item[1];
    TRY(dump(&d, self));
    return *out = buffer_str(&d.b), OK;
}
