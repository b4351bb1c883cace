/* nn/lora.h -- LoRA: low-rank adapters that train next to a frozen weight.
 *
 *   y = x W' + s (drop(x) A') B'          A (r, in), B (out, r), s = alpha / r or alpha / sqrt(r)
 *
 * A weight that stacks several tensors of a checkpoint (q, k, v; gate, up) has an adapter for each one that
 * was asked for: their A lie one below the other, so that x is read once, and each B belongs to some columns
 * of y. Linear layers (nn/module.h, nn/rows.h) find the adapters on their weight; no other code knows of them
 * but the experts, whose grouped products add them as a LoraTerm (ops/ops.h).
 *
 * a_out = s drop(x) A' (T, R) is recomputed in backward; that of experts is kept (label LORA), since their
 * rows are many. d_a_out = s dy B (T, R) is its gradient:
 *
 *   B.g += dy' a_out      A.g += d_a_out' drop(x)      dx += drop(d_a_out A)
 *
 * drop is dropout (ops/dropout.h), inside the products; its factor 1 / (1 - p) is part of s.
 *
 * Under a mesh an adapter is cut as its weight is: where the weight is cut by rows, A is whole and B has
 * these rows; where it is cut by columns, A has these columns and B is whole. Each of these ranks has a part
 * of the gradient of what is whole, and Param.grad_group sums them. */
#ifndef NN_LORA_H
#define NN_LORA_H

#include "nn/module.h"

typedef struct LoraPart {
    Param  *b;                           /* (out, r); of experts (E, out, r) */
    int     piece;                       /* of the weight: the checkpoint tensor it adapts */
    int64_t at, rows;                    /* its columns of y, on this rank */
    int64_t from, r;                     /* its columns of a_out and d_a_out */
    float   scale;
} LoraPart;

struct Lora {
    Param   *a;                          /* (R, in); of experts (E, r, in), or (1, r, in): shared by all */
    LoraPart part[PARAM_PIECES];
    int      parts;
    float    dropout;
    uint64_t stream;                     /* of random numbers: a function of the module's name */
};

/* y += s drop(x) A' B'. Here and below a weight without adapters is skipped. */
void   lora_fwd(const Pass *c, Tensor y, Tensor x, const Param *w);
/* s dy B, in scratch; absent without adapters. */
Tensor lora_d_a_out(const Pass *c, Tensor dy, const Param *w);
void   lora_input_grad(const Pass *c, Tensor dx, Tensor d_a_out, const Param *w);  /* dx += drop(d_a_out A) */
void   lora_grads(const Pass *c, Tensor dy, Tensor d_a_out, Tensor x, const Param *w);  /* of A and B */

/* A weight of experts has one adapter for each. Grouped products take a_out and d_a_out as a LoraTerm. */
int64_t lora_a_cols(const Param *w);                      /* columns of a_out; 0: no adapters */
void   lora_rows_a_out(const Pass *c, Tensor a_out, Tensor x, const Param *w, const ExpertRows *by);
Tensor lora_rows_d_a_out(const Pass *c, Tensor dy, const Param *w, const ExpertRows *by);
LoraTerm   lora_term(Tensor a_out, const Param *w);
LoraTerm   lora_input_term(const Pass *c, Tensor d_a_out, const Param *w);
void   lora_rows_grads(const Pass *c, Tensor dy, Tensor a_out, Tensor d_a_out, Tensor x, const Param *w,
                       const ExpertRows *by);

#endif
