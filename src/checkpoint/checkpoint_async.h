/* checkpoint/checkpoint_async.h -- checkpoints written beside the run.
 *
 *   Saving v;
 *   TRY(saving_open(&v, model, be, async));   host memory for a copy of what this rank keeps, once
 *   TRY(saving_begin(&v, &snapshot));         waits for the one before; copies; a thread does the rest
 *   TRY(saving_poll(&v));                     every step: what a save that is over came to, without waiting
 *   TRY(saving_wait(&v));                     before the run ends
 *   saving_close(&v);
 *
 * The step goes on as soon as the copy is made. The thread touches files alone: no device, no Comm. On rank 0
 * it waits for the files of the others. begin, poll and wait are for all ranks to call alike and end alike on
 * all of them; they talk only while a save is out. One that has failed is told of once, by whichever call
 * comes first. Without async everything happens in saving_begin, and no copy is made. */
#ifndef CHECKPOINT_CHECKPOINT_ASYNC_H
#define CHECKPOINT_CHECKPOINT_ASYNC_H

#include "checkpoint/checkpoint_private.h"

#include <pthread.h>

typedef struct Saving {
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
} Saving;

MUST Status saving_open(Saving *v, const Model *m, Backend *be, bool async);
/* A lone rank's save is written to its end; one of several is given up, it cannot be whole without them. Call
 * saving_wait before, where all is well. Twice is fine. */
void        saving_close(Saving *v);
MUST Status saving_begin(Saving *v, const Snapshot *s);
MUST Status saving_poll(Saving *v);
MUST Status saving_wait(Saving *v);

#endif
