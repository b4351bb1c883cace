/* model/sink.h -- writes elements from host memory into a tensor of any backend, in order and converted to
 * its type: directly if the backend uses host memory, else through a staging buffer. */
#ifndef MODEL_SINK_H
#define MODEL_SINK_H

#include "nn/param.h"

typedef struct Sink {
    Backend *be;
    Tensor   t, rest;                    /* flat, dense; rest: of a ShardView */
    int64_t  at, staged;                 /* next element; elements before it that are still in `stage` */
    int64_t  room;                       /* elements of the staging buffer */
    char    *stage;                      /* those of t, then those of rest; NULL: not needed */
} Sink;

MUST Status sink_open(Sink *s, Backend *be, Tensor t);      /* be NULL: t is in host memory */
MUST Status sink_open_view(Sink *s, Backend *be, ShardView h);
void        sink_seek(Sink *s, int64_t at);
void        sink_put(Sink *s, const void *src, DType from, int64_t n);      /* src may be unaligned */
/* Writes zeros to the padding rows of h, the view of p that the sink writes to. */
void        sink_zero_padding(Sink *s, const Param *p, ShardView h);
MUST Status sink_close(Sink *s);                              /* waits until all elements are uploaded */

#endif
