/* bench/dispatch.h -- one expert layer of one rank, for the two parts of `treb bench dispatch`. */
#ifndef BENCH_DISPATCH_H
#define BENCH_DISPATCH_H

#include "nn/dispatch.h"

typedef struct DispatchBench { int64_t T, E, K, D, F; const char *comm; } DispatchBench;

typedef struct ExpertLayer {
    Backend  be;
    Arena    arena, scratch, host;
    Mesh     mesh;
    Dispatcher dispatcher;
    Param    router, gu, down;
    Moe      moe;
    MoeAct   act;
    Batch    batch;
    Aux      aux;
    Env     env;
    Pass    c;
    uint8_t  policy[LABEL_N];
    Tensor   x, y;
} ExpertLayer;

/* Arenas of `bytes` each; a layer over T tokens of every rank of the world. */
MUST Status expert_layer_open(ExpertLayer *l, const DispatchBench *b, int64_t T, const char *dispatcher,
                              Comm *world, const char *backend, size_t bytes);
void        expert_layer_close(ExpertLayer *l);

/* Ranks that mpirun has started: times of peer and alltoall on the device, against copies within it. */
MUST Status dispatch_ranks_run(const DispatchBench *b);

#endif
