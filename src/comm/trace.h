/* comm/trace.h -- the last calls of a rank, so that a run that hangs can report which rank waits in which
 * call.
 *
 * The rank's thread writes, any thread may read. A reader does not wait for ever for a writer that is
 * stopped: after a tenth of a second it reads without the lock. */
#ifndef COMM_TRACE_H
#define COMM_TRACE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The host may start calls long before the device reaches them: the ring holds more than a device queues. */
enum { TRACE_CALLS = 4096 };

typedef struct TraceCall {
    const char *op;                   /* "all_reduce" */
    int         group;                /* GroupId (mesh.h) */
    int         peer;                 /* send, recv: 1 + rank in the world of the other; 0: a collective */
    int64_t     seq;                  /* number of the collective in its group, of the message between two */
    int64_t     bytes;                /* that this rank sends, or receives (recv) */
    int         layer, micro_batch;   /* 1 + the number; 0: none; set by trace_begin, from base/activity.h */
    double      began, ended;         /* clock_now(); ended 0: not joined yet */
} TraceCall;

struct Comm;

typedef struct Trace {
    TraceCall call[TRACE_CALLS];      /* ring buffer: call i is at i % TRACE_CALLS */
    int64_t   calls;
    int64_t   waits;                  /* 1 + the call that is being started or joined; 0: none */
    double    since;                  /* when that began */
    int       saving;                 /* threads that write a checkpoint; atomic */
    double    waited;                 /* seconds spent in joins since it was cleared */
    pthread_mutex_t lock;             /* of all above */
    struct Comm    *comms;            /* open Comms of the rank, for its watchdog */
    const uint32_t *device_word;      /* Backend.progress of the world's backend; NULL: none */
    pthread_mutex_t comms_lock;       /* of the two above */
} Trace;

void    trace_open(Trace *t);
void    trace_close(Trace *t);
int64_t trace_begin(Trace *t, TraceCall call);        /* the start of the call begins; returns its number */
void    trace_started(Trace *t, int64_t call);        /* its start has returned */
void    trace_wait(Trace *t, int64_t call);           /* the join of the call begins */
void    trace_end(Trace *t, int64_t call, double waited);
double  trace_waiting_seconds(Trace *t);              /* in the current start or join; 0: there is none */

/* The call that is being started or joined, and since when; if there is none false, and the last call (op
 * NULL: none is known) and when the rank left it. */
bool    trace_current(Trace *t, TraceCall *call, double *since);
TraceCall trace_get(Trace *t, int64_t call);          /* op NULL: overwritten */
/* Copies n calls from number `from` on, or from the oldest that is known; returns how many there are, and
 * sets *from to the number of the first. */
int     trace_copy(Trace *t, int64_t *from, TraceCall *out, int n);
int64_t trace_calls(Trace *t);                        /* calls that were begun */

/* Writes one line: "waits 12.3 s in all_reduce 1742 of tp (4096 bytes, layer 7, micro-batch 2)" or, while no
 * call is being joined, "computes for 2.0 s after …" with the last call. */
void    trace_describe(Trace *t, char *out, size_t n);
/* "all_reduce 1742 of tp (4096 bytes, layer 7, micro-batch 2)" */
void    trace_describe_call(const TraceCall *c, char *out, size_t n);

#ifdef __cplusplus
}
#endif
#endif
