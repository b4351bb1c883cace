/* ops/op_queue.h -- calls of ops that wait to run together, as a CUDA graph or one by one.
 *
 * While a scope of q->scopes is entered (backend_scope), op_foo appends its arguments to the backend's queue
 * in place of running. The queue runs when another scope is entered and before anything but an op uses the
 * backend's stream or waits for another rank (backend_flush): `run` gets it, and empties it. Two queues with
 * equal keys are the same work: the same ops with the same arguments, except for values that only cost
 * formulas read. */
#ifndef OPS_OP_QUEUE_H
#define OPS_OP_QUEUE_H

#include "base/graph_scopes.h"
#include "ops/ops.h"

typedef struct QueuedOp { void (*play)(const void *call); size_t at; } QueuedOp;

typedef struct OpQueue {
    unsigned   scopes;                    /* bits of GraphScope that are queued */
    GraphScope scope;                     /* entered last */
    QueuedOp  *op;                        /* play: calls the backend's op with the arguments at call + at */
    int        n, ops_cap;
    char      *call;
    size_t     bytes, call_cap;
    int64_t   *key;
    size_t     words, key_cap;
    void     (*run)(void *self);          /* NULL: ops are only recorded, and flushes do nothing */
    void      *self;
} OpQueue;

extern const Ops op_queue_ops;            /* append to be->queue */

/* The ops that follow belong to this scope. Where the backend's queue has it they wait; else those that wait
 * run first. A fetch ends a scope: what follows may depend on what was fetched. Returns the scope before. */
GraphScope backend_scope(Backend *be, GraphScope s);
void       backend_flush(Backend *be);    /* ops that wait run now; the scope goes on */

void op_queue_play(const OpQueue *q);     /* in order, by be->ops */
void op_queue_clear(OpQueue *q);          /* what it holds; the memory stays */
void op_queue_close(OpQueue *q);          /* twice is fine */

#endif
