/* engine/step_results.h -- what the host reads of a step: losses, verdict, squares of gradients, choices of
 * the routers, losses of rows.
 *
 * Ops gather them in one block on the device (ops/results.c, engine/optim.h). step_results_post queues a copy
 * of the block to one of two slots in pinned host memory; step_results_wait waits for that copy and for
 * nothing behind it. So the host reads the results of a step while the device computes the next one, and no
 * stream is drained inside a step. */
#ifndef ENGINE_STEP_RESULTS_H
#define ENGINE_STEP_RESULTS_H

#include "ops/ops.h"

typedef struct StepResultsConf {
    int64_t tensors;                     /* params_tensors */
    int64_t coded;                       /* rows of Pass.code_stats; 0: no product runs in 8 bits */
    int64_t layers, experts;             /* MoE layers of the whole model, experts of each */
    int64_t micros, rows;                /* micro-batches of a step; rows of each with a loss; rows 0: none */
} StepResultsConf;

enum { COUNT_ALL, COUNT_VISUAL, COUNT_KINDS };    /* choices of all tokens; of those of pictures and videos */

/* One copy of the block. On the device its data belongs to ops; a slot's may be read after its wait. */
typedef struct ResultBlock {
    Tensor sums;                         /* (SUMS) F64: losses of the step on this rank */
    Tensor guard;                        /* (GUARD_CELLS) F64, see op_step_verdict; lasts from step to step */
    Tensor sumsq, squares;               /* (1) and after it (tensors) F64: see optim_grad_norm */
    Tensor codes;                        /* (coded, CODE_CELLS) I64: Pass.code_stats; absent without rows */
    Tensor counts;                       /* (layers * COUNT_KINDS, experts) I32; absent without layers */
    Tensor row_loss;                     /* (micros * rows, 1) F32; absent without rows */
} ResultBlock;

typedef struct StepResults {
    StepResultsConf conf;
    Tensor      all;                     /* (bytes) U8: the block on the device */
    ResultBlock device, slot[POST_SLOTS];
    Arena       host;                    /* of the slots */
    char       *zeros;                   /* in its place, on a device without data */
} StepResults;

MUST Status step_results_open(StepResults *r, Backend *be, Arena *device, const StepResultsConf *conf);
void        step_results_close(StepResults *r, Backend *be);             /* twice is fine */
void        step_results_begin(StepResults *r, Backend *be);             /* clears losses and counts */

Tensor      step_results_counts(const ResultBlock *b, int64_t layer, int kind);          /* (experts) */
Tensor      step_results_row_loss(const StepResults *r, const ResultBlock *b, int micro);   /* (rows, 1) */

/* Before the first step and after a bad one: steps are not held, and this was the highest loss so far. */
void        step_results_set_guard(StepResults *r, Backend *be, double highest);

void        step_results_post(StepResults *r, Backend *be, int slot);
/* seconds: see backend_wait_post. */
MUST Status step_results_wait(StepResults *r, Backend *be, int slot, double seconds[PART_TIMES]);

#endif
