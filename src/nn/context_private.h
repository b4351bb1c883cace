/* nn/context_private.h -- between the files of context-parallel attention: context.c exchanges heads, then
 * context_ring.c, context_gather.c or context_near.c brings queries and keys together. */
#ifndef NN_CONTEXT_PRIVATE_H
#define NN_CONTEXT_PRIVATE_H

#include "nn/context.h"

/* All tensors of a call, rows and heads as they are after the exchange; forward has no gradients. */
typedef struct ContextCall {
    const ContextBatch *cut;
    Comm  *outer;                                  /* the ranks that have the other keys */
    Tensor q, k, v, o, lse;
    Tensor dq, dk, dv, delta, dout;
    AttentionTerms terms;                          /* sinks of these heads */
} ContextCall;

void ring_fwd(const Pass *c, const ContextCall *x);
void ring_bwd(const Pass *c, const ContextCall *x);
void gather_fwd(const Pass *c, const ContextCall *x);
void gather_bwd(const Pass *c, const ContextCall *x);
void near_fwd(const Pass *c, const ContextCall *x);
void near_bwd(const Pass *c, const ContextCall *x);

/* Whether keys of a window lie in a chunk or in the one before it. */
static inline bool window_is_near(const ContextCall *x)
{
    return x->terms.window && x->terms.window - 1 <= context_chunk(x->cut);
}

/* Scratch as (T, heads, C). */
static inline Tensor scratch_heads(const Pass *c, DType d, int64_t T, int64_t heads, int64_t C)
{
    return t_as3(scratch2(c, d, T, heads * C), T, heads, C);
}

/* Keys and values travel as one: (T, G (C + Cv)), keys on the left. */
typedef struct KeysValues { Tensor both, k, v; } KeysValues;

static inline KeysValues kv_scratch(const Pass *c, const ContextCall *x, int64_t T)
{
    int64_t G = x->k.n[1], C = x->k.n[2], Cv = x->v.n[2];
    Tensor  both = scratch2(c, (DType)x->k.dtype, T, G * (C + Cv));
    return (KeysValues){ both, t_heads(both, 0, G, C), t_heads(both, G * C, G, Cv) };
}
static inline KeysValues kv_rows(KeysValues t, int64_t from, int64_t rows)
{
    return (KeysValues){ t_rows(t.both, from, rows), t_rows(t.k, from, rows), t_rows(t.v, from, rows) };
}

#endif
