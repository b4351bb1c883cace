/* nn/moe.h -- sparse feed-forward: a router sends each token to K of E SwiGLU experts.
 *
 *   y[t] = res[t] + sum_k r[t,k] * expert_{e(t,k)}(x[t])
 *
 * The gate r multiplies the activation inside the expert, which gives the same sum, so combine is a plain sum
 * of rows, and the backward of dispatch is combine and the other way round. With a dispatcher (nn/dispatch.h)
 * a rank has some of the experts, or parts of them, and rows travel to other ranks.
 *
 * Experts that every token passes are a dense feed-forward beside the others, whose output is added.
 *
 * moe.c routes, moe_shared.c has the shared experts, moe_experts.c computes the experts, moe_chunked.c
 * runs a layer whose rows do not fit the buffers at once. */
#ifndef NN_MOE_H
#define NN_MOE_H

#include "nn/mlp.h"
#include "nn/moe_sort.h"

typedef struct Moe {
    int64_t E, K, F;                     /* of the whole model */
    ActivationId act;
    bool    renorm;                      /* the K selected weights are scaled to sum to 1 */
    RouterForm router;
    RouterGroups groups;                 /* of a sigmoid router, as are scale and score_bias */
    float   scale;                       /* of the selected weights */
    int     index;                       /* which MoE layer this is: its row of the router statistics */
    double  capacity;   /* factor: an expert takes ceil(capacity T K / E) rows of a rank; 0: all */
    bool    pad;                         /* every expert gets exactly that many rows, padded: fixed shapes */
    bool    balance;                     /* random logits replace the router's; for benchmarks */
    Param  *w_router, *b_router;         /* (E, D); (E), NULL: none */
    Param  *b_gu, *b_d;                  /* (E, 2F), (E, D); NULL: none */
    Param  *score_bias;                  /* (E) f32, added to scores to select experts; NULL: none */
    Mlp     shared;                      /* that every token passes; I = 0: none */
    Param  *w_shared_gate;               /* (1, D): its output has a sigmoid gate; NULL: none */
    Param  *w_gu;                        /* (E, 2F, D), gate rows above up rows */
    Param  *w_d;                         /* (E, D, F) */
} Moe;

/* What a dispatcher's build_routing leaves for dispatch and combine. */
typedef struct Route {
    int64_t T;                           /* tokens that it has memory for */
    int64_t sent;   /* rows that leave this rank, where each assignment is sent as a row */
    Tensor  index[4];                    /* the dispatcher's own */
    void   *table;                       /* on the host */
} Route;

typedef struct MoeAct {
    Tensor logits, lse;                  /* (T, E) f32; (T, 1) */
    Tensor idx, weight;                  /* (T, K): selected experts and their weights */
    Tensor counted;                      /* (T, K): what the balance loss counts; in scratch */
    Tensor offsets, gate;                /* (E+1, 1); (R, 1): of the experts and rows of this rank */
    Tensor rows, src;                    /* (T, K); (R, 1): rows of assignments, without a dispatcher */
    Tensor kept;   /* (T, K): idx, or -1 where dropped over capacity; with a dispatcher */
    Route  route;
    int64_t token_chunks;                /* that the tokens are processed in; 1: all at once */
    bool   is_chunk;   /* this is one of them: x … a_out_d are buffers that all chunks share */
    int64_t R;                           /* rows that the experts of this rank get */
    int64_t charged_rows;                /* rows that the ledger is charged with; 0: R */
    Tensor x;                            /* (R, D) tokens as the experts receive them */
    Tensor gu, h;                        /* (R, 2F); (R, F) */
    MlpAct shared;
    Tensor shared_gate, shared_y;        /* (T, 1), (T, D) before its gate; where there is a gate */
    Tensor a_out_gu, a_out_d;            /* x and h times the LoRA A of w_gu and w_d (nn/lora.h) */
} MoeAct;

void moe_fwd(const Pass *c, const Moe *m, MoeAct *a, Tensor y, Tensor x, Tensor res);
/* dx absent: nothing below trains. */
void moe_bwd(const Pass *c, const Moe *m, MoeAct *a, Tensor dx, Tensor dy, Tensor x);

/* Whether the weight gradients of its experts are computed from codes (nn/precision.def): experts_dw is
 * listed, and nothing here makes them wide. */
bool moe_codes_dw(const Env *env, const Moe *m);

/* Rows of one rank that an expert takes, of T tokens; 0: all there are. */
static inline int64_t moe_capacity(const Moe *m, int64_t T)
{
    return moe_expert_capacity(m->capacity, T, m->K, m->E);
}

#endif
