/* base/ledger.h -- the account of work: FLOPs, bytes and calls by op and by part of the model.
 *
 * Every op is charged before it runs, on any backend, so a dry run and a real run fill the same ledger.
 * `flops` counts what the model needs of matrix work (MFU); `extra` is work that this implementation does on
 * top of it, inside a kernel or by replaying a forward (HFU adds it); `other` is arithmetic that is not
 * matrix work (norms, activations), which no utilisation figure counts. The ledger can also keep the time
 * each part takes: code that begins a part calls ledger_enter. Where ops are done when they return, the
 * host's clock measures the part; an asynchronous backend records an event at the border (tick) and adds up
 * seconds at the next sync, or hands them out with the results of a step (backend_wait_post). */
#ifndef BASE_LEDGER_H
#define BASE_LEDGER_H

#include "base/clock.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { PART_VISION, PART_MERGER, PART_DECODER, PART_HEAD, PART_OPTIM, PART_N } Part;
/* Seconds are kept by part, and those between a stop of the clock and its next start. */
enum { PART_IDLE = PART_N, PART_TIMES };

#define LEDGER_OPS 128
#define LEDGER_GROUPS 32

typedef struct LedgerRow { int64_t calls, bytes; double flops, extra, other; } LedgerRow;

/* Calls of one group by this rank: bytes sent to members on its node and on other nodes, each member reached
 * directly. `exposed`: seconds in which compute waits for them, `length`: seconds that they last; what is not
 * exposed is hidden behind compute. Over NCCL both are on the device's clock (ops/cuda/comm_clock.cuh) and
 * are added up at the next sync; elsewhere the host waits in joins, and a call lasts until the host sees that
 * it is done. */
typedef struct LedgerComm { int64_t calls, intra_node, inter_node; double exposed, length; } LedgerComm;

/* Bytes of side copies to and from host memory (backend_copy_h2d, backend_copy_d2h). */
typedef struct LedgerHost { int64_t in, out; } LedgerHost;

/* Receives every op, call and copy in the order in which a backend gets them; plan/timeline.c predicts the
 * time of a step from it. */
typedef struct Ledger Ledger;
typedef struct CostListener CostListener;
typedef enum { COST_FORWARD, COST_BACKWARD, COST_UPDATE, COST_GATHER, COST_RESTART } CostPhase;

/* Events of the copy streams to and from the host (ops/backend.h): a copy is queued; the copy stream waits
 * for the step; a mark is recorded after its queued copies; the step waits for a mark; the copy stream waits
 * for one. */
typedef enum { COST_COPY, COST_BEGIN, COST_MARK, COST_WAIT, COST_LANE_WAIT } CostSide;

/* A collective or point-to-point call: kind is a CallKind of comm/comm.h; `here` of the `members` are on this
 * rank's node. */
typedef struct CostCall {
    int     group, slot, kind, members, here;
    int64_t intra_node, inter_node;
    double  waited;                   /* of a gather of the host, which is over: seconds that it took */
} CostCall;

/* Other work of the host for the device: launching a graph, uploading a batch, waiting for results. */
typedef enum { COST_LAUNCH, COST_UPLOAD, COST_SYNC } CostHost;

struct CostListener {
    void (*op)(CostListener *m, const Ledger *l, int op, double flops, int64_t bytes, double rows);
    void (*start)(CostListener *m, const CostCall *c);                 /* slot: the ticket */
    void (*join)(CostListener *m, int group, int slot);
    void (*fetch)(CostListener *m);                                     /* the host waits for the device */
    void (*side)(CostListener *m, CostSide what, int lane, int mark, int64_t bytes);
    /* What the following ops belong to, up to the next phase: a pipeline chunk of the last micro-batch of a
     * step or of an earlier one; the optimizer update; the gather of weights for the next step. COST_RESTART:
     * a plan begins, and what came before it does not count. */
    void (*phase)(CostListener *m, CostPhase what, int chunk, bool last);
    /* For listeners that measure; NULL: not wanted. done: the op, start, join, fetch, copy or host work that
     * was announced last has returned. */
    void (*host)(CostListener *m, CostHost what);
    void (*done)(CostListener *m);
};

