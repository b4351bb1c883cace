/* train/guard.h -- whether a step may change the weights, and whether the run may go on.
 *
 * A step whose loss or gradient norm is not finite, or whose loss is far above all that were seen before, is
 * skipped and counted: weights and moments stay as they were, the data goes by. Too many in a row end the
 * run. Signals ask it to end: the flag they set is looked at between steps. */
#ifndef TRAIN_GUARD_H
#define TRAIN_GUARD_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum { STEP_GOOD, STEP_NOT_FINITE, STEP_SPIKE, STEP_EMPTY } StepVerdict;

typedef struct Guard {
    double  spike;                       /* a loss above spike times the highest is one; 0: never */
    int64_t limit;                       /* skipped steps in a row that end the run; 0: never */
    double  highest;                     /* loss of a step that was taken; 0: none yet */
    int64_t skipped, in_a_row;
} Guard;

/* Looks, and changes nothing. supervised: tokens that the step could learn from. */
StepVerdict     guard_classify(const Guard *g, double loss, double norm, int64_t supervised);
const char *guard_verdict_text(StepVerdict v);

/* Remembers a step as it was judged; E_CHECK when it was one skipped step too many. */
MUST Status guard_record(Guard *g, StepVerdict v, double loss, double norm);

/* SIGTERM, SIGINT and SIGUSR1 ask for an end; a second SIGINT ends the process there and then. A write beyond
 * the limit on file sizes becomes an error like a full disk. guard_signals_off gives the signals back. */
void guard_signals_on(void);
void guard_signals_off(void);
int  guard_signal(void);                 /* the signal that asked, or 0 */

#endif
