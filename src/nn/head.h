/* nn/head.h -- final norm, output projection and cross entropy over the supervised rows.
 *
 * Logits exist for a chunk of rows at a time, never (T, V). Since the loss ends the forward pass,
 * its gradient is computed chunk by chunk in the same pass.
 *
 * Under tp all ranks normalise the same rows and a rank has the logits of its part of the vocabulary. Logits
 * are not gathered: ranks exchange three numbers of each row and part (ops/cross_entropy.c). */
#ifndef NN_HEAD_H
#define NN_HEAD_H

#include "nn/layer_kind.h"

typedef struct Head {
    float   eps;
    int64_t V, chunk;   /* vocabulary of the whole model; rows whose logits exist at once */
    Param  *norm;                            /* (D) */
    Param  *w;                               /* (V, D), cut by rows; the embedding itself when tied */
} Head;

void    head_describe(Description *d, const TextShape *t);
int64_t head_chunk_rows(int64_t V, int64_t logits);      /* rows that `logits` numbers hold, at least 16 */

/* loss[0] (F64) += scale * summed cross entropy, on the first rank of tp alone; back: gradients are computed,
 * dx (T, D) where it is wanted. x (T, D): this rank's rows; c->row_loss is filled on all ranks of tp. */
void head_loss(const Pass *c, const Head *h, Tensor loss, Tensor dx, Tensor x, Factor scale, bool back);

/* Logits of rows [from, from + n) of x as f32, for parity and generation. y (n, V); x and y are the same on
 * all ranks of tp (nn/rows.h gathers). */
void head_logits(const Pass *c, const Head *h, Tensor y, Tensor x, int64_t from);

#endif
