/* jinja/filters.c -- filters on one value: texts, numbers, defaults. filters_items.c has those on
 * sequences. */
#include "jinja/jinja_private.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(f) static Status f(Jinja *j, Value self, const Value *a, Value *out)

static Status with_case(Jinja *j, Value self, LetterCase how, Value *out)
{
    TRY(to_str(j, &self, self));
    return change_case(j, out, self, how);
}
FILTER(filter_lower) { return with_case(j, self, CASE_LOWER, out); }
FILTER(filter_upper) { return with_case(j, self, CASE_UPPER, out); }
FILTER(filter_capitalize) { return with_case(j, self, CASE_CAPITAL, out); }

static bool starts_word(int32_t c)
{
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || char_is_space(c);
}

/* Words begin after white space, - and opening brackets; an apostrophe begins none. */
FILTER(filter_title)
{
    Buffer b = { 0 };
    TRY(to_str(j, &self, self));
    for (uint32_t at = 0, n; at < self.n; at += n) {
        Value changed;
        n = (uint32_t)char_bytes(self.s + at);
        TRY(change_case(j, &changed, str(self.s + at, n), CASE_UPPER));
        TRY(buffer_put(j, &b, changed.s, changed.n));
        const char *rest = self.s + at + n;
        if (starts_word(char_at(self.s + at))) continue;
        while (at + n < self.n && !starts_word(char_at(self.s + at + n)))
            n += (uint32_t)char_bytes(self.s + at + n);
        TRY(change_case(j, &changed, str(rest, (size_t)(self.s + at + n - rest)), CASE_LOWER));
        TRY(buffer_put(j, &b, changed.s, changed.n));
    }
    return *out = buffer_str(&b), OK;
}

FILTER(filter_trim)
{
    TRY(to_str(j, &self, self));
    return strip(j, self, a[0], true, true, out);
}

FILTER(filter_replace)
{
    Value   from, to;
    int64_t most = -1;
    TRY(to_str(j, &self, self));
    TRY(to_str(j, &from, a[0]));
    TRY(to_str(j, &to, a[1]));
    if (a[2].kind != V_ABSENT && a[2].kind != V_NONE) TRY(want_int(a[2], &most));
    return replace_str(j, self, from, to, most, out);
}

FILTER(filter_string) { return to_str(j, out, self); }

FILTER(filter_safe)
{
    TRY(to_str(j, out, self));
    return out->markup = true, OK;
}

FILTER(filter_escape)
{
    TRY(to_str(j, &self, self));
    return escape_str(j, self, out);
}

FILTER(filter_forceescape)
{
    TRY(to_str(j, &self, self));
    self.markup = false;
    return escape_str(j, self, out);
}

FILTER(filter_length)
{
    int64_t n;
    TRY(length(j, self, &n));
    return *out = integer(n), OK;
}

FILTER(filter_default)
{
    bool absent = self.kind == V_UNDEFINED || (truth(a[1]) && !truth(self));
    return *out = !absent ? self : a[0].kind == V_ABSENT ? text_of("") : a[0], OK;
}

FILTER(filter_abs)
{
    if (self.kind == V_UNDEFINED) return fail_undefined(self);
    if (!is_number(self)) return fail(E_DATA, "bad operand type for abs(): '%s'", type_name(self));
    if (self.kind == V_FLOAT) return *out = real(fabs(self.f)), OK;
    if (whole(self) == INT64_MIN) return fail(E_DATA, "an integer that is too large");
    return *out = integer(whole(self) < 0 ? -whole(self) : whole(self)), OK;
}

/* The whole text as a number, white space around it aside. */
static bool read_number(Value s, int base, bool fraction, Value *out)
{
    char   text[400], *end;
    size_t before = space_after(s.s, s.n), n = s.n - before;
    n -= space_before(s.s + before, n);
    if (!n || n >= sizeof text) return false;
    memcpy(text, s.s + before, n), text[n] = 0;
    if (strlen(text) != n || (fraction && (strpbrk(text, "xXpP")))) return false;
    if (fraction) *out = real(strtod(text, &end));
    else {
        errno = 0;
        *out  = integer(strtoll(text, &end, base));
        if (errno == ERANGE) return false;
    }
    return !*end;
}

static bool fits_int(double f) { return f > -9.2e18 && f < 9.2e18; }

FILTER(filter_int)
{
    int64_t base = 10;
    Value   v;
    *out = a[0].kind == V_ABSENT ? integer(0) : a[0];
    if (self.kind == V_UNDEFINED) return fail_undefined(self);
    if (a[1].kind != V_ABSENT) TRY(want_int(a[1], &base));
    if (self.kind == V_FLOAT && !fits_int(self.f)) return fail(E_DATA, "an integer that is too large");
    if (self.kind == V_FLOAT) return *out = integer((int64_t)self.f), OK;
    if (self.kind == V_INT || self.kind == V_BOOL) return *out = integer(whole(self)), OK;
    if (self.kind != V_STR || base < 2 || base > 36) return OK;
    if (read_number(self, (int)base, false, &v)) return *out = v, OK;
    if (!read_number(self, 10, true, &v)) return OK;
    if (isfinite(v.f) && !fits_int(v.f)) return fail(E_DATA, "an integer that is too large");
    if (isfinite(v.f)) *out = integer((int64_t)v.f);
    return OK;
}

