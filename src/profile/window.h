/* profile/window.h -- a window of steps of an open trainer, run as `treb train` runs them: where results are
 * read late, the next step is queued first. Nothing is evaluated, saved or logged. */
#ifndef PROFILE_WINDOW_H
#define PROFILE_WINDOW_H

#include "train/trainer.h"

typedef struct WindowStep {
    double     begins, ended; /* clock_now(): before its data is asked for; its results are known */
    StepReport report;        /* .seconds: since the end of the step before */
} WindowStep;

/* Runs n steps; the device is idle before and after. The last one counts experts and memory as a step that
 * ends a line does. The recipe's steps (Trainer.steps) must not end before. */
MUST Status window_run(Trainer *t, WindowStep *step, int n);

/* Seconds of a step: the median over steps first .. n - 1. */
double window_median(const WindowStep *step, int first, int n);

#endif
