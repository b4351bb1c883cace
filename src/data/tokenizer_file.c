/* data/tokenizer_file.c -- opens a tokenizer: tokenizer.json, or vocab.json, merges.txt and
 * tokenizer_config.json.
 *
 * Vocabulary and merges are nearly all of a file and are read by tokenizer_scan; jansson parses the rest. */
#include "data/tokenizer_private.h"

#include "data/chat_template.h"
#include "base/folder.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_added(const AddedList *l, int64_t id, ByteSpan text)
{
    for (int64_t i = 0; i < l->n; i++) {
        const char *added = l->v[i].text;
        if (l->v[i].id == id && strlen(added) == text.n && !memcmp(added, text.v, text.n)) return true;
    }
    return false;
}

/* {"token": id, …}. cap has as many bytes as are left of s. A token that is not spelled in byte letters
 * cannot come from any text, so it must be an added token; it is stored with those. */
static Status read_vocab(Tokenizer *t, Scan *s, char *cap, const AddedList *added)
{
    TRY(scan_enter(s, '{'));
    for (int64_t i = 0;; i++) {
        bool    more;
        size_t  len;
        int64_t id;
        TRY(scan_more(s, '}', i, &more));
        if (!more) return OK;
        TRY(scan_key(s, cap, &len));
        TRY(scan_int(s, &id));
        if (!t->spaces.on && !bytes_from_letters(cap, &len)) {
            if (is_added(added, id, (ByteSpan){ cap, len })) continue;
            return scan_fail(s, "a token that is not spelled in byte-level letters");
        }
        TRY(vocab_put(&t->vocab, id, (ByteSpan){ cap, len }, TOKEN_PLAIN, s->name));
    }
}

static Status index_vocab(Tokenizer *t, const char *name)
{
    TRY(vocab_index(&t->vocab, name));
    if (t->spaces.on) return spaces_index_bytes(t, name);
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_id[b] = vocab_find(&t->vocab, (ByteSpan){ &byte, 1 });
        if (t->byte_id[b] < 0)
            return fail(E_DATA, "%s: byte %d has no token, so some texts could not be encoded", name, b);
    }
    return OK;
}

/* left and right are adjacent in memory, so together they are the bytes of the merged token. */
static Status put_merge(Tokenizer *t, const char *both, size_t left, size_t right)
{
    int32_t a  = vocab_find(&t->vocab, (ByteSpan){ both, left });
    int32_t b  = vocab_find(&t->vocab, (ByteSpan){ both + left, right });
    int32_t id = vocab_find(&t->vocab, (ByteSpan){ both, left + right });
    if (a < 0 || b < 0) return fail(E_DATA, "its parts are not in the vocabulary");
    if (id < 0) return fail(E_DATA, "its result is not in the vocabulary");
    return merges_put(&t->merges, a, b, id);
}

/* "left right" in byte letters, with one space. */
static Status put_merge_text(Tokenizer *t, char *text, size_t len)
{
    char  *space = memchr(text, ' ', len);
    size_t left = space ? (size_t)(space - text) : 0, right = space ? len - left - 1 : 0;
    if (!left || !right) return fail(E_DATA, "expected two tokens with a space between");
    char *second = space + 1;
    if (!t->spaces.on && (!bytes_from_letters(text, &left) || !bytes_from_letters(second, &right)))
        return fail(E_DATA, "not spelled in byte-level letters");
    memmove(text + left, second, right);
    return put_merge(t, text, left, right);
}

static Status read_merge_pair(Tokenizer *t, Scan *s, char *cap)
{
    size_t left, right;
    bool   more;
    TRY(scan_enter(s, '['));
    TRY(scan_text(s, cap, &left));
    TRY(scan_more(s, ']', 1, &more));
    if (!more) return scan_fail(s, "expected a pair");
    if (!t->spaces.on && !bytes_from_letters(cap, &left))
        return scan_fail(s, "not spelled in byte-level letters");
    TRY(scan_text(s, cap + left, &right));
    if (!t->spaces.on && !bytes_from_letters(cap + left, &right))
        return scan_fail(s, "not spelled in byte-level letters");
    TRY(scan_more(s, ']', 2, &more));
    if (more) return scan_fail(s, "expected a pair");
    return put_merge(t, cap, left, right);
}

