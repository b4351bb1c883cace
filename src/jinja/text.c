/* jinja/text.c -- buffers, and the texts of values as Python's str() and repr() write them. */
#include "jinja/jinja_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Status buffer_put(Jinja *j, Buffer *b, const char *s, size_t n)
{
    if (n > b->cap - b->n) {
        size_t cap = b->n + n > 2 * b->cap ? b->n + n : 2 * b->cap;
        char  *more;
        if (cap > UINT32_MAX) return fail(E_FIT, "a text of more than 4 GiB");
        TAKE(j, more, cap);
        if (b->n) memcpy(more, b->v, b->n);
        b->v = more, b->cap = cap;
    }
    if (n) memcpy(b->v + b->n, s, n);
    b->n += n;
    return OK;
}

Status buffer_puts(Jinja *j, Buffer *b, const char *s) { return buffer_put(j, b, s, strlen(s)); }

/* The fewest digits that read back as v; an exponent below 1e-4 and from 1e16 on. */
static void float_text(char out[40], double v)
{
    int digits = 1;
    if (isnan(v) || isinf(v)) {
        strcpy(out, isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
        return;
    }
    while (snprintf(out, 40, "%.*e", digits - 1, v), digits < 17 && strtod(out, NULL) != v) digits++;
    int exponent = atoi(strchr(out, 'e') + 1), decimals = digits - 1 - exponent;
    if (exponent >= -4 && exponent < 16) snprintf(out, 40, "%.*f", decimals > 1 ? decimals : 1, v);
}

Status buffer_number(Jinja *j, Buffer *b, Value v)
{
    char text[40];
    if (v.kind == V_FLOAT) float_text(text, v.f);
    else snprintf(text, sizeof text, "%lld", (long long)v.i);
    return buffer_puts(j, b, text);
}

static Status repr_char(Jinja *j, Buffer *b, const char *s, int32_t c, char quote)
{
    char text[16];
    if (c == quote || c == '\\') snprintf(text, sizeof text, "\\%c", (char)c);
    else if (c == '\n') strcpy(text, "\\n");
    else if (c == '\r') strcpy(text, "\\r");
    else if (c == '\t') strcpy(text, "\\t");
    else if (c >= ' ' && c != 0x7f && char_is(c, "print")) return buffer_put(j, b, s, char_bytes(s));
    else snprintf(text, sizeof text, c < 256 ? "\\x%02x" : c < 65536 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    return buffer_puts(j, b, text);
}

static Status repr_str(Jinja *j, Buffer *b, Value v)
{
    if (v.markup) TRY(buffer_puts(j, b, "Markup("));
    char quote = memchr(v.s, '\'', v.n) && !memchr(v.s, '"', v.n) ? '"' : '\'';
    TRY(buffer_put(j, b, &quote, 1));
    for (uint32_t at = 0; at < v.n; at += (uint32_t)char_bytes(v.s + at))
        TRY(repr_char(j, b, v.s + at, char_at(v.s + at), quote));
    TRY(buffer_put(j, b, &quote, 1));
    return buffer_puts(j, b, v.markup ? ")" : "");
}

static Status repr_range(Jinja *j, Buffer *b, const Value *bound)
{
    char text[80], step[24] = "";
    if (bound[2].i != 1) snprintf(step, sizeof step, ", %lld", (long long)bound[2].i);
    snprintf(text, sizeof text, "range(%lld, %lld%s)", (long long)bound[0].i, (long long)bound[1].i, step);
    return buffer_puts(j, b, text);
}

static Status repr_items(Jinja *j, Buffer *b, Value v)
{
    TRY(buffer_puts(j, b, is_view(v) ? type_name(v) : ""));
    TRY(buffer_puts(j, b, is_view(v) ? "([" : v.kind == V_LIST ? "[" : "("));
    for (uint32_t i = 0; i < v.n; i++) {
        if (i) TRY(buffer_puts(j, b, ", "));
        TRY(buffer_repr(j, b, v.item[i]));
    }
    return buffer_puts(j, b, is_view(v) ? "])" : v.kind == V_LIST ? "]" : v.n == 1 ? ",)" : ")");
}

static Status repr_dict(Jinja *j, Buffer *b, const Dict *d)
{
    TRY(buffer_puts(j, b, "{"));
    for (int64_t i = 0; i < d->n; i++) {
        if (i) TRY(buffer_puts(j, b, ", "));
        TRY(buffer_repr(j, b, d->key[i]));
        TRY(buffer_puts(j, b, ": "));
        TRY(buffer_repr(j, b, d->value[i]));
    }
    return buffer_puts(j, b, "}");
}

static Status repr_other(Jinja *j, Buffer *b, Value v)
{
    char text[128];
    if (v.kind == V_MACRO)
        snprintf(text, sizeof text, "<Macro '%.*s'>", (int)v.macro->node->value.n, v.macro->node->value.s);
    else if (v.kind == V_LOOP)
        snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)v.loop->at + 1,
                 (long long)v.loop->n);
    else snprintf(text, sizeof text, "<%s object>", type_name(v));
    return buffer_puts(j, b, text);
}

