/* checkpoint/checkpoint_async.h -- checkpoints written by a thread while training continues.
 *
 *   AsyncCheckpointer v;
 *   TRY(checkpoint_async_open(&v, model, be, async));   allocates the host copy of this rank's state, once
 *   TRY(checkpoint_async_begin(&v, &snapshot));         waits for the previous save, copies, starts the
 *   thread TRY(checkpoint_async_poll(&v));                     every step: the result of a finished save, no
 *   waiting TRY(checkpoint_async_wait(&v));                     before the run ends
 *   checkpoint_async_close(&v);
 *
 * The step continues as soon as the copy is made. The thread uses files only, no device and no Comm; on rank
 * 0 it waits for the files of the other ranks. begin, poll and wait are collective and return the same status
 * on all ranks; they communicate only while a save is in flight. A failed save is reported once, by the first
 * of these calls. Without async checkpoint_async_begin does everything, and no copy is made. */
#ifndef CHECKPOINT_CHECKPOINT_ASYNC_H
#define CHECKPOINT_CHECKPOINT_ASYNC_H

#include "base/activity.h"
#include "checkpoint/checkpoint_private.h"

#include <pthread.h>

typedef struct AsyncCheckpointer {
    bool      async;
    bool      in_flight;                 /* a save has not finished on all ranks */
    bool      joinable;                  /* this rank's thread has not been joined */
    void     *copy;
    size_t    bytes;                     /* size of copy */
    void    (*pin)(void *p, size_t bytes, bool on);
    SaveJob   job;
    Comm     *world;                     /* of the save in flight; NULL: one rank */
    pthread_t thread;
    Activity  activity;                  /* of the thread */
    pthread_mutex_t lock;                /* of done */
    pthread_cond_t  ended;
    int       done;                      /* set by the thread when it ends */
    int       stop;                      /* set for the thread: the files of other ranks will not come */
    Status    status;                    /* of the thread, with its text */
    char      text[1024];
    double    seconds;                   /* that the last save took to write */
} AsyncCheckpointer;

MUST Status checkpoint_async_open(AsyncCheckpointer *v, const Model *m, Backend *be, bool async,
                                  bool only_model);
/* Finishes the save of a single rank; abandons one of several ranks, which may not be able to complete. Call
 * checkpoint_async_wait first unless the run has failed. May be called twice. */
void        checkpoint_async_close(AsyncCheckpointer *v);
MUST Status checkpoint_async_begin(AsyncCheckpointer *v, const Snapshot *s);
MUST Status checkpoint_async_poll(AsyncCheckpointer *v);
MUST Status checkpoint_async_wait(AsyncCheckpointer *v);

#endif
