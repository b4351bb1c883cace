/* checkpoint/checkpoint_async.h -- checkpoints written beside the run.
 *
 *   AsyncCheckpointer v;
 *   TRY(checkpoint_async_open(&v, model, be, async));   host memory for a copy of what this rank keeps, once
 *   TRY(checkpoint_async_begin(&v, &snapshot));         waits for the one before; copies; a thread does the rest
 *   TRY(checkpoint_async_poll(&v));                     every step: what a save that is over came to, without waiting
 *   TRY(checkpoint_async_wait(&v));                     before the run ends
 *   checkpoint_async_close(&v);
 *
 * The step goes on as soon as the copy is made. The thread touches files alone: no device, no Comm. On rank 0
 * it waits for the files of the others. begin, poll and wait are for all ranks to call alike and end alike on
 * all of them; they talk only while a save is out. One that has failed is told of once, by whichever call
 * comes first. Without async everything happens in checkpoint_async_begin, and no copy is made. */
#ifndef CHECKPOINT_CHECKPOINT_ASYNC_H
#define CHECKPOINT_CHECKPOINT_ASYNC_H

#include "checkpoint/checkpoint_private.h"

#include <pthread.h>

typedef struct AsyncCheckpointer {
    bool      async;
    bool      out, busy;                 /* a save is not over on all ranks; a thread has not been fetched */
    void     *copy;
    size_t    bytes;
    void    (*pin)(void *p, size_t bytes, bool on);
    SaveJob   job;
    Comm     *world;                     /* of it; NULL: one rank */
    pthread_t thread;
    int       done, stop;                /* the thread's last act; to it: files of others are not coming */
    Status    status;                    /* of it */
    char      text[1024];
    double    seconds;                   /* that the last one took to write, for whoever reports */
} AsyncCheckpointer;

MUST Status checkpoint_async_open(AsyncCheckpointer *v, const Model *m, Backend *be, bool async);
/* A lone rank's save is written to its end; one of several is given up, it cannot be whole without them. Call
 * checkpoint_async_wait before, where all is well. Twice is fine. */
void        checkpoint_async_close(AsyncCheckpointer *v);
MUST Status checkpoint_async_begin(AsyncCheckpointer *v, const Snapshot *s);
MUST Status checkpoint_async_poll(AsyncCheckpointer *v);
MUST Status checkpoint_async_wait(AsyncCheckpointer *v);

#endif
