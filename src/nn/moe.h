/* nn/moe.h -- sparse feed-forward: a router sends each token to K of E SwiGLU experts.
 *
 *   y[t] = res[t] + sum_k r[t,k] * expert_{e(t,k)}(x[t])
 *
 * The gate r multiplies the activation inside the expert, which is the same sum, so combining is a plain
 * sum of rows, and the backward of either road (to the experts, and back) is the other one. With c->env->dispatcher
 * a rank has some of the experts, or parts of them, and the roads lead to other ranks (nn/dispatch.h).
 *
 * Where a rank would get more rows than it has room for, the group does the layer in slices of its tokens: to
 * the experts, through them and back, slice after slice in the same buffers. Nothing of a slice is kept;
 * backward makes each one again from the pinned choice, and the gradients of the experts' weights add up
 * slice by slice, within one by source and token. All else is the sums of the whole, row by row. */
#ifndef NN_MOE_H
#define NN_MOE_H

#include "nn/layer_kind.h"

typedef struct Moe {
    int64_t E, K, F;                     /* of the whole model */
    bool    renorm;                      /* weights of the chosen K are scaled to sum to 1 */
    int     index;                       /* which MoE layer this is: its row of the statistics */
    double  capacity;                    /* an expert takes ceil(capacity T K / E) rows of a rank; 0: all */
    bool    pad;                         /* and gets as many, some of them empty: shapes never change */
    bool    balance;                     /* random logits instead of the router's, for benchmarks alone */
    Param  *w_router;                    /* (E, D) */
    Param  *w_gu;                        /* (E, 2F, D), gate rows above up rows */
    Param  *w_d;                         /* (E, D, F) */
} Moe;

/* What a dispatcher leaves for the ways there and back. */
typedef struct Route {
    int64_t T;                           /* tokens that it has memory for */
    int64_t sent;                        /* rows that leave this rank, where it sends each slot apart */
    Tensor  index[3];                    /* its own */
    void   *table;                       /* on the host */
} Route;

typedef struct MoeAct {
    Tensor logits, lse;                  /* (T, E) f32; (T, 1) */
    Tensor idx, weight;                  /* (T, K): experts chosen, their weights */
    Tensor offsets, gate;                /* (E+1, 1); (R, 1): of the experts and rows of this rank */
    Tensor rows, src;                    /* (T, K); (R, 1): where slots go, without a dispatcher */
    Tensor kept;                         /* (T, K): idx, or -1 where the expert is full; with a dispatcher */
    Route  route;
    int64_t slices;                      /* that the tokens are cut in; 1: done at once */
    bool   part;                         /* this is one of them */
    int64_t R;                           /* rows that the experts here get */
    Tensor x;                            /* (R, D) tokens as the experts receive them */
    Tensor gu, h;                        /* (R, 2F); (R, F) */
    Tensor a_out_gu, a_out_d;                /* x and h in the columns of their weights' pairs (nn/lora.h) */
} MoeAct;

void moe_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res);
/* dx absent: nothing below trains. */
void moe_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dy, Tensor x);

/* Rows of one rank that an expert takes, of T tokens; 0: all there are. */
int64_t moe_capacity(const Moe *m, int64_t T);

/* Slots by expert: offsets (E+1), rows (T, K), src (the number of rows there is room for), with moe.pad all
 * experts at equal distance. Scratch is used and not given back. */
void moe_sort(const Pass *c, const Moe *m, Tensor offsets, Tensor rows, Tensor src, Tensor kept, int64_t capacity);

#endif
