/* train/zero_grad.h -- the zero-gradient check: trainable tensors whose gradient stays exactly zero.
 *
 * Such a tensor is adapted or left unfrozen in vain, and the loss does not show it. train.max_zero_steps such
 * steps in a row end the run with the name of the tensor. The squares are the terms of the gradient norm,
 * tensor by tensor (engine/optim.h); they are copied to the host with it (engine/step_results.h).
 *
 * Some steps do not count: skipped ones, those without input for the part (a vision tower without pictures),
 * and for the A of an adapter those before its B has moved, since the gradient of A goes through B, which
 * starts at zero. A tensor that several ranks share counts as zero when all of its parts are zero, a stack of
 * experts when all experts are. Counts start anew when a run is resumed. */
#ifndef TRAIN_ZERO_GRAD_H
#define TRAIN_ZERO_GRAD_H

#include "engine/optim.h"

typedef struct ZeroGradTensor {
    const Param *p;
    int          piece;
    int          through;                /* of an adapter's A: index of its B; else -1 */
    bool         moved;                  /* an update with a learning rate above 0 has changed it */
    int64_t      in_a_row;               /* steps with a zero gradient */
} ZeroGradTensor;

typedef struct ZeroGradCheck {
    int64_t   limit;                     /* steps in a row; 0: no check */
    int       n;                         /* params_tensors, in the order of optim_grad_norm */
    ZeroGradTensor *tensor;              /* (n) */
    uint64_t *bits;                      /* of each rank, then of this one: (2, words), "the step counts" and
                                            "has a gradient", a bit a tensor */
    uint64_t *due;                       /* (2, words) of two steps in flight: "this rank counts it" */
    int       words;                     /* of one of these two bit sets */
} ZeroGradCheck;

MUST Status zero_grad_open(ZeroGradCheck *s, const Model *m, int64_t limit);
void        zero_grad_close(ZeroGradCheck *s);                                       /* twice is fine */

/* When a step is queued: notes which tensors have a gradient in it. slot: 0 or 1. */
void        zero_grad_expect(ZeroGradCheck *s, int slot);
/* After its update, with its squares (1 + n: ResultBlock.sumsq) and the learning rate of each group:
 * the number of tensors at the limit. Called by all ranks of a pipeline stage, with the same result. */
int         zero_grad_count_step(ZeroGradCheck *s, const Mesh *mesh, int slot, const double *squares,
                                 const float *lr);
MUST Status zero_grad_error(const ZeroGradCheck *s);     /* E_CHECK with the name of the first, or OK */

#endif
