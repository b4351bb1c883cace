/* jinja/strings.c -- what filters and methods on strings share. */
#include "jinja/jinja_private.h"

#include <string.h>

Status want_int(Value v, int64_t *out)
{
    if (v.kind == V_UNDEFINED) return fail_undefined(v);
    if (v.kind != V_INT && v.kind != V_BOOL)
        return fail(E_DATA, "'%s' object cannot be interpreted as an integer", type_name(v));
    return *out = whole(v), OK;
}

Status want_str(Value v)
{
    if (v.kind == V_UNDEFINED) return fail_undefined(v);
    return v.kind == V_STR ? OK : fail(E_DATA, "expected str instance, %s found", type_name(v));
}

static bool has_char(Value chars, const char *s)
{
    size_t n = char_bytes(s);
    for (uint32_t at = 0; at < chars.n; at += (uint32_t)char_bytes(chars.s + at))
        if (char_bytes(chars.s + at) == n && !memcmp(chars.s + at, s, n)) return true;
    return false;
}

static bool is_stripped(Value chars, const char *s)
{
    return chars.kind == V_STR ? has_char(chars, s) : char_is_space(char_at(s));
}

Status strip(Jinja *j, Value s, Value chars, bool left, bool right, Value *out)
{
    if (chars.kind == V_UNDEFINED) return fail_undefined(chars);
    if (chars.kind != V_STR && chars.kind != V_NONE && chars.kind != V_ABSENT)
        return fail(E_DATA, "strip arg must be None or str");
    TRY(spend(j, s.n / 64 * (1 + (chars.kind == V_STR ? chars.n : 0)) + 1));
    while (left && s.n && is_stripped(chars, s.s)) {
        size_t n = char_bytes(s.s);
        s.s += n, s.n -= (uint32_t)n;
    }
    while (right && s.n) {
        uint32_t at = s.n - 1;
        while (at && ((unsigned char)s.s[at] & 0xc0) == 0x80) at--;
        if (!is_stripped(chars, s.s + at)) break;
        s.n = at;
    }
    return *out = s, OK;
}

/* An empty `from` stands before every code point and at the end. */
Status replace_str(Jinja *j, Value s, Value from, Value to, int64_t most, Value *out)
{
    Buffer      b = { 0 };
    const char *p = s.s, *end = s.s + s.n;
    TRY(spend(j, s.n / 64 + 1));
    for (; most != 0; most--) {
        const char *hit = from.n ? memmem(p, (size_t)(end - p), from.s, from.n) : p;
        if (!hit) break;
        TRY(buffer_put(j, &b, p, (size_t)(hit - p)));
        TRY(buffer_put(j, &b, to.s, to.n));
        p = hit + from.n;
        if (from.n) continue;
        if (p == end) break;
        TRY(buffer_put(j, &b, p, char_bytes(p)));
        p += char_bytes(p);
    }
    TRY(buffer_put(j, &b, p, (size_t)(end - p)));
    return *out = buffer_str(&b), OK;
}

Status pad_str(Jinja *j, Value s, int64_t left, int64_t right, Value fill, Value *out)
{
    Buffer b = { 0 };
    for (int64_t i = 0; i < left; i++) TRY(buffer_put(j, &b, fill.s, fill.n));
    TRY(buffer_put(j, &b, s.s, s.n));
    for (int64_t i = 0; i < right; i++) TRY(buffer_put(j, &b, fill.s, fill.n));
    return *out = buffer_str(&b), OK;
}

/* Bytes of the line break at s; 0: none. */
static size_t line_break(const char *s, const char *end)
{
    int32_t c = char_at(s);
    if (c == '\r') return s + 1 < end && s[1] == '\n' ? 2 : 1;
    bool is = (c >= 10 && c <= 12) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    return is ? char_bytes(s) : 0;
}

Status split_lines(Jinja *j, Value s, bool keep_ends, Value *out)
{
    Value      *line;
    size_t      n = 0;
    const char *p = s.s, *end = s.s + s.n, *from = p;
    for (; p < end; p += char_bytes(p)) n += line_break(p, end) > 0;
    TAKE(j, line, n + 1);
    for (n = 0, p = s.s; p < end;) {
        size_t len = line_break(p, end);
        if (!len) {
            p += char_bytes(p);
            continue;
        }
        line[n++] = str(from, (size_t)(p - from) + (keep_ends ? len : 0));
        from      = p += len;
    }
    if (from < end) line[n++] = str(from, (size_t)(end - from));
    return *out = list(line, n), OK;
}

Status escape_str(Jinja *j, Value s, Value *out)
{
    static const char *const names[] = { "&amp;", "&lt;", "&gt;", "&#34;", "&#39;" };
    static const char        marks[] = "&<>\"'";
    Buffer                   b       = { 0 };
    if (s.markup) return *out = s, OK;
    for (uint32_t i = 0; i < s.n; i++) {
        const char *mark = s.s[i] ? strchr(marks, s.s[i]) : NULL;
        TRY(mark ? buffer_puts(j, &b, names[mark - marks]) : buffer_put(j, &b, s.s + i, 1));
    }
    *out               = buffer_str(&b);
    return out->markup = true, OK;
}
