/* data/tokenizer_bpe.c -- byte-pair encoding of one piece: the neighbours of lowest rank merge, leftmost
 * first, until no pair merges. Short pieces are searched linearly; long pieces keep their pairs in a heap,
 * so that a million letters without a space cost n log n. The ids of short pieces are cached. */
#include "data/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

enum { CACHE_BITS = 15, CACHE_TEXT = 24, CACHE_IDS = 9, SHORT_PIECE = 64 };

typedef struct CacheRow {                 /* one cache line */
    uint64_t text[CACHE_TEXT / 8];        /* zero-padded */
    uint8_t  len, n;                      /* len 0: empty */
    int32_t  id[CACHE_IDS];
} CacheRow;
_Static_assert(sizeof(CacheRow) == 64, "a row is one cache line");

/* A part of a long piece: a doubly linked list by index. Dead ones have id -1. */
typedef struct Part { int32_t id, before, behind; } Part;
/* A pair that would merge: rank << 32 | the left part's index, so that the least is the next to merge. */
typedef struct BpePair { uint64_t order; int32_t left, right; } BpePair;

struct Bpe {
    CacheRow *cache;
    Part     *part;                       /* (cap) */
    BpePair     *heap;                       /* (3 cap): every pair at the start, two more for each merge */
    size_t    cap, pairs;
};

Status bpe_open(Bpe **b)
{
    *b = calloc(1, sizeof **b);
    if (*b) (*b)->cache = aligned_alloc(64, sizeof(CacheRow) << CACHE_BITS);
    if (!*b || !(*b)->cache) {
        bpe_close(*b);
        *b = NULL;
        return fail(E_FIT, "no memory for the tokenizer's cache");
    }
    memset((*b)->cache, 0, sizeof(CacheRow) << CACHE_BITS);
    return OK;
}

void bpe_close(Bpe *b)
{
    if (!b) return;
    free(b->cache);
    free(b->part);
    free(b->heap);
    free(b);
}

/* Pieces of up to SHORT_PIECE bytes: rank[i] is that of the pair (i, i + 1). Returns the number of ids. */
static int merge_short(const Tokenizer *t, int32_t *id, ByteSpan piece)
{
    int32_t rank[SHORT_PIECE], to[SHORT_PIECE];
    int     n = (int)piece.n;
    for (int i = 0; i < n; i++) id[i] = t->byte_id[(unsigned char)piece.v[i]];
    for (int i = 0; i + 1 < n; i++) {
        const BpeMerge *m = merge_slot(&t->merges, id[i], id[i + 1]);
        rank[i] = m->rank, to[i] = m->id;
    }
    while (n > 1) {
        int best = -1;
        for (int i = 0; i + 1 < n; i++)
            if (rank[i] >= 0 && (best < 0 || rank[i] < rank[best])) best = i;
        if (best < 0) break;
        id[best] = to[best];
        n--;
        size_t behind = (size_t)(n - best - 1) * sizeof *id;
        memmove(id + best + 1, id + best + 2, behind);
        memmove(rank + best, rank + best + 1, behind);
        memmove(to + best, to + best + 1, behind);
        for (int i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const BpeMerge *m = merge_slot(&t->merges, id[i], id[i + 1]);
            rank[i] = m->rank, to[i] = m->id;
        }
    }
    return n;
}

static void heap_push(Bpe *b, BpePair p)
{
    size_t i = b->pairs++;
    for (size_t up; i && b->heap[up = (i - 1) / 2].order > p.order; i = up) b->heap[i] = b->heap[up];
    b->heap[i] = p;
}

static BpePair heap_pop(Bpe *b)
{
    BpePair   top = b->heap[0], last = b->heap[--b->pairs];
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < b->pairs; i = down) {
        if (down + 1 < b->pairs && b->heap[down + 1].order < b->heap[down].order) down++;
        if (last.order <= b->heap[down].order) break;
        b->heap[i] = b->heap[down];
    }
    b->heap[i] = last;
    return top;
}

static void push_pair(Bpe *b, const Tokenizer *t, int32_t left)
{
    if (left < 0 || b->part[left].behind < 0) return;
    int32_t a = b->part[left].id, c = b->part[b->part[left].behind].id;
    const BpeMerge *m = merge_slot(&t->merges, a, c);
    if (m->rank >= 0) heap_push(b, (BpePair){ (uint64_t)m->rank << 32 | (uint32_t)left, a, c });
}

