/* nn/offload.h -- values of layers that wait on the host for their backward.
 *
 * What a layer (or a stretch of them) parks lies in one berth, a piece of device memory, from its forward until
 * it has been copied to the host beside the work of the layers that follow; a few berths take turns. Backward
 * has it brought back into a berth ahead of its use. All of it is queued and ordered by marks: the host waits
 * for nothing, and nothing is allocated.
 *
 *   forward    offload_open, then values by need() while c->offload_record is set, offload_start
 *   backward   offload_prefetch ahead of its turn, offload_wait, the work, offload_release
 *
 * Where the backward of a chunk follows its forward at once, what its last layers left is still in berths: then
 * the last one does not travel at all, and those before it are not brought back. Where a forward is run beside
 * a backward each has berths of its own. */
#ifndef NN_OFFLOAD_H
#define NN_OFFLOAD_H

#include "base/arena.h"
#include "nn/stash.h"
#include "tensor/tensor.h"

enum { OFFLOAD_BUFFERS = 4, OFFLOAD_VALUES = 24 };

typedef struct Pass Pass;

/* slot points to the value, which is `at` bytes into its berth. */
typedef struct OffloadedValue { Tensor *slot; size_t at; } OffloadedValue;

/* What one stretch of one micro-batch has parked. */
typedef struct OffloadRecord {
    OffloadedValue value[OFFLOAD_VALUES];
    int   n;
    char *host;                          /* NULL: it does not travel */
    int   berth, sent;                   /* where it is or was last; the one it was sent from */
    bool  coming;                        /* on its way back */
} OffloadRecord;

typedef struct StagingBuffer { Arena arena; OffloadRecord *holds; } StagingBuffer;      /* NULL: free */

typedef struct OffloadEngine {
    StagingBuffer buffer[2][OFFLOAD_BUFFERS];  /* of forwards and of backwards; row 0 serves both unless separate */
    int    buffers, next;
    bool   separate;
    double resident;                     /* fraction of a chunk's layers, its last ones, that offload nothing */
} OffloadEngine;

/* Whether any label of first … last is parked by the policy of c. */
bool   any_offloaded(const Pass *c, Label first, Label last);
/* Berths that a policy wants; 0: it parks nothing. */
int    offload_buffers_needed(const uint8_t policy[LABEL_N]);

void   offload_chunk_begin(const Pass *c);                                     /* a chunk's forward: all berths are free */
void   offload_open(const Pass *c, OffloadRecord *p);
Tensor offload_push(const Pass *c, OffloadRecord *p, Tensor *slot, Label l, DType d, int64_t rows, int64_t cols);
void   offload_start(const Pass *c, OffloadRecord *p, bool stays);               /* stays: its backward is the next to come */
void   offload_chunk_end(const Pass *c, bool at_once);                         /* its backward is what comes next */

void   offload_prefetch(const Pass *c, OffloadRecord *p);                           /* where a berth is free */
void   offload_wait(const Pass *c, OffloadRecord *p);
void   offload_release(const Pass *c, OffloadRecord *p);

#endif
