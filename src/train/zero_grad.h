/* train/zero_grad.h -- tensors that are trained and hear nothing.
 *
 * A tensor whose gradient is exactly zero is not learning: it was adapted or left unfrozen in vain, and
 * nobody would see it in a loss. Three live steps of that in a row end the run with its name. The squares are
 * those that the norm is made of, tensor by tensor (engine/optim.h); they come to the host with it.
 *
 * What does not count: steps that were skipped, parts that the step had nothing for (Param.live: a tower
 * without pictures), and the A of a pair whose B is still zero, since its gradient goes through B: an A is
 * looked at once its B has moved, by a step with a learning rate. A tensor that ranks share is still when all
 * of its parts are, and so are experts. Counts start anew when a run is resumed. */
#ifndef TRAIN_ZERO_GRAD_H
#define TRAIN_ZERO_GRAD_H

#include "engine/optim.h"

typedef struct ZeroGradTensor {
    const Param *p;
    int          piece;
    int          through;                /* which learner is the B that its gradient goes through, -1: none */
    bool         moved;                  /* it has been stepped away from where it began */
    int64_t      in_a_row;
} ZeroGradTensor;

typedef struct ZeroGradCheck {
    int64_t  limit;                      /* steps in a row; 0: never */
    int      n;                          /* params_tensors, in the order of optim_grad_norm */
    ZeroGradTensor *learner;                    /* (n) */
    double  *square;                     /* (1 + n) of engine_read_grad_squares */
    uint64_t *said;                      /* two bits a tensor: it counts here; it has a gradient. Of all
                                            ranks, then of this one */
    int      words;                      /* of one such bit for all tensors */
} ZeroGradCheck;

MUST Status zero_grad_open(ZeroGradCheck *s, const Model *m, int64_t limit);
void        zero_grad_close(ZeroGradCheck *s);                                       /* twice is fine */

/* After a step that changes the weights, with the learning rate of each group: how many tensors have been
 * still for too long. All ranks of a stage call it, and are told the same. */
int         zero_grad_count_step(ZeroGradCheck *s, const Mesh *mesh, const float *lr);
MUST Status zero_grad_error(const ZeroGradCheck *s);                          /* E_CHECK with the first's name, or OK */

#endif
