/* infer/detokenize.c -- see detokenize.h. */
#include "infer/detokenize.h"

#include <stdbool.h>
#include <string.h>

/* Length of the UTF-8 character that starts with byte b; 0: no character does. */
static size_t character_length(unsigned char b)
{
    return b < 0x80 ? 1 : b < 0xc2 ? 0 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : b < 0xf5 ? 4 : 0;
}

/* Whether b may be byte i of a character that starts with `first`. The bounds of the second byte exclude
 * overlong forms, surrogates and code points above U+10FFFF. */
static bool is_continuation(unsigned char first, size_t i, unsigned char b)
{
    unsigned char lo = 0x80, hi = 0xbf;
    if (i == 1 && first == 0xe0) lo = 0xa0;
    if (i == 1 && first == 0xed) hi = 0x9f;
    if (i == 1 && first == 0xf0) lo = 0x90;
    if (i == 1 && first == 0xf4) hi = 0x8f;
    return b >= lo && b <= hi;
}

/* Length of the character at v; 0: not a character. *open: it is not one only because n bytes are too few. */
static size_t scan_character(const char *v, size_t n, bool *open)
{
    const unsigned char *b = (const unsigned char *)v;
    size_t want = character_length(b[0]), i = 1;
    while (i < want && i < n && is_continuation(b[0], i, b[i])) i++;
    *open = want && i == n && i < want;
    return i == want ? want : 0;
}

Status utf8_push(Text *out, const char *v, size_t n, size_t *rest)
{
    if (rest) *rest = 0;
    for (size_t at = 0, len; at < n; at += len ? len : 1) {
        bool open;
        len = scan_character(v + at, n - at, &open);
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

static Status print_pending(StreamPrinter *s, size_t *rest)
{
    s->text.n = 0;
    TRY(utf8_push(&s->text, s->pending.v, s->pending.n, rest));
    if (s->text.n) fwrite(s->text.v, 1, s->text.n, s->out);
    fflush(s->out);
    size_t left = rest ? *rest : 0;
    if (left) memmove(s->pending.v, s->pending.v + s->pending.n - left, left);
    s->pending.n = left;
    return OK;
}

Status stream_printer_put(StreamPrinter *s, int32_t id)
{
    size_t rest;
    TRY(s->begun ? tokenizer_decode_next(s->tokenizer, &s->pending, &id, 1, true)
                 : tokenizer_decode(s->tokenizer, &s->pending, &id, 1, true));
    s->begun = true;
    return print_pending(s, &rest);
}

Status stream_printer_end(StreamPrinter *s)
{
    Status st = print_pending(s, NULL);
    text_close(&s->pending), text_close(&s->text);
    return st;
}
