/* nn/attention.h -- grouped-query self-attention of the decoder, with q/k norm and rotary positions.
 *
 * Under tp a rank has H / tp of the query heads and G / tp of the kv heads. With fewer kv heads than ranks,
 * neighbouring ranks share a kv head: each of them computes it, and the gradient of its rows of w_qkv is the
 * sum over these ranks. The norms run on this rank's T rows and on its heads, so the gradients
 * of their weights are parts of a sum, as that of b_o is.
 *
 * Families differ in what stands between the projections and the core: no norm of queries and keys, one of
 * each head, or one of all heads of a token together; a rotation of the first R components of a head; a
 * sink, which is one more score of each head without a value; a gate of the output. */
#ifndef NN_ATTENTION_H
#define NN_ATTENTION_H

#include "nn/layer_kind.h"

typedef struct Attention {
    int64_t H, G, C;                     /* query heads and kv heads of the whole layer, head width */
    int64_t R;                           /* components of a head that rotate, the first ones */
    int64_t window;                      /* keys that a query sees at most; 0: all before it */
    float   eps;
    bool    wide;                        /* q_norm and k_norm are of all heads together */
    bool    gated;                       /* a head's rows of q are its queries, then its gate */
    int     index;                       /* which layer of its kind this is: its rows of a cache */
    Param  *norm;                        /* (D)    */
    Param  *w_qkv, *b_qkv;               /* ((H + 2G) C, D): q rows, k rows, v rows; cut by heads */
    Param  *q_norm, *k_norm;             /* (C), or (H C) and (G C); NULL: none */
    Param  *sinks;                       /* (H); NULL: none */
    Param  *w_o, *b_o;                   /* (D, H C); cut by columns; b_o is whole */
} Attention;

typedef struct AttentionAct {            /* H and G: heads of this rank */
    Tensor n, rstd;                      /* normalised input (T, D); (T, 1)     */
    Tensor qkv;                          /* projections (Ta, (H + 2G) C); without a norm rotated in place */
    Tensor q, k, q_rstd, k_rstd;         /* after norm and rotation (Ta, H C), (Ta, G C) */
    Tensor o, lse;                       /* (Ta, H C), before its gate; (H, Ta) */
} AttentionAct;

/* y = w_o attention(norm(x)) without the residual; y absent: only what backward will read. x, y (T, D); cs
 * (Ta, R). */
void attention_fwd(const Pass *c, const Attention *m, AttentionAct *a, Tensor y, Tensor x, Tensor cs);
/* dx = dres + gradient through the branch; absent where nothing below trains. */
void attention_bwd(const Pass *c, const Attention *m, AttentionAct *a, Tensor dx, Tensor dy, Tensor x,
                   Tensor cs,
                   Tensor dres);

/* Layers [0, x) that attend to all tokens before; the others have a window or are gated delta nets. */
static inline int64_t attention_full_below(const TextShape *t, int64_t x)
{
    int64_t n = 0;
    for (int i = 0; i < t->full_count; i++) n += t->full_layers[i] < x;
    if (t->full_count) return n;
    if (t->window)     return t->window_all ? 0 : x / 2;
    return t->gdn.every ? x / t->gdn.every : x;
}

/* Whether anything of it trains. */
bool attention_trains(const Attention *m);

/* As rows of the table of kinds have them. */
void attention_kind_fwd(const Pass *c, const void *m, void *act, Tensor y, Tensor x, Tensor cs);
void attention_kind_bwd(const Pass *c, const void *m, void *act, Tensor dx, Tensor dy, Tensor x, Tensor cs,
                        Tensor dres);
bool attention_kind_trains(const void *m);

#endif
