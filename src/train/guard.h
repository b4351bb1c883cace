/* train/guard.h -- which steps update the weights, and signals that stop a run.
 *
 * A step whose loss or gradient norm is not finite, or whose loss is far above every loss before it, is
 * skipped and counted: weights and moments stay unchanged, its data is not seen again. Too many in a row end
 * the run. Signals set a flag that the trainer reads between steps. */
#ifndef TRAIN_GUARD_H
#define TRAIN_GUARD_H

#include "ops/ops.h"
#include <stdbool.h>
#include <stdint.h>

enum { GUARD_EMPTY = 3 }; /* steps without a supervised token at the start that end the run */

typedef struct Guard {
    double  spike;                       /* a loss above spike * highest is one; 0: no such check */
    int64_t     history;                     /* steps taken before a loss can be one */
    int64_t     taken;                       /* steps that updated the weights */
    int64_t limit;                       /* skipped steps in a row that end the run; 0: any number */
    double  highest;                     /* loss of all steps that were not skipped; 0: none yet */
    int64_t skipped, in_a_row;
    StepVerdict last;                    /* of the newest step that was skipped */
} Guard;

/* The spike factor for a step before which `ahead` steps besides those counted update the weights; 0: no
 * check yet. */
double          guard_spike_factor(const Guard *g, int64_t ahead);
/* supervised: tokens of the step that have a loss. */
StepVerdict     guard_classify(const Guard *g, double loss, double norm, int64_t supervised);
const char *guard_verdict_text(StepVerdict v);

/* Counts a step by its verdict; E_CHECK at `limit` skipped steps in a row. */
MUST Status guard_record(Guard *g, StepVerdict v, double loss, double norm);

/* SIGTERM, SIGINT, SIGUSR1, SIGHUP and SIGQUIT stop the run after a step, unless they are ignored; a second
 * SIGINT ends the process at once. A write beyond the limit on file sizes becomes an error, as on a full
 * disk. guard_signals_off restores the defaults. */
void guard_signals_on(void);
void guard_signals_off(void);
int  guard_signal(void);                 /* the signal that was received, or 0 */

#endif
