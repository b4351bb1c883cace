/* engine/pipeline_run.h -- executes the pipeline schedule of a step: forward and backward of all
 * micro-batches.
 *
 * The loss of a step is the mean over all of its supervised tokens, whichever micro-batch they are in: each
 * micro-batch divides its sum by the count of the step. Auxiliary losses are means over the step too, per
 * document for AUX_DOCUMENT, per token for the others. So the same documents in other micro-batches give the
 * same gradient, except for losses that are defined per micro-batch. */
#ifndef ENGINE_PIPELINE_RUN_H
#define ENGINE_PIPELINE_RUN_H

#include "engine/engine.h"
#include "engine/flops.h"
#include "engine/step_stats.h"

typedef struct StepSums {
    int64_t tokens, token_budget;        /* without padding; with it: what the micro-batches could hold */
    int64_t supervised, further, patches, visual, docs;      /* further: targets of further tokens */
    double  pairs, vpairs;               /* attending (query, key) pairs: text, vision */
    double  ce, mtp, aux, z, total;      /* means over the step; total = ce + mtp_weight mtp + coeff aux +
                                            z_coeff z */
    Flops   model;                       /* FLOPs of the model for these micro-batches */
} StepSums;

/* The micro-batches of a step, and what is done with them. */
typedef struct PipelineStep {
    Stream *const   *micro;
    int              n;
    const StepStats *stats;              /* what is counted; or NULL */
    const Stream    *after;              /* the first micro-batch of the next step, or NULL; a device that can
                                            prefetches it during the last one */
    bool             norm;               /* compute the gradient norm as well */
} PipelineStep;

/* Clears the gradients and queues every micro-batch; the host waits for nothing that a device computes on one
 * rank. out gets the counts; the losses are in e->results. */
void        pipeline_queue(Engine *e, const PipelineStep *s, StepSums *out);
void        pipeline_sums(const Engine *e, int slot, StepSums *out);     /* losses of a slot of e->results */

/* Queues a step and waits for it, once: the sums are those of all ranks, the results are in slot 0 of
 * e->results, and s->stats has them. */
MUST Status pipeline_run(Engine *e, const PipelineStep *s, StepSums *out);

#endif
