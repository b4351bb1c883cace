/* nn/attention.h -- grouped-query self-attention of the decoder, with q/k norm and rotary positions. */
#ifndef NN_ATTENTION_H
#define NN_ATTENTION_H

#include "nn/module.h"

typedef struct Attention {
    int64_t H, G, C;                     /* query heads, kv heads, head width */
    float   eps;
    int     index;                       /* which layer this is: its rows of a cache */
    Param  *norm;                        /* (D)    */
    Param  *w_qkv, *b_qkv;               /* ((H + 2G) C, D): q rows, k rows, v rows */
    Param  *q_norm, *k_norm;             /* (C)    */
    Param  *w_o, *b_o;                   /* (D, H C) */
} Attention;

typedef struct AttentionAct {
    Tensor n, rstd;                      /* normalised input (T, D); (T, 1)     */
    Tensor qkv;                          /* projections (T, (H + 2G) C)         */
    Tensor q, k, q_rstd, k_rstd;         /* after norm and rotation (T, H C), (T, G C) */
    Tensor o, lse;                       /* (T, H C); (H, T)                    */
} AttentionAct;

/* y = w_o attention(norm(x)) without the residual; y absent: only what backward will read. */
void attention_fwd(Ctx *c, const Attention *m, AttentionAct *a, Tensor y, Tensor x, Tensor cs);
/* dx = dres + gradient through the branch. */
void attention_bwd(Ctx *c, const Attention *m, AttentionAct *a, Tensor dx, Tensor dy, Tensor x, Tensor cs,
                   Tensor dres);

#endif