static Status read_merges(Tokenizer *t, Scan *s, char *cap)
{
    TRY(scan_enter(s, '['));
    for (int64_t i = 0;; i++) {
        bool   more;
        size_t len;
        TRY(scan_more(s, ']', i, &more));
        if (!more) return OK;
        if (scan_peek(s) == '[') {
            TRY_CTX(read_merge_pair(t, s, cap), "%s: merge %lld", s->name, (long long)i);
        } else {
            TRY(scan_text(s, cap, &len));
            TRY_CTX(put_merge_text(t, cap, len), "%s: merge %lld", s->name, (long long)i);
        }
    }
}

/* One "left right" a line; the first line may be a version comment. */
static Status read_merges_text(Tokenizer *t, Scan *s, char *cap)
{
    for (int line = 1; s->at < s->end; line++) {
        const char *end = memchr(s->at, '\n', (size_t)(s->end - s->at));
        size_t len = (size_t)((end ? end : s->end) - s->at);
        memcpy(cap, s->at, len);
        s->at = end ? end + 1 : s->end;
        if (len && cap[len - 1] == '\r') len--;
        if (!len || (line == 1 && len >= 8 && !memcmp(cap, "#version", 8))) continue;
        TRY_CTX(put_merge_text(t, cap, len), "%s: line %d", s->name, line);
    }
    return OK;
}

/* -- files */

static Status read_file(Text *out, const char *path)
{
    char   block[64 << 10];
    size_t size;
    int    fd;
    TRY(file_open_regular(&fd, &size, path));
    FILE  *f = fdopen(fd, "rb");
    Status s = f ? OK : (close(fd), fail(E_IO, "%s: %s", path, strerror(errno)));
    for (size_t n; !s && (n = fread(block, 1, sizeof block, f)) > 0;) {
        s = text_push(out, block, n);
        if (!s && out->n > TOKENIZER_MAX_FILE) s = fail(E_DATA, "%s: too large to be a tokenizer", path);
    }
    if (!s && ferror(f)) s = fail(E_IO, "%s: %s", path, strerror(errno));
    if (f) fclose(f);
    return s;
}

typedef struct Large { ByteSpan vocab, merges; } Large;

static bool key_is(const char *cap, size_t len, const char *name)
{
    return len == strlen(name) && !memcmp(cap, name, len);
}

/* Finds vocab and merges among the members of the next object; of the outermost object only `model` is
 * entered. */
static Status find_large(Scan *s, Large *l, char *cap, bool in_model)
{
    TRY(scan_enter(s, '{'));
    for (int64_t i = 0;; i++) {
        bool   more;
        size_t len;
        ByteSpan  value;
        TRY(scan_more(s, '}', i, &more));
        if (!more) return OK;
        TRY(scan_key(s, cap, &len));
        if (!in_model && key_is(cap, len, "model") && scan_peek(s) == '{') {
            TRY(find_large(s, l, cap, true));
            continue;
        }
        TRY(scan_skip(s, &value));
        if (in_model && key_is(cap, len, "vocab")) l->vocab = value;
        if (in_model && key_is(cap, len, "merges")) l->merges = value;
    }
}

/* Replaces a value by null and its line breaks, so that later errors name the right line. */
static Status push_null(Text *out, ByteSpan value)
{
    TRY(text_push(out, "null", 4));
    for (const char *p = value.v, *end = p + value.n; p < end && (p = memchr(p, '\n', (size_t)(end - p)));
         p++)
        TRY(text_push(out, "\n", 1));
    return OK;
}

