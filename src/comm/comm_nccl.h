/* comm/comm_nccl.h -- the two parts of the NCCL transport: comm_nccl_queue.cu opens communicators,
 * comm_nccl.cu makes calls over them. For these two files alone. */
#ifndef COMM_COMM_NCCL_H
#define COMM_COMM_NCCL_H

#include "comm/mesh.h"
#include "comm/transport.h"
#include "ops/cuda/comm_clock.cuh"
#include "ops/cuda/progress.cuh"

#include <nccl.h>

/* The library is loaded at run time. LIB(field, symbol) */
#define NCCL_CALLS(LIB)                                                                            \
    LIB(get_version,     ncclGetVersion)                                                           \
    LIB(get_unique_id,   ncclGetUniqueId)                                                          \
    LIB(init,            ncclCommInitRankConfig)                                                   \
    LIB(destroy,         ncclCommDestroy)                                                          \
    LIB(abort,           ncclCommAbort)                                                            \
    LIB(get_async_error, ncclCommGetAsyncError)                                                    \
    LIB(error_string,    ncclGetErrorString)                                                       \
    LIB(last_error,      ncclGetLastError)                                                         \
    LIB(group_start,     ncclGroupStart)                                                           \
    LIB(group_end,       ncclGroupEnd)                                                             \
    LIB(all_reduce,      ncclAllReduce)                                                            \
    LIB(all_gather,      ncclAllGather)                                                            \
    LIB(reduce_scatter,  ncclReduceScatter)                                                        \
    LIB(send,            ncclSend)                                                                 \
    LIB(recv,            ncclRecv)

typedef struct NcclLibrary {
    void *file;
#define LIB(field, symbol) decltype(&symbol) field;
    NCCL_CALLS(LIB)
#undef LIB
} NcclLibrary;

/* A communicator and the stream that its calls run on, in their order. Groups of equal members and equal
 * traffic share one; a link of a pipeline, from one stage to the next, has one of its own in each
 * direction. */
typedef struct NcclQueue {
    struct NcclQueue *next;            /* in the list of the world */
    GroupTraffic traffic;
    int          groups;               /* that use it */
    int          n, me;
    int         *members;              /* (n) ranks of the world */
    ncclComm_t   comm;
    cudaStream_t stream;
    uint32_t     calls;                /* that were started */
    uint32_t    *progress;             /* written by the stream: 2 n + 1 when call n begins, then 2 n + 2 */
} NcclQueue;

/* A call of a group is a call of one of its queues. */
typedef struct NcclCall { const NcclQueue *queue; uint32_t number; } NcclCall;

typedef struct NcclWorld {             /* what all groups of a process share */
    NcclLibrary    lib;
    ProgressWrite  progress_write;
    NcclQueue  *queues;
    int         opened;                /* communicators */
    size_t      device_bytes;          /* that opening them took from the GPU */
} NcclWorld;

typedef struct NcclGroup {             /* priv of a Comm */
    NcclWorld   *nccl;
    Comm        *host;                 /* the same members over the host transport */
    bool         open;
    NcclQueue   *queue;                /* for collectives; NULL in a group of links */
    NcclQueue   *to, *from;            /* of a group of links: to the next member, from the one before */
    cudaEvent_t  ready, done[COMM_TICKETS];
    NcclCall     call[COMM_RECENT];    /* call i of the Comm at i % COMM_RECENT; read by the watchdog */
} NcclGroup;

static inline NcclGroup *nccl_of(const Comm *c) { return (NcclGroup *)c->priv; }

Status nccl_load(NcclLibrary *l);

/* Opens the communicators of a group, or finds those it shares. Collective over the group. All connections
 * are made here, and every kind of call runs once: later calls neither wait for a peer on the host nor take
 * memory. */
Status nccl_open_queues(Comm *c);
void   nccl_close_queues(Comm *c);                   /* aborts calls that are under way */

#endif
