/* model/sink.h -- elements of host memory into a tensor of any machine, in order, converted on the way:
 * straight in where memory is the host's, through a staging buffer elsewhere. */
#ifndef MODEL_SINK_H
#define MODEL_SINK_H

#include "nn/param.h"

typedef struct Sink {
    Backend *be;
    Tensor   t;                          /* flat, dense */
    int64_t  at, staged;                 /* the next element; how many before it wait in `stage` */
    char    *stage;                      /* NULL: not needed */
} Sink;

MUST Status sink_open(Sink *s, Backend *be, Tensor t);
void        sink_seek(Sink *s, int64_t at);
void        sink_put(Sink *s, const void *src, DType from, int64_t n);      /* src may be unaligned */
void        sink_zero(Sink *s, int64_t n);
/* What of h, which the sink is over, lies behind the last row that exists: zeros. */
void        sink_zero_padding(Sink *s, const Param *p, ShardView h);
MUST Status sink_close(Sink *s);                              /* all of it has arrived */

#endif
