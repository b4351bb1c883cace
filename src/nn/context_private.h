/* nn/context_private.h -- between the files of context-parallel attention: context.c exchanges heads, then
 * context_ring.c or context_gather.c brings queries and keys together. */
#ifndef NN_CONTEXT_PRIVATE_H
#define NN_CONTEXT_PRIVATE_H

#include "nn/context.h"

/* All tensors of a call, rows and heads as they are after the exchange; forward has no gradients. */
typedef struct ContextCall {
    const ContextBatch *cut;
    Comm  *outer;                                  /* the ranks that have the other keys */
    Tensor q, k, v, o, lse;
    Tensor dq, dk, dv, delta, dout;
    float  scale;
} ContextCall;

void ring_fwd(const Pass *c, const ContextCall *x);
void ring_bwd(const Pass *c, const ContextCall *x);
void gather_fwd(const Pass *c, const ContextCall *x);
void gather_bwd(const Pass *c, const ContextCall *x);

/* Scratch as (T, heads, C). */
static inline Tensor scratch_heads(const Pass *c, DType d, int64_t T, int64_t heads, int64_t C)
{
    return t_as3(scratch2(c, d, T, heads * C), T, heads, C);
}

/* Keys and values travel as one: (T, 2 G C), keys on the left. */
typedef struct KeysValues { Tensor both, k, v; } KeysValues;

static inline KeysValues kv_of(Tensor both, int64_t G, int64_t C)
{
    return (KeysValues){ both, t_heads(both, 0, G, C), t_heads(both, G * C, G, C) };
}
static inline KeysValues kv_scratch(const Pass *c, const ContextCall *x, int64_t T)
{
    int64_t G = x->k.n[1], C = x->k.n[2];
    return kv_of(scratch2(c, (DType)x->k.dtype, T, 2 * G * C), G, C);
}
static inline KeysValues kv_rows(KeysValues t, int64_t from, int64_t rows)
{
    return (KeysValues){ t_rows(t.both, from, rows), t_rows(t.k, from, rows), t_rows(t.v, from, rows) };
}

#endif
