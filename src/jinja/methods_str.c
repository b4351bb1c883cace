/* jinja/methods_str.c -- methods of strings. */
#include "jinja/jinja_private.h"

#include <string.h>

#define METHOD(f) static Status f(Jinja *j, Value self, const Value *a, Value *out)

static Value space(void) { return text_of(" "); }

METHOD(str_lower) { return change_case(j, out, self, CASE_LOWER); }
METHOD(str_casefold) { return change_case(j, out, self, CASE_FOLD); }
METHOD(str_upper) { return change_case(j, out, self, CASE_UPPER); }
METHOD(str_title) { return change_case(j, out, self, CASE_TITLE); }
METHOD(str_capitalize) { return change_case(j, out, self, CASE_CAPITAL); }
METHOD(str_swapcase) { return change_case(j, out, self, CASE_SWAP); }
METHOD(str_strip) { return strip(j, self, a[0], true, true, out); }
METHOD(str_lstrip) { return strip(j, self, a[0], true, false, out); }
METHOD(str_rstrip) { return strip(j, self, a[0], false, true, out); }

METHOD(str_replace)
{
    int64_t most = -1;
    TRY(want_str(a[0]));
    TRY(want_str(a[1]));
    if (a[2].kind != V_ABSENT) TRY(want_int(a[2], &most));
    return replace_str(j, self, a[0], a[1], most, out);
}

/* The part of self between the optional bounds a[1] and a[2], in code points. */
static Status bounded(Jinja *j, Value self, const Value *a, Value *out)
{
    Value bound[3] = { a[1].kind == V_ABSENT ? none() : a[1], a[2].kind == V_ABSENT ? none() : a[2], none() };
    return get_slice(j, self, bound, out);
}

static bool begins(Value s, Value with) { return s.n >= with.n && !memcmp(s.s, with.s, with.n); }
static bool ends(Value s, Value with) { return s.n >= with.n && !memcmp(s.s + s.n - with.n, with.s, with.n); }

static Status affix(Jinja *j, Value self, const Value *a, bool test(Value, Value), const char *name,
                    Value *out)
{
    Value one   = a[0], s;
    bool  tuple = a[0].kind == V_TUPLE, yes = false;
    TRY(bounded(j, self, a, &s));
    if (one.kind == V_UNDEFINED) return fail_undefined(one);
    for (uint32_t i = 0; i < (tuple ? a[0].n : 1); i++) {
        if (tuple) one = a[0].item[i];
        if (one.kind != V_STR)
            return fail(E_DATA, "%s first arg must be str or a tuple of str, not %s", name, type_name(one));
        yes = yes || test(s, one);
    }
    return *out = boolean(yes), OK;
}
METHOD(str_startswith) { return affix(j, self, a, begins, "startswith", out); }
METHOD(str_endswith) { return affix(j, self, a, ends, "endswith", out); }

METHOD(str_removeprefix)
{
    TRY(want_str(a[0]));
    size_t n    = begins(self, a[0]) ? a[0].n : 0;
    return *out = str(self.s + n, self.n - n), OK;
}

METHOD(str_removesuffix)
{
    TRY(want_str(a[0]));
    return *out = str(self.s, self.n - (ends(self, a[0]) ? a[0].n : 0)), OK;
}

static const char *find_last(Value s, Value what)
{
    for (size_t at = s.n >= what.n ? s.n - what.n + 1 : 0; at--;)
        if (!memcmp(s.s + at, what.s, what.n)) return s.s + at;
    return NULL;
}

/* Index of a[0] in code points; -1: it does not occur. */
static Status find_index(Jinja *j, Value self, const Value *a, bool last, int64_t *out)
{
    Value s;
    TRY(want_str(a[0]));
    TRY(bounded(j, self, a, &s));
    TRY(spend(j, s.n / 64 + 1));
    const char *hit = last ? find_last(s, a[0]) : a[0].n ? memmem(s.s, s.n, a[0].s, a[0].n) : s.s;
    *out            = hit ? (int64_t)chars_count(str(self.s, (size_t)(hit - self.s))) : -1;
    return OK;
}

static Status find(Jinja *j, Value self, const Value *a, bool last, bool must, Value *out)
{
    int64_t at;
    TRY(find_index(j, self, a, last, &at));
    if (at < 0 && must) return fail(E_DATA, "substring not found");
    return *out = integer(at), OK;
}
METHOD(str_find) { return find(j, self, a, false, false, out); }
METHOD(str_rfind) { return find(j, self, a, true, false, out); }
METHOD(str_index) { return find(j, self, a, false, true, out); }
METHOD(str_rindex) { return find(j, self, a, true, true, out); }

