/* nn/head.h -- final norm, output projection and cross entropy over the supervised rows.
 *
 * Logits exist for a chunk of rows at a time, never (T, V). Since the loss is the last thing forward does,
 * its gradient is taken chunk by chunk in the same pass. */
#ifndef NN_HEAD_H
#define NN_HEAD_H

#include "nn/module.h"

typedef struct Head {
    float   eps;
    int64_t V, chunk;                        /* rows whose logits exist at once */
    Param  *norm;                            /* (D) */
    Param  *w;                               /* (V, D); the embedding itself when tied */
} Head;

int64_t head_chunk_rows(int64_t V, int64_t logits);      /* as many as that many logits hold, at least 16 */

/* loss[0] (F64) += scale * summed cross entropy; dx (T, D) = its gradient, absent in evaluation. */
void head_loss(Ctx *c, const Head *h, Tensor loss, Tensor dx, Tensor x, float scale);

/* Logits of rows [from, from + n) of x as f32, for parity and generation. y (n, V). */
void head_logits(Ctx *c, const Head *h, Tensor y, Tensor x, int64_t from);

#endif
