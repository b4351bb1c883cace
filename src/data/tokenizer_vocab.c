/* data/tokenizer_vocab.c -- tokens by id and by bytes, merges by pair, and added tokens found in a text. */
#include "data/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

/* Byte-level files spell each byte as a printable letter: the byte itself if it is printable, else the
 * next letter from U+0100 on. */
static bool byte_is_letter(int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; }

static int byte_of_letter(int32_t code)
{
    if (code < 0x100) return byte_is_letter(code) ? code : -1;
    code -= 0x100;                                    /* the 68 others: 0-32, 127-160, 173 */
    return code < 33 ? code : code < 67 ? code - 33 + 127 : code == 67 ? 173 : -1;
}

bool bytes_from_letters(char *text, size_t *len)
{
    int32_t code;
    size_t  n = 0;
    for (size_t i = 0, k; i < *len; i += k) {
        int step = utf8_step(text + i, *len - i, &code);
        if (step < 0 || byte_of_letter(code) < 0) return false;
        k = (size_t)step;
    }
    for (size_t i = 0; i < *len; n++) {
        i += (size_t)utf8_step(text + i, *len - i, &code);
        text[n] = (char)byte_of_letter(code);
    }
    return *len = n, true;
}

static Status reserve_vocab(Vocab *v, int64_t size)
{
    if (size <= v->cap) return OK;
    int64_t cap = v->cap ? v->cap : 1024;
    while (cap < size) cap *= 2;
    Token *token = realloc(v->token, (size_t)cap * sizeof *token);
    if (!token) return fail(E_FIT, "no memory for %lld tokens", (long long)cap);
    memset(token + v->cap, 0, (size_t)(cap - v->cap) * sizeof *token);
    v->token = token, v->cap = cap;
    return OK;
}

ByteSpan vocab_bytes(const Vocab *v, int32_t id)
{
    const Token *t = &v->token[id];
    return (ByteSpan){ t->len ? v->bytes.v + t->at : "", t->len };
}

static bool same(ByteSpan a, ByteSpan b) { return a.n == b.n && (!a.n || !memcmp(a.v, b.v, a.n)); }

static int shown(size_t n) { return n < 80 ? (int)n : 80; }             /* bytes of a token in a message */

Status vocab_put(Vocab *v, int64_t id, ByteSpan bytes, VocabKind kind, const char *name)
{
    if (id < 0 || id >= TOKENIZER_MAX_IDS)
        return fail(E_DATA, "%s: token id %lld: ids go from 0 to %d", name, (long long)id,
                    TOKENIZER_MAX_IDS - 1);
    if (!bytes.n) return fail(E_DATA, "%s: token %lld is empty", name, (long long)id);
    TRY(reserve_vocab(v, id + 1));
    Token *t = &v->token[id];
    if (t->kind != TOKEN_NONE && !same(vocab_bytes(v, (int32_t)id), bytes))
        return fail(E_DATA, "%s: id %lld is both \"%.*s\" and \"%.*s\"", name, (long long)id,
                    shown(t->len), v->bytes.v + t->at, shown(bytes.n), bytes.v);
    if (t->kind == TOKEN_NONE) {
        *t = (Token){ .at = (uint32_t)v->bytes.n, .len = (uint32_t)bytes.n };
        TRY(text_push(&v->bytes, bytes.v, bytes.n));
    }
    if (kind > t->kind) t->kind = kind;
    if (id >= v->size) v->size = id + 1;
    return OK;
}

static size_t hash(ByteSpan b)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < b.n; i++) h = (h ^ (unsigned char)b.v[i]) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

/* The slot of these bytes, or the empty slot where they belong. */
static int32_t *find_slot(const Vocab *v, ByteSpan bytes)
{
    size_t i = hash(bytes) & (v->slots - 1);
    while (v->slot[i] && !same(vocab_bytes(v, v->slot[i] - 1), bytes)) i = (i + 1) & (v->slots - 1);
    return &v->slot[i];
}

