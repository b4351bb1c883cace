/* nn/visual.h -- visual rows between the ranks that make them and those that have their tokens.
 *
 * The pictures of a micro-batch are dealt out over its tp_cp ranks; a merged row then goes straight to the
 * one rank that keeps its token between layers, and its gradient back. One rank alone uses them as they
 * are. */
#ifndef NN_VISUAL_H
#define NN_VISUAL_H

#include "nn/module.h"

/* Rows (M, D) for this rank's tokens from the rows made here (N, D); made is absent where no picture is. */
Tensor visual_send(const Pass *c, Tensor made, int64_t D);
/* Back: gradients of the rows made here (N, D) from those of the tokens' rows (M, D); absent where no picture
 * is. */
Tensor visual_return(const Pass *c, Tensor rows);

#endif
