/* jinja/lex.c -- a template's source to tokens, with the white space rules of trim_blocks and lstrip_blocks:
 * the line break after a block or a comment is removed, and so are blanks before one that begins a line.
 * Signs at tags (-, +) override both. */
#include "jinja/jinja_private.h"

#include "base/grow.h"
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Lexer {
    JinjaTemplate *t;
    const char    *s;
    size_t         n, at;
    int            line;
    bool           line_starts; /* the text at `at` begins a line */
} Lexer;

Status fail_at(const JinjaTemplate *t, int line, const char *fmt, ...)
{
    char    text[768];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fail(E_DATA, "%s:%d: %s", t->name, line, text);
}

static Status push(Lexer *l, TokenKind kind, int op, Value v)
{
    JinjaTemplate *t = l->t;
    if (!GROW(t->token, t->token_cap, t->tokens + 1)) return fail(E_FIT, "no memory for a template");
    t->token[t->tokens++] = (LexToken){ kind, l->line, op, v };
    return OK;
}

static bool starts(const Lexer *l, const char *word)
{
    size_t n = strlen(word);
    return l->n - l->at >= n && !memcmp(l->s + l->at, word, n);
}

static void advance(Lexer *l, size_t n)
{
    for (; n && l->at < l->n; n--) l->line += l->s[l->at++] == '\n';
}

static void skip_space(Lexer *l) { advance(l, space_after(l->s + l->at, l->n - l->at)); }

/* After the end of a tag: what its sign and trim_blocks remove. */
static void end_tag(Lexer *l, char sign, bool trim)
{
    size_t from = l->at;
    if (sign == '-') skip_space(l);
    else if (trim && sign != '+' && l->at < l->n && l->s[l->at] == '\n') advance(l, 1);
    l->line_starts = l->at > from && l->s[l->at - 1] == '\n';
}

/* The text before a tag, less what the sign of the tag or lstrip_blocks removes. */
static Status push_data(Lexer *l, size_t from, size_t to, int line, char sign, bool block)
{
    size_t n = to - from, start = n;
    if (sign == '-') n -= space_before(l->s + from, n);
    else if (block && sign != '+') {
        while (start && l->s[from + start - 1] != '\n') start--;
        bool begins = start > 0 || l->line_starts;
        if (begins && space_after(l->s + from + start, n - start) == n - start) n = start;
    }
    int at    = l->line;
    l->line   = line;
    Status st = n ? push(l, T_DATA, 0, str(l->s + from, n)) : OK;
    l->line   = at;
    return st;
}

static char tag_sign(const Lexer *l, size_t at)
{
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
}

static Status skip_comment(Lexer *l, int line)
{
    const char *end = memmem(l->s + l->at, l->n - l->at, "#}", 2);
    if (!end) return fail_at(l->t, line, "Missing end of comment tag");
    char sign = end > l->s + l->at ? end[-1] : 0;
    advance(l, (size_t)(end - (l->s + l->at)) + 2);
    return end_tag(l, sign, true), OK;
}