Status vocab_index(Vocab *v, const char *name)
{
    for (v->slots = 1024; v->slots < 2 * (size_t)v->size;) v->slots *= 2;
    v->slot = calloc(v->slots, sizeof *v->slot);
    if (!v->slot) return fail(E_FIT, "no memory for %zu tokens", v->slots);
    for (int64_t id = 0; id < v->size; id++) {
        if (v->token[id].kind == TOKEN_NONE) continue;
        ByteSpan    bytes = vocab_bytes(v, (int32_t)id);
        int32_t *slot = find_slot(v, bytes);
        if (*slot)
            return fail(E_DATA, "%s: ids %d and %lld are the same token, \"%.*s\"", name, *slot - 1,
                        (long long)id, shown(bytes.n), bytes.v);
        *slot = (int32_t)id + 1;
    }
    return OK;
}

int32_t vocab_find(const Vocab *v, ByteSpan bytes) { return *find_slot(v, bytes) - 1; }

void vocab_unindex(Vocab *v)
{
    free(v->slot);
    v->slot = NULL, v->slots = 0;
}

void vocab_close(Vocab *v)
{
    vocab_unindex(v);
    text_close(&v->bytes);
    free(v->token);
    *v = (Vocab){ 0 };
}

static Status merges_resize(MergeTable *m, int bits)
{
    MergeTable more = { malloc(sizeof(BpeMerge) << bits), 64 - bits, m->n };
    if (!more.slot) return fail(E_FIT, "no memory for %lld merges", (long long)1 << bits);
    memset(more.slot, 0xff, sizeof(BpeMerge) << bits);
    for (size_t i = 0; m->slot && i < (size_t)1 << (64 - m->shift); i++) {
        const BpeMerge *old = &m->slot[i];
        if (old->rank >= 0)
            *merge_slot(&more, (int32_t)(old->pair >> 32), (int32_t)(uint32_t)old->pair) = *old;
    }
    free(m->slot);
    *m = more;
    return OK;
}

Status merges_open(MergeTable *m)
{
    *m = (MergeTable){ 0 };
    return merges_resize(m, 10);
}

Status merges_put(MergeTable *m, int32_t left, int32_t right, int32_t id)
{
    if (2 * m->n >= (int64_t)1 << (64 - m->shift)) TRY(merges_resize(m, 65 - m->shift));
    BpeMerge *at = merge_slot(m, left, right);
    if (at->rank >= 0) return fail(E_DATA, "the pair is also merge %d", at->rank);
    *at = (BpeMerge){ (uint64_t)(uint32_t)left << 32 | (uint32_t)right, (int32_t)m->n++, id };
    return OK;
}

void merges_close(MergeTable *m)
{
    free(m->slot);
    *m = (MergeTable){ 0 };
}

static int added_order(const void *a, const void *b)
{
    const ByteSpan x = ((const AddedToken *)a)->text, y = ((const AddedToken *)b)->text;
    int first = (unsigned char)x.v[0] - (unsigned char)y.v[0];
    return first ? first : (x.n < y.n) - (x.n > y.n);
}

void added_sort(AddedSet *s)
{
    if (s->n) qsort(s->token, (size_t)s->n, sizeof *s->token, added_order);
    for (int b = 0, i = 0; b <= 256; b++) {
        while (i < s->n && (unsigned char)s->token[i].text.v[0] < b) i++;
        s->from[b] = i;
    }
}

/* The leftmost added token, and of those the longest. */
const AddedToken *added_find(const AddedSet *s, ByteSpan text, size_t from, size_t *at)
{
    if (!s->n) return NULL;
    int lead = (unsigned char)s->token[0].text.v[0];
    /* in Qwen tokenizers all start with '<' */
    bool alone = lead == (unsigned char)s->token[s->n - 1].text.v[0];
    for (size_t i = from; i < text.n; i++) {
        if (alone) {
            const char *next = memchr(text.v + i, lead, text.n - i);
            if (!next) return NULL;
            i = (size_t)(next - text.v);
        }
        int b = (unsigned char)text.v[i];
        for (int k = s->from[b]; k < s->from[b + 1]; k++) {
            ByteSpan want = s->token[k].text;
            if (want.n <= text.n - i && !memcmp(want.v, text.v + i, want.n)) return *at = i, &s->token[k];
        }
    }
    return NULL;
}
