/* engine/pipeline_run.h -- the gradient of one optimizer step over its micro-batches.
 *
 * The loss of a step is the mean over all of its supervised tokens, whichever micro-batch they came in: each
 * micro-batch starts its backward from the sum divided by that one count. Auxiliary losses are means over the
 * step too: per document for the document form, per token for the others. So the same documents cut into
 * other micro-batches give the same gradient, but for losses that are defined by the micro-batch. */
#ifndef ENGINE_PIPELINE_RUN_H
#define ENGINE_PIPELINE_RUN_H

#include "engine/engine.h"
#include "engine/flops.h"
#include "engine/step_stats.h"

typedef struct StepSums {
    int64_t tokens, token_budget;        /* without padding; with it: what the micro-batches could hold */
    int64_t supervised, patches, visual, docs;
    double  ce, aux, z, total;           /* means over the step; total = ce + coeff aux + z_coeff z */
    Flops   model;                       /* what the micro-batches needed */
} StepSums;

/* Clears the gradients, then forward and backward of every micro-batch; w (may be NULL) looks on. after: the
 * first of the next step, or NULL; a machine that can takes it in while it computes the last. */
MUST Status pipeline_run(Engine *e, Stream *const *micro, int n, StepSums *out, const StepStats *w,
                              const Stream *after);

#endif
