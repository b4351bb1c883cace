/* comm/comm.h -- collectives and point-to-point messages between ranks.
 *
 * A Comm is a group of ranks on a transport: one of the rows of base/transports.h.
 *
 * comm_x_start(...) starts a call and returns a Ticket; comm_join waits for it. Between the two the buffers
 * belong to the call. comm_x(...) is both. Every member makes the same calls in the same order, from one
 * thread; joins may come in any order. Tensors are dense and in memory of the Comm's backend. A group of one
 * rank costs nothing.
 *
 * Reductions over `threads` and `mpi` add in the order of the members, in f32 for bf16 and f32, in double for
 * double, and round once: every member gets the same bits, and both transports the same. NCCL promises less.
 * Every member gets the same bits too, and a run on the same layout, GPUs and library repeats them; but the
 * order of additions is that of its ring or tree, and the type of the tensor is kept between them: a bf16 sum
 * over n members is rounded up to n - 1 times. Gradients are f32 and lose nothing by it; for activations no
 * difference in a loss could be measured (docs/performance.md), so they keep their type.
 *
 * Only opening returns a Status. A failure of a call sticks to the backend like that of a kernel launch,
 * further calls do nothing, and backend_sync returns it. A rank whose backend has failed aborts its peers at
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
    CALL_ALL_REDUCE, CALL_ALL_GATHER, CALL_REDUCE_SCATTER, CALL_ALL_TO_ALL, CALL_SEND, CALL_RECV,
    CALL_HOST_GATHER, CALL_PUSH
} CallKind;

enum { COMM_TICKETS = 64 };                          /* calls of one group that may be pending at a time */
enum { COMM_RECENT = 1024 };                         /* calls of one group that the watchdog follows */

/* SMs for communication that is meant to run beside compute: what comm.reserved_sms takes by itself. The
 * number in force is Backend.reserved_sms; an NCCL communicator takes no more CTAs. */
enum { COMM_RESERVED_SMS = 16 };

/* A call that was started: join it before touching its buffers. A zeroed ticket is already joined. */
typedef struct Ticket { Comm *comm; int slot; } Ticket;

/* Rows that are sent to (or received from) each member: rows at[i] … at[i] + n[i] - 1 of the tensor, i =
 * member. Ranges that are sent may overlap, ranges that are received may not. The arrays are read before
 * start returns. */
typedef struct RowRanges { const int64_t *at, *n; } RowRanges;

struct Comm {
    const Transport *transport;
    Backend       *be;       /* the tensors' backend; calls are charged to its ledger, failures stick to it */
    int            rank, size;        /* of this group */
    int           *world;             /* (size) rank in the world of each member */
    int           *node;              /* (size) number of the node each member is on */
    int            group;             /* GroupId (mesh.h): the row of the ledger that is charged */
    int64_t        seq;               /* collectives started, host calls too */
    int64_t       *sent, *received;   /* (size) messages started to and from each member */
    Trace         *trace;             /* of the rank; its groups share it */
    Comm          *root;              /* the world that the group is part of; the world's is itself */
    Status         sticky;          /* root alone: the transport has failed for this rank, because of `why` */
    char           why[512];
    char           reason[200];       /* world alone: why auto took this transport */
    bool           abort_sent;        /* root alone: the peers know that this rank aborts */
    bool           failure_agreed;    /* root alone: the last comm_agree reported a failure to all ranks */
    int64_t       *stop_word;         /* root alone: set to end kernels that wait for peers; NULL: none do */
    void          *gathered;          /* buffer of host calls, kept from call to call */
    size_t         gathered_bytes;
    uint64_t       pending;           /* tickets that are not joined yet, a bit each */
    int64_t        traced[COMM_TICKETS];        /* the number in `trace` of each pending call */
    double         began[COMM_TICKETS];         /* clock_now() at the start of each pending call */
    double         ended[COMM_TICKETS];         /* when its transport saw that it was done; 0: in the join */
    int64_t        started;           /* calls that the transport has started; the watchdog reads it */
    int64_t        recent[COMM_RECENT];         /* the number in `trace` of call i at i % COMM_RECENT */
    /* Written by the watchdog, numbers of calls on the device: the first that is not done, the first that it
     * has not reached, the first that it works on (-1: none); and how far it is with all calls. */
    int64_t        finished, reached, running, device_progress;
    Comm          *next;              /* in the list of the Comms that share `trace` */
    void          *priv;
};

typedef struct CommConf {
    const char *kind;                 /* "auto": self for one rank; nccl where the backend is cuda and each
                                         rank has a GPU of its own; mpi otherwise */
    const char *backend;              /* name of the device that the ranks will compute on; NULL: cpu */
    int         rank, size;           /* for fake alone */
    int         per_node;             /* ranks of a node; 0: by host name (fake, threads: all on one node) */
    double      timeout;              /* comm.timeout: seconds without heartbeat or progress; 0: 60 */
    const char *run_folder;           /* for the record of a hang; NULL: none is left */
} CommConf;

