/* comm/comm.h -- what several ranks say to each other.
 *
 * A Comm is a group of ranks with a transport behind it: "self" (one rank), "threads" (ranks of one process,
 * for tests), "mpi", "nccl" (collectives of device memory on a stream of their own, everything else over
 * mpi), "fake" (one rank of a world of any size: nothing moves, everything is charged).
 *
 * comm_x_start(...) begins a call and returns a Ticket; comm_join ends it. Between the two its buffers belong
 * to the call. comm_x(...) is both. Every member makes the same calls in the same order, from one thread;
 * joins may come in any order. Tensors are dense, of memory of the Comm's backend. A group of one costs
 * nothing.
 *
 * Sums are taken in the order of the members, in f32 for bf16 and f32, in double for double, and rounded
 * once: every member gets the same bits, and `threads` and `mpi` the same as each other.
 *
 * Nothing here returns a Status but opening: a failure sticks to the backend like that of a launch, further
 * calls do nothing, and backend_sync hands it out. A rank whose backend is poisoned says so to its peers at
 * its next call instead of leaving them waiting. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include "comm/trace.h"
#include "ops/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Comm Comm;
typedef struct Transport Transport;                  /* comm/transport.h */
typedef enum { RED_SUM, RED_MAX } Reduce;
typedef enum {
    CALL_ALL_REDUCE, CALL_ALL_GATHER, CALL_REDUCE_SCATTER, CALL_ALL_TO_ALL, CALL_SEND, CALL_RECV, CALL_HOST_GATHER
} CallKind;

enum { COMM_TICKETS = 64 };                          /* of one group that may be out at a time */

/* What began: join it before its buffers are touched. A zeroed one is already joined. */
typedef struct Ticket { Comm *comm; int slot; } Ticket;

/* Rows that go to (or come from) each member: rows at[i] … at[i] + n[i] - 1 of the tensor, i = member. Ranges
 * that are sent may overlap; those received may not. The arrays themselves are free when start returns. */
typedef struct RowRanges { const int64_t *at, *n; } RowRanges;

struct Comm {
    const Transport *transport;
    Backend       *be;                /* whose memory tensors are in; its ledger is charged, it is poisoned */
    int            rank, size;        /* of this group */
    int           *world;             /* (size) rank in the world of each member */
    int           *node;              /* (size) number of the node each member is on */
    int            group;             /* row of GROUPS (mesh.h): whose account is charged */
    int64_t        seq;               /* calls begun */
    Trace         *trace;             /* of the rank, shared by its groups */
    Comm          *root;              /* the world it is a part of; itself */
    Status         sticky;            /* of the root: the transport has failed for this rank */
    char           why[512];          /* and this is what it said */
    bool           told;              /* of the root: the peers know that this rank gives up */
    bool           agreed;            /* of the root: all ranks know of the failure just agreed on */
    void          *said;              /* room for what all members say, kept from call to call */
    size_t         said_room;
    uint64_t       out;               /* tickets not joined yet, a bit each */
    int64_t        traced[COMM_TICKETS];        /* the call in `trace` each of them is */
    void          *priv;
};

typedef struct CommConf {
    const char *kind;                 /* "auto": mpi where a launcher started several, else self */
    int         rank, size;           /* of fake alone */
    int         per_node;             /* ranks of a node; 0: as the hosts are (fake, threads: all on one) */
    double      timeout;              /* seconds without a sign of life after which a peer is given up */
} CommConf;

MUST Status comm_open(Comm **world, const CommConf *conf);
/* n ranks of this process at once: world[i] is for the thread that is rank i. */
MUST Status comm_open_threads(Comm **world, int n, int per_node);
void        comm_close(Comm *c);                              /* NULL is fine; groups before their world */

/* The n ranks of the world in `members`, which become members 0 … n - 1 in this order. Collective over them
 * alone; all ranks make their groups in the same global sequence. A group of one becomes self. */
MUST Status comm_group(Comm *world, const int *members, int n, int group, Comm **out);
void        comm_bind(Comm *c, Backend *be);                  /* before the first tensor */

