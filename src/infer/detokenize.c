/* infer/detokenize.c -- see speak.h. */
#include "infer/detokenize.h"

#include <stdbool.h>
#include <string.h>

/* Bytes that a character beginning with this byte has; 0 where none begins so. */
static size_t length_of(unsigned char b)
{
    return b < 0x80 ? 1 : b < 0xc2 ? 0 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : b < 0xf5 ? 4 : 0;
}

/* May b be byte i of a character that begins with `first`? The second byte keeps out overlong forms,
 * surrogates and what lies past the last plane. */
static bool continues(unsigned char first, size_t i, unsigned char b)
{
    unsigned char lo = 0x80, hi = 0xbf;
    if (i == 1 && first == 0xe0) lo = 0xa0;
    if (i == 1 && first == 0xed) hi = 0x9f;
    if (i == 1 && first == 0xf0) lo = 0x90;
    if (i == 1 && first == 0xf4) hi = 0x8f;
    return b >= lo && b <= hi;
}

/* Bytes of the character at v, or 0 where there is none; *open: it is none only because n ends too soon. */
static size_t character(const char *v, size_t n, bool *open)
{
    const unsigned char *b = (const unsigned char *)v;
    size_t want = length_of(b[0]), i = 1;
    while (i < want && i < n && continues(b[0], i, b[i])) i++;
    *open = want && i == n && i < want;
    return i == want ? want : 0;
}

Status utf8_push(Text *out, const char *v, size_t n, size_t *rest)
{
    if (rest) *rest = 0;
    for (size_t at = 0, len; at < n; at += len ? len : 1) {
        bool open;
        len = character(v + at, n - at, &open);
        if (open && rest) return *rest = n - at, OK;
        TRY(len ? text_push(out, v + at, len) : text_push(out, "\xef\xbf\xbd", 3));
    }
    return OK;
}

Status detokenize(Text *out, const Tokenizer *t, const int32_t *ids, int64_t n)
{
    Text raw = { 0 };
    Status st = tokenizer_decode(t, &raw, ids, n, true);
    if (!st) st = utf8_push(out, raw.v, raw.n, NULL);
    text_close(&raw);
    return st;
}

static Status print(StreamPrinter *s, size_t *rest)
{
    s->text.n = 0;
    TRY(utf8_push(&s->text, s->held.v, s->held.n, rest));
    fwrite(s->text.v, 1, s->text.n, s->out);
    fflush(s->out);
    size_t left = rest ? *rest : 0;
    if (left) memmove(s->held.v, s->held.v + s->held.n - left, left);
    s->held.n = left;
    return OK;
}

Status stream_printer_put(StreamPrinter *s, int32_t id)
{
    size_t rest;
    TRY(tokenizer_decode(s->tokenizer, &s->held, &id, 1, true));
    return print(s, &rest);
}

Status stream_printer_end(StreamPrinter *s)
{
    Status st = print(s, NULL);
    text_close(&s->held), text_close(&s->text);
    return st;
}
