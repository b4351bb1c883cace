/* nn/context_batch.c -- the pieces of documents that a context-parallel rank attends to. Host arithmetic on
 * borders alone; sizes never depend on the documents, so that a plan lays out what a run does. */
#include "nn/context_batch.h"

#include "base/num.h"

#include <string.h>

ContextKind context_kind(const char *name)
{
    static const char *const names[] = { "p2p", "all_gather", "a2a", "a2a+p2p" };
    int kind = 0;
    while (kind < 4 && strcmp(names[kind], name)) kind++;
    REQUIRE(kind < 4, "cp_comm %s", name);
    return (ContextKind)kind;
}

/* Of each list in `borders`: all documents and one more, the second piece of the one that is in both chunks,
 * and where the last ends. */
static int64_t list_size(const ContextBatch *b) { return b->docs + 2; }

/* Of `own`, three of `prefix`, three of `near`, of both chunks; then four borders of each block. */
enum { OWN = 0, PREFIX = 1, NEAR = 4, CHUNK = 7, LISTS = 9 };

void context_layout(ContextBatch *b, Arena *a, const Budget *budget, const Mesh *mesh, ContextKind kind)
{
    int cp = mesh_size(mesh, AX_CP), inner = kind == CONTEXT_A2A ? cp : 1;
    if (kind == CONTEXT_A2A_P2P && cp > 1) inner = mesh->layout.cp_inner;
    *b = (ContextBatch){ .kind = kind, .inner = inner, .outer = cp / inner,
                         .at = mesh_at(mesh, AX_CP) / inner, .rank = mesh_at(mesh, AX_CP),
                         .tokens = budget->tokens, .docs = budget->docs };
    if (cp == 1) return;
    REQUIRE(cp <= CONTEXT_RANKS && inner * b->outer == cp && b->tokens % (2 * cp) == 0,
            "%lld tokens over cp %d, heads exchanged by %d", (long long)b->tokens, cp, inner);
    b->borders = t1(a, "segments", I32, context_host(b));
}

int64_t context_host(const ContextBatch *b)
{
    return b->inner * b->outer == 1 ? 0 : LISTS * list_size(b) + 4 * (int64_t)b->outer;
}

typedef struct Documents { const int32_t *start; int64_t n; int32_t whole[2]; } Documents;

/* Rows here in the order they lie in: what a document has in the first chunk ends that chunk if it has any in
 * the second, so that it is one causal segment. */
static void own_rows(ContextBatch *b, int32_t *starts, const Documents *d)
{
    int64_t n = 0;
    starts[0] = 0;
    for (int64_t i = 0; i < d->n; i++) {
        int64_t from = zigzag_before(b->tokens, b->outer, b->at, d->start[i]);
        int64_t to   = zigzag_before(b->tokens, b->outer, b->at, d->start[i + 1]), len = to - from;
        if (!len) continue;
        starts[++n]    = (int32_t)to;
        b->own.longest = max_i64(b->own.longest, len);
        b->own.pairs  += (double)len * (double)(len + 1) / 2;
    }
    b->own.n = n, b->own.starts = t_rows(b->borders, 0, n + 1);
}

/* Keys of a chunk as a rank has them: from `before` rows before it on, at row `at` of all keys here. */
typedef struct KeyRange { int64_t before, at; } KeyRange;

/* Adds the pieces of documents in the chunk that begins at row `begin` of the stream, whose rows are here
 * from `row` on: a piece sees its document up to the piece's last row, as far as keys go back. lists: starts
 * of queries, starts of keys, keys in use. */
static void add_pieces(Segments *seg, int32_t *const lists[3], const Documents *d, int64_t begin,
                       int64_t chunk, int64_t row, KeyRange keys)
{
    for (int64_t i = 0; i < d->n; i++) {
        int64_t from = max_i64(d->start[i], begin), to = min_i64(d->start[i + 1], begin + chunk);
        int64_t first = max_i64(d->start[i], begin - keys.before), len = to - from;
        if (len <= 0) continue;
        lists[1][seg->n] = (int32_t)(first - begin + keys.before + keys.at);
        lists[2][seg->n] = (int32_t)(to - first);
        lists[0][++seg->n] = (int32_t)(to - begin + row);
        seg->longest = max_i64(seg->longest, len);
        seg->pairs  += (double)len * ((double)(len + 1) / 2 + (double)(from - first));
    }
}

/* Rows here against keys that are rows `keys` of another buffer: lists begin at `at` of the borders. */
static Segments add_chunks(const ContextBatch *b, int32_t *host, int64_t at, const Documents *d, bool near)
{
    int64_t  list = list_size(b), chunk = context_chunk(b), keys = near ? 4 * chunk : b->tokens;
    int32_t *lists[] = { host + at, host + at + list, host + at + 2 * list };
    Segments seg = { .causal = true, .keys = keys };
    lists[0][0] = 0;
    for (int half = 0; half < 2; half++) {
        int64_t  begin = chunk * (half ? 2 * b->outer - 1 - b->at : b->at);
        KeyRange from = near ? (KeyRange){ chunk, 2 * half * chunk } : (KeyRange){ begin, 0 };
        add_pieces(&seg, lists, d, begin, chunk, half * chunk, from);
    }
    lists[1][seg.n] = (int32_t)keys;
    seg.starts    = t_rows(b->borders, at, seg.n + 1);
    seg.kv_starts = t_rows(b->borders, at + list, seg.n + 1);
    seg.kv_used   = t_rows(b->borders, at + 2 * list, seg.n);
    return seg;
}

