/* ops/peer.h -- memory that all members of a group address, and how kernels exchange rows through it.
 *
 * Every member has mapped memory: regions (its arenas), which the others have mapped too, and in one of them
 * a mailbox that the others write. Exchanges are counted: an epoch is the number of one, the same on every
 * member, since all members make the same exchanges in the same order. Epochs are in device memory (`state`)
 * and only grow, so a launch has the same arguments in every step and nothing is ever reset.
 *
 *   route   Every member writes its counts per expert into every mailbox, then its epoch. Counts are double
 *           buffered by the parity of the epoch: a member writes epoch e + 2 after it has seen e + 1 of all,
 *           and a member shows e + 1 after it has read e.
 *   post    Every member writes the addresses that it receives rows at, then its epoch (`ready`); it does so
 *           in the order of its stream, when nothing reads that memory any more. Post waits for all: after
 *           it the member may push.
 *   push    Writes rows to the addresses that were posted, then its epoch (`done`) into each mailbox. A
 *           member posts again on the same channel after it has seen `done` of all, so a post that is still
 *           read is never overwritten, nor rows that are still read.
 *   return  Writes rows into the return buffer of the member they came from, then `done`. It needs no post:
 *           between two returns of a lane there is a push of the same lane; a member has pushed after it has
 *           read the rows of the return before (order of its stream), and no member returns before it has
 *           seen the push of all.
 *   wait    Waits for `done` of all members.
 *
 * A lane is a sequence of passes that do not overlap with each other: a backward that alternates with a
 * forward has its own. In a lane one exchange of each kind is under way at a time; its channel is lane and
 * kind.
 *
 * Kernels that wait have one block, or wait in the last block that is left: ranks that share a GPU leave each
 * other multiprocessors. A wait ends after `timeout` seconds, or when the host sets STATUS_ABORT; then
 * STATUS_FAILED and what was waited for are set, later waits end at once and later pushes write nothing. */
#ifndef OPS_PEER_H
#define OPS_PEER_H

#include "tensor/tensor.h"

#ifdef __CUDACC__
#define PEER_FN static __host__ __device__ inline
#else
#define PEER_FN static inline
#endif

typedef enum { PEER_DISPATCH, PEER_COMBINE, PEER_GATE_GRAD, PEER_KINDS } PeerKind;
enum { PEER_LANES = 2, PEER_CHANNELS = PEER_LANES * PEER_KINDS, PEER_ADDRESSES = 3, PEER_OFFSET_BITS = 48,
       PEER_REGIONS = 640 };

/* Words of `state`, on the device: epochs, and for kernels of several blocks how many have finished. */
enum { STATE_ROUTE, STATE_CHANNEL, STATE_MAX_ROWS = STATE_CHANNEL + PEER_CHANNELS, STATE_FAILED,
       STATE_BLOCKS, STATE_WORDS = STATE_BLOCKS + PEER_CHANNELS + 1 };

/* Words of `status`, in host memory that kernels write: the member, channel, epoch and layer of a wait that
 * failed; the channel of a route is -1. */
enum { STATUS_ABORT, STATUS_OVERFLOW, STATUS_FAILED, STATUS_MEMBER, STATUS_CHANNEL, STATUS_EPOCH,
       STATUS_LAYER, STATUS_WORDS };

typedef struct PeerRegion { char *base; size_t bytes; } PeerRegion;

/* table (1 + 2 PEER_LANES + PEER_REGIONS, n), on the device: addresses in this process of the members'
 * mailboxes, of their return buffers of rows and of gates by lane, and of their regions. */
typedef struct PeerGroup {
    int      n, me, etp;                 /* members; this one; parts of an expert */
    int      group;                      /* GroupId (comm/mesh.h): the row of the ledger */
    int      regions;
    int64_t  E, row_capacity, slots;     /* experts; rows of a member's buffers; rows of a return buffer */
    int64_t *state, *status;
    char   **table;
    const PeerRegion *region;            /* own regions, for the host */
    double   timeout;                    /* seconds */
    bool   (*aborted)(const void *comm); /* the CPU asks while it waits; NULL: nothing to ask */
    const void *comm;
} PeerGroup;

PEER_FN int peer_channel(int lane, int kind) { return lane * PEER_KINDS + kind; }

/* Positions in a mailbox, in words of 8 bytes; counts are int32. */
PEER_FN int64_t mail_ready(int n, int channel, int from) { return n + (int64_t)channel * n + from; }
PEER_FN int64_t mail_done(int n, int channel, int from)
{
    return mail_ready(n, PEER_CHANNELS + channel, from);
}
PEER_FN int64_t mail_address(int n, int channel, int from)
{
    return mail_ready(n, 2 * PEER_CHANNELS, 0) + ((int64_t)channel * n + from) * PEER_ADDRESSES;
}
PEER_FN int64_t mail_counts(int n) { return mail_address(n, PEER_CHANNELS, 0); }
PEER_FN int64_t mail_words(int n, int64_t E) { return mail_counts(n) + n * E; }

/* Rows of `table`. */
PEER_FN int64_t table_return(int channel)
{
    return 1 + channel / PEER_KINDS * 2 + (channel % PEER_KINDS == PEER_GATE_GRAD);
}
PEER_FN int64_t table_region(int64_t region) { return 1 + 2 * PEER_LANES + region; }

/* An address as other members read it: region and offset. */
static inline int64_t peer_address(const PeerGroup *g, Tensor t)
{
    for (int i = 0; t_has(t) && i < g->regions; i++) {
        int64_t at = (char *)t.data - g->region[i].base;
        if (at >= 0 && (size_t)at + (size_t)t_bytes(t) <= g->region[i].bytes)
            return (int64_t)i << PEER_OFFSET_BITS | at;
    }
    REQUIRE(!t_has(t), "%s is not in mapped memory", t_fmt(t));
    return 0;
}

#endif
