/* profile/spans.h -- what the device of a rank did in the profiled steps: intervals with their category,
 * stream and place in the model. Made from the host's events alone, where the host is the device, or from
 * them and what the device recorded: a kernel belongs to the event during which the host launched it. */
#ifndef PROFILE_SPANS_H
#define PROFILE_SPANS_H

#include "profile/classify.h"

typedef struct TraceSpan {
    double      from, to, launched;
    Category    category;
    LayerPart   layer;
    int         op;          /* -1: not known */
    int         group, call; /* of communication: GroupId, number in the recording; else -1 */
    int         stream;
    HostPlace   place;
    const char *name;  /* of a kernel; NULL: the op's or the category's */
    int64_t     bytes; /* of a copy */
    bool        in_flight; /* a call between its start and its join, where the host is the device: it counts
                              only where compute hides it */
} TraceSpan;

/* When a profiled step began and ended on the host; ended: when the device's last compute of it did. */
typedef struct StepMark {
    double begins, host_ended, ended;
} StepMark;

typedef struct SpanList {
    TraceSpan *span;
    size_t     n;
    StepMark  *step; /* (steps) the caller's */
    int        steps;
    bool       host; /* the host is the device */
    double     unmatched; /* seconds of spans whose launch is not known: they have no place in the model */
} SpanList;

/* device NULL: the host is the device. Fills the `ended` of the steps. */
MUST Status spans_open(SpanList *s, const Recorder *r, const DeviceSpan *device, size_t n, StepMark *step,
                       int steps);
void        spans_close(SpanList *s); /* twice is fine */
const char *span_name(const TraceSpan *s);

#endif
