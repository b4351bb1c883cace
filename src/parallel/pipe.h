/* parallel/pipe.h -- the pipeline's schedule as lists: what a stage computes in which order, and the messages
 * between. Nothing here touches memory or a communicator; the engine walks Pipe.step and does what it says.
 *
 * 1F1B (one chunk a stage) and interleaved (several): chunk v of stage p is piece v * stages + p of the
 * model, so stages are a ring: the last stage's chunk v feeds the first stage's chunk v + 1.
 *
 * Messages have a way: activations go forward, gradients go backward. On each way a stage hears from one
 * stage only and speaks to one only, and both ends have the same order of messages, so they need no tags;
 * the two ways need communicators of their own (GR_pp, GR_pp_back), since with two stages both run between
 * the same pair. Why nobody waits for ever, whatever the transport does with a send before its receive is
 * there (tests/test_pipe.c runs all stages under that rule):
 *   - receives are posted ahead of need, `window` of them on each way: interleaving makes a sender run up to
 *     group - stages messages ahead of what the receiver takes next;
 *   - a send is started after its compute and finished only before the next send of the same way, so one
 *     buffer a way is enough and no stage ever stands in a send while its own receives are missing;
 *   - of a pair neither input depends on the other's result, at any stage: that is what `ahead` is for.
 * What it asks of the transport: a receive that was posted holds up nothing else of its communicator. */
#ifndef PARALLEL_PIPE_H
#define PARALLEL_PIPE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct PipeShape {
    int stages, chunks, micros;          /* PP, VPP, micro-batches of a step on one data-parallel rank */
    int group;                           /* micro-batches that go through a chunk before the next one is
                                            begun; 0: as many as stages. Of interleaving only */
    int extra_warmup;                    /* more forwards before the first backward: 1 where a forward is run
                                            beside a backward (PIPE_OVERLAPPED) to hide the road to the experts */
} PipeShape;

/* Where backward ends on a stage; zeroed: it goes through all of it. What is below the lowest thing that
 * trains has none: such chunks keep their place in the list, where their slot becomes free, but no gradient
 * is sent to them and none by the one above. Both ends of a border say the same of it. */
typedef struct PipeBackwardStop {
    int  skipped_chunks;                 /* chunks of the stage, from the first, that have no backward */
    bool stops_grad;                     /* the gradient of the next one goes no further */
} PipeBackwardStop;

typedef enum { PIPE_FORWARD, PIPE_BACKWARD } PipeDirection;

typedef struct PipeAction {
    uint8_t what;                        /* PipeDirection */
    int     micro, chunk;
    int     slot;                        /* where its activations live: the same in both directions */
} PipeAction;

/* What a stage does, one after the other. */
typedef enum {
    PIPE_POST,                           /* begin to receive message `message` into buffer `buffer` */
    PIPE_RECV,                           /* wait for it: the input of the run that follows */
    PIPE_RUN,                            /* compute `action`; of its input the buffer is free afterwards */
    PIPE_OVERLAPPED,                           /* a forward and the backward after it, beside each other: both have
                                            their inputs, both results are sent afterwards */
    PIPE_FLUSH,                          /* wait until the last send of this way has left its buffer */
    PIPE_SEND                          /* begin to send the result of `action`, which was run last this way */
} PipeOp;

typedef struct PipeStep {
    uint8_t what, way;                   /* PipeOp, PipeDirection */
    int     action;                      /* row of Pipe.action that is run, fed or answered */
    int     peer;                        /* stage at the other end */
    int     message, buffer;             /* number of the message on its way; buffer = message % window */
} PipeStep;

typedef struct Pipe {
    PipeShape shape;
    PipeBackwardStop floor;
    int       stage;
    int       warmup;                    /* forwards before the first backward */
    int       slots;                     /* activations of so many chunk runs are alive at once */
    int       window;                    /* receive buffers on each way */
    PipeAction   *action;                    /* 2 * micros * chunks of them */
    PipeStep *step;
    int       actions, steps;
} Pipe;

/* The shape has been checked (rules 23, 30, 31). floor NULL: backward goes through all. */
MUST Status pipe_open(Pipe *p, const PipeShape *shape, int stage, const PipeBackwardStop *floor);
void        pipe_close(Pipe *p);                                   /* twice is fine */

/* Stage that the input of an action comes from or its result goes to; -1: begins or ends here. */
int         pipe_from(const Pipe *p, PipeAction a);
int         pipe_to(const Pipe *p, PipeAction a);
/* A backward that there is not. */
bool        pipe_skips_backward(const Pipe *p, PipeAction a);
/* Actions that are run at once from i on: one, or two beside each other. */
int         pipe_overlapped(const Pipe *p, int i);

/* Deals the slots out anew, some to each chunk for itself: more of them, but where chunks differ in size, as
 * one with a vision tower does, not all need be as large as the largest. */
void        pipe_split_slots(Pipe *p);

/* Micro-batches of one chunk that are alive at once; micro % that number is free for each in turn. */
int         pipe_in_flight(const Pipe *p, int chunk);
/* Share of a step in which a stage has nothing to do, all runs being equally long. */
double      pipe_bubble(const PipeShape *s);
/* Lines for a person: a row per stage. */
MUST Status pipe_print(FILE *out, const PipeShape *s);

#endif