static Status reserve_long(Bpe *b, size_t n)
{
    if (n <= b->cap) return OK;
    size_t cap = n + n / 2;
    Part  *part = realloc(b->part, cap * sizeof *part);
    if (part) b->part = part;
    BpePair  *heap = realloc(b->heap, 3 * cap * sizeof *heap);
    if (heap) b->heap = heap;
    if (!part || !heap) return fail(E_FIT, "no memory to tokenize %zu bytes without a break", n);
    b->cap = cap;
    return OK;
}

static void set_part(Bpe *b, int32_t i, int32_t id) { b->part[i] = (Part){ id, i - 1, i + 1 }; }

/* Merges the n parts of b. */
static Status merge_parts(Bpe *b, const Tokenizer *t, Ids *out, int32_t n)
{
    b->pairs = 0;
    b->part[n - 1].behind = -1;
    for (int32_t i = 0; i < n; i++) push_pair(b, t, i);
    while (b->pairs) {
        BpePair    p = heap_pop(b);
        int32_t left = (int32_t)(uint32_t)p.order, right = b->part[left].behind;
        /* a pair that no longer exists */
        if (right < 0 || b->part[left].id != p.left || b->part[right].id != p.right) continue;
        int32_t far = b->part[right].behind;
        b->part[left].id = merge_slot(&t->merges, p.left, p.right)->id;
        b->part[left].behind = far;
        b->part[right].id = -1;
        if (far >= 0) b->part[far].before = left;
        push_pair(b, t, b->part[left].before);
        push_pair(b, t, left);
    }
    for (int32_t i = 0; i >= 0; i = b->part[i].behind) TRY(ids_push(out, b->part[i].id));
    return OK;
}

static Status merge_long(Bpe *b, const Tokenizer *t, Ids *out, ByteSpan piece)
{
    int32_t n = (int32_t)piece.n;
    TRY(reserve_long(b, piece.n));
    for (int32_t i = 0; i < n; i++) set_part(b, i, t->byte_id[(unsigned char)piece.v[i]]);
    return merge_parts(b, t, out, n);
}

Status bpe_encode_characters(Bpe *b, const Tokenizer *t, Ids *out, ByteSpan piece)
{
    int32_t n = 0, code;
    if (!piece.n) return OK;
    TRY(reserve_long(b, piece.n));
    for (size_t i = 0; i < piece.n;) {
        int     step = utf8_step(piece.v + i, piece.n - i, &code);
        size_t  k = step > 0 ? (size_t)step : 1;
        int32_t id = vocab_find(&t->vocab, (ByteSpan){ piece.v + i, k });
        if (id >= 0) set_part(b, n++, id);
        for (size_t j = 0; id < 0 && j < k; j++) set_part(b, n++, t->byte_id[(unsigned char)piece.v[i + j]]);
        i += k;
    }
    return merge_parts(b, t, out, n);
}

/* Copies the piece, zero-padded, to text and returns the row where the cache would have it. */
static CacheRow *cache_row(Bpe *b, uint64_t text[CACHE_TEXT / 8], ByteSpan piece)
{
    memset(text, 0, CACHE_TEXT);
    memcpy(text, piece.v, piece.n);
    uint64_t h = (text[0] ^ piece.n) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29 ^ text[1]) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 32 ^ text[2]) * 0x94d049bb133111ebu;
    return &b->cache[h >> (64 - CACHE_BITS)];
}

Status bpe_encode(Bpe *b, const Tokenizer *t, Ids *out, ByteSpan piece)
{
    int32_t  id[SHORT_PIECE];
    uint64_t text[CACHE_TEXT / 8];
    if (piece.n == 1) return ids_push(out, t->byte_id[(unsigned char)piece.v[0]]);
    int32_t whole = t->whole_pieces ? vocab_find(&t->vocab, piece) : -1;
    if (whole >= 0) return ids_push(out, whole);
    if (piece.n > SHORT_PIECE) return merge_long(b, t, out, piece);
    if (piece.n > CACHE_TEXT) return ids_push_many(out, id, merge_short(t, id, piece));
    CacheRow *row = cache_row(b, text, piece);
    if (row->len != piece.n || memcmp(row->text, text, CACHE_TEXT)) {
        int n = merge_short(t, id, piece);
        if (n > CACHE_IDS) return ids_push_many(out, id, n);
        memcpy(row->text, text, CACHE_TEXT);
        memcpy(row->id, id, (size_t)n * sizeof *id);
        row->len = (uint8_t)piece.n, row->n = (uint8_t)n;
    }
    return ids_push_many(out, row->id, row->n);
}