struct Ledger {
    Part      part;                   /* whose work is being charged now */
    bool      replay;                 /* a forward recomputed for backward: all of it is extra */
    int       scope;                  /* GraphScope of the layer code that runs, whatever runs as graphs */
    int       shares;                 /* calls that share the rows of experts, each charged all; 0: one */
    int64_t   expert_rows;            /* rows that grouped products are charged with; 0: all they have */
    LedgerRow op[LEDGER_OPS];
    LedgerRow by_part[PART_N];
    LedgerComm comm[LEDGER_GROUPS];   /* by GroupId of comm/mesh.h */
    LedgerHost host;
    int64_t   launches;               /* of kernels of ops and of graphs by the host; 0: ops launch none */
    int64_t   workspace;              /* the most that one op takes of a GPU's memory while it runs */
    int64_t   chunked_layers;         /* forwards of expert layers in token chunks, for lack of rows */
    double    seconds[PART_TIMES];    /* spent in each part while the clock ran */
    double    since;                  /* the time of the last border; 0: the clock is stopped */
    double    stopped;                /* the time of the last stop; 0: it never ran */
    double    launch_wait;            /* seconds in which the host waited until the device took launches */
    void    (*tick)(void *self, Part ended);    /* PART_N: the clock starts */
    void     *self;
    CostListener *meter;              /* NULL: none */
};

static inline void ledger_clock(Ledger *l) /* charges the time since the last border to the current part */
{
    if (l->since <= 0) return;
    double now = clock_now();
    if (l->tick) l->tick(l->self, l->part);
    else         l->seconds[l->part] += now - l->since;
    l->since = now;
}
static inline void ledger_start(Ledger *l)
{
    l->since = clock_now();
    if (l->tick)             l->tick(l->self, PART_N);
    else if (l->stopped > 0) l->seconds[PART_IDLE] += l->since - l->stopped;
}
static inline void ledger_stop(Ledger *l)  { ledger_clock(l), l->stopped = l->since, l->since = 0; }

static inline void ledger_enter(Ledger *l, Part part)
{
    ledger_clock(l);
    l->part = part;
}

/* One call of op `id`: `matrix` says which of the two FLOP columns it belongs to. */
static inline void ledger_charge(Ledger *l, int id, bool matrix, double flops, double extra, int64_t bytes)
{
    LedgerRow *rows[2] = { &l->op[id], &l->by_part[l->part] };
    for (int i = 0; i < 2; i++) {
        rows[i]->calls++;
        rows[i]->bytes += bytes;
        if (!matrix)         rows[i]->other += flops;
        else if (l->replay)  rows[i]->extra += flops + extra;
        else                 rows[i]->flops += flops, rows[i]->extra += extra;
    }
}

static inline void ledger_workspace(Ledger *l, int64_t bytes)
{
    if (bytes > l->workspace) l->workspace = bytes;
}

static inline void ledger_host(Ledger *l, bool in, int64_t bytes)
{
    if (in) l->host.in += bytes;
    else    l->host.out += bytes;
}

static inline void ledger_clear(Ledger *l)
{
    *l = (Ledger){ .stopped = l->stopped, .tick = l->tick, .self = l->self, .meter = l->meter };
}

/* Adds `times` (1 or -1) the work of x: ops, calls, copies; not launches and seconds. */
void ledger_add(Ledger *l, const Ledger *x, int times);

static inline void ledger_host_work(Ledger *l, CostHost what)
{
    if (l->meter && l->meter->host) l->meter->host(l->meter, what);
}

static inline void ledger_done(Ledger *l)
{
    if (l->meter && l->meter->done) l->meter->done(l->meter);
}

static inline void ledger_phase(Ledger *l, CostPhase what, int chunk, bool last)
{
    if (l->meter) l->meter->phase(l->meter, what, chunk, last);
}

#ifdef __cplusplus
}
#endif
#endif