static Status parse_rest(Json **rest, const Scan *file, const Large *l)
{
    Text   text = { 0 };
    Status s = OK;
    const char *at = file->begin;
    bool  swapped = l->merges.v && l->merges.v < l->vocab.v;
    ByteSpan gap[2] = { swapped ? l->merges : l->vocab, swapped ? l->vocab : l->merges };
    for (int i = 0; i < 2 && !s; i++) {
        if (!gap[i].v) continue;
        s = text_push(&text, at, (size_t)(gap[i].v - at));
        if (!s) s = push_null(&text, gap[i]);
        at = gap[i].v + gap[i].n;
    }
    if (!s) s = text_push(&text, at, (size_t)(file->end - at));
    if (!s) s = json_parse(rest, text.v, text.n, file->name);
    text_close(&text);
    return s;
}

static Scan scan_of(const Scan *file, ByteSpan value)
{
    return (Scan){ file->begin, value.v, value.v + value.n, file->name };
}

/* cap has as many bytes as the file. */
static Status read_json(Tokenizer *t, Scan *file, char *cap, AddedList *added, Json **rest)
{
    Large l = { 0 };
    TRY(find_large(file, &l, cap, false));
    TRY(parse_rest(rest, file, &l));
    TRY_CTX(rules_read(t, added, *rest), "%s", file->name);
    if (!l.vocab.v || !l.merges.v)
        return fail(E_DATA, "%s: expected a model with vocab and merges", file->name);
    Scan vocab = scan_of(file, l.vocab), merges = scan_of(file, l.merges);
    TRY(read_vocab(t, &vocab, cap, added));
    TRY(index_vocab(t, file->name));
    TRY(read_merges(t, &merges, cap));
    return rules_put_added(t, added, file->name);
}

static Status new_tokenizer(Tokenizer **t)
{
    *t = calloc(1, sizeof **t);
    if (*t) (*t)->begin = (*t)->end = -1;
    return *t ? merges_open(&(*t)->merges) : fail(E_FIT, "no memory for a tokenizer");
}

/* Frees what only reading needed: tokens are found by their bytes again where pieces are tokens, or
 * characters are. On failure the whole tokenizer. */
static Status finish(Status s, Tokenizer **t)
{
    if (*t && !(*t)->spaces.on && !(*t)->whole_pieces) vocab_unindex(&(*t)->vocab);
    if (s) tokenizer_close(*t), *t = NULL;
    return s;
}

Status tokenizer_open_memory(Tokenizer **t, const char *bytes, size_t len, const char *name)
{
    Scan      file = { bytes, bytes, bytes + len, name };
    AddedList added = { 0 };
    Json     *rest = NULL;
    char     *cap = malloc(len + 1);
    Status    s = new_tokenizer(t);
    if (!s && !cap) s = fail(E_FIT, "%s: no memory for %zu bytes", name, len);
    if (!s) s = read_json(*t, &file, cap, &added, &rest);
    json_decref(rest);
    added_list_close(&added);
    free(cap);
    return finish(s, t);
}

/* -- vocab.json, merges.txt, tokenizer_config.json */

typedef struct Trio { Text vocab, merges; Json *config; AddedList added; char *cap; } Trio;

static Status read_trio(Tokenizer *t, Trio *f, const char *folder)
{
    char vocab[PATH_MAX], merges[PATH_MAX], config[PATH_MAX];
    snprintf(vocab, sizeof vocab, "%s/vocab.json", folder);
    snprintf(merges, sizeof merges, "%s/merges.txt", folder);
    snprintf(config, sizeof config, "%s/tokenizer_config.json", folder);
    TRY(read_file(&f->vocab, vocab));
    TRY(read_file(&f->merges, merges));
    TRY(json_load(&f->config, config));
    TRY_CTX(rules_read_config(t, &f->added, f->config), "%s", config);
    f->cap = malloc(f->vocab.n + f->merges.n + 1);
    if (!f->cap) return fail(E_FIT, "%s: no memory", folder);
    Scan v = { f->vocab.v, f->vocab.v, f->vocab.v + f->vocab.n, vocab };
    Scan m = { f->merges.v, f->merges.v, f->merges.v + f->merges.n, merges };
    TRY(read_vocab(t, &v, f->cap, &f->added));
    TRY(index_vocab(t, vocab));
    TRY(read_merges_text(t, &m, f->cap));
    return rules_put_added(t, &f->added, config);
}

