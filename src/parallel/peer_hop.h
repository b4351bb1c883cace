/* parallel/peer_hop.h -- one hop of a token dispatch through mapped memory (ops/peer.h), for the dispatchers
 * whose ranks map each other's memory: rows of tokens are pushed to the experts of the members of a group,
 * results are pulled by the member that has the tokens.
 *
 * A hop is opened once over a group. A PeerRoute is the routing of one layer; the dispatcher owns its memory
 * and keeps it in the host table of the route. Starts and finishes are as in nn/dispatch.h. The host never
 * waits and knows no counts. */
#ifndef PARALLEL_PEER_HOP_H
#define PARALLEL_PEER_HOP_H

#include "comm/peer_memory.h"
#include "parallel/dispatch.h"

typedef struct PeerHopConf {
    Comm   *comm;
    int     etp;                         /* parts of an expert, on consecutive members */
    int64_t E;                           /* experts of all members */
} PeerHopConf;

typedef struct PeerHop {
    PeerGroup  group;
    PeerMemory memory;
    Comm      *comm;
    Backend   *be;
    Tensor     mail, state, status, table;
    char     **addresses;                          /* `table`, on the host */
} PeerHop;

/*   rows (T, K)     EP rank and row of each assignment; -1: dropped, or of no member
 *   weight (T, K)   gates of the assignments; gate (R): of the rows */
typedef struct PeerRoute {
    Tensor  rows, offsets, weight, gate;
    int64_t charged;                     /* rows that the ledger is charged with: the host knows no counts */
    int     layer;
    bool    fresh;                       /* gates have not been pushed yet */
} PeerRoute;

/* Why the members of an NVLink domain cannot reach all parts of their experts by a hop; NULL: they can, as
 * far as is known before they try. */
const char *peer_hop_refusal(const Mesh *mesh, const DispatchConf *conf);
/* Collective: maps the arenas of the members of conf->comm and takes memory from them. Sets d->unmapped. */
MUST Status peer_hop_open(PeerHop *h, Dispatcher *d, Backend *be, const DispatchArenas *arenas,
                          const PeerHopConf *conf);
void        peer_hop_close(PeerHop *h, bool agreed);
/* See dispatch_overflowed. */
MUST Status peer_hop_overflowed(PeerHop *h, bool *overflow);

/* Exchanges the counts of `kept` (T, K) and sets rows (T, K) and offsets of r. */
void    peer_hop_route(const Pass *c, PeerHop *h, PeerRoute *r, Tensor kept, bool host_counts);
/* The rows of the fullest member by the last peer_hop_route; the host waits for it. Without data 0. */
int64_t peer_hop_max_rows(const Pass *c, const PeerHop *h);
/* Whether the host must look at the counts of this pass. An evaluation is not run again; decoding drops
 * no assignment over capacity, so it may have more rows than any training step. */
bool    peer_hop_needs_counts(const Pass *c);

/* Assignments of T tokens that are left, at most, after those over capacity are dropped. */
int64_t peer_hop_most_kept(const Pass *c, const Moe *m, int64_t T);

void peer_hop_dispatch_start(const Pass *c, PeerHop *h, PeerRoute *r, const Exchange *w, Tensor x,
                             Tensor rows);
void peer_hop_dispatch_finish(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w);
/* Lets the members read `rows`, which stay as they are until combine_finish; it ends when all have. */
void peer_hop_combine_start(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, Tensor rows);
/* yields: another micro-batch may run before the wait. */
void peer_hop_combine_finish(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, Tensor y,
                             Tensor res, bool yields);
void peer_hop_gate_grad_start(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w, Tensor dgate);
void peer_hop_gate_grad_finish(const Pass *c, PeerHop *h, const PeerRoute *r, const Exchange *w,
                               Tensor dweight);

#endif
