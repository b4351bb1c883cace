/* nn/offload.h -- activations that wait in host memory for their backward.
 *
 * What a layer (or a recompute group) offloads is written to a staging buffer on the device and copied to the
 * host while the layers that follow compute; a few staging buffers take turns. Backward prefetches it into a
 * staging buffer ahead of its use. All copies are queued on copy streams and ordered by events: the host
 * waits for nothing, and nothing is allocated.
 *
 *   forward    offload_open, then values by need() while the pass has the record, offload_start
 *   backward   offload_prefetch ahead of its turn, offload_wait, the work, offload_release
 *
 * Where the backward of a chunk follows its forward at once, what its last layers left is still in staging
 * buffers: then the last one is not copied at all, and those before it are not copied back. Where a forward
 * overlaps with a backward each has staging buffers of its own. */
#ifndef NN_OFFLOAD_H
#define NN_OFFLOAD_H

#include "base/arena.h"
#include "nn/stash.h"
#include "tensor/tensor.h"

enum { OFFLOAD_BUFFERS = 4, OFFLOAD_VALUES = 40 };

typedef struct Pass Pass;

/* slot points to the value, which is `at` bytes into its staging buffer. */
typedef struct OffloadedValue { Tensor *slot; size_t at; } OffloadedValue;

/* What one recompute group of one micro-batch has offloaded. */
typedef struct OffloadRecord {
    OffloadedValue value[OFFLOAD_VALUES];
    int   n;
    char *host;                          /* NULL: it is not copied */
    int   buffer, sent;                  /* its staging buffer now or last; the one it was copied out of */
    bool  coming;                        /* its copy back has started */
} OffloadRecord;

typedef struct StagingBuffer { Arena arena; OffloadRecord *holds; } StagingBuffer;      /* NULL: it is free */

typedef struct OffloadEngine {
    StagingBuffer buffer[2][OFFLOAD_BUFFERS];  /* for forward, backward; [0] for both unless separate */
    int    buffers, next;
    bool   separate;
    double resident;   /* fraction of a chunk's layers, its last ones, that offload nothing */
} OffloadEngine;

/* Whether the policy of c offloads any label of first … last. */
bool   any_offloaded(const Pass *c, Label first, Label last);
/* Staging buffers that a policy needs; 0: it offloads nothing. */
int    offload_buffers_needed(const uint8_t policy[LABEL_N]);

void   offload_chunk_begin(const Pass *c);                     /* forward of a chunk: all buffers are free */
void   offload_open(const Pass *c, OffloadRecord *r);
Tensor offload_push(const Pass *c, OffloadRecord *r, Tensor *slot, Label l, DType d, int64_t rows,
                    int64_t cols);
void   offload_start(const Pass *c, OffloadRecord *r, bool stays);   /* stays: its backward comes next */
void   offload_chunk_end(const Pass *c, bool at_once);         /* at_once: the chunk's backward comes next */

void   offload_prefetch(const Pass *c, OffloadRecord *r);      /* where a staging buffer is free */
void   offload_wait(const Pass *c, OffloadRecord *r);
void   offload_release(const Pass *c, OffloadRecord *r);

#endif