static Status repr_nested(Jinja *j, Buffer *b, Value v)
{
    if (v.kind == V_LIST || v.kind == V_TUPLE || is_view(v)) return repr_items(j, b, v);
    if (v.kind == V_DICT) return repr_dict(j, b, v.dict);
    if (v.kind == V_RANGE) return repr_range(j, b, v.item - 3);
    if (v.kind != V_NAMESPACE) return repr_other(j, b, v);
    TRY(buffer_puts(j, b, "<Namespace "));
    TRY(repr_dict(j, b, v.dict));
    return buffer_puts(j, b, ">");
}

Status buffer_repr(Jinja *j, Buffer *b, Value v)
{
    TRY(spend(j, 1));
    switch (v.kind) {
    case V_STR:
        return repr_str(j, b, v);
    case V_UNDEFINED:
        return buffer_puts(j, b, "Undefined");
    case V_ABSENT:
    case V_NONE:
        return buffer_puts(j, b, "None");
    case V_BOOL:
        return buffer_puts(j, b, v.b ? "True" : "False");
    case V_INT:
    case V_FLOAT:
        return buffer_number(j, b, v);
    default:
        break;
    }
    if (j->depth > DEPTH)
        return fail(E_DATA, "maximum recursion depth exceeded while getting the repr of an object");
    j->depth++;
    Status st = repr_nested(j, b, v);
    j->depth--;
    return st;
}

Status buffer_value(Jinja *j, Buffer *b, Value v)
{
    if (v.kind == V_STR) return buffer_put(j, b, v.s, v.n);
    return v.kind == V_UNDEFINED ? OK : buffer_repr(j, b, v);
}

Status to_str(Jinja *j, Value *out, Value v)
{
    Buffer b = { 0 };
    if (v.kind == V_STR) return *out = v, OK;
    TRY(buffer_value(j, &b, v));
    return *out = buffer_str(&b), OK;
}

static Status span_push(Jinja *j, size_t from, size_t to)
{
    JinjaText *t    = j->text;
    JinjaSpan *last = t->spans ? &t->span[t->spans - 1] : NULL;
    if (last && last->item == j->item && last->generation == j->generating) return last->to = to, OK;
    if (t->spans == j->span_cap) {
        JinjaSpan *more;
        int        cap = j->span_cap ? 2 * j->span_cap : 64;
        TAKE(j, more, cap);
        if (t->spans) memcpy(more, t->span, (size_t)t->spans * sizeof *more);
        t->span = more, j->span_cap = cap;
    }
    t->span[t->spans++] = (JinjaSpan){ from, to, j->item, j->generating };
    return OK;
}

Status write_text(Jinja *j, const char *s, size_t n)
{
    size_t from = j->out->n;
    if (!n) return OK;
    TRY(buffer_put(j, j->out, s, n));
    return j->out->outer ? OK : span_push(j, from, j->out->n);
}
