/* nn/context.h -- attention of a sequence that is cut over context-parallel ranks.
 *
 * Every rank of cp calls with its own rows (nn/context_batch.h says which) of all heads it has under tp; the
 * documents are those of the whole micro-batch. Where cp is 1 it is plain attention over Batch.seg. */
#ifndef NN_CONTEXT_H
#define NN_CONTEXT_H

#include "nn/module.h"

/* What an attention layer has beside its queries, keys and values. */
typedef struct AttentionTerms {
    float   scale;                       /* of scores */
    int64_t window;                      /* keys that a query sees at most; 0: all before it */
    Tensor  sinks, dsinks;               /* (1, H) or absent: ops/sink.c; dsinks, f32, adds */
} AttentionTerms;

/* `seg` as a layer with this window sees it, of so many rows of queries. */
Segments segments_in_window(Segments seg, int64_t window, int64_t rows);

/* q (Ta, H, C), o (Ta, H, Cv), k (Ta, G, C), v (Ta, G, Cv), of one dtype. lse (H, Ta) f32, dense, is for
 * backward alone: how it lies depends on the kind. o and lse are saved by the caller. */
void context_attention_fwd(const Pass *c, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                           AttentionTerms terms);
/* Overwrites dq, dk, dv; delta (H, Ta) f32, dense, is scratch. */
void context_attention_bwd(const Pass *c, Tensor dq, Tensor dk, Tensor dv, Tensor delta, Tensor dout,
                           Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, AttentionTerms terms);

/* Rows before each of a rank's two chunks, from the ranks of `outer` that have them. tail (2 h, N): the last
 * h rows of each chunk, h at most a chunk; before (2 h, N): the h rows before each, 0 before the stream. */
void context_exchange_tails(const Pass *c, Comm *outer, Tensor before, Tensor tail);
/* Its reverse, for gradients: what was found for `before` goes to the ranks whose tails those rows are. */
void context_return_tails(const Pass *c, Comm *outer, Tensor dtail, Tensor dbefore);

#endif