METHOD(str_count)
{
    Value   s;
    int64_t n = 0;
    TRY(want_str(a[0]));
    TRY(bounded(j, self, a, &s));
    if (!a[0].n) return *out = integer((int64_t)chars_count(s) + 1), OK;
    TRY(spend(j, s.n / 64 + 1));
    for (const char *p = s.s, *end = p + s.n; (p = memmem(p, (size_t)(end - p), a[0].s, a[0].n)); p += a[0].n)
        n++;
    return *out = integer(n), OK;
}

static Status three(Jinja *j, Value a, Value b, Value c, Value *out)
{
    Value *item;
    TAKE(j, item, 3);
    item[0] = a, item[1] = b, item[2] = c;
    *out             = list(item, 3);
    return out->kind = V_TUPLE, OK;
}

static Status partition(Jinja *j, Value s, Value by, bool last, Value *out)
{
    TRY(want_str(by));
    if (!by.n) return fail(E_DATA, "empty separator");
    const char *hit = last ? find_last(s, by) : memmem(s.s, s.n, by.s, by.n);
    if (!hit)
        return last ? three(j, str("", 0), str("", 0), s, out) : three(j, s, str("", 0), str("", 0), out);
    size_t at = (size_t)(hit - s.s);
    return three(j, str(s.s, at), by, str(hit + by.n, s.n - at - by.n), out);
}
METHOD(str_partition) { return partition(j, self, a[0], false, out); }
METHOD(str_rpartition) { return partition(j, self, a[0], true, out); }

METHOD(str_splitlines) { return split_lines(j, self, truth(a[0]), out); }

typedef struct Pieces {
    Value *v;
    size_t n, cap;
} Pieces;

static Status piece(Jinja *j, Pieces *p, const char *from, const char *to)
{
    if (p->n == p->cap) {
        Value *more;
        size_t cap = p->cap ? 2 * p->cap : 8;
        TAKE(j, more, cap);
        if (p->n) memcpy(more, p->v, p->n * sizeof *more);
        p->v = more, p->cap = cap;
    }
    p->v[p->n++] = str(from, (size_t)(to - from));
    return OK;
}

static Status split_space(Jinja *j, Value s, int64_t most, Pieces *out)
{
    const char *p = s.s, *end = s.s + s.n;
    for (;; most--) {
        p += space_after(p, (size_t)(end - p));
        if (p == end) return OK;
        const char *from = p;
        while (p < end && !char_is_space(char_at(p))) p += char_bytes(p);
        if (most == 0) return piece(j, out, from, end);
        TRY(piece(j, out, from, p));
    }
}

static Status split_by(Jinja *j, Value s, Value by, int64_t most, Pieces *out)
{
    const char *p = s.s, *end = s.s + s.n, *hit;
    for (; most != 0 && (hit = memmem(p, (size_t)(end - p), by.s, by.n)); most--, p = hit + by.n)
        TRY(piece(j, out, p, hit));
    return piece(j, out, p, end);
}

static void reverse(Pieces *p)
{
    for (size_t i = 0; i < p->n / 2; i++) {
        Value v = p->v[i];
        p->v[i] = p->v[p->n - 1 - i], p->v[p->n - 1 - i] = v;
    }
}

static Status rsplit_by(Jinja *j, Value s, Value by, int64_t most, Pieces *out)
{
    const char *hit;
    for (; most != 0 && (hit = find_last(s, by)); most--) {
        TRY(spend(j, s.n / 64));
        TRY(piece(j, out, hit + by.n, s.s + s.n));
        s.n = (uint32_t)(hit - s.s);
    }
    TRY(piece(j, out, s.s, s.s + s.n));
    return reverse(out), OK;
}

static Status rsplit_space(Jinja *j, Value s, int64_t most, Pieces *out)
{
    for (;; most--) {
        s.n -= (uint32_t)space_before(s.s, s.n);
        if (!s.n) break;
        const char *from = s.s + s.n;
        for (const char *p; from > s.s; from = p) {
            for (p = from - 1; p > s.s && ((unsigned char)*p & 0xc0) == 0x80; p--) {}
            if (char_is_space(char_at(p))) break;
        }
        if (most == 0) from = s.s;
        TRY(piece(j, out, from, s.s + s.n));
        if (most == 0) break;
        s.n = (uint32_t)(from - s.s);
    }
    return reverse(out), OK;
}

