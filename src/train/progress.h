/* train/progress.h -- what a run shows of its steps: a line for people, the same numbers for programs.
 *
 *   step 120/2000  loss 2.0143  aux 1.02  grad 0.84  lr 9.1e-05  31.2k tok/s (useful 98%)  476 TFLOP/s
 *   mfu 48.1% (vision 41 decoder 52 head 60)  mem 118.2/139.8 GiB (planned 117.0)  data wait 0.0%
 *   comm exposed 3.1% (tp 2.0 edp 1.1; hidden 87%)  eta 41m
 *   (one line)
 *
 * A line covers the steps since the line before: losses are means over the steps that were not skipped
 * ("-" where all were), rates are sums over their time. Evaluations and saves are not part of a step's
 * time. On one GPU a line may come while the next step runs (train.late_results); a step's time is then that
 * of the GPU, from the end of the step before.
 *
 *   tok/s        tokens of all ranks without padding; useful: their share of the micro-batches' token budgets
 *   TFLOP/s      the model's own work (engine/flops.h) per second and device
 *   mfu          that over the device's peak (train/peak_flops.h); of a part: over the seconds spent in it,
 *                without CUDA graphs of whole phases, whose parts are not timed apart
 *   hfu          the same with all matrix work that was executed: the model's, recomputation, padding
 *   mem          measured peak of the fullest rank (backend_memory_used) of what its device has; planned: the
 *                bytes of the arenas, without libraries, the driver and, on a CPU, the data loader
 *   comm exposed share of the step in which compute of a rank waits for others, mean over ranks, and the
 *                groups (comm/mesh.h) it waits for; hidden: share of the time in calls that compute covers
 *   eager        phases or scopes of steps that ran without a CUDA graph since the line before
 *                (train.cuda_graph)
 *   moe chunked  expert layers of a step that a rank ran in chunks, mean over ranks: this costs time
 *                (moe.rank_capacity)
 *
 * perf/time_vision and the like are seconds of a step in each part, mean over ranks, waits included.
 *
 * With train.precision = fp8_block (engine/code_losses.h), for each word of train.fp8_products but
 * experts_dw, of the rows x that forward multiplies and the rows dy that backward does, in the step that ends
 * the line:
 *
 *   fp8/amax/experts/x         the largest magnitude
 *   fp8/flushed/experts/x      share of the values that became zero
 *   fp8/saturated/experts/x    values above the range of their group, fp8/not_finite/...: groups with an
 *                              infinite or NaN value; counts
 *
 * In metrics.jsonl and TensorBoard shares are fractions of 1. mem/peak_gib is mem/measured_gib under its
 * old name. */
#ifndef TRAIN_PROGRESS_H
#define TRAIN_PROGRESS_H

#include "engine/code_losses.h"
#include "engine/pipeline_run.h"
#include "train/guard.h"
#include "train/mlflow.h"
#include "train/peak_flops.h"
#include "train/tensorboard.h"
#include "base/log.h"

typedef struct CommTime { double exposed, length; } CommTime;      /* seconds, see LedgerComm; no padding */

typedef struct StepReport {              /* of one optimizer step */
    int64_t     step;
    StepSums    sums;
    StepVerdict verdict;
    double      grad_norm;               /* before clipping */
    double      lr, epoch;
    double      seconds, data_wait;      /* of the step; of it waiting for data */
    int64_t     bad_samples;             /* left out since the run began */
    double      part_seconds[PART_TIMES]; /* of all ranks; 0: not known */
    double      executed_flops;          /* of all ranks, recomputation and padding included */
    int         zero_grads;              /* tensors whose gradient was zero too often, on all ranks */
    double      chunked_layers;          /* expert layers run in chunks (nn/moe.h), mean over ranks */
    double      host_seconds;            /* in which the host queued the step, without waits for the device */
    int64_t     launches;                /* of kernels and graphs by the host of this rank */
    int64_t     eager_phases;            /* that had no graph (engine/graph_cache.h), of this rank */
    double      memory_used;             /* bytes of the fullest rank; only in steps that end a line */
    CommTime    comm[LEDGER_GROUPS];     /* by GroupId, of all steps of a line, mean over ranks; likewise */
} StepReport;

typedef struct Progress {
    const Log   *log;
    Metrics     *metrics;
    TensorBoard *board;
    Mlflow      *mlflow;                 /* NULL: the run does not report there */
    int64_t      steps, every;           /* of the run; of a line */
    double       aux_coeff;              /* 0: no balance loss to show */
    PeakFlops    peak;                   /* raised by what a step reaches in one part of the model */
    int          ranks;
    double       planned, device_memory; /* bytes: of the arenas; of the device */
    const GraphCache *graphs;            /* NULL: steps run eagerly */
    const CodeLosses *codes;             /* NULL: no product runs in 8 bits */
    double       measured;               /* highest StepReport.memory_used so far */
    int64_t      n, losses, skipped;     /* steps of the line; those with a loss; skipped in the run */
    StepReport   sum;
    double       pace;                   /* seconds a step, smoothed, for the time that is left */
} Progress;

/* Adds a step; at the end of a line writes the line and the counts of experts and sources since the one
 * before. */
MUST Status progress_step(Progress *p, const StepReport *r, const ExpertCounts *experts,
                          const SourceLoss *sources);
bool        progress_due(const Progress *p, int64_t step);               /* this step ends a line */

/* An evaluation or another event of a step: names and values into metrics and TensorBoard. */
typedef struct Scalar { const char *name; double value; } Scalar;
MUST Status progress_put(Progress *p, int64_t step, const Scalar *s, int n);

const char *progress_time_text(char out[32], double seconds);            /* "41m", "2h05m", "8s" */

#endif
