/* nn/visual.h -- visual rows between the ranks that encode them and the ranks that have their tokens.
 *
 * The images of a micro-batch are dealt out over its tp_cp ranks; a merged row then goes straight to the one
 * rank that has its token between layers, and its gradient comes back. On one rank nothing moves. */
#ifndef NN_VISUAL_H
#define NN_VISUAL_H

#include "nn/module.h"

/* Rows (M, D) of this rank's tokens from the rows encoded here (N, D), absent without images. */
Tensor visual_send(const Pass *c, Tensor made, int64_t D);
/* Gradients of the rows encoded here (N, D) from those of this rank's tokens (M, D); absent without
 * images. */
Tensor visual_return(const Pass *c, Tensor rows);

#endif
