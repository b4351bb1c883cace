/* data/format_text.c -- plain text for pre-training: a file is one document, or several separated by lines
 * <|endoftext|>. A document longer than data.max_length is cut into pieces that fit, at line breaks where
 * there are some, so that no text of a corpus is lost.
 *
 * The cuts depend on tokens, so a long document is tokenised on opening. For corpora of many gigabytes,
 * `treb data pack` does that once. */
#include "data/format.h"

#include <string.h>

typedef struct TextPieces {
    Offsets from, to, more;
} TextPieces; /* more: 1 where the document continues */

typedef struct Cutter {
    FormatFile      *f;
    TextPieces          *p;
    const Tokenizer *tokenizer;
    TokenScratch    *scratch;
    Ids              ids;
    int64_t          most;            /* tokens of a piece, without <|endoftext|> */
} Cutter;

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static Status piece_push(Cutter *c, size_t from, size_t to, bool more)
{
    TRY(offsets_push(&c->p->from, from));
    TRY(offsets_push(&c->p->to, to));
    return offsets_push(&c->p->more, more);
}

static Status count_tokens(Cutter *c, size_t from, size_t to, int64_t *n)
{
    c->ids.n = 0;
    TRY(tokenizer_encode(c->tokenizer, c->scratch, &c->ids, c->f->bytes + from, to - from, false));
    return *n = c->ids.n, OK;
}

/* The next offset where the tokenizer splits too: after a line break and before a character that is no
 * space. */
static size_t next_border(const Cutter *c, size_t at, size_t to)
{
    const char *s = c->f->bytes;
    while (at < to) {
        const char *br = memchr(s + at, '\n', to - at);
        if (!br) return to;
        at = (size_t)(br - s) + 1;
        if (at < to && !is_space(s[at])) return at;
    }
    return to;
}

/* A border about n bytes after `at` in text without line breaks: before a space, else between two
 * characters. */
static size_t border_about(const Cutter *c, size_t at, size_t to, size_t n)
{
    const char *s = c->f->bytes;
    size_t      end = n < to - at ? at + n : to, i = end;
    if (end == to) return to;
    while (i > at + n / 2 && s[i] != ' ') i--;
    if (i > at + n / 2) return i;
    while (end > at + 1 && ((unsigned char)s[end] & 0xc0) == 0x80) end--;
    return end;
}

/* The end of the first piece of a line that is too long: an estimate, scaled down until the piece fits. */
static Status cut_line(Cutter *c, size_t at, size_t to, size_t *end)
{
    size_t  n = (size_t)c->most * 4;
    int64_t tokens;
    for (;;) {
        *end = border_about(c, at, to, n);
        TRY(count_tokens(c, at, *end, &tokens));
        if (tokens <= c->most || n <= 1) return OK;
        n = (size_t)((double)(*end - at) * (double)c->most / (double)tokens * 0.97);
        if (n < 1) n = 1;
    }
}

static Status document_cut(Cutter *c, size_t from, size_t to)
{
    size_t  start = from, at = from;
    int64_t used = 0, n;
    if (!c->tokenizer || to - from <= (size_t)c->most) return piece_push(c, from, to, false);
    while (at < to) {
        size_t end = next_border(c, at, to);
        TRY(count_tokens(c, at, end, &n));
        if (used + n <= c->most) {
            used += n, at = end;
            continue;
        }
        if (at == start) TRY(cut_line(c, at, end, &at));
        TRY(piece_push(c, start, at, at < to));
        start = at, used = 0;
    }
    return start < to ? piece_push(c, start, to, false) : OK;
}

static bool is_blank(const FormatFile *f, size_t from, size_t to)
{
    while (from < to && is_space(f->bytes[from])) from++;
    return from == to;
}

/* Whether the line at `at` is <|endoftext|>; *next is then the start of the next line. */
static bool is_separator(const FormatFile *f, size_t at, size_t *next)
{
    static const char mark[] = "<|endoftext|>";
    size_t n = sizeof mark - 1, end = at + n;
    if (f->len - at < n || memcmp(f->bytes + at, mark, n)) return false;
    if (end < f->len && f->bytes[end] == '\r') end++;
    if (end < f->len && f->bytes[end] != '\n') return false;
    *next = end < f->len ? end + 1 : end;
    return true;
}

static Status documents_find(Cutter *c)
{
    FormatFile *f = c->f;
    size_t      from = 0, at = 0, next;
    while (at < f->len) {
        if (is_separator(f, at, &next)) {
            if (!is_blank(f, from, at)) TRY(document_cut(c, from, at));
            from = at = next;
            continue;
        }
        const char *br = memchr(f->bytes + at, '\n', f->len - at);
        at = br ? (size_t)(br - f->bytes) + 1 : f->len;
    }
    return is_blank(f, from, f->len) ? OK : document_cut(c, from, f->len);
}

static Status text_index(FormatFile *f, const FormatConf *conf)
{
    Cutter c  = { .f = f, .p = mem_pool_alloc(&f->keep, sizeof *c.p), .tokenizer = conf->tokenizer };
    Status st = OK;
    f->self = c.p;
    c.most  = conf->max_length > 1 ? conf->max_length - 1 : 1;
    if (c.tokenizer) st = token_scratch_open(&c.scratch, c.tokenizer);
    if (!st) st = documents_find(&c);
    token_scratch_close(c.scratch);
    ids_close(&c.ids);
    f->samples = c.p->from.n;
    return st ? wrap(st, "%s", f->path) : OK;
}

static Status text_read(const FormatFile *f, int64_t i, Record *r)
{
    const TextPieces *p = f->self;
    r->kind = RECORD_TEXT;
    r->text = f->bytes + p->from.v[i], r->len = (size_t)(p->to.v[i] - p->from.v[i]), r->more = p->more.v[i];
    snprintf(r->where, sizeof r->where, "%s, byte %llu", f->path, (unsigned long long)p->from.v[i]);
    return OK;
}

static void text_close_index(FormatFile *f)
{
    TextPieces *p = f->self;
    if (p) offsets_close(&p->from), offsets_close(&p->to), offsets_close(&p->more);
}

const Format format_text = {
    .name     = "text",
    .suffixes = ".txt,.md,.text",
    .index    = text_index,
    .read     = text_read,
    .close    = text_close_index,
};