static int hex_digits(const char *s, const char *end, int n, int32_t *code)
{
    uint32_t v = 0;
    if (end - s < n) return 0;
    for (int i = 0; i < n; i++) {
        if (!isxdigit((unsigned char)s[i])) return 0;
        v = v << 4 | (uint32_t)(isdigit((unsigned char)s[i]) ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    *code = v > 0x10ffff ? 0x110000 : (int32_t)v;
    return n;
}

static int octal_digits(const char *s, const char *end, int32_t *code)
{
    int n = 0;
    for (*code = 0; n < 3 && s + n < end && s[n] >= '0' && s[n] <= '7'; n++) *code = *code * 8 + s[n] - '0';
    return n;
}

/* The escape after a backslash at s: its bytes, and the code point, -1 for none (a line break). 0:
 * unknown. */
static int escape(const char *s, const char *end, int32_t *code)
{
    static const char names[] = "abfnrtv\\'\"", codes[] = "\a\b\f\n\r\t\v\\'\"";
    const char       *known = *s ? strchr(names, *s) : NULL;
    if (known) return *code = (unsigned char)codes[known - names], 1;
    if (*s == '\n') return *code = -1, 1;
    if (*s >= '0' && *s <= '7') return octal_digits(s, end, code);
    int digits = *s == 'x' ? 2 : *s == 'u' ? 4 : *s == 'U' ? 8 : 0;
    return digits && hex_digits(s + 1, end, digits, code) ? 1 + digits : 0;
}

static bool is_code_point(int32_t c) { return c >= 0 && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff); }

static Status lex_string(Lexer *l)
{
    char        quote = l->s[l->at];
    const char *s = l->s + l->at + 1, *end = l->s + l->n, *p = s;
    while (p < end && *p != quote) p += *p == '\\' && p + 1 < end ? 2 : 1;
    if (p >= end) return fail_at(l->t, l->line, "a string without an end");
    char  *copy = heap_alloc(&l->t->heap, (size_t)(p - s) + 1);
    size_t n    = 0;
    if (!copy) return fail(E_FIT, "no memory for a template");
    for (const char *q = s; q < p;) {
        int32_t code = -1;
        int     len  = *q == '\\' && q + 1 < p ? escape(q + 1, p, &code) : 0;
        if (!len) {
            copy[n++] = *q++;
            continue;
        }
        if (code >= 0 && !is_code_point(code))
            return fail_at(l->t, l->line, "an escape that is no code point");
        if (code >= 0) n += (size_t)char_put(copy + n, code);
        q += 1 + len;
    }
    Status st = push(l, T_STRING, 0, str(copy, n));
    advance(l, (size_t)(p - s) + 2);
    return st;
}

static bool is_digit(char c, int base)
{
    if (base == 16) return isxdigit((unsigned char)c);
    return c >= '0' && c < '0' + base;
}

/* Digits with single underscores between them go to out; returns the bytes read. */
static size_t lex_digits(const Lexer *l, size_t at, int base, char *out, size_t cap, size_t *n)
{
    size_t from = at;
    while (at < l->n && *n + 1 < cap) {
        bool joined = l->s[at] == '_' && at > from && at + 1 < l->n && is_digit(l->s[at + 1], base);
        if (joined) at++;
        if (!is_digit(l->s[at], base)) break;
        out[(*n)++] = l->s[at++];
    }
    return at - from;
}

static Status push_int(Lexer *l, const char *digits, int base, size_t bytes)
{
    char              *end;
    unsigned long long v = strtoull(digits, &end, base);
    if (*end || !*digits || strlen(digits) > 64 || v > INT64_MAX)
        return fail_at(l->t, l->line, "an integer that is too large");
    TRY(push(l, T_INT, 0, integer((int64_t)v)));
    return advance(l, bytes), OK;
}

static Status lex_number(Lexer *l)
{
    char   text[128];
    size_t n = 0, at = l->at;
    int    base = 10;
    if (l->s[at] == '0' && at + 1 < l->n) {
        char c = (char)(l->s[at + 1] | 32);
        base   = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
    }
    if (base != 10) {
        at += 2 + lex_digits(l, at + 2, base, text, sizeof text, &n);
        return text[n] = 0, push_int(l, text, base, at - l->at);
    }
    at += lex_digits(l, at, 10, text, sizeof text, &n);
    bool dot = at + 1 < l->n && l->s[at] == '.' && isdigit((unsigned char)l->s[at + 1]);
    if (dot) text[n++] = '.', at++, at += lex_digits(l, at, 10, text, sizeof text, &n);
    size_t sign = at + 1 < l->n && (l->s[at + 1] == '+' || l->s[at + 1] == '-');
    bool   e = at + 1 + sign < l->n && (l->s[at] | 32) == 'e' && isdigit((unsigned char)l->s[at + 1 + sign]);
    if (e && n + 3 < sizeof text) {
        text[n++] = 'e';
        if (sign) text[n++] = l->s[at + 1];
        at += 1 + sign, at += lex_digits(l, at, 10, text, sizeof text, &n);
    }
    text[n] = 0;
    if (!dot && !e) return push_int(l, text, 10, at - l->at);
    TRY(push(l, T_FLOAT, 0, real(strtod(text, NULL))));
    return advance(l, at - l->at), OK;
}

static bool is_name_char(const char *s, bool first)
{
    int32_t c = char_at(s);
    return c == '_' || char_is(c, "alpha") || (!first && (char_is(c, "decimal") || c == 0xb7));
}

static Status lex_name(Lexer *l)
{
    size_t at = l->at;
    while (at < l->n && is_name_char(l->s + at, at == l->at)) at += char_bytes(l->s + at);
    TRY(push(l, T_NAME, 0, str(l->s + l->at, at - l->at)));
    return advance(l, at - l->at), OK;
}

static Status lex_operator(Lexer *l, int *depth)
{
    static const struct {
        const char *text;
        int         op;
    } pairs[] = {
        { "//", OP_FLOORDIV }, { "**", OP_POW }, { "==", OP_EQ },
        { "!=", OP_NE },       { ">=", OP_GE },  { "<=", OP_LE },
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (starts(l, pairs[i].text)) {
            TRY(push(l, T_OP, pairs[i].op, text_of(pairs[i].text)));
            return advance(l, 2), OK;
        }
    char c = l->s[l->at];
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        return fail_at(l->t, l->line, "unexpected char '%.*s'", (int)char_bytes(l->s + l->at), l->s + l->at);
    *depth += strchr("([{", c) != NULL;
    *depth -= strchr(")]}", c) != NULL;
    if (*depth < 0) return fail_at(l->t, l->line, "unexpected '%c'", c);
    TRY(push(l, T_OP, c, str(l->s + l->at, 1)));
    return advance(l, 1), OK;
}

/* The inside of a tag, up to its end: "}}" or "%}", with a sign before it. Inside brackets an end is none. */
static Status lex_tag(Lexer *l, const char *end, TokenKind last)
{
    int depth = 0, line = l->line;
    for (;;) {
        skip_space(l);
        if (l->at >= l->n) return fail_at(l->t, line, "the tag has no end; '%s' is expected", end);
        char sign = tag_sign(l, l->at);
        if (last == T_VARIABLE_END && sign == '+') sign = 0;
        l->at += sign != 0;
        bool ends = !depth && starts(l, end);
        if (ends) {
            TRY(push(l, last, 0, text_of(end)));
            advance(l, 2);
            return end_tag(l, sign, last == T_BLOCK_END), OK;
        }
        l->at -= sign != 0;
        char c = l->s[l->at];
        if (c == '\'' || c == '"') TRY(lex_string(l));
        else if (isdigit((unsigned char)c)) TRY(lex_number(l));
        else if (is_name_char(l->s + l->at, true)) TRY(lex_name(l));
        else TRY(lex_operator(l, &depth));
    }
}

/* Bytes of "{%- word -%}" at `at`, and its signs; 0: it is another tag. */
static size_t word_tag(const Lexer *l, size_t at, const char *word, char *begin, char *end)
{
    size_t from = at, n = strlen(word);
    if (l->n - at < 2 || memcmp(l->s + at, "{%", 2)) return 0;
    *begin = tag_sign(l, at += 2);
    at += *begin != 0;
    at += space_after(l->s + at, l->n - at);
    if (l->n - at < n || memcmp(l->s + at, word, n)) return 0;
    at += n;
    at += space_after(l->s + at, l->n - at);
    *end = tag_sign(l, at);
    at += *end != 0;
    return l->n - at >= 2 && !memcmp(l->s + at, "%}", 2) ? at + 2 - from : 0;
}

/* After {% raw %}: text up to {% endraw %}. */
static Status lex_raw(Lexer *l)
{
    int    line = l->line;
    size_t from = l->at;
    char   begin, end;
    for (size_t at = from; at < l->n; at++) {
        size_t n = word_tag(l, at, "endraw", &begin, &end);
        if (!n) continue;
        TRY(push_data(l, from, at, line, begin, true));
        advance(l, at - from + n);
        return end_tag(l, end, true), OK;
    }
    return fail_at(l->t, line, "Missing end of raw directive");
}

static size_t find_tag(const Lexer *l)
{
    size_t at = l->at;
    for (const char *p; (p = memchr(l->s + at, '{', l->n - at)); at = (size_t)(p - l->s) + 1)
        if (p + 1 < l->s + l->n && strchr("{%#", p[1]) && p[1]) return (size_t)(p - l->s);
    return l->n;
}

/* Text and the tag after it. */
static Status lex_piece(Lexer *l)
{
    size_t from = l->at, tag = find_tag(l), raw = 0;
    int    line = l->line;
    char   begin, end, kind = tag < l->n ? l->s[tag + 1] : 0, sign = kind ? tag_sign(l, tag + 2) : '+';
    if (kind == '%' && (raw = word_tag(l, tag, "raw", &begin, &end)) && end != '+') sign = begin;
    else raw = 0;
    TRY(push_data(l, from, tag, line, sign, kind != '{'));
    advance(l, tag - from);
    if (!kind) return OK;
    line = l->line;
    if (raw) {
        advance(l, raw);
        if (end == '-') skip_space(l);
        l->line_starts = false;
        return lex_raw(l);
    }
    if (kind != '#') TRY(push(l, kind == '{' ? T_VARIABLE_BEGIN : T_BLOCK_BEGIN, 0, str(l->s + tag, 2)));
    advance(l, 2 + (sign != 0));
    if (kind == '#') return skip_comment(l, line);
    return kind == '{' ? lex_tag(l, "}}", T_VARIABLE_END) : lex_tag(l, "%}", T_BLOCK_END);
}

/* Line breaks become \n, and the last one of the file is removed. */
static Status normalise(Lexer *l, const char *source, size_t len)
{
    char *copy = heap_alloc(&l->t->heap, len + 1);
    if (!copy) return fail(E_FIT, "no memory for a template of %zu bytes", len);
    for (size_t i = 0; i < len; i++) {
        copy[l->n++] = source[i] == '\r' ? '\n' : source[i];
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n') i++;
    }
    if (l->n && copy[l->n - 1] == '\n') l->n--;
    copy[l->n] = 0;
    l->s       = copy;
    return OK;
}

Status lex(JinjaTemplate *t, const char *source, size_t len)
{
    Lexer l = { .t = t, .line = 1, .line_starts = true };
    TRY(normalise(&l, source, len));
    while (l.at < l.n) TRY(lex_piece(&l));
    return push(&l, T_EOF, 0, text_of("end of template"));
}
