/* nn/moe.h -- sparse feed-forward: a router sends each token to K of E SwiGLU experts.
 *
 *   y[t] = res[t] + sum_k r[t,k] * expert_{e(t,k)}(x[t])
 *
 * The gate r multiplies the activation inside the expert, which is the same sum, so combining is a plain
 * sum of rows, and the backward of either road (to the experts, and back) is the other one. */
#ifndef NN_MOE_H
#define NN_MOE_H

#include "nn/module.h"

typedef struct Moe {
    int64_t E, K, F;
    bool    renorm;                      /* weights of the chosen K are scaled to sum to 1 */
    int     index;                       /* which MoE layer this is: its row of the statistics */
    Param  *w_router;                    /* (E, D) */
    Param  *w_gu;                        /* (E, 2F, D), gate rows above up rows */
    Param  *w_d;                         /* (E, D, F) */
} Moe;

typedef struct MoeAct {
    Tensor logits, lse;                  /* (T, E) f32; (T, 1) */
    Tensor idx, weight;                  /* (T, K): experts chosen, their weights */
    Tensor offsets, rows, src, gate;     /* (E+1, 1); (T, K); (R, 1); (R, 1)  with R = T K */
    Tensor x;                            /* (R, D) tokens as the experts receive them */
    Tensor gu, h;                        /* (R, 2F); (R, F) */
} MoeAct;

void moe_fwd(Ctx *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res);
void moe_bwd(Ctx *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dy, Tensor x);

#endif
