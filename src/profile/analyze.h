/* profile/analyze.h -- the times of a StepProfile from the spans of a rank, by sets of intervals that are
 * clipped to the profiled steps; never by sums of kernel times. */
#ifndef PROFILE_ANALYZE_H
#define PROFILE_ANALYZE_H

#include "profile/intervals.h"
#include "profile/spans.h"

/* Fills all times, calls, bytes of links, kernels; of the steps after the first, which fills the queues. */
MUST Status analyze(StepProfile *out, const SpanList *s, const Recorder *r);

/* Seconds of each call of a group on this rank, in the order of the calls; for free(). NULL and 0: no
 * call. */
MUST Status analyze_calls(double **seconds, int *n, const SpanList *s, const Recorder *r, int group);

#endif
