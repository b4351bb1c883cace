/* nn/context_batch.h -- how a micro-batch is cut over context-parallel ranks, and which of its (query, key)
 * pairs fall to this one. Needs no Pass, so that a Batch can carry it.
 *
 * The T tokens of the flat stream are cut into 2 CP equal chunks; rank c has chunks c and 2 CP - 1 - c, one
 * behind the other (zigzag: every rank gets the same share of a causal triangle). Documents straddle chunks.
 *
 * Of CP ranks `near` exchange heads for tokens and `far` take turns with keys: near far = CP. Neighbours'
 * chunks are neighbours in the stream, so after the exchange a rank has chunks p and 2 far - 1 - p of a cut
 * into 2 far longer ones, p = c / near: whoever attends sees a plain zigzag over `far` ranks. */
#ifndef NN_CONTEXT_BATCH_H
#define NN_CONTEXT_BATCH_H

#include "comm/mesh.h"
#include "ops/ops.h"
#include "tensor/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { CONTEXT_P2P, CONTEXT_ALL_GATHER, CONTEXT_A2A, CONTEXT_A2A_P2P } ContextKind;

enum { CONTEXT_RANKS = 256 };         /* most ranks of cp */

/* The pairs of this rank's queries with the keys of another: all of one document, the only one that reaches
 * from there to here, and so a rectangle without a mask. Rows of the two ranks; nq == 0: none. */
typedef struct ContextBlock { int32_t q0, nq, k0, nk; } ContextBlock;

typedef struct ContextBatch {
    ContextKind  kind;
    int          near, far, at;       /* see above; my place among `far` */
    int64_t      tokens, docs;        /* T; most documents */
    Tensor       borders;             /* i32: all of the below, for one upload */
    Segments     own;                 /* rows after the exchange against themselves; all_gather: all keys */
    ContextBlock block[CONTEXT_RANKS];         /* i: with the keys of place (at - i) mod far, 0 < i < far */
} ContextBatch;

/* "p2p" "all_gather" "a2a" "a2a+p2p"; parallel.cp_comm has been checked to be one of these. */
ContextKind context_kind(const char *name);

/* Tensors for streams of this budget, from an arena of the backend. mesh NULL or cp 1: nothing. */
void    context_layout(ContextBatch *b, Arena *a, const Budget *budget, const Mesh *mesh, ContextKind kind);
/* int32s of host memory that context_upload copies from: it stays untouched until the copy is done. */
int64_t context_host(const ContextBatch *b);
/* What the documents of `whole`, the stream of all cp ranks, leave to this one; without arrays behind it, a
 * plan's, it is one document. */
void    context_upload(ContextBatch *b, Backend *be, int32_t *host, const Stream *whole);
/* The segments of block i: its queries, its keys, rows counted from those. */
Segments context_segments(const ContextBatch *b, int i);

/* Of the first `rows` rows of the stream rank c has so many, and they are its first. */
static inline int64_t zigzag_before(int64_t T, int cp, int c, int64_t rows)
{
    int64_t chunk = T / (2 * cp), a = rows - c * chunk, b = rows - (2 * cp - 1 - c) * chunk;
    return (a < 0 ? 0 : a > chunk ? chunk : a) + (b < 0 ? 0 : b > chunk ? chunk : b);
}

#ifdef __cplusplus
}
#endif
#endif