FILTER(filter_float)
{
    *out = a[0].kind == V_ABSENT ? real(0) : a[0];
    if (self.kind == V_UNDEFINED) return fail_undefined(self);
    if (is_number(self)) return *out = real(number(self)), OK;
    Value v;
    if (self.kind == V_STR && read_number(self, 10, true, &v)) *out = v;
    return OK;
}

FILTER(filter_round)
{
    int64_t precision = 0;
    char    text[400];
    if (self.kind == V_UNDEFINED) return fail_undefined(self);
    if (!is_number(self)) return fail(E_DATA, "type %s doesn't define __round__ method", type_name(self));
    if (a[0].kind != V_ABSENT) TRY(want_int(a[0], &precision));
    if (precision < -15 || precision > 60)
        return fail(E_DATA, "round: a precision between -15 and 60 is read here");
    double scale = pow(10, (double)precision), v = number(self);
    if (is_text(a[1], "ceil")) return *out = real(ceil(v * scale) / scale), OK;
    if (is_text(a[1], "floor")) return *out = real(floor(v * scale) / scale), OK;
    if (a[1].kind != V_ABSENT && !is_text(a[1], "common"))
        return fail(E_DATA, "method must be common, ceil or floor");
    if (self.kind != V_FLOAT && precision >= 0) return *out = integer(whole(self)), OK;
    if (precision < 0) v = rint(v * scale) / scale;
    else {
        snprintf(text, sizeof text, "%.*f", (int)precision, v);
        v = strtod(text, NULL);
    }
    return *out = self.kind == V_FLOAT ? real(v) : integer((int64_t)v), OK;
}

static Status spaces(Jinja *j, int64_t n, Value *out)
{
    return pad_str(j, str("", 0), n, 0, text_of(" "), out);
}

FILTER(filter_indent)
{
    Value   by    = a[0], lines;
    int64_t width = 4;
    Buffer  b     = { 0 };
    if (self.kind == V_UNDEFINED) return fail_undefined(self);
    if (self.kind != V_STR)
        return fail(E_DATA, "unsupported operand type(s) for +=: '%s' and 'str'", type_name(self));
    if (by.kind != V_STR) {
        if (by.kind != V_ABSENT) TRY(want_int(by, &width));
        TRY(spaces(j, width, &by));
    }
    Value both[] = { self, text_of("\n") };
    TRY(join_str(j, &self, both, 2));
    TRY(split_lines(j, self, false, &lines));
    for (uint32_t i = 0; i < lines.n; i++) {
        bool indented = i ? lines.item[i].n || truth(a[2]) : truth(a[1]);
        if (i) TRY(buffer_puts(j, &b, "\n"));
        if (indented) TRY(buffer_put(j, &b, by.s, by.n));
        TRY(buffer_put(j, &b, lines.item[i].s, lines.item[i].n));
    }
    return *out = buffer_str(&b), OK;
}

FILTER(filter_truncate)
{
    int64_t most = 255, leeway = 5;
    Value   end = a[2].kind == V_STR ? a[2] : text_of("...");
    if (self.kind != V_STR && !is_sequence(self) && self.kind != V_DICT && self.kind != V_UNDEFINED)
        return fail(E_DATA, "object of type '%s' has no len()", type_name(self));
    Value source = self;
    TRY(to_str(j, &self, self));
    if (a[0].kind != V_ABSENT) TRY(want_int(a[0], &most));
    if (a[3].kind != V_ABSENT && a[3].kind != V_NONE) TRY(want_int(a[3], &leeway));
    if (most > UINT32_MAX) most = UINT32_MAX;
    if (leeway > UINT32_MAX) leeway = UINT32_MAX;
    int64_t last = (int64_t)chars_count(end);
    if (most < last || leeway < 0)
        return fail(E_DATA, "expected length >= %lld, got %lld", (long long)last, (long long)most);
    if ((int64_t)chars_count(self) <= most + leeway)
        return *out = source.kind == V_UNDEFINED ? source : self, OK;
    self.n            = (uint32_t)chars_offset(self, (size_t)(most - last));
    const char *blank = truth(a[1]) ? NULL : memrchr(self.s, ' ', self.n);
    if (blank) self.n = (uint32_t)(blank - self.s);
    return join_str(j, out, (Value[]){ self, end }, 2);
}

