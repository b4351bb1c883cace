/* nn/mlp.h -- dense SwiGLU feed-forward: y = res + (silu(x Wg') * (x Wu')) Wd'. */
#ifndef NN_MLP_H
#define NN_MLP_H

#include "nn/module.h"

typedef struct Mlp {
    int64_t F;
    Param  *w_gu;                        /* (2F, D), gate rows above up rows */
    Param  *w_d;                         /* (D, F) */
} Mlp;

typedef struct MlpAct { Tensor gu, h; } MlpAct;          /* (T, 2F); (T, F) */

void mlp_fwd(Ctx *c, const Mlp *m, MlpAct *a, Tensor y, Tensor x, Tensor res);
void mlp_bwd(Ctx *c, const Mlp *m, MlpAct *a, Tensor dx, Tensor dy, Tensor x);

#endif
