/* profile/intervals.h -- arithmetic on sets of time intervals.
 *
 * A set is a sorted list of disjoint intervals [from, to) of positive length. intervals_union makes one of
 * any list; the others take sets. None allocates: the caller's buffers are large enough as each says. */
#ifndef PROFILE_INTERVALS_H
#define PROFILE_INTERVALS_H

#include <stddef.h>

typedef struct Interval { double from, to; } Interval;

size_t intervals_union(Interval *x, size_t n);               /* in place; sorts; returns the new number */
double intervals_length(const Interval *x, size_t n);
/* out: n intervals at most. */
size_t intervals_clip(Interval *out, const Interval *x, size_t n, Interval window);
/* out: n + m intervals at most, and apart from a and b. */
size_t intervals_intersect(Interval *out, const Interval *a, size_t n, const Interval *b, size_t m);
size_t intervals_subtract(Interval *out, const Interval *a, size_t n, const Interval *b, size_t m);
size_t intervals_merge(Interval *out, const Interval *a, size_t n, const Interval *b, size_t m);
/* What a set leaves of the window; out: n + 1 intervals at most. */
size_t intervals_gaps(Interval *out, const Interval *x, size_t n, Interval window);

#endif
