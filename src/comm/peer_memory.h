/* comm/peer_memory.h -- memory of the members of a group that every member addresses: kernels write into it
 * without a call (ops/peer.h).
 *
 * Arenas that are mapped on every member are opened once: by plain pointers between threads of a process, by
 * CUDA IPC between processes on GPUs of a node, by files without a name between processes on CPUs. */
#ifndef COMM_PEER_MEMORY_H
#define COMM_PEER_MEMORY_H

#include "comm/comm.h"
#include "ops/peer.h"

typedef struct PeerMemory {
    Comm         *comm;
    int           regions;               /* of each member; those with fewer repeat their last */
    PeerRegion   *region;                /* (regions) own */
    char        **at;                    /* (regions, members): addresses in this process */
    MemoryHandle *handle;                /* (regions, members); NULL: plain pointers */
} PeerMemory;

/* Why the members of c cannot map each other's memory; NULL: nothing that is known before they try. */
const char *peer_memory_refusal(const Comm *c);

/* Whether members of c are other processes: then Backend.shares is set before arenas are opened. */
bool        peer_memory_shares(const Comm *c);

/* Collective: opens the n arenas of every member, all of them or with an error on every member. */
MUST Status peer_memory_open(PeerMemory *p, Comm *c, Arena *const *arena, int n);
/* Accepts a zeroed or partly opened struct. Members close before any of them unmaps its arenas: where
 * `agreed` they wait for each other. */
void        peer_memory_close(PeerMemory *p, bool agreed);

bool        peer_memory_aborted(const void *comm);            /* PeerGroup.aborted: asks the Comm */

/* Gathers an address of every member: at[i] becomes the address in this process of member i's tensor. */
void        peer_memory_find(const PeerMemory *p, const PeerGroup *g, Tensor own, char **at);

#endif