/* The document that has a row before `cut` and one behind it. */
static bool document_at(const Documents *d, int64_t cut, int64_t *from, int64_t *to)
{
    int64_t lo = 0, hi = d->n;                            /* the first that ends behind the cut */
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (d->start[mid + 1] > cut) hi = mid;
        else                         lo = mid + 1;
    }
    if (lo == d->n || d->start[lo] >= cut) return false;
    *from = d->start[lo], *to = d->start[lo + 1];
    return true;
}

/* Documents in each chunk of this rank, and at the borders of all chunks, of the cut over all CP ranks. */
static void chunk_documents(ContextBatch *b, int32_t *host, const Documents *d)
{
    int64_t list = list_size(b), chunks = 2 * b->inner * b->outer, chunk = b->tokens / chunks, from, to;
    for (int half = 0; half < 2; half++) {
        int64_t   at = (CHUNK + half) * list, begin = context_chunk_at(b, half) * chunk;
        int32_t  *starts = host + at;
        Segments *seg = &b->chunk[half];
        *seg = (Segments){ .causal = true };
        for (int64_t i = 0; i < d->n; i++) {
            int64_t len = min_i64(d->start[i + 1], begin + chunk) - max_i64(d->start[i], begin);
            if (len <= 0) continue;
            starts[seg->n + 1] = starts[seg->n] + (int32_t)len, seg->n++;
            seg->longest = max_i64(seg->longest, len);
        }
        seg->starts = t_rows(b->borders, at, seg->n + 1);
    }
    memset(b->crossing, 0, sizeof b->crossing);
    for (int64_t i = 1; i < chunks; i++)
        if (document_at(d, i * chunk, &from, &to)) b->crossing[i] = (int32_t)min_i64(i * chunk - from, chunk);
}

/* Keys of place j that queries here see. If j < at they are in its first chunk, which is before both of ours;
 * if j > at in both of its own, which are before our second. `cut` is where they end. */
static ContextBlock block_with(const ContextBatch *b, int j, const Documents *d)
{
    int64_t T = b->tokens, chunk = T / (2 * b->outer), from, to;
    int64_t cut = chunk * (j < b->at ? j + 1 : 2 * b->outer - j);
    if (!document_at(d, cut, &from, &to)) return (ContextBlock){ 0 };
    int64_t q0 = zigzag_before(T, b->outer, b->at, cut), q1 = zigzag_before(T, b->outer, b->at, to);
    int64_t k0 = zigzag_before(T, b->outer, j, from),    k1 = zigzag_before(T, b->outer, j, cut);
    if (q0 == q1) return (ContextBlock){ 0 };
    return (ContextBlock){ (int32_t)q0, (int32_t)(q1 - q0), (int32_t)k0, (int32_t)(k1 - k0) };
}

static void blocks(ContextBatch *b, int32_t *borders, const Documents *d)
{
    for (int i = 1; i < b->outer; i++) {
        ContextBlock x = block_with(b, (b->at - i + b->outer) % b->outer, d);
        b->block[i] = x;
        memcpy(borders + 4 * i, (int32_t[]){ 0, x.nq, 0, x.nk }, 4 * sizeof *borders);
    }
}

/* The borders of a plan's documents are not known, their pairs are: those of one document of all tokens are
 * scaled to them. A chunk and the one before it have no more than a rank's share of them. */
static void scale_pairs(ContextBatch *b, const Stream *whole)
{
    double n = (double)whole->tokens, all = n * (n + 1) / 2;
    b->share = !whole->start && all > 0 ? whole->pairs / all : 1;
    b->own.pairs *= b->share, b->prefix.pairs *= b->share;
    if (!whole->start && b->near.pairs > whole->pairs / b->outer) b->near.pairs = whole->pairs / b->outer;
}

void context_upload(ContextBatch *b, Backend *be, int32_t *host, const Stream *whole)
{
    if (b->inner * b->outer == 1) return;
    REQUIRE(whole->budget.tokens == b->tokens && whole->docs <= b->docs, "%lld tokens, %lld documents",
            (long long)whole->budget.tokens, (long long)whole->docs);
    Documents d = { whole->start, whole->docs, { 0, (int32_t)whole->tokens } };
    if (!d.start) d.start = d.whole, d.n = whole->docs > 0;      /* a plan's: one document of all tokens */
    memset(host, 0, (size_t)context_host(b) * sizeof *host);
    b->own = (Segments){ .causal = true };
    own_rows(b, host + OWN, &d);
    b->prefix = add_chunks(b, host, PREFIX * list_size(b), &d, false);
    b->near   = add_chunks(b, host, NEAR * list_size(b), &d, true);
    chunk_documents(b, host, &d);
    scale_pairs(b, whole);
    blocks(b, host + LISTS * list_size(b), &d);
    backend_upload(be, b->borders, host);
}

Segments context_segments(const ContextBatch *b, int i)
{
    int64_t      at = LISTS * list_size(b) + 4 * (int64_t)i;
    ContextBlock x = b->block[i];
    return (Segments){ .n = 1, .longest = x.nq, .pairs = b->share * (double)x.nq * (double)x.nk,
                       .keys = x.nk,
                       .starts = t_rows(b->borders, at, 2), .kv_starts = t_rows(b->borders, at + 2, 2) };
}
