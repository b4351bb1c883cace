/* comm/trace.h -- the last calls of a rank, so that a run that stands still can say who waits in what.
 *
 * The rank writes, any thread may look: the ring has a lock of its own. */
#ifndef COMM_TRACE_H
#define COMM_TRACE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TRACE_CALLS = 64 };

typedef struct TraceCall {
    const char *op, *group;           /* "all_reduce", "tp" */
    int64_t     seq, bytes;           /* number of the call in its group; sent by this rank */
    int         layer;                /* of the decoder, or -1 */
    double      began, ended;         /* clock_now(); ended 0: still waited for */
} TraceCall;

typedef struct Trace {
    TraceCall call[TRACE_CALLS];      /* a ring: call i is at i % TRACE_CALLS */
    int64_t   calls;
    int64_t   waits;                  /* 1 + the call that is being joined now; 0: none */
    double    since;                  /* when that join began */
    int       layer;                  /* what is worked on now; whoever walks layers sets it */
    double    waited;                 /* seconds spent in joins since it was cleared */
    pthread_mutex_t lock;
} Trace;

void    trace_open(Trace *t);
void    trace_close(Trace *t);
int64_t trace_begin(Trace *t, const char *op, const char *group, int64_t seq, int64_t bytes);
void    trace_wait(Trace *t, int64_t call);           /* its join has begun */
void    trace_end(Trace *t, int64_t call, double waited);
double  trace_waiting_seconds(Trace *t);                        /* seconds the join under way has lasted; 0: none is */

/* One line: "waits 12.3 s in all_reduce 1742 of tp (4096 bytes, layer 7)" or, where nothing is waited for,
 * "works since …" with the call before. */
void    trace_describe(Trace *t, char *out, size_t n);

#ifdef __cplusplus
}
#endif
#endif