FILTER(filter_center)
{
    int64_t width = 80, n;
    TRY(to_str(j, &self, self));
    if (a[0].kind != V_ABSENT) TRY(want_int(a[0], &width));
    n           = (int64_t)chars_count(self);
    int64_t all = width > n ? width - n : 0, left = all / 2 + (all & width & 1);
    return pad_str(j, self, left, all - left, text_of(" "), out);
}

FILTER(filter_wordcount)
{
    int64_t words  = 0;
    bool    inside = false;
    TRY(to_str(j, &self, self));
    for (uint32_t at = 0; at < self.n; at += (uint32_t)char_bytes(self.s + at)) {
        int32_t c    = char_at(self.s + at);
        bool    word = c == '_' || char_is(c, "alpha") || char_is(c, "numeric");
        words += word && !inside;
        inside = word;
    }
    return *out = integer(words), OK;
}

/* safe: signs that stay; in a query a blank is a plus. */
static Status put_quoted(Jinja *j, Buffer *b, Value v, const char *safe, bool query)
{
    char code[4];
    TRY(to_str(j, &v, v));
    for (uint32_t i = 0; i < v.n; i++) {
        unsigned char c = (unsigned char)v.s[i];
        snprintf(code, sizeof code, isalnum(c) || (c && strchr(safe, c)) ? "%c" : "%%%02X", c);
        TRY(buffer_puts(j, b, query && c == ' ' ? "+" : code));
    }
    return OK;
}

/* A text, or the query of a mapping or of pairs. */
FILTER(filter_urlencode)
{
    Buffer b = { 0 };
    Value  items, pair;
    if (self.kind != V_DICT && !is_sequence(self)) {
        TRY(put_quoted(j, &b, self, "_.-~/", false));
        return *out = buffer_str(&b), OK;
    }
    if (self.kind == V_DICT) TRY(call_builtin(j, method_named(self, "items", 5), self, &(Args){ 0 }, &self));
    TRY(iterate(j, self, &items));
    for (uint32_t i = 0; i < items.n; i++) {
        TRY(unpack(j, items.item[i], 2, &pair));
        if (i) TRY(buffer_puts(j, &b, "&"));
        TRY(put_quoted(j, &b, pair.item[0], "_.-~", true));
        TRY(buffer_puts(j, &b, "="));
        TRY(put_quoted(j, &b, pair.item[1], "_.-~", true));
    }
    return *out = buffer_str(&b), OK;
}

static Status filter_format(Jinja *j, Value self, const Args *a, Value *out)
{
    if (a->n && a->names)
        return fail(E_DATA, "can't handle positional and keyword arguments at the same time");
    TRY(to_str(j, &self, self));
    return format_percent(j, self, a, out);
}

/* An attribute, never an element. */
FILTER(filter_attr)
{
    TRY(want_str(a[0]));
    if (self.kind == V_DICT && dict_find(self.dict, a[0]) && !method_named(self, a[0].s, a[0].n))
        return undefined(j, out, "'dict object' has no attribute '%.*s'", (int)a[0].n, a[0].s);
    return get_attr(j, self, a[0], out);
}

static const Builtin filters[] = {
    { "abs", "", 0, filter_abs, 0 },
    { "attr", "name", 1, filter_attr, 0 },
    { "capitalize", "", 0, filter_capitalize, 0 },
    { "center", "width", 0, filter_center, 0 },
    { "count", "", 0, filter_length, 0 },
    { "length", "", 0, filter_length, 0 },
    { "d", "default_value,boolean", 0, filter_default, 0 },
    { "default", "default_value,boolean", 0, filter_default, 0 },
    { "e", "", 0, filter_escape, 0 },
    { "escape", "", 0, filter_escape, 0 },
    { "forceescape", "", 0, filter_forceescape, 0 },
    { "float", "default", 0, filter_float, 0 },
    { .name = "format", .raw = filter_format },
    { "indent", "width,first,blank", 0, filter_indent, 0 },
    { "int", "default,base", 0, filter_int, 0 },
    { "lower", "", 0, filter_lower, 0 },
    { "replace", "old,new,count", 2, filter_replace, 0 },
    { "round", "precision,method", 0, filter_round, 0 },
    { "safe", "", 0, filter_safe, 0 },
    { "string", "", 0, filter_string, 0 },
    { "title", "", 0, filter_title, 0 },
    { "tojson", "ensure_ascii,indent,separators,sort_keys", 0, filter_tojson, 0 },
    { "trim", "chars", 0, filter_trim, 0 },
    { "truncate", "length,killwords,end,leeway", 0, filter_truncate, 0 },
    { "upper", "", 0, filter_upper, 0 },
    { "urlencode", "", 0, filter_urlencode, 0 },
    { "wordcount", "", 0, filter_wordcount, 0 },
    { 0 },
};

const Builtin *filter_named(const char *name, size_t len)
{
    const Builtin *b = builtin_named(filters, name, len);
    return b ? b : builtin_named(item_filters, name, len);
}
