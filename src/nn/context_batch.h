/* nn/context_batch.h -- how a micro-batch is cut over context-parallel ranks, and which (query, key) pairs a
 * rank computes. It needs no Pass, so that a Batch can carry it.
 *
 * The T tokens of the flat stream are cut into 2 CP equal chunks; rank c has chunks c and 2 CP - 1 - c, one
 * behind the other (zigzag: every rank gets the same share of a causal triangle). Documents may cross chunk
 * borders.
 *
 * Of CP ranks groups of `inner` exchange heads for tokens (all-to-all) and `outer` groups pass keys around
 * (ring): inner outer = CP. Neighbours' chunks are neighbours in the stream, so after the exchange a rank has
 * chunks p and 2 outer - 1 - p of a cut into 2 outer longer ones, p = c / inner: attention sees a plain
 * zigzag over `outer` ranks. */
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

/* This rank's queries against the keys of another rank: all of one document, the only one that both ranks
 * have a part of, and so a rectangle without a mask. Rows of the two ranks; nq == 0: none. */
typedef struct ContextBlock { int32_t q0, nq, k0, nk; } ContextBlock;

typedef struct ContextBatch {
    ContextKind  kind;
    int          inner, outer, at;       /* see above; index of this rank among `outer` */
    int          rank;                   /* index among all CP */
    int64_t      tokens, docs;        /* T; most documents */
    Tensor       borders;             /* i32: all of what follows, for one upload */
    Segments     own;                 /* rows after the exchange against themselves */
    Segments     prefix;              /* against all keys of the stream */
    Segments     near;                /* against the chunks and those before them: context_near.c */
    Segments     chunk[2];            /* documents in each chunk of this rank, before the exchange */
    int32_t      crossing[2 * CONTEXT_RANKS + 1];  /* i: rows that a document which goes on in chunk i has in
                                                      chunk i - 1; 0: chunk i begins one */
    double       share;               /* of the pairs of one document; 1 but in a dry run of shorter ones */
    ContextBlock block[CONTEXT_RANKS];   /* i: with the keys of place (at - i) mod outer, 0 < i < outer */
} ContextBatch;

/* "p2p" "all_gather" "a2a" "a2a+p2p"; parallel.cp_comm has been checked to be one of these. */
ContextKind context_kind(const char *name);

/* Tensors for streams of this budget, from an arena of the backend. mesh NULL or cp 1: nothing. */
void    context_layout(ContextBatch *b, Arena *a, const Budget *budget, const Mesh *mesh, ContextKind kind);
/* int32s of host memory that context_upload copies from: it stays untouched until the copy is done. */
int64_t context_host(const ContextBatch *b);
/* Cuts the documents of `whole`, the stream of all cp ranks; a stream without arrays (a dry run) is one
 * document with as many pairs as it says. */
void    context_upload(ContextBatch *b, Backend *be, int32_t *host, const Stream *whole);
/* The segments of block i; rows count from its first query and its first key. */
Segments context_segments(const ContextBatch *b, int i);

/* Which of the 2 CP chunks, in the order of the stream, a rank's first and second are. */
static inline int context_chunk_at(const ContextBatch *b, int half)
{
    return half ? 2 * b->inner * b->outer - 1 - b->rank : b->rank;
}

/* Rows of a chunk after the exchange. */
static inline int64_t context_chunk(const ContextBatch *b) { return b->tokens / (2 * b->outer); }

/* How many of the first `rows` rows of the stream rank c has; they are its first ones. */
static inline int64_t zigzag_before(int64_t T, int cp, int c, int64_t rows)
{
    int64_t chunk = T / (2 * cp), a = rows - c * chunk, b = rows - (2 * cp - 1 - c) * chunk;
    return (a < 0 ? 0 : a > chunk ? chunk : a) + (b < 0 ? 0 : b > chunk ? chunk : b);
}

#ifdef __cplusplus
}
#endif
#endif
