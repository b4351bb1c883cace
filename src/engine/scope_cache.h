/* engine/scope_cache.h -- scopes of layers as recorded graphs (train.cuda_graph: a list of scopes).
 *
 * The host's code of a layer runs in every pass; only its ops wait in a queue (ops/op_queue.h). Queued ops
 * that are the same as some before, argument by argument, are launched as a graph: they run one by one the
 * first time, are captured the second time, and are one launch from then on. So nothing but the arguments
 * decides about a graph, and memory that lies elsewhere is another graph. Scopes that follow each other
 * without an op between them share a graph; a call to other ranks or a fetch inside a scope splits it.
 *
 * Counts and memory are those of the GraphCache; graphs are never replaced here either. */
#ifndef ENGINE_SCOPE_CACHE_H
#define ENGINE_SCOPE_CACHE_H

#include "engine/graph_cache.h"
#include "ops/op_queue.h"

enum { SCOPE_GRAPHS_MOST = 8192 };

typedef struct ScopeGraph {
    uint64_t     hash;                   /* of the key */
    int64_t     *key;
    size_t       words;
    DeviceGraph *graph;                  /* NULL: seen once */
} ScopeGraph;

typedef struct ScopeCache {
    Backend    *be;
    GraphCache *of;
    OpQueue     queue;
    ScopeGraph *at;
    int         n, cap, most;
    int         next;                    /* where a search begins: steps have one order of scopes */
} ScopeCache;

/* Lets the ops of these scopes wait in be->queue. s must not move afterwards; `of` is open. */
void scope_cache_open(ScopeCache *s, GraphCache *of, unsigned scopes);
void scope_cache_close(ScopeCache *s);                                   /* twice is fine */

#endif
