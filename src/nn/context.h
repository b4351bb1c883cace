/* nn/context.h -- attention of a sequence that is cut over context-parallel ranks.
 *
 * Every rank of cp calls with its own rows (nn/context_batch.h says which) of all heads it has under tp; the
 * documents are those of the whole micro-batch. Where cp is 1 it is plain attention over Batch.seg. */
#ifndef NN_CONTEXT_H
#define NN_CONTEXT_H

#include "nn/module.h"

/* q, o (Ta, H, C), k, v (Ta, G, C), of one dtype. lse (H, Ta) f32, dense, is for backward alone: how it lies
 * depends on the kind. o and lse are saved by the caller. */
void context_attention_fwd(const Pass *c, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, float scale);
/* Overwrites dq, dk, dv; delta (H, Ta) f32, dense, is scratch. */
void context_attention_bwd(const Pass *c, Tensor dq, Tensor dk, Tensor dv, Tensor delta, Tensor dout,
                           Tensor o,
                           Tensor lse, Tensor q, Tensor k, Tensor v, float scale);

#endif
