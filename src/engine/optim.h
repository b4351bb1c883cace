/* engine/optim.h -- AdamW over this rank's shard of the parameters, with one global gradient norm. */
#ifndef ENGINE_OPTIM_H
#define ENGINE_OPTIM_H

#include "parallel/shard.h"

typedef struct OptimConf {
    AdamW        adam;                   /* its step counts from 1, by the caller */
    bool         decay_all;              /* weight decay on norms and biases too, as PyTorch's AdamW has it */
    const float *group_lr;               /* learning rate of each group, or NULL: adam.lr for all */
    const AdamStep *now;                 /* (GROUP_N) on the device: see AdamW; NULL: by value */
} OptimConf;

/* sumsq (1) F64 = sum of squares of all gradients in the world, each element once: of copies and shared rows
 * one rank counts. Parameters without a gradient in this step are left out. All ranks get the same bits.
 * squares (params_tensors) F64, or absent: this rank's part of every tensor, where optim_owns_piece; other
 * cells stay unchanged. */
void optim_grad_norm(const Model *m, Backend *be, Tensor sumsq, Tensor squares);
bool optim_owns_piece(const Param *p, int i);               /* this rank counts elements of tensor i of p */
/* One AdamW step of every parameter with a gradient; clipping reads the norm from sumsq on the device. */
void optim_step(Backend *be, Tensor sumsq, const OptimConf *conf, Shard *s);

#endif
