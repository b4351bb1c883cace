/* comm/transport.h -- the interface of a transport, and what transports share. For src/comm alone.
 *
 * comm.c checks shapes, charges the ledger and picks a ticket before it calls a transport, and handles groups
 * of one rank itself: a transport sees groups of two and more. */
#ifndef COMM_TRANSPORT_H
#define COMM_TRANSPORT_H

#include "base/transports.h"
#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CommCall {
    CallKind kind;
    Tensor   out, in;             /* all_reduce: the same tensor; send has no out, recv no in */
    RowRanges get, give;               /* CALL_ALL_TO_ALL */
    Reduce   reduce;
    int      peer;                    /* CALL_SEND, CALL_RECV */
} CommCall;

/* How far the device is with a call that has been started. */
typedef enum { CALL_QUEUED, CALL_RUNNING, CALL_FINISHED } CallProgress;

struct Transport {
    const char *name;
    Status (*open)(Comm **world, const CommConf *conf);
    /* optional: opens over a world of a host transport, which then belongs to it; collective. A failure is
     * the same on all ranks, says why this transport does not fit, and leaves the host's world open. */
    Status (*open_over)(Comm **world, Comm *host);
    Status (*group)(Comm *world, Comm *out);             /* the members of `out` are set; sets its priv */
    void   (*close)(Comm *c);                            /* of a partly opened Comm too */
    void   (*bind)(Comm *c);                             /* optional: c->be has been set */
    void   (*start)(Comm *c, int slot, const CommCall *call);
    void   (*join)(Comm *c, int slot);
    /* `bytes` of each member; complete on return */
    Status (*host_gather)(Comm *c, void *out, const void *in, size_t bytes);
    void   (*abort)(Comm *world, const char *why);       /* makes every peer fail or exit */
    size_t (*device_bytes)(const Comm *world, int *communicators);      /* optional, see comm_device_bytes */
    /* optional, see comm_watch */
    void   (*watch)(Comm *world, double seconds, void (*print)(void *self, const char *line), void *self);
    bool     device_clock;          /* the transport measures LedgerComm.exposed and length, not the host */
    /* Two optional hooks for the watchdog, for transports whose calls run on a device after `start` has
     * returned. A thread of the watchdog calls them, several times a second, between the return of
     * comm_group (or open) and comm_close, while the main thread may be inside start, join or bind of the
     * same Comm. They change nothing, wait for nothing that a call on the device may delay, and take no lock
     * that the main thread holds while it waits.
     *   call_progress  of call number `call` of c, counted from 0 in the order of `start` (c->started is the
     *                  number of the call while `start` runs): one of the last COMM_RECENT calls whose
     *                  `start` has returned. CALL_QUEUED: the device has not reached it, since earlier work
     *                  is not done; CALL_RUNNING: this rank has arrived and waits for other members;
     *                  CALL_FINISHED: done, or the Comm has failed. A transport may return CALL_RUNNING for
     *                  a call that is queued.
     *   async_error    OK, or the failure that the library found by itself, as fail() of the calling thread
     * Without call_progress a call runs from its start until it is joined. */
    CallProgress (*call_progress)(Comm *c, int64_t call);
    Status (*async_error)(Comm *c);
    bool   (*aborted)(const Comm *c);                    /* optional: a peer has aborted */
    bool     one_process;                                /* the ranks share an address space */
};

#define TRANSPORT(name, needs, trains, help) extern const Transport transport_##name;
TRANSPORTS(TRANSPORT)
#undef TRANSPORT

void  mpi_describe(char *out, size_t n);

/* A new Comm of `size` members, with a Trace if it is a world (root NULL). NULL: no memory. */
Comm *comm_new(const Transport *t, Comm *root, int rank, int size);
void  comm_free(Comm *c);
/* Marks the transport as failed for this rank, in its Comm and its backend; the text is status_text(). */
void  comm_stick(Comm *c, Status s);

const char *call_name(CallKind k);
int64_t     call_row(Tensor t);                          /* bytes of a row of dim 0 */

/* Copies this rank's own part of a call to its place, within the backend's memory; the meta backend copies
 * nothing. */
void  local_part(Comm *c, const CommCall *call);

/* out[i] = part[0][i] + part[1][i] + … in this order, for n elements; out may be one of the parts. */
bool  sum_has(DType d);
void  sum_parts(void *out, const void *const *part, int parts, DType d, int64_t n, Reduce r);

#ifdef __cplusplus
}
#endif
#endif
