/* engine/optim.h -- AdamW over what this rank steps, with one global gradient norm. */
#ifndef ENGINE_OPTIM_H
#define ENGINE_OPTIM_H

#include "parallel/shard.h"

typedef struct OptimConf {
    AdamW        adam;                   /* step is counted by the caller, from 1 */
    bool         decay_all;              /* decay norms and biases too, as the reference's plain AdamW does */
    const float *group_lr;               /* learning rate of each group, or NULL: adam.lr for all */
} OptimConf;

/* sumsq (1) F64 = sum of squares of all gradients of live parameters, of every element in the world once:
 * copies and shared rows are left to one rank of those that have them. The same bits on all ranks. each
 * (params_tensors) F64, or absent: what this rank adds of every tensor, where optim_owns_piece says that
 * it adds anything; the others' cells stay as they are. */
void optim_grad_norm(const Model *m, Backend *be, Tensor sumsq, Tensor each);
bool optim_owns_piece(const Param *p, int i);
/* One AdamW step of every live parameter; clipping reads the norm from sumsq on the device. */
void optim_step(Backend *be, Tensor sumsq, const OptimConf *conf, Shard *s);

#endif
