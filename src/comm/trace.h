/* comm/trace.h -- the last calls of a rank, so that a run that hangs can report which rank waits in which
 * call.
 *
 * The rank writes, any thread may read: the ring has a lock. */
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
    int64_t     seq, bytes;           /* number of the call in its group; bytes that this rank sends */
    int         layer;                /* decoder layer; -1: none */
    double      began, ended;         /* clock_now(); ended 0: not joined yet */
} TraceCall;

struct Comm;

typedef struct Trace {
    TraceCall call[TRACE_CALLS];      /* ring buffer: call i is at i % TRACE_CALLS */
    int64_t   calls;
    int64_t   waits;                  /* 1 + the call that is being joined; 0: none */
    double    since;                  /* when that join began */
    int       layer;                  /* the layer that is being computed; set by the model */
    double    waited;                 /* seconds spent in joins since it was cleared */
    pthread_mutex_t lock;             /* of all above */
    struct Comm    *comms;            /* open Comms of the rank, for its watchdog */
    pthread_mutex_t comms_lock;
} Trace;

void    trace_open(Trace *t);
void    trace_close(Trace *t);
int64_t trace_begin(Trace *t, const char *op, const char *group, int64_t seq, int64_t bytes);
void    trace_wait(Trace *t, int64_t call);           /* the join of the call begins */
void    trace_end(Trace *t, int64_t call, double waited);
double  trace_waiting_seconds(Trace *t);          /* how long the current join has lasted; 0: there is none */

/* Writes one line: "waits 12.3 s in all_reduce 1742 of tp (4096 bytes, layer 7)" or, while no call is being
 * joined, "computes for 2.0 s after …" with the last call. */
void    trace_describe(Trace *t, char *out, size_t n);

#ifdef __cplusplus
}
#endif
#endif
