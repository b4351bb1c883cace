/* nn/attention_heads.h -- heads of grouped-query attention between its projections and its core: their views,
 * the norms of queries and keys, their rotation. */
#ifndef NN_ATTENTION_HEADS_H
#define NN_ATTENTION_HEADS_H

#include "nn/attention.h"

typedef struct Share { int64_t H, G, C; } Share;             /* heads of this rank */
typedef struct Heads { Tensor q, k, v, gate; } Heads;        /* (Ta, heads, C) each; gate absent: none */

Share attention_share(const Pass *c, const Attention *m);
/* The parts of a buffer of projections or of their gradients. */
Heads attention_parts(const Attention *m, Share s, Tensor qkv);
int64_t attention_cols(const Attention *m, Share s);         /* of such a buffer */
Tensor attention_rows(Tensor heads);                         /* (Ta, heads C), of adjacent heads */

/* After the projections: norms and rotates queries and keys. fresh: the projections were computed now. */
void  attention_rotate(const Pass *c, const Attention *m, AttentionAct *a, Tensor cs, bool fresh);
/* What the core reads, after attention_rotate. */
Heads attention_heads(const Attention *m, Share s, const AttentionAct *a);
/* From gradients d of what the core reads, which are overwritten, to those of the projections, dqkv. d may
 * lie in dqkv where queries and keys have no norm. */
void  attention_unrotate(const Pass *c, const Attention *m, const AttentionAct *a, Tensor dqkv, Heads d,
                         Tensor cs);

#endif
