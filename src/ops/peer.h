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
 *   post    Every member writes the addresses of rows that the others write or read, then its epoch
 *           (`ready`); it does so in the order of its stream: when nothing reads rows to be written any more,
 *           or when rows to be read have been computed. Who has seen `ready` of all may push or pull.
 *   push    Writes rows to the addresses that were posted, then its epoch (`done`) into each mailbox. The
 *           rows of a member have come when it has seen `done` of all.
 *   pull    Reads rows at the addresses that were posted and sums them, then `done`; it waits for `done` of
 *           all, so what follows in a member's stream may overwrite the rows that it has posted.
 *   wait    Waits for `ready` or `done` of all members.
 *
 * A member posts again on the same channel after it has seen `done` of all, so a post that is still read is
 * never overwritten.
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

#include "ops/ops.h"

#ifdef __CUDACC__
#define PEER_FN static __host__ __device__ inline
#else
#define PEER_FN static inline
#endif

typedef enum { PEER_DISPATCH, PEER_COMBINE, PEER_GATE_GRAD, PEER_KINDS } PeerKind;
enum { PEER_LANES = 2, PEER_CHANNELS = PEER_LANES * PEER_KINDS, PEER_ADDRESSES = 2, PEER_OFFSET_BITS = 48,
       PEER_REGIONS = 640 };

/* Words of `state`, on the device: epochs, and for kernels of several blocks how many have finished. */
enum { STATE_ROUTE, STATE_CHANNEL, STATE_MAX_ROWS = STATE_CHANNEL + PEER_CHANNELS, STATE_FAILED,
       STATE_BLOCKS, STATE_WORDS = STATE_BLOCKS + PEER_CHANNELS + 1 };

/* Words of `status`, in host memory that kernels write: the member, channel, epoch and layer of a wait that
 * failed; the channel of a route is -1. */
enum { STATUS_ABORT, STATUS_OVERFLOW, STATUS_FAILED, STATUS_MEMBER, STATUS_CHANNEL, STATUS_EPOCH,
       STATUS_LAYER, STATUS_WORDS };

typedef struct PeerRegion { char *base; size_t bytes; } PeerRegion;

/* table (1 + PEER_REGIONS, n), on the device: addresses in this process of the members' mailboxes and of
 * their regions. */
typedef struct PeerGroup {
    int      n, me, etp;                 /* members; this one; parts of an expert */
    int      group;                      /* GroupId (comm/mesh.h): the row of the ledger */
    int      regions;
    int64_t  E, row_capacity;            /* experts; rows of a member's buffers */
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
PEER_FN int64_t mail_mark(int n, int channel, PeerMark mark)                  /* of the first member */
{
    return mark == PEER_READY ? mail_ready(n, channel, 0) : mail_done(n, channel, 0);
}
PEER_FN int64_t mail_address(int n, int channel, int from)
{
    return mail_ready(n, 2 * PEER_CHANNELS, 0) + ((int64_t)channel * n + from) * PEER_ADDRESSES;
}
PEER_FN int64_t mail_counts(int n) { return mail_address(n, PEER_CHANNELS, 0); }
PEER_FN int64_t mail_words(int n, int64_t E) { return mail_counts(n) + n * E; }

PEER_FN int64_t table_region(int64_t region) { return 1 + region; }           /* a row of `table` */

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
