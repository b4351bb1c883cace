/* data/tokenizer.c -- see tokenizer.h: text to ids and back. Opening is in tokenizer_file.c. */
#include "data/tokenizer_private.h"

#include "data/chat_template.h"

#include <stdlib.h>
#include <string.h>

struct TokenScratch {
    const Tokenizer *tokenizer;           /* the tokenizer whose ids are cached */
    Text     repaired;
    Nfc      nfc;
    Splitter splitter;
    Bpe     *bpe;
};

void tokenizer_close(Tokenizer *t)
{
    if (!t) return;
    vocab_close(&t->vocab);
    merges_close(&t->merges);
    free(t->raw.token);
    free(t->normal.token);
    pcre2_code_free(t->split);
    chat_template_close(t->template);
    free(t->template_error);
    free(t);
}

Status token_scratch_open(TokenScratch **out, const Tokenizer *t)
{
    TokenScratch *s = *out = calloc(1, sizeof *s);
    if (!s) return fail(E_FIT, "no memory for a tokenizer's buffers");
    s->tokenizer = t;
    Status st = splitter_open(&s->splitter, t->split);
    if (!st) st = bpe_open(&s->bpe);
    if (st) token_scratch_close(s), *out = NULL;
    return st;
}

void token_scratch_close(TokenScratch *s)
{
    if (!s) return;
    text_close(&s->repaired);
    nfc_close(&s->nfc);
    splitter_close(&s->splitter);
    bpe_close(s->bpe);
    free(s);
}

static ByteSpan cut(ByteSpan t, size_t from, size_t to) { return (ByteSpan){ t.v + from, to - from }; }

static Status encode_pieces(const Tokenizer *t, TokenScratch *s, Ids *out, ByteSpan text)
{
    for (size_t at = 0, start, end; at < text.n; at = end) {
        TRY(split_next(&s->splitter, t->split, text, at, &start, &end));
        if (start > at) TRY(bpe_encode(s->bpe, t, out, cut(text, at, start)));
        if (end > start) TRY(bpe_encode(s->bpe, t, out, cut(text, start, end)));
    }
    return OK;
}

/* A segment between added tokens of the raw text; normalisation never crosses an added token. */
static Status encode_segment(const Tokenizer *t, TokenScratch *s, Ids *out, ByteSpan text, bool plain)
{
    const AddedToken *hit;
    size_t at, done = 0;
    if (t->nfc) TRY(nfc_normalise(&s->nfc, text, &text));
    while (!plain && (hit = added_find(&t->normal, text, done, &at))) {
        TRY(encode_pieces(t, s, out, cut(text, done, at)));
        TRY(ids_push(out, hit->id));
        done = at + hit->text.n;
    }
    return encode_pieces(t, s, out, cut(text, done, text.n));
}

static Status encode_text(const Tokenizer *t, TokenScratch *s, Ids *out, ByteSpan text, bool plain)
{
    const AddedToken *hit;
    size_t at, done = 0;
    TRY(utf8_repair(&s->repaired, text, &text));
    while (!plain && (hit = added_find(&t->raw, text, done, &at))) {
        TRY(encode_segment(t, s, out, cut(text, done, at), plain));
        TRY(ids_push(out, hit->id));
        done = at + hit->text.n;
    }
    return encode_segment(t, s, out, cut(text, done, text.n), plain);
}

Status tokenizer_encode(const Tokenizer *t, TokenScratch *s, Ids *out, const char *text, size_t len,
                        bool plain)
{
    int64_t before = out->n;
    REQUIRE(s->tokenizer == t, "this scratch was opened for another tokenizer");
    if (len > TOKENIZER_MAX_TEXT)
        return fail(E_DATA, "a text of %zu bytes: at most %d are tokenized as one; split it", len,
                    TOKENIZER_MAX_TEXT);
    if (!len) return OK;
    Status st = encode_text(t, s, out, (ByteSpan){ text, len }, plain);
    if (st) out->n = before;
    return st;
}

static Status decode_bytes(const Tokenizer *t, Text *out, const int32_t *ids, int64_t n, bool skip_special)
{
    for (int64_t i = 0; i < n; i++) {
        VocabKind kind = ids[i] < 0 || ids[i] >= t->vocab.size ? TOKEN_NONE : t->vocab.token[ids[i]].kind;
        if (kind == TOKEN_NONE)
            return fail(E_DATA, "token id %d (number %lld): the tokenizer has ids 0 to %lld and not this one",
                        ids[i], (long long)i, (long long)t->vocab.size - 1);
        if (kind == TOKEN_SPECIAL && skip_special) continue;
        ByteSpan bytes = vocab_bytes(&t->vocab, ids[i]);
        TRY(text_push(out, bytes.v, bytes.n));
    }
    return OK;
}

Status tokenizer_decode(const Tokenizer *t, Text *out, const int32_t *ids, int64_t n, bool skip_special)
{
    size_t before = out->n;
    Text   repaired = { 0 };
    ByteSpan  text = { 0 };
    Status st = decode_bytes(t, out, ids, n, skip_special);
    if (!st && out->n > before)
        st = utf8_repair(&repaired, (ByteSpan){ out->v + before, out->n - before }, &text);
    if (st || repaired.v) out->n = before;
    if (!st && repaired.v) st = text_push(out, text.v, text.n);
    text_close(&repaired);
    return st;
}

static int32_t added_id(const AddedSet *s, const char *token)
{
    size_t len = strlen(token);
    for (int i = 0; i < s->n; i++)
        if (s->token[i].text.n == len && !memcmp(s->token[i].text.v, token, len)) return s->token[i].id;
    return -1;
}

int32_t tokenizer_id(const Tokenizer *t, const char *token)
{
    int32_t id = added_id(&t->raw, token);
    return id >= 0 ? id : added_id(&t->normal, token);
}

Status tokenizer_template(const Tokenizer *t, const ChatTemplate **out)
{
    *out = t->template;
    return t->template_error ? fail(E_DATA, "%s", t->template_error) : OK;
}

size_t tokenizer_token_bytes(const Tokenizer *t, int32_t id) { return vocab_bytes(&t->vocab, id).n; }

bool tokenizer_is_added(const Tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.size && t->vocab.token[id].kind >= TOKEN_ADDED;
}

int64_t tokenizer_size(const Tokenizer *t) { return t->vocab.size; }
