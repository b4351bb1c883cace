/* nn/lora.h -- low-rank pairs that are trained beside a weight which is not.
 *
 *   y = x W' + s (drop(x) A') B'          A (r, in), B (out, r), s = alpha / r or alpha / sqrt(r)
 *
 * A weight that stacks several tensors of a checkpoint (q, k, v; gate, up) has a pair for each one that was
 * asked for: their A lie one below the other, so that x is read once, their B each belong to some columns of
 * y. Linear layers (nn/module.h, nn/rows.h) find the pairs on their weight, so nobody else knows of them but
 * the experts, whose products take them along (LoraTerm of ops/ops.h).
 *
 * low = s drop(x) A' (T, R) is made again in backward; that of experts is kept (label LORA), since their rows
 * are many. back = s dy B (T, R) is what is left of dy in those few columns:
 *
 *   B.g += dy' low      A.g += back' drop(x)      dx += drop(back A)
 *
 * drop leaves out what chance says (ops/dropout.h), in the products themselves; that the rest grows by
 * 1 / (1 - p) is part of s.
 *
 * Under a mesh a pair is cut as its weight is: where that has some of the rows, A is whole and B has those
 * rows; where it has some of the columns, A has those and B is whole. What is whole has a part of its
 * gradient on each of these ranks, and their sum is taken with all others (Param.sums). */
#ifndef NN_LORA_H
#define NN_LORA_H

#include "nn/module.h"

typedef struct LoraPart {
    Param  *b;                           /* (out, r); of experts (E, out, r) */
    int     piece;                       /* of the weight, whose checkpoint tensor it adapts */
    int64_t at, rows;                    /* columns of y that are its, on this rank */
    int64_t from, r;                     /* its columns of low and back */
    float   scale;
} LoraPart;

struct Lora {
    Param   *a;                          /* (R, in); of experts (E, r, in), or (1, r, in): one for all */
    LoraPart part[3];
    int      parts;
    float    dropout;
    uint64_t stream;                     /* of chance: a function of the module's name */
};

/* y += s drop(x) A' B'. A weight without pairs is passed over here and below. */
void   lora_fwd(const Pass *c, Tensor y, Tensor x, const Param *w);
/* back of dy, of scratch; absent without pairs. */
Tensor lora_d_a_out(const Pass *c, Tensor dy, const Param *w);
void   lora_input_grad(const Pass *c, Tensor dx, Tensor back, const Param *w);            /* dx += drop(back A) */
void   lora_grads(const Pass *c, Tensor dy, Tensor back, Tensor x, const Param *w);  /* of A and B */

/* Rows of experts: sorted by expert as offsets say, in buffers of `room`; those behind the last are
 * nobody's. */
typedef struct LoraRows { Tensor offsets; int64_t room; } LoraRows;

/* A weight of experts has one pair for each. Their products take low and back along as a tail. */
int64_t lora_a_cols(const Param *w);                      /* columns of low; 0: no pairs */
void   lora_rows_a_out(const Pass *c, Tensor low, Tensor x, const Param *w, const LoraRows *by);
Tensor lora_rows_d_a_out(const Pass *c, Tensor dy, const Param *w, const LoraRows *by);
LoraTerm   lora_term(Tensor low, const Param *w);
LoraTerm   lora_input_term(const Pass *c, Tensor back, const Param *w);
void   lora_rows_grads(const Pass *c, Tensor dy, Tensor low, Tensor back, Tensor x, const Param *w,
                       const LoraRows *by);

#endif
