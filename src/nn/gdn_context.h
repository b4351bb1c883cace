/* nn/gdn_context.h -- gated delta nets of a sequence that is cut over context-parallel ranks
 * (nn/context_batch.h): states pass from chunk to chunk in the order of the stream.
 *
 * A chunk makes of the state S that enters it the state A S + B. Every rank computes A (the state that leaves
 * if the identity enters and all values are 0) and B (the state that leaves if 0 enters) of its two chunks,
 * all ranks gather them, and each applies those before its chunks in turn: a state waits for no other rank's
 * pass. Outputs are recomputed from the state that enters. Backward passes gradients of states the other
 * way: that of the state that enters is A' dS + D, where D is what the chunk's own outputs make. Chunks that
 * begin with a document, and the tail behind the last one, take no state. The sums have an order that the
 * layout fixes: equal bits in every run of it.
 *
 * The convolution sees the last rows of the chunk before, of the document that goes on. */
#ifndef NN_GDN_CONTEXT_H
#define NN_GDN_CONTEXT_H

#include "nn/module.h"

enum { GDN_TILE = 64 };                  /* rows between two states of backward: ops/delta_rule.c */

/* Inputs of the rule, of this rank's rows; see ops/delta_rule.c. */
typedef struct GdnRule { Tensor q, k, v, g, beta; float scale; } GdnRule;
typedef struct GdnRuleGrads { Tensor dq, dk, dv, dg, dbeta; } GdnRuleGrads;

/* What backward reads: states that enter this rank's two chunks (2, Hv dk dv), their A (2, Hv dk dk), f32. */
typedef struct GdnStates { Tensor first, pass; } GdnStates;

void gdn_context_rule_fwd(const Pass *c, Tensor o, GdnStates kept, const GdnRule *x);
void gdn_context_rule_bwd(const Pass *c, const GdnRuleGrads *to, Tensor dout, GdnStates kept,
                          const GdnRule *x);

/* Rows of x (Ta, H, C) before each of the two chunks, as columns from `col` on of before (2 h, N), which
 * gdn_context_tails_send fills for all sections. */
void gdn_context_tails_put(const Pass *c, Tensor tail, int64_t col, Tensor x);
void gdn_context_tails_send(const Pass *c, Tensor before, Tensor tail);
/* Gradients dbefore of these rows come back; then each section adds its columns to dx. */
void gdn_context_tails_return(const Pass *c, Tensor dtail, Tensor dbefore);
void gdn_context_tails_add(const Pass *c, Tensor dx, Tensor dtail, int64_t col);

/* What the convolution of a chunk (0 or 1) sees before it: columns of `before`, or nothing. */
Tensor gdn_context_before(const Pass *c, Tensor before, int half, int64_t col, Tensor x);
Tensor gdn_context_chunk(Tensor t, int half);              /* this rank's rows of a chunk */

#endif