static Status split(Jinja *j, Value self, const Value *a, bool last, Value *out)
{
    Pieces  p    = { 0 };
    int64_t most = -1;
    bool    by   = a[0].kind != V_ABSENT && a[0].kind != V_NONE;
    if (a[1].kind != V_ABSENT) TRY(want_int(a[1], &most));
    if (most < 0) most = INT64_MAX;
    if (by) TRY(want_str(a[0]));
    if (by && !a[0].n) return fail(E_DATA, "empty separator");
    TRY(spend(j, self.n / 64 + 1));
    if (by) TRY(last ? rsplit_by(j, self, a[0], most, &p) : split_by(j, self, a[0], most, &p));
    else TRY(last ? rsplit_space(j, self, most, &p) : split_space(j, self, most, &p));
    return *out = list(p.v, p.n), OK;
}
METHOD(str_split) { return split(j, self, a, false, out); }
METHOD(str_rsplit) { return split(j, self, a, true, out); }

METHOD(str_join)
{
    Buffer b = { 0 };
    Value  items;
    TRY(iterate(j, a[0], &items));
    for (uint32_t i = 0; i < items.n; i++) {
        if (items.item[i].kind != V_STR)
            return fail(E_DATA, "sequence item %u: expected str instance, %s found", i,
                        type_name(items.item[i]));
        if (i) TRY(buffer_put(j, &b, self.s, self.n));
        TRY(buffer_put(j, &b, items.item[i].s, items.item[i].n));
    }
    return *out = buffer_str(&b), OK;
}

static Status justify(Jinja *j, Value self, const Value *a, int side, Value *out)
{
    int64_t width, n = (int64_t)chars_count(self);
    Value   fill = a[1].kind == V_STR && a[1].n ? a[1] : space();
    TRY(want_int(a[0], &width));
    if (a[1].kind != V_ABSENT) TRY(want_str(a[1]));
    if (chars_count(fill) != 1 || (a[1].kind == V_STR && !a[1].n))
        return fail(E_DATA, "The fill character must be exactly one character long");
    int64_t all = width > n ? width - n : 0, left = side < 0   ? 0
                                                    : side > 0 ? all
                                                               : all / 2 + (all & width & 1);
    return pad_str(j, self, left, all - left, fill, out);
}
METHOD(str_ljust) { return justify(j, self, a, -1, out); }
METHOD(str_rjust) { return justify(j, self, a, 1, out); }
METHOD(str_center) { return justify(j, self, a, 0, out); }

METHOD(str_zfill)
{
    int64_t width, n = (int64_t)chars_count(self);
    size_t  sign   = self.n && (self.s[0] == '-' || self.s[0] == '+');
    Value   digits = str(self.s + sign, self.n - sign), both[2] = { str(self.s, sign) };
    TRY(want_int(a[0], &width));
    TRY(pad_str(j, digits, width > n ? width - n : 0, 0, text_of("0"), &both[1]));
    return join_str(j, out, both, 2);
}

METHOD(str_expandtabs)
{
    Buffer  b    = { 0 };
    int64_t size = 8, column = 0;
    if (a[0].kind != V_ABSENT) TRY(want_int(a[0], &size));
    if (size > 1000) return fail(E_DATA, "expandtabs: more than 1000");
    for (const char *p = self.s, *end = p + self.n; p < end; p += char_bytes(p)) {
        int64_t n = size > 0 ? size - column % size : 0;
        if (*p != '\t') {
            TRY(buffer_put(j, &b, p, char_bytes(p)));
            n = 1;
        }
        for (int64_t i = 0; *p == '\t' && i < n; i++) TRY(buffer_puts(j, &b, " "));
        column = *p == '\n' || *p == '\r' ? 0 : column + n;
    }
    return *out = buffer_str(&b), OK;
}

/* Every character is of the class, and there is one. */
static Status all_are(Value self, const char *what, const char * or, Value *out)
{
    bool yes = self.n > 0;
    for (uint32_t at = 0; yes && at < self.n; at += (uint32_t)char_bytes(self.s + at)) {
        int32_t c = char_at(self.s + at);
        yes       = char_is(c, what) || (or &&char_is(c, or));
    }
    return *out = boolean(yes), OK;
}
METHOD(str_isalpha) { return all_are(self, "alpha", NULL, out); }
METHOD(str_isdigit) { return all_are(self, "digit", NULL, out); }
METHOD(str_isnumeric) { return all_are(self, "numeric", NULL, out); }
METHOD(str_isalnum) { return all_are(self, "alpha", "numeric", out); }

