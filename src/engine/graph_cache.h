/* engine/graph_cache.h -- the work of a step as recorded graphs, one for each phase and shape.
 *
 * A phase (a forward, a backward, the update …) runs eagerly the first time that its key is seen, is captured
 * the second time, and from then on is one launch. The key holds everything that the host's code of a phase
 * depends on and that may change: shapes of the batch, the place of the batch in its ring, the marks of the
 * step (parallel/shard.h). What changes from step to step within a key is read on the device (MicroScalars,
 * AdamStep). A launch leaves the marks and the ledger as the host's code would.
 *
 * Graphs are never replaced: when GRAPHS_MOST or the limit of memory is reached, further keys run eagerly,
 * and are counted. */
#ifndef ENGINE_GRAPH_CACHE_H
#define ENGINE_GRAPH_CACHE_H

#include "parallel/shard.h"

enum { GRAPHS_MOST = 256 };

typedef enum { GRAPH_BEGIN, GRAPH_FORWARD, GRAPH_BACKWARD, GRAPH_NORM, GRAPH_UPDATE } GraphPhase;

/* Compared as bytes: all fields are of one size. */
typedef struct GraphKey {
    int64_t phase, batch;                /* index of the batch in its ring */
    int64_t micros;                      /* GRAPH_BEGIN: micro-batches of the step */
    int64_t supervised, docs, longest, even;             /* rows of the head; segments of the text */
    int64_t slices, vlongest, veven, media;              /* of the pictures */
    int64_t carry, dropout;              /* LossScales.carry; whether there is dropout */
    int64_t counting, row_loss;          /* whether experts are counted; address of the losses of rows */
    int64_t measuring;                   /* whether codes are measured */
    double  beta1, beta2, eps, decay, max_norm, decay_all, verdict;      /* GRAPH_UPDATE */
} GraphKey;

typedef struct CapturedGraph {
    GraphKey     key;
    int32_t     *before, *after;         /* marks */
    DeviceGraph *graph;                  /* NULL: seen once */
    Ledger       work;
} CapturedGraph;

typedef struct GraphCounts { int64_t launched, captured, eager; } GraphCounts;

typedef struct GraphCache {
    Backend       *be;
    Shard         *shard;
    CapturedGraph *at;
    bool           phases;               /* false: only scopes are graphs (scope_cache.h) */
    int            n, cap, most;         /* most: GRAPHS_MOST, or fewer in tests */
    size_t         bytes, limit;         /* device memory of all graphs; when none is captured any more */
    GraphCounts    counts;
    int32_t       *marks;                /* of the phase that begins */
    CapturedGraph *capturing;            /* NULL: no phase is captured at the moment */
} GraphCache;

/* g must not move afterwards. It captures phases. */
MUST Status graph_cache_open(GraphCache *g, Backend *be, Shard *s, size_t limit);
void        graph_cache_close(GraphCache *g);                            /* twice is fine */

/* Before the code of a phase; true: it was launched as a graph, and nothing of it is left to do. Otherwise
 * graph_cache_end follows the phase's code. A cache that is not open does nothing. */
bool        graph_cache_begin(GraphCache *g, const GraphKey *k);
void        graph_cache_end(GraphCache *g);

#endif