MUST Status comm_open(Comm **world, const CommConf *conf);
/* n ranks of this process at once: world[i] belongs to the thread that is rank i. */
MUST Status comm_open_threads(Comm **world, int n, int per_node);
void        comm_close(Comm *c);                              /* NULL is fine; groups before their world */

/* A group of the n ranks of the world in `members`, in this order. Collective over them alone; all ranks make
 * their groups in the same global sequence. A group of one rank gets the transport self. */
MUST Status comm_group(Comm *world, const int *members, int n, int group, Comm **out);
/* Before the first call with a tensor. The world is bound to NULL before its backend closes: the watchdog
 * reads the backend's progress. */
void        comm_bind(Comm *c, Backend *be);

const char *comm_kinds(void);                                 /* of this build: "self, threads, mpi, fake" */
bool        comm_trains(const char *kind);                    /* comm.kind may be this in a training run */
void        comm_describe(char *out, size_t n);               /* the MPI library, for doctor */
int         comm_ranks_on_node(const Comm *c);                         /* members on the node of member 0 */
const char *comm_name(const Comm *c);                         /* name of its transport */
/* Why kind "auto" took this transport for the world: "each of the 8 ranks has a GPU"; "": not by auto. */
const char *comm_reason(const Comm *world);
/* Device memory that the communicators of this rank took when they were opened, and their number. */
size_t      comm_device_bytes(const Comm *world, int *communicators);
bool        comm_launched(void);                              /* mpirun or srun started several ranks */

/* Calls check shapes, write ledger and trace, then call the transport.
 *   all_reduce       t = sum over members of t
 *   all_gather       out (size * rows of in), by member; `in` may be this member's part of out
 *   reduce_scatter   in (size * rows of out): member i gets the sum of part i; `out` may be that part of in
 *   all_to_all       rows `give` of `in` to each member, into rows `get` of `out`; widths are equal, the two
 *                    tensors do not overlap
 *   send, recv       the n-th send to a member matches its n-th recv from this one, and may wait for it
 * Reductions take f32, bf16, f64, i32 or i64; the others take any dtype. */
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

/* Charges a call that kernels make themselves through mapped memory (comm/peer_memory.h): `each` bytes to
 * every other member. slot: of the call among those under way, below COMM_TICKETS. */
void   comm_push_start(Comm *c, int slot, int64_t each);
void   comm_push_join(Comm *c, int slot);
/* Around a wait of the host for what kernels of other members write, which is a call of the group to the
 * watchdog. polls: the thread calls activity_poll meanwhile. Returns the number of the call. */
int64_t comm_wait_begin(Comm *c, bool polls);
void    comm_wait_end(Comm *c, int64_t call, bool polls);

/* Small calls on host memory, complete on return. out (size * bytes), by member. On fake, and once the
 * transport has failed, a gather returns this rank's own data for every member, and
 * sums leave x unchanged. */
void        comm_host_gather(Comm *c, void *out, const void *in, size_t bytes);
void        comm_host_sum(Comm *c, double *x, int n);  /* in the order of the members: the same bits on all */
void        comm_host_sum64(Comm *c, int64_t *x, int n);
void        comm_host_max(Comm *c, double *x, int n);
MUST Status comm_host_broadcast(Comm *c, void *data, size_t bytes);    /* from the first member to all */
void        comm_barrier(Comm *c);
/* Agrees on failure: OK if all members pass OK. A member that passes OK while another fails gets E_COMM and
 * the text of the first that failed. All ranks call it after each phase that may fail
 * on one of them alone. */
MUST Status comm_agree(Comm *c, Status mine);
/* This rank fails: its peers exit at once. Does nothing right after the world has agreed on a failure: then
 * every rank exits by itself, with its own Status. */
void        comm_abort(Comm *c, const char *why);
/* Ends waits of this rank's kernels for peers (Comm.stop_word); from any thread. */
void        comm_end_waits(Comm *root);

/* change = 1: a thread of this rank begins to write a checkpoint; -1: it has ended. Before a rank exits
 * because the run makes no progress, it waits a few seconds for the thread. From any thread. */
void        comm_saving(Comm *c, int change);
/* Unless comm_watch is called again within `seconds`, every rank is asked which call it waits in, and a
 * thread of rank 0 prints the answers once, a line each, ranks that wait in no call first. 0: stop watching.
 * For mpi and nccl; does nothing on other ranks than 0. */
void        comm_watch(Comm *world, double seconds, void (*print)(void *self, const char *line), void *self);

#ifdef __cplusplus
}
#endif
#endif