METHOD(str_isprintable)
{
    if (!self.n) return *out = boolean(true), OK;
    return all_are(self, "print", NULL, out);
}

METHOD(str_isspace) { return *out = boolean(self.n && space_after(self.s, self.n) == self.n), OK; }

METHOD(str_isidentifier)
{
    bool yes = self.n > 0;
    for (uint32_t at = 0; yes && at < self.n; at += (uint32_t)char_bytes(self.s + at)) {
        int32_t c = char_at(self.s + at);
        yes       = c == '_' || char_is(c, "alpha") || (at && char_is(c, "word"));
    }
    return *out = boolean(yes), OK;
}

METHOD(str_isascii)
{
    bool yes = true;
    for (uint32_t i = 0; i < self.n; i++) yes = yes && (unsigned char)self.s[i] < 128;
    return *out = boolean(yes), OK;
}

/* There is a letter with case, and none of the other. */
static Status is_case(Value self, const char *other, Value *out)
{
    bool cased = false;
    for (uint32_t at = 0; at < self.n; at += (uint32_t)char_bytes(self.s + at)) {
        int32_t c = char_at(self.s + at);
        if (char_is(c, other)) return *out = boolean(false), OK;
        cased = cased || char_is(c, "cased");
    }
    return *out = boolean(cased), OK;
}
METHOD(str_islower) { return is_case(self, "upper", out); }
METHOD(str_isupper) { return is_case(self, "lower", out); }

METHOD(str_istitle)
{
    Value title;
    bool  cased = false;
    TRY(change_case(j, &title, self, CASE_TITLE));
    for (uint32_t at = 0; !cased && at < self.n; at += (uint32_t)char_bytes(self.s + at))
        cased = char_is(char_at(self.s + at), "cased");
    return *out = boolean(cased && same(title, self)), OK;
}

const Builtin str_methods[] = {
    { "lower", "", 0, str_lower, 0 },
    { "upper", "", 0, str_upper, 0 },
    { "casefold", "", 0, str_casefold, 0 },
    { "title", "", 0, str_title, 0 },
    { "capitalize", "", 0, str_capitalize, 0 },
    { "swapcase", "", 0, str_swapcase, 0 },
    { "strip", "chars", 0, str_strip, 0 },
    { "lstrip", "chars", 0, str_lstrip, 0 },
    { "rstrip", "chars", 0, str_rstrip, 0 },
    { "replace", "old,new,count", 2, str_replace, 0 },
    { "startswith", "prefix,start,end", 1, str_startswith, 0 },
    { "endswith", "suffix,start,end", 1, str_endswith, 0 },
    { "removeprefix", "prefix", 1, str_removeprefix, 0 },
    { "removesuffix", "suffix", 1, str_removesuffix, 0 },
    { "find", "sub,start,end", 1, str_find, 0 },
    { "rfind", "sub,start,end", 1, str_rfind, 0 },
    { "index", "sub,start,end", 1, str_index, 0 },
    { "rindex", "sub,start,end", 1, str_rindex, 0 },
    { "count", "sub,start,end", 1, str_count, 0 },
    { "partition", "sep", 1, str_partition, 0 },
    { "rpartition", "sep", 1, str_rpartition, 0 },
    { "splitlines", "keepends", 0, str_splitlines, 0 },
    { "split", "sep,maxsplit", 0, str_split, 0 },
    { "rsplit", "sep,maxsplit", 0, str_rsplit, 0 },
    { "join", "iterable", 1, str_join, 0 },
    { "ljust", "width,fillchar", 1, str_ljust, 0 },
    { "rjust", "width,fillchar", 1, str_rjust, 0 },
    { "center", "width,fillchar", 1, str_center, 0 },
    { "zfill", "width", 1, str_zfill, 0 },
    { "expandtabs", "tabsize", 0, str_expandtabs, 0 },
    { "isalpha", "", 0, str_isalpha, 0 },
    { "isdigit", "", 0, str_isdigit, 0 },
    { "isdecimal", "", 0, str_isdigit, 0 },
    { "isnumeric", "", 0, str_isnumeric, 0 },
    { "isalnum", "", 0, str_isalnum, 0 },
    { "isspace", "", 0, str_isspace, 0 },
    { "isascii", "", 0, str_isascii, 0 },
    { "isidentifier", "", 0, str_isidentifier, 0 },
    { "islower", "", 0, str_islower, 0 },
    { "isupper", "", 0, str_isupper, 0 },
    { "istitle", "", 0, str_istitle, 0 },
    { "isprintable", "", 0, str_isprintable, 0 },
    { 0 },
};
