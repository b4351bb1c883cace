/* data/tokenizer_text.c -- see tokenizer_text.h.
 *
 * utf8proc has the properties of code points. Its own normalisation sorts marks by exchanging neighbours,
 * which is quadratic on a hostile line of a million marks, so the loop over a text is here. */
#include "data/tokenizer_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* How far s is plain ASCII. */
static size_t ascii_run(const char *s, size_t n)
{
    size_t i = 0;
    for (uint64_t w; i + sizeof w <= n; i += sizeof w) {
        memcpy(&w, s + i, sizeof w);
        if (w & 0x8080808080808080u) break;
    }
    while (i < n && (unsigned char)s[i] < 0x80) i++;
    return i;
}

int utf8_step(const char *s, size_t n, int32_t *code)
{
    const unsigned char *b = (const unsigned char *)s;
    unsigned char c = b[0], lo = 0x80, hi = 0xbf;  /* of the second byte: no overlong forms, no surrogates */
    if (c < 0x80) return *code = c, 1;
    int len = c >= 0xc2 && c <= 0xdf ? 2 : c >= 0xe0 && c <= 0xef ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
    if (!len) return -1;
    if (c == 0xe0) lo = 0xa0;
    if (c == 0xed) hi = 0x9f;
    if (c == 0xf0) lo = 0x90;
    if (c == 0xf4) hi = 0x8f;
    *code = c & (0x7f >> len);
    for (int i = 1; i < len; i++, lo = 0x80, hi = 0xbf) {
        if ((size_t)i == n || b[i] < lo || b[i] > hi) return -i;
        *code = *code << 6 | (b[i] & 0x3f);
    }
    return len;
}

/* How far text is UTF-8 from byte i on. */
static size_t utf8_run(ByteSpan text, size_t i)
{
    int32_t code;
    while (i < text.n) {
        i += ascii_run(text.v + i, text.n - i);
        int k = i < text.n ? utf8_step(text.v + i, text.n - i, &code) : 0;
        if (k <= 0) break;
        i += (size_t)k;
    }
    return i;
}

Status utf8_repair(Text *cap, ByteSpan text, ByteSpan *out)
{
    size_t good = utf8_run(text, 0), done = 0;
    *out = text;
    if (good == text.n) return OK;
    cap->n = 0;
    while (done < text.n) {
        int32_t code;
        TRY(text_push(cap, text.v + done, good - done));
        if ((done = good) == text.n) break;
        TRY(text_push(cap, "\xef\xbf\xbd", 3));
        done += (size_t)-utf8_step(text.v + done, text.n - done, &code);
        good = utf8_run(text, done);
    }
    *out = (ByteSpan){ cap->v, cap->n };
    return OK;
}

/* True if normalising neither changes the code point nor combines it with the one before it. A few inert
 * code points (composed letters of Vietnamese) count as not inert, which costs only time. Hangul syllables
 * are inert, the jamo that they could combine with are not. */
static bool is_inert(int32_t c)
{
    if (c < 0x300) return true;
    if (c >= 0x1100 && c < 0x1200) return false;
    const utf8proc_property_t *p = utf8proc_get_property(c);
    return p->decomp_seqindex == UINT16_MAX && p->category != UTF8PROC_CATEGORY_MN &&
           p->category != UTF8PROC_CATEGORY_MC && p->category != UTF8PROC_CATEGORY_ME;
}

static Status reserve_codes(Nfc *b, size_t n)
{
    if (n <= b->cap) return OK;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < n) cap *= 2;
    int32_t *code = realloc(b->code, cap * sizeof *code);
    if (code) b->code = code;
    int32_t *spare = realloc(b->spare, cap * sizeof *spare);
    if (spare) b->spare = spare;
    if (!code || !spare) return fail(E_FIT, "no memory for %zu code points", cap);
    b->cap = cap;
    return OK;
}

static int mark_class(int32_t c) { return utf8proc_get_property(c)->combining_class; }

/* Orders v[0, n), all marks, by combining class; marks of one class keep their order. */
static void order_marks(int32_t *v, int32_t *spare, size_t n)
{
    size_t at[257] = { 0 };
    for (size_t i = 0; i < n; i++) at[mark_class(v[i]) + 1]++;
    for (int c = 0; c < 256; c++) at[c + 1] += at[c];
    for (size_t i = 0; i < n; i++) spare[at[mark_class(v[i])]++] = v[i];
    memcpy(v, spare, n * sizeof *v);
}

static void order_codes(int32_t *v, int32_t *spare, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t first = i;
        bool   sorted = true;
        for (int last = 0, c; i < n && (c = mark_class(v[i])) != 0; i++, last = c) sorted &= c >= last;
        if (!sorted) order_marks(v + first, spare, i - first);
        if (i == first) i++;
    }
}

/* Appends the NFC of a segment; nothing combines across its ends. */
static Status normalise_segment(Nfc *b, const char *s, size_t len)
{
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        int32_t code;
        int     boundary = 0, k = utf8_step(s + i, len - i, &code);
        REQUIRE(k > 0, "text to normalise is not UTF-8");
        TRY(reserve_codes(b, n + 32));  /* no code point decomposes into that many */
        n += (size_t)utf8proc_decompose_char(code, b->code + n, 32, options, &boundary);
        i += (size_t)k;
    }
    order_codes(b->code, b->spare, n);
    utf8proc_ssize_t left = utf8proc_normalize_utf32(b->code, (utf8proc_ssize_t)n, options);
    REQUIRE(left >= 0, "utf8proc: %s", utf8proc_errmsg(left));
    for (utf8proc_ssize_t i = 0; i < left; i++) {
        utf8proc_uint8_t u[4];
        TRY(text_push(&b->text, (char *)u, (size_t)utf8proc_encode_char(b->code[i], u)));
    }
    return OK;
}

/* The next segment to normalise from byte i on: an inert code point (if any) and the code points after it
 * that are not inert. */
static size_t find_segment(ByteSpan t, size_t i, size_t *end)
{
    size_t start = i;
    bool   inside = false;
    for (int k; i < t.n; i += (size_t)k) {
        int32_t code;
        size_t  run = inside ? 0 : ascii_run(t.v + i, t.n - i);
        if (run) start = i + run - 1, i += run;
        if (i == t.n) break;
        k = utf8_step(t.v + i, t.n - i, &code);
        REQUIRE(k > 0, "text to normalise is not UTF-8");
        bool quiet = is_inert(code);
        if (quiet && inside) break;
        if (quiet) start = i;
        inside |= !quiet;
    }
    *end = i;
    return inside ? start : t.n;
}

Status nfc_normalise(Nfc *b, ByteSpan text, ByteSpan *out)
{
    size_t done = 0, end, start = find_segment(text, 0, &end);
    *out = text;
    if (start == text.n) return OK;
    b->text.n = 0;
    while (start < text.n) {
        TRY(text_push(&b->text, text.v + done, start - done));
        TRY(normalise_segment(b, text.v + start, end - start));
        done = end;
        start = find_segment(text, done, &end);
    }
    TRY(text_push(&b->text, text.v + done, text.n - done));
    *out = (ByteSpan){ b->text.v, b->text.n };
    return OK;
}

void nfc_close(Nfc *b)
{
    text_close(&b->text);
    free(b->code);
    free(b->spare);
    *b = (Nfc){ 0 };
}
