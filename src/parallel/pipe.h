/* parallel/pipe.h -- the schedule of a pipeline as lists: what a stage computes in which order, and the
 * messages between stages. Nothing here touches memory or a communicator; engine/pipeline_run.c executes
 * Pipe.step.
 *
 * The schedule is 1F1B with one chunk a stage, interleaved 1F1B with several. Chunk v of stage p is number v
 * * stages + p in the model, so the stages form a ring: the last stage's chunk v feeds the first stage's
 * chunk v + 1.
 *
 * Messages have a direction: activations go forward, gradients backward. In each direction a stage receives
 * from one stage and sends to one stage, and both ends have the same order of messages, so messages need no
 * tags. The directions need separate communicators (GR_pp, GR_pp_back), because with two stages both connect
 * the same pair. Why there is no deadlock, whatever the transport does with a send before its receive is
 * posted (tests/test_pipe.c runs all stages under that rule):
 *   - receives are posted ahead, `window` of them in each direction: with interleaving a sender runs up to
 *     group - stages messages ahead of what the receiver takes next;
 *   - a send is started after its compute and finished only before the next send in its direction, so one
 *     buffer a direction is enough, and no stage waits in a send while its own receives are missing;
 *   - of an overlapped forward and backward neither input depends on the other's result, at any stage: this
 *     is what extra_warmup is for.
 * The transport must let other calls of a communicator proceed while a posted receive is pending. */
#ifndef PARALLEL_PIPE_H
#define PARALLEL_PIPE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct PipeShape {
    int stages, chunks, micros;          /* PP, VPP, micro-batches of a step on one data-parallel rank */
    int group;                           /* interleaving: micro-batches that pass a chunk before the next
                                            chunk begins; 0: as many as stages */
    int extra_warmup;                    /* more forwards before the first backward: 1 where a forward and a
                                            backward overlap (PIPE_OVERLAPPED) to hide the token dispatch */
} PipeShape;

/* Where backward stops on a stage; zeroed: nowhere. Chunks below the first trainable parameter have no
 * backward: they keep their entry in the list, where their activation slot is released, but no gradient is
 * sent to them or by the chunk above them. Both ends of a message agree on it. */
typedef struct PipeBackwardStop {
    int  skipped_chunks;                 /* chunks of the stage, from the first, that have no backward */
    bool stops_grad;                     /* the chunk after them sends no gradient */
} PipeBackwardStop;

typedef enum { PIPE_FORWARD, PIPE_BACKWARD } PipeDirection;

typedef struct PipeAction {
    uint8_t what;                        /* PipeDirection */
    int     micro, chunk;
    int     slot;                        /* of its activations: the same for forward and backward */
} PipeAction;

/* The operations of a stage, executed in order. */
typedef enum {
    PIPE_POST,                           /* post the receive of message `message` into buffer `buffer` */
    PIPE_RECV,                           /* wait for it: the input of the run that follows */
    PIPE_RUN,                            /* compute `action`; afterwards the buffer of its input is free */
    PIPE_OVERLAPPED,                     /* overlap a forward and the backward after it: both have their
                                            inputs, both results are sent afterwards */
    PIPE_FLUSH,                          /* wait until the last send in this direction has left its buffer */
    PIPE_SEND                        /* start to send the result of `action`, the last run in its direction */
} PipeOp;

typedef struct PipeStep {
    uint8_t what, way;                   /* PipeOp, PipeDirection */
    int     action;                      /* index in Pipe.action */
    int     peer;                        /* stage at the other end */
    int     message, buffer;           /* number of the message in its direction; buffer = message % window */
} PipeStep;

typedef struct Pipe {
    PipeShape  shape;
    PipeBackwardStop floor;
    int        stage;
    int        warmup;                   /* forwards before the first backward */
    int        slots;                    /* chunk runs whose activations are alive at once */
    int        window;                   /* receive buffers in each direction */
    PipeAction *action;                  /* 2 * micros * chunks of them */
    PipeStep  *step;
    int        actions, steps;
} Pipe;

/* The shape has been checked (rules 23, 30, 31). stop NULL: backward goes through all chunks. */
MUST Status pipe_open(Pipe *p, const PipeShape *shape, int stage, const PipeBackwardStop *stop);
void        pipe_close(Pipe *p);                                   /* may be called twice */

/* The stage that the input of an action comes from, or its result goes to; -1: none. */
int         pipe_from(const Pipe *p, PipeAction a);
int         pipe_to(const Pipe *p, PipeAction a);
/* A backward of a chunk that has none. */
bool        pipe_skips_backward(const Pipe *p, PipeAction a);
/* Actions that run at once from i on: 1, or 2 that overlap. */
int         pipe_overlapped(const Pipe *p, int i);

/* Assigns slots per chunk instead of sharing them between chunks: more slots, but where chunks differ in
 * size, as with a vision tower, each need only be as large as its chunk. */
void        pipe_split_slots(Pipe *p);

/* Micro-batches of one chunk that are in flight at once. */
int         pipe_in_flight(const Pipe *p, int chunk);
/* The fraction of a step in which a stage is idle if all runs take equally long. */
double      pipe_bubble(const PipeShape *s);
/* Prints a line per stage. */
MUST Status pipe_print(FILE *out, const PipeShape *s);

#endif
