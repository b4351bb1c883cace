/* train/progress.h -- what a run shows of its steps: a line for people, the same numbers for programs.
 *
 *   step 120/2000  loss 2.0143  aux 1.02  grad 0.84  lr 9.1e-05  31.2k tok/s (useful 98%)
 *   mfu 48.1% (vision 41 decoder 52 head 60)  mem 118.2/139.8 GiB  data wait 0.0%  comm exposed 3.1%  eta 41m
 *   (one line)
 *
 * Lines cover the steps since the one before: losses are means over them, rates are sums over their time.
 * Tokens count when they are not tail. MFU is the model's own work (engine/flops.h) over what the device was
 * measured to do at best; HFU adds everything else that was computed. "moe sliced N" is there when a rank did
 * N expert layers of a step in slices, in the mean: it costs time (moe.rank_capacity). In metrics.jsonl and
 * TensorBoard these, the data wait and the visual share are fractions of 1. Evaluations and saves are not
 * part of a step's time. */
#ifndef TRAIN_PROGRESS_H
#define TRAIN_PROGRESS_H

#include "engine/pipeline_run.h"
#include "train/guard.h"
#include "train/tensorboard.h"
#include "base/log.h"

typedef struct StepReport {              /* of one optimizer step */
    int64_t  step;
    StepSums sums;
    StepVerdict  verdict;
    double   grad_norm;                  /* before clipping */
    double   lr, epoch;
    double   seconds, waited;            /* the step from one to the next; of it waiting for data */
    int64_t  bad_samples;                /* passed over so far */
    double   part[PART_N];               /* seconds in each part of the model, of all ranks; 0: not known */
    double   work;                       /* FLOPs done by all of them, replays and tails included */
    double   exposed;                    /* seconds that a rank waited for others, in the mean */
        int      zero_grads;                   /* tensors whose gradient was zero too often, on all ranks */
    double   sliced;                     /* expert layers that a rank did in slices (nn/moe.h), in the mean */
} StepReport;

typedef struct Progress {
    const Log   *log;
    Metrics     *metrics;
    TensorBoard *board;
    int64_t      steps, every;           /* of the run; between two lines */
    double       aux_coeff;              /* 0: no balance loss to show */
    double       peak;                   /* FLOP/s of a rank: the most that was measured, or seen in a step */
    int          ranks;
    double       memory, memory_all;     /* bytes of the arenas, of the machine */
    int64_t      n, good, skipped;       /* steps since the last line; skipped since the run began */
    StepReport   sum;
    double       pace;                   /* seconds a step, smoothed, for the time that is left */
} Progress;

/* Best of a few large products in this type on this machine, in FLOP/s. */
MUST Status peak_measure(Backend *be, DType dtype, double *flops);

/* Takes a step in; when a line is due, writes it, with what was watched since the last one. */
MUST Status progress_step(Progress *p, const StepReport *r, const ExpertCounts *routing, const SourceLoss *by);
bool        progress_due(const Progress *p, int64_t step);               /* a line will follow this step */

/* An evaluation or another event of a step: names and values into metrics and TensorBoard. */
typedef struct Scalar { const char *name; double value; } Scalar;
MUST Status progress_put(Progress *p, int64_t step, const Scalar *s, int n);

const char *progress_time_text(char out[32], double seconds);                     /* "41m", "2h05m", "8s" */

#endif
