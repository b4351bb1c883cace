/* tests/graphlab.h -- graphs on the CPU: ops are recorded with their arguments (ops/op_queue.h) and run when
 * a graph is launched. So a step whose ops get as an argument what changes from step to step differs from an
 * eager one on the CPU too. */
#ifndef TESTS_GRAPHLAB_H
#define TESTS_GRAPHLAB_H

#include "engine/engine.h"

#include <stdlib.h>

struct DeviceGraph { OpQueue recorded, *before; };        /* before: the queue that the backend had */

static void lab_graph_begin(Backend *be)
{
    DeviceGraph *g = calloc(1, sizeof *g);
    if (!g) abort();
    g->before = be->queue;
    be->queue = &g->recorded, be->ops = &op_queue_ops;
}

static DeviceGraph *lab_graph_end(Backend *be, size_t *bytes)
{
    DeviceGraph *g = (DeviceGraph *)be->queue;
    be->queue = g->before, be->ops = be->device->ops;
    *bytes = 1;
    return g;
}

static void lab_graph_launch(Backend *be, DeviceGraph *g)
{
    be->ledger.launches++;
    op_queue_play(&g->recorded);
}

static void lab_graph_close(Backend *be, DeviceGraph *g)
{
    op_queue_close(&g->recorded);
    free(g);
}

static const GraphOps lab_graphs = { lab_graph_begin, lab_graph_end, lab_graph_launch, lab_graph_close };

/* Lets an open engine on the CPU run its phases as graphs, and these scopes where phases are none. */
static inline void graphlab_open(Engine *e, Device *own, size_t limit, unsigned scopes)
{
    *own = device_cpu, own->graphs = &lab_graphs;
    e->be.device = own;
    if (graph_cache_open(&e->graphs, &e->be, &e->shard, limit)) abort();
    if (scopes) scope_cache_open(&e->scopes, &e->graphs, scopes);
}

#endif
