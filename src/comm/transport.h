/* comm/transport.h -- what stands behind a Comm, and what transports share. For src/comm alone.
 *
 * comm.c has checked shapes, charged the ledger and picked a ticket before a transport is asked, and it
 * answers for groups of one itself: a transport sees groups of two and more. */
#ifndef COMM_TRANSPORT_H
#define COMM_TRANSPORT_H

#include "base/transports.h"
#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CommCall {
    CallKind kind;
    Tensor   out, in;                 /* CALL_ALL_REDUCE: the same twice; CALL_SEND has no out, CALL_RECV no in */
    RowRanges get, give;               /* CALL_ALL_TO_ALL */
    Reduce   reduce;
    int      peer;                    /* CALL_SEND, CALL_RECV */
} CommCall;

struct Transport {
    const char *name;
    Status (*open)(Comm **world, const CommConf *conf);
    Status (*group)(Comm *world, Comm *out);             /* out's members are filled in; makes its priv */
    void   (*close)(Comm *c);                            /* half-open is fine */
    void   (*bind)(Comm *c);                             /* optional: its backend is known */
    void   (*start)(Comm *c, int slot, const CommCall *call);
    void   (*join)(Comm *c, int slot);
    /* bytes of each member; done on return. */
    Status (*host_gather)(Comm *c, void *out, const void *in, size_t bytes);
    void   (*abort)(Comm *world, const char *why);       /* wakes or ends every peer */
    /* optional, see comm_watch */
    void   (*watch)(Comm *world, double seconds, void (*say)(void *self, const char *line), void *self);
};

#define TRANSPORT(name, needs, trains, help) extern const Transport transport_##name;
TRANSPORTS(TRANSPORT)
#undef TRANSPORT

void  mpi_describe(char *out, size_t n);

/* A zeroed Comm with room for `size` members, a Trace if it is a world (root NULL). NULL: no memory. */
Comm *comm_new(const Transport *t, Comm *root, int rank, int size);
void  comm_free(Comm *c);
/* The transport is of no more use to this rank: its Comm and its backend say so. Text as of status_text. */
void  comm_stick(Comm *c, Status s);

const char *call_name(CallKind k);
int64_t     call_row(Tensor t);                          /* bytes of a row of dim 0 */

/* Within this rank: bytes of the backend's memory, to another place in it. Meta moves nothing. */
void  local_move(Backend *be, void *to, const void *from, int64_t bytes);
/* What a call does with its own part: gather and all_to_all bring it to its place. */
void  local_part(Comm *c, const CommCall *call);

/* out[i] = part[0][i] + part[1][i] + … in this order, n elements of parts; out may be one of the parts. */
bool  sum_has(DType d);
void  sum_parts(void *out, const void *const *part, int parts, DType d, int64_t n, Reduce r);

#ifdef __cplusplus
}
#endif
#endif
