/* data/tokenizer.c -- see tokenizer.h: text to ids and back. Opening is in tokenizer_file.c. */
#include "data/tokenizer_private.h"

#include "data/chat_template.h"

#include <stdlib.h>
#include <string.h>

struct TokenScratch {
    const Tokenizer *tokenizer;           /* the tokenizer whose ids are cached */
    Text     repaired;
    Nfc      nfc;
    Text     spaced;
    Splitter splitter[MAX_SPLITS];
    Bpe     *bpe;
};

void tokenizer_close(Tokenizer *t)
{
    if (!t) return;
    vocab_close(&t->vocab);
    merges_close(&t->merges);
    free(t->raw.token);
    free(t->normal.token);
    for (int i = 0; i < t->splits; i++) pcre2_code_free(t->split[i]);
    chat_template_close(t->template);
    for (int i = 0; t->files && i < t->files->n; i++)
        chat_template_close(t->files->row[i].template), free(t->files->row[i].path);
    free(t->files), free(t->folder);
    free(t->template_error);
    free(t);
}

Status token_scratch_open(TokenScratch **out, const Tokenizer *t)
{
    TokenScratch *s = *out = calloc(1, sizeof *s);
    if (!s) return fail(E_FIT, "no memory for a tokenizer's buffers");
    s->tokenizer = t;
    Status st = OK;
    for (int i = 0; i < t->splits && !st; i++) st = splitter_open(&s->splitter[i], t->split[i]);
    if (!st) st = bpe_open(&s->bpe);
    if (st) token_scratch_close(s), *out = NULL;
    return st;
}

void token_scratch_close(TokenScratch *s)
{
    if (!s) return;
    text_close(&s->repaired), text_close(&s->spaced);
    nfc_close(&s->nfc);
    for (int i = 0; i < MAX_SPLITS; i++) splitter_close(&s->splitter[i]);
    bpe_close(s->bpe);
    free(s);
}

static ByteSpan cut(ByteSpan t, size_t from, size_t to) { return (ByteSpan){ t.v + from, to - from }; }

/* Pieces of the patterns from `level` on. */
static Status encode_pieces(const Tokenizer *t, TokenScratch *s, Ids *out, ByteSpan text, int level)
{
    if (level == t->splits) return text.n ? bpe_encode(s->bpe, t, out, text) : OK;
    for (size_t at = 0, start, end; at < text.n; at = end) {
        TRY(split_next(&s->splitter[level], t->split[level], text, at, &start, &end));
        if (start > at) TRY(encode_pieces(t, s, out, cut(text, at, start), level + 1));
        if (end > start) TRY(encode_pieces(t, s, out, cut(text, start, end), level + 1));
    }
    return OK;
}

/* A piece ends before each U+2581, or with the segment. */
static Status encode_spaced(const Tokenizer *t, TokenScratch *s, Ids *out, ByteSpan text, bool first)
{
    TRY(spaces_put(&t->spaces, &s->spaced, text, first));
    ByteSpan all = { s->spaced.v, s->spaced.n };
    size_t   done = 0;
    for (size_t i = 1; t->spaces.split && i + 3 <= all.n; i++) {
        if (memcmp(all.v + i, SPACE_LETTER, 3)) continue;
        TRY(bpe_encode_characters(s->bpe, t, out, cut(all, done, i)));
        done = i;
    }
    return done < all.n ? bpe_encode_characters(s->bpe, t, out, cut(all, done, all.n)) : OK;
}

/* A segment between added tokens of the raw text; normalisation never crosses an added token. first: it
 * begins the text. */
static Status encode_segment(const Tokenizer *t, TokenScratch *s, Ids *out, ByteSpan text, bool plain,
                             bool first)
{
    const AddedToken *hit;
    size_t at, done = 0;
    if (t->spaces.on) return encode_spaced(t, s, out, text, first);
    if (t->nfc) TRY(nfc_normalise(&s->nfc, text, &text));
    while (!plain && (hit = added_find(&t->normal, text, done, &at))) {
        TRY(encode_pieces(t, s, out, cut(text, done, at), 0));
        TRY(ids_push(out, hit->id));
        done = at + hit->text.n;
    }
    return encode_pieces(t, s, out, cut(text, done, text.n), 0);
}

static Status encode_text(const Tokenizer *t, TokenScratch *s, Ids *out, ByteSpan text, bool plain)
{
    const AddedToken *hit;
    size_t at, done = 0;
    TRY(utf8_repair(&s->repaired, text, &text));
    while (!plain && (hit = added_find(&t->raw, text, done, &at))) {
        TRY(encode_segment(t, s, out, cut(text, done, at), plain, !done));
        TRY(ids_push(out, hit->id));
        done = at + hit->text.n;
    }
    return encode_segment(t, s, out, cut(text, done, text.n), plain, !done);
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
        TRY(t->spaces.on && kind == TOKEN_PLAIN ? spaces_decode(t, out, ids[i])
                                                : text_push(out, bytes.v, bytes.n));
    }
    return OK;
}

/* One space at the start is that of the text's prefix. */
static void strip_prefix(const Tokenizer *t, Text *out, size_t from)
{
    if (!t->spaces.strip || out->n <= from || out->v[from] != ' ') return;
    memmove(out->v + from, out->v + from + 1, out->n - from - 1);
    out->n--;
}

Status tokenizer_decode(const Tokenizer *t, Text *out, const int32_t *ids, int64_t n, bool skip_special)
{
    size_t before = out->n;
    TRY(tokenizer_decode_next(t, out, ids, n, skip_special));
    strip_prefix(t, out, before);
    return OK;
}

Status tokenizer_decode_next(const Tokenizer *t, Text *out, const int32_t *ids, int64_t n, bool skip_special)
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

static Status open_file(const Tokenizer *t, TemplateFiles *f, const char *path)
{
    if (f->n == TEMPLATE_FILES) return fail(E_CONFIG, "data.template: more than %d files", TEMPLATE_FILES);
    TRY(chat_template_open_file(&f->row[f->n].template, t->folder, path));
    f->row[f->n++].path = strdup(path);
    return OK;
}

Status tokenizer_template_file(const Tokenizer *t, const char *path, const ChatTemplate **out)
{
    TemplateFiles *f = t->files;
    Status         st = OK;
    int            i = 0;
    *out = NULL;
    if (!f) return fail(E_CONFIG, "data.template = %s: the folder of the tokenizer is not known", path);
    pthread_mutex_lock(&f->lock);
    while (i < f->n && strcmp(f->row[i].path, path)) i++;
    if (i == f->n) st = open_file(t, f, path);
    if (!st) *out = f->row[i].template;
    pthread_mutex_unlock(&f->lock);
    return st ? wrap(st, "data.template (model, chatml or a file)") : OK;
}

size_t tokenizer_token_bytes(const Tokenizer *t, int32_t id)
{
    return t->spaces.on && !tokenizer_is_added(t, id) ? spaces_length(t, id) : vocab_bytes(&t->vocab, id).n;
}

int32_t tokenizer_begin(const Tokenizer *t) { return t->begin; }
int32_t tokenizer_end(const Tokenizer *t) { return t->end; }

bool tokenizer_is_added(const Tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.size && t->vocab.token[id].kind >= TOKEN_ADDED;
}

int64_t tokenizer_size(const Tokenizer *t) { return t->vocab.size; }