const char *comm_kinds(void);                                 /* of this build: "self, threads, mpi, fake" */
bool        comm_trains(const char *kind);                    /* comm.kind may be this in a training run */
void        comm_describe(char *out, size_t n);               /* the MPI behind mpi, for doctor */
int         comm_ranks_on_node(const Comm *c);                         /* members on the first one's node */
const char *comm_name(const Comm *c);                         /* of its transport */
bool        comm_launched(void);                              /* by mpirun or srun, as one of several */

/* Calls: shapes are checked, ledger and trace are written, then the transport is asked.
 * all_reduce: t = sum over members of t.  all_gather: out (size * rows of in), by member; `in` may be its own
 * place in out.  reduce_scatter: in (size * rows of out): member i gets the sum of part i; `out` may be that
 * part of in.  all_to_all: rows of `in` by `give` to each member, into rows of `out` by `get`; widths are
 * equal, the two do not overlap.  send, recv: the n-th of one member meets the n-th of the other; a send may
 * wait for its recv.  A sum is of f32, bf16, f64, i32 or i64; all else moves any dtype. */
Ticket comm_all_reduce_start(Comm *c, Tensor t, Reduce r);
Ticket comm_all_gather_start(Comm *c, Tensor out, Tensor in);
Ticket comm_reduce_scatter_start(Comm *c, Tensor out, Tensor in, Reduce r);
Ticket comm_all_to_all_start(Comm *c, Tensor out, RowRanges get, Tensor in, RowRanges give);
Ticket comm_send_start(Comm *c, Tensor t, int to);
Ticket comm_recv_start(Comm *c, Tensor t, int from);
void   comm_join(Ticket t);

static inline void comm_all_reduce(Comm *c, Tensor t, Reduce r) { comm_join(comm_all_reduce_start(c, t, r)); }
static inline void comm_all_gather(Comm *c, Tensor out, Tensor in)
{
    comm_join(comm_all_gather_start(c, out, in));
}
static inline void comm_reduce_scatter(Comm *c, Tensor out, Tensor in, Reduce r)
{
    comm_join(comm_reduce_scatter_start(c, out, in, r));
}
static inline void comm_all_to_all(Comm *c, Tensor out, RowRanges get, Tensor in, RowRanges give)
{
    comm_join(comm_all_to_all_start(c, out, get, in, give));
}
static inline void comm_send(Comm *c, Tensor t, int to)   { comm_join(comm_send_start(c, t, to)); }
static inline void comm_recv(Comm *c, Tensor t, int from) { comm_join(comm_recv_start(c, t, from)); }

/* Host memory, small things: done on return. out (size * bytes), by member. On fake, and once the transport
 * has failed, a gather is as if all had said the same; after a failure x stays as it is. */
void        comm_host_gather(Comm *c, void *out, const void *in, size_t bytes);
void        comm_host_sum(Comm *c, double *x, int n);          /* in order of members, same bits on all */
void        comm_host_sum64(Comm *c, int64_t *x, int n);
void        comm_host_max(Comm *c, double *x, int n);
MUST Status comm_host_broadcast(Comm *c, void *data, size_t bytes);        /* becomes what the first member has */
void        comm_barrier(Comm *c);
/* The worst Status of all members. Those that were well get E_COMM and the text of the first that was not;
 * every rank passes here after each phase that can fail on one of them alone. */
MUST Status comm_agree(Comm *c, Status mine);
/* This rank ends: so do its peers, at once. Right after the whole world has agreed on a failure it does
 * nothing: all end by themselves, each with its own Status. */
void        comm_abort(Comm *c, const char *why);

/* If the next comm_watch does not come within `seconds`, every rank is asked which call it waits in, and the
 * answers are said once, a line each, by a thread of rank 0: whoever waits for nobody comes first. 0: no
 * longer. Processes only (mpi, nccl); on other ranks than 0 it does nothing. */
void        comm_watch(Comm *world, double seconds, void (*say)(void *self, const char *line), void *self);

#ifdef __cplusplus
}
#endif
#endif
