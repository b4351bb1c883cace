/* data/tokenizer_scan.c -- see tokenizer_scan.h. */
#include "data/tokenizer_scan.h"

#include <string.h>
#include <utf8proc.h>

Status scan_fail(const Scan *s, const char *what)
{
    int line = 1;
    for (const char *p = s->begin; p < s->at && (p = memchr(p, '\n', (size_t)(s->at - p))); p++) line++;
    return fail(E_DATA, "%s: line %d: %s", s->name, line, s->at == s->end ? "the file ends too early" : what);
}

int scan_peek(Scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t')) s->at++;
    return s->at < s->end ? (unsigned char)*s->at : -1;
}

Status scan_enter(Scan *s, char bracket)
{
    if (scan_peek(s) != bracket)
        return scan_fail(s, bracket == '{' ? "expected an object" : "expected a list");
    return s->at++, OK;
}

Status scan_more(Scan *s, char closing, int64_t i, bool *more)
{
    int c = scan_peek(s);
    *more = c != closing;
    if (c == closing) return s->at++, OK;
    if (i == 0) return OK;
    if (c != ',') return scan_fail(s, closing == '}' ? "expected a comma or }" : "expected a comma or ]");
    return s->at++, OK;
}

static int hex(const char *p, const char *end)
{
    int v = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int c = p[i] >= '0' && p[i] <= '9' ? p[i] - '0'
              : p[i] >= 'a' && p[i] <= 'f' ? p[i] - 'a' + 10
              : p[i] >= 'A' && p[i] <= 'F' ? p[i] - 'A' + 10 : -1;
        if (c < 0) return -1;
        v = v << 4 | c;
    }
    return v;
}

/* The four digits after \u, and the second half of a surrogate pair. */
static Status take_unicode(Scan *s, char **out)
{
    int32_t c = hex(s->at, s->end);
    if (c < 0) return scan_fail(s, "four hex digits must follow \\u");
    s->at += 4;
    if (c >= 0xd800 && c < 0xdc00 && s->end - s->at > 1 && s->at[0] == '\\' && s->at[1] == 'u') {
        int low = hex(s->at + 2, s->end);
        if (low >= 0xdc00 && low < 0xe000) c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00), s->at += 6;
    }
    if (c >= 0xd800 && c < 0xe000) return scan_fail(s, "one half of a surrogate pair is missing");
    *out += utf8proc_encode_char(c, (utf8proc_uint8_t *)*out);      /* at most half as long as its escape */
    return OK;
}

static Status take_escape(Scan *s, char **out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->at == s->end) return scan_fail(s, "expected an escape");
    char c = *s->at++;
    if (c == 'u') return take_unicode(s, out);
    const char *known = c ? strchr(from, c) : NULL;
    if (!known) return scan_fail(s, "unknown escape");
    *(*out)++ = to[known - from];
    return OK;
}

Status scan_text(Scan *s, char *out, size_t *len)
{
    char *start = out;
    if (scan_peek(s) != '"') return scan_fail(s, "expected a string");
    s->at++;
    while (s->at < s->end && *s->at != '"') {
        if ((unsigned char)*s->at < 0x20) return scan_fail(s, "a control character in a string");
        if (*s->at != '\\') { *out++ = *s->at++; continue; }
        s->at++;
        TRY(take_escape(s, &out));
    }
    if (s->at == s->end) return scan_fail(s, "the string is not closed");
    s->at++;
    *len = (size_t)(out - start);
    return OK;
}

Status scan_key(Scan *s, char *out, size_t *len)
{
    TRY(scan_text(s, out, len));
    if (scan_peek(s) != ':') return scan_fail(s, "expected a colon");
    return s->at++, OK;
}

Status scan_int(Scan *s, int64_t *v)
{
    int  c = scan_peek(s);
    bool minus = c == '-';
    const char *digits = s->at += minus;
    for (*v = 0; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++) {
        if (s->at - digits > 17) return scan_fail(s, "the number is too large");
        *v = *v * 10 + (*s->at - '0');
    }
    if (s->at == digits) return scan_fail(s, "expected a whole number");
    if (minus) *v = -*v;
    return OK;
}

static void skip_text(Scan *s)
{
    for (s->at++; s->at < s->end && *s->at != '"'; s->at++)
        if (*s->at == '\\' && s->at + 1 < s->end) s->at++;
    if (s->at < s->end) s->at++;
}

Status scan_skip(Scan *s, ByteSpan *value)
{
    int64_t depth = 0;
    if (scan_peek(s) < 0) return scan_fail(s, "expected a value");
    value->v = s->at;
    do {
        char c = *s->at;
        if (c == '"') { skip_text(s); continue; }
        if (depth == 0 && (c == ',' || c == '}' || c == ']')) break;      /* after a number or a word */
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        s->at++;
        if (depth == 0 && (c == '}' || c == ']')) break;
    } while (s->at < s->end);
    if (depth) return scan_fail(s, "a bracket is not closed");
    value->n = (size_t)(s->at - value->v);
    return value->n ? OK : scan_fail(s, "expected a value");
}
