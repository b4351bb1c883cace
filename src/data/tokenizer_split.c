/* data/tokenizer_split.c -- splits text into pieces by the regex of the file, with PCRE2; merges stay
 * within a piece.
 *
 * The files are written for Oniguruma. Where the two differ, the pattern is translated or refused: PCRE2
 * counts U+180E as \s and Unicode no longer does, so \s is spelled out; \w, \h, ^, $ and nested sets have
 * another meaning and are refused. Letters and numbers are those of the Unicode version of PCRE2.
 *
 * A pattern is not trusted: it must not match the empty string, and matching is limited. */
#include "data/tokenizer_private.h"

#include <string.h>

enum { MAX_PATTERN = 16 << 10, JIT_STACK = 1 << 20, MATCH_LIMIT = 1 << 26 };

#define SPACES \
    "\\t-\\r\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

static Status refuse(ByteSpan p, size_t i)
{
    int n = (int)(p.n - i < 8 ? p.n - i : 8);
    return fail(E_DATA, "Split pattern: %.*s, at byte %zu: not supported", n, p.v + i, i);
}

/* An escape; \s becomes its set. Inside [ ] a set cannot be negated. */
static Status put_escape(Text *out, ByteSpan p, size_t i, bool inside)
{
    char c = i + 1 < p.n ? p.v[i + 1] : 0;
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!c || (letter && !strchr("sSpPdDxrntf", c)) || (inside && c == 'S')) return refuse(p, i);
    if (c != 's' && c != 'S') return text_push(out, p.v + i, 2);
    return text_printf(out, "%s%s%s", inside ? "" : c == 's' ? "[" : "[^", SPACES, inside ? "" : "]");
}

static Status translate(Text *out, ByteSpan p)
{
    bool inside = false;
    for (size_t i = 0; i < p.n; i++) {
        char c = p.v[i], next = i + 1 < p.n ? p.v[i + 1] : 0;
        if (c == '\\') {
            TRY(put_escape(out, p, i++, inside));
            continue;
        }
        if (inside ? c == '[' || (c == '&' && next == '&') : c == '^' || c == '$') return refuse(p, i);
        TRY(text_push(out, p.v + i, 1));
        if (c == ']') inside = false;
        if (c != '[') continue;
        inside = true;
        if (next == '^') TRY(text_push(out, &p.v[++i], 1));
    }
    return OK;
}

static Status compile(pcre2_code **code, ByteSpan pattern)
{
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    int error;
    PCRE2_SIZE at;
    uint32_t   empty = 0;
    *code = pcre2_compile((PCRE2_SPTR)pattern.v, pattern.n, options, &error, &at, NULL);
    if (!*code) {
        char text[128] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)text, sizeof text);
        return fail(E_DATA, "Split pattern: %s", text);
    }
    pcre2_pattern_info(*code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) return fail(E_DATA, "Split pattern: it can match the empty string");
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE);          /* where there is no JIT, pcre2_match interprets */
    return OK;
}

Status split_compile(pcre2_code **code, ByteSpan pattern)
{
    Text ours = { 0 };
    *code = NULL;
    if (pattern.n > MAX_PATTERN) return fail(E_DATA, "Split pattern: %zu bytes are too many", pattern.n);
    Status s = translate(&ours, pattern);
    if (!s) s = compile(code, (ByteSpan){ ours.v, ours.n });
    if (s) pcre2_code_free(*code), *code = NULL;
    text_close(&ours);
    return s;
}

Status splitter_open(Splitter *s, const pcre2_code *code)
{
    *s = (Splitter){
        .match  = pcre2_match_data_create_from_pattern(code, NULL),
        .limits = pcre2_match_context_create(NULL),
        .stack  = pcre2_jit_stack_create(32 << 10, JIT_STACK, NULL),
    };
    if (!s->match || !s->limits || !s->stack) {
        splitter_close(s);
        return fail(E_FIT, "no memory for the tokenizer's regex");
    }
    pcre2_set_match_limit(s->limits, MATCH_LIMIT);
    pcre2_jit_stack_assign(s->limits, NULL, s->stack);
    return OK;
}

void splitter_close(Splitter *s)
{
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->limits);
    pcre2_jit_stack_free(s->stack);
    *s = (Splitter){ 0 };
}

Status split_next(Splitter *s, const pcre2_code *code, ByteSpan text, size_t from, size_t *start, size_t *end)
{
    const uint32_t how = PCRE2_NO_UTF_CHECK;  /* checking UTF-8 for each piece would be quadratic */
    PCRE2_SPTR subject = (PCRE2_SPTR)text.v;
    int n = pcre2_match(code, subject, text.n, from, how, s->match, s->limits);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT)                     /* the interpreter keeps its stack on the heap */
        n = pcre2_match(code, subject, text.n, from, how | PCRE2_NO_JIT, s->match, s->limits);
    *start = *end = text.n;
    if (n == PCRE2_ERROR_NOMATCH) return OK;
    if (n < 0) {
        char why[128] = "";
        pcre2_get_error_message(n, (PCRE2_UCHAR *)why, sizeof why);
        return fail(E_DATA, "the tokenizer's Split pattern cannot be matched: %s", why);
    }
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->match);
    if (at[0] < from || at[1] <= at[0])                       /* \K and its kin */
        return fail(E_DATA, "the tokenizer's Split pattern matches backwards");
    *start = at[0], *end = at[1];
    return OK;
}
