/* base/activity.h -- what a thread is doing, and a counter that shows that it goes on.
 *
 * Work that may take long marks: each op that is launched, each tile of a large product, each megabyte of a
 * file, each sample. The watchdog of a rank (comm/heartbeat.h) reads the record of the main thread and ends
 * a run whose main thread has not marked for comm.timeout. A thread that works for another one adopts its
 * record; a thread that waits for others with a record of their own uses activity_wait.
 *
 * Writers are the threads of a record, readers any thread, without a lock. Beside the text of the latest
 * failure (status.h) the record is the only hidden state in the tree. */
#ifndef BASE_ACTIVITY_H
#define BASE_ACTIVITY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ActivityPlace {           /* where in the run; texts are literals */
    const char *phase;                   /* "step", "saving checkpoint"; NULL: opening the run */
    const char *pass;                    /* "forward", "backward"; NULL: neither */
    int64_t     step;
    int         micro_batch, layer;      /* 1 + the number; 0: none */
} ActivityPlace;

typedef struct Activity {
    uint64_t      marks, polls;
    int           polling;               /* > 0: in a loop that counts its turns in `polls` */
    int           slow;                  /* > 0: between activity_slow_begin and _end */
    double        slow_until;            /* clock_now(): until then as slow as others, see activity_wait */
    ActivityPlace place;
} Activity;

Activity *activity_self(void);                   /* the record that the calling thread writes */
/* The calling thread writes to `a` from now on (NULL: to its own record); returns the record before. */
Activity *activity_adopt(Activity *a);

void      activity_mark(void);                   /* the thread goes on */
/* Between the two the watchdog waits ten times as long: for what may take minutes on a slow disk or a
 * large machine (write, fsync, removing files, reading a mapped file, pinning memory). They nest. */
void      activity_slow_begin(void);
void      activity_slow_end(void);

/* A loop that waits for other ranks: its turns are no progress, but show that the thread runs. */
void      activity_poll_begin(void);
void      activity_poll(void);
void      activity_poll_end(void);

void      activity_phase(const char *phase, int64_t step);         /* also clears micro-batch, layer, pass */
void      activity_micro_batch(int64_t number, const char *pass);  /* also clears the layer */
void      activity_layer(int64_t number);                          /* -1: none */

bool      activity_is_slow(const Activity *a, double now);

/* One wait of at most a second for `cond` (of cond_open) by a thread that needs what other threads do. They
 * mark in `others`, and the waiting thread marks when they have; *seen is 0 before the first wait. Where they
 * may take long, so may the waiting thread, but not if it does not come back from this wait. */
void      activity_wait(pthread_cond_t *cond, pthread_mutex_t *lock, const Activity *others, uint64_t *seen);

/* "step 12, micro-batch 3, layer 7, forward" */
void      activity_describe(const ActivityPlace *p, char *out, size_t n);

#ifdef __cplusplus
}
#endif
#endif
