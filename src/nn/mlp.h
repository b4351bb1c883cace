/* nn/mlp.h -- dense SwiGLU feed-forward: y = res + (silu(x Wg') * (x Wu')) Wd'.
 *
 * Under tp a rank has I / tp of the width: those rows of gate and up, those columns of w_d. */
#ifndef NN_MLP_H
#define NN_MLP_H

#include "nn/layer_kind.h"

typedef struct Mlp {
    int64_t I;                           /* of the whole layer */
    ActivationId act;
    bool    is_shared;                   /* it stands beside the experts of an MoE layer: labels SHARED_… */
    Param  *w_gu;                        /* (2I, D), gate rows above up rows */
    Param  *w_d;                         /* (D, I) */
} Mlp;

typedef struct MlpAct { Tensor gu, h; } MlpAct;          /* (Ta, 2I / tp); (Ta, I / tp) */

/* x, y, res (T, D): this rank's rows. */
void mlp_fwd(const Pass *c, const Mlp *m, MlpAct *a, Tensor y, Tensor x, Tensor res);
/* dx absent: nothing below trains. */
void mlp_bwd(const Pass *c, const Mlp *m, MlpAct *a, Tensor dx, Tensor dy, Tensor x);

#endif