static Status open_trio(Tokenizer **t, const char *folder)
{
    Trio   f = { 0 };
    Status s = new_tokenizer(t);
    if (!s) s = read_trio(*t, &f, folder);
    text_close(&f.vocab);
    text_close(&f.merges);
    json_decref(f.config);
    added_list_close(&f.added);
    free(f.cap);
    return finish(s, t);
}

/* Files of other tokenizers than these are refused by name. */
static Status refuse_other(const char *folder)
{
    static const char *const others[] = { "tiktoken.model", "tokenizer.model" };
    for (int i = 0; i < 2; i++) {
        char file[PATH_MAX];
        snprintf(file, sizeof file, "%s/%s", folder, others[i]);
        if (!access(file, F_OK))
            return fail(E_DATA, "%s: such tokenizers (%s) are not read; put a tokenizer.json beside it, "
                                "which "
                        "save_pretrained of transformers' fast tokenizers writes", file,
                        i ? "SentencePiece" : "tiktoken, of Kimi and Moonlight");
    }
    return OK;
}

static Status open_files(Tokenizer **t, const char *path)
{
    char inside[PATH_MAX], older[PATH_MAX];
    Text bytes = { 0 };
    *t = NULL;
    snprintf(inside, sizeof inside, "%s/tokenizer.json", path);
    snprintf(older, sizeof older, "%s/vocab.json", path);
    if (folder_is(path)) {
        if (access(inside, F_OK) && !access(older, F_OK)) return open_trio(t, path);
        if (access(inside, F_OK)) TRY(refuse_other(path));
        path = inside;
    }
    Status s = read_file(&bytes, path);
    if (!s) s = tokenizer_open_memory(t, bytes.v ? bytes.v : "", bytes.n, path);
    text_close(&bytes);
    return s;
}

static int32_t token_named(const Tokenizer *t, const Json *config, const char *key)
{
    const Json *o = json_object_get(config, key);
    const char *text = json_string_value(json_is_object(o) ? json_object_get(o, "content") : o);
    return text ? tokenizer_id(t, text) : -1;
}

/* eos_token, and bos_token where it is added to texts; a folder may have no such file. */
static void read_ends(Tokenizer *t, const char *folder)
{
    char  file[PATH_MAX + 32];
    Json *config = NULL;
    snprintf(file, sizeof file, "%s/tokenizer_config.json", folder);
    if (access(file, F_OK) || json_load(&config, file)) return;
    t->end = token_named(t, config, "eos_token");
    if (json_is_true(json_object_get(config, "add_bos_token")) && t->begin < 0)
        t->begin = token_named(t, config, "bos_token");
    json_decref(config);
}

/* A template that is not read is no error of the tokenizer: a recipe may ask for another. */
Status tokenizer_open(Tokenizer **t, const char *path)
{
    char folder[PATH_MAX];
    TRY(open_files(t, path));
    int   n     = snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (n >= (int)sizeof folder) return OK;
    if (!folder_is(path) && slash) *slash = 0;
    else if (!folder_is(path)) strcpy(folder, ".");
    read_ends(*t, folder);
    (*t)->folder = strdup(folder), (*t)->files = calloc(1, sizeof *(*t)->files);
    if (!(*t)->folder || !(*t)->files) return fail(E_FIT, "%s: no memory", path);
    pthread_mutex_init(&(*t)->files->lock, NULL);
    if (chat_template_open(&(*t)->template, folder)) (*t)->template_error = strdup(status_text());
    return OK;
}
