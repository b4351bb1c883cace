/* tests/graphlab.h -- graphs on the CPU: ops are recorded with their arguments and run when a graph is
 * launched. So a step whose ops get as an argument what changes from step to step differs from an eager one
 * on the CPU too. */
#ifndef TESTS_GRAPHLAB_H
#define TESTS_GRAPHLAB_H

#include "engine/engine.h"

#include <stdlib.h>

typedef void PlayFn(void *call);
typedef struct Recorded { PlayFn *play; void *call; } Recorded;
struct DeviceGraph { Recorded *at; int n, cap; };

static _Thread_local DeviceGraph *recording;              /* ranks may be threads */

static inline void *record(PlayFn *play, const void *call, size_t bytes)
{
    DeviceGraph *g = recording;
    if (g->n == g->cap) {
        g->cap = g->cap ? 2 * g->cap : 256;
        g->at = realloc(g->at, (size_t)g->cap * sizeof *g->at);
    }
    void *kept = malloc(bytes);
    if (!g->at || !kept) abort();
    g->at[g->n++] = (Recorded){ play, memcpy(kept, call, bytes) };
    return kept;
}

/* EACH(f, a, b ...) is f(a) f(b) ...; LIST puts commas between. */
#define EACH1(f, a)       f(a)
#define EACH2(f, a, ...)  f(a) EACH1(f, __VA_ARGS__)
#define EACH3(f, a, ...)  f(a) EACH2(f, __VA_ARGS__)
#define EACH4(f, a, ...)  f(a) EACH3(f, __VA_ARGS__)
#define EACH5(f, a, ...)  f(a) EACH4(f, __VA_ARGS__)
#define EACH6(f, a, ...)  f(a) EACH5(f, __VA_ARGS__)
#define EACH7(f, a, ...)  f(a) EACH6(f, __VA_ARGS__)
#define EACH8(f, a, ...)  f(a) EACH7(f, __VA_ARGS__)
#define EACH9(f, a, ...)  f(a) EACH8(f, __VA_ARGS__)
#define EACH10(f, a, ...) f(a) EACH9(f, __VA_ARGS__)
#define EACH11(f, a, ...) f(a) EACH10(f, __VA_ARGS__)
#define EACH12(f, a, ...) f(a) EACH11(f, __VA_ARGS__)
#define EACH13(f, a, ...) f(a) EACH12(f, __VA_ARGS__)
#define NTH(a, b, c, d, e, f, g, h, i, j, k, l, m, n, ...) n
#define EACH(f, ...) NTH(__VA_ARGS__, EACH13, EACH12, EACH11, EACH10, EACH9, EACH8, EACH7, EACH6, EACH5,  \
                         EACH4, EACH3, EACH2, EACH1)(f, __VA_ARGS__)
#define LIST(...)    __VA_ARGS__
#define FIELD(x)     x;
#define FROM_CALL(x) , call_->x

/* The first argument is the backend, which FROM_CALL leaves to AFTER_BE. */
#define AFTER_BE(be, ...) EACH(FROM_CALL, __VA_ARGS__)
#define OP(name, kind, params, args)                                                               \
    typedef struct Call_##name { EACH(FIELD, LIST params) } Call_##name;                           \
    static void play_##name(void *p)                                                               \
    {                                                                                              \
        Call_##name *call_ = p;                                                                    \
        cpu_##name(call_->be AFTER_BE args);                                                       \
    }                                                                                              \
    static void record_##name params                                                               \
    {                                                                                              \
        Call_##name call_ = { LIST args };                                                         \
        record(play_##name, &call_, sizeof call_);                                                 \
    }
#include "ops/ops.def"
#undef OP

/* The list of a call of op_squares is gone when the graph runs. */
static void record_squares_list(Backend *be, Tensor out, Tensor each, const Addends *list)
{
    static const Addends none;
    Call_squares c = { be, out, each, &none };
    Call_squares *kept = record(play_squares, &c, sizeof c);
    Addends *own = malloc(sizeof *own);
    if (!own) abort();
    *own = *list, kept->list = own;
}

static Ops recorders = {
#define OP(name, kind, params, args) .name = record_##name,
#include "ops/ops.def"
#undef OP
};

static void lab_graph_begin(Backend *be)
{
    recording = calloc(1, sizeof *recording);
    recorders.squares = record_squares_list;
    be->ops = &recorders;
}

static DeviceGraph *lab_graph_end(Backend *be, size_t *bytes)
{
    be->ops = be->device->ops;
    *bytes = 1;
    return recording;
}

static void lab_graph_launch(Backend *be, DeviceGraph *g)
{
    for (int i = 0; i < g->n; i++) g->at[i].play(g->at[i].call);
}

static void lab_graph_close(Backend *be, DeviceGraph *g)
{
    for (int i = 0; i < g->n; i++) {
        if (g->at[i].play == play_squares) free((void *)((Call_squares *)g->at[i].call)->list);
        free(g->at[i].call);
    }
    free(g->at), free(g);
}

static const GraphOps lab_graphs = { lab_graph_begin, lab_graph_end, lab_graph_launch, lab_graph_close };

/* Lets an open engine on the CPU run its phases as graphs. */
static inline void graphlab_open(Engine *e, Device *own, size_t limit)
{
    *own = device_cpu, own->graphs = &lab_graphs;
    e->be.device = own;
    if (graph_cache_open(&e->graphs, &e->be, &e->shard, limit)) abort();
}

#endif
