/* ops/cuda/peer.cuh -- what the kernels of peer.c share: a group as their argument, words of mailboxes and
 * waits.
 *
 * Words of other members are read with acquire and written with release semantics in system scope. A kernel
 * of many blocks never waits: its last block does, alone. */
#ifndef OPS_CUDA_PEER_CUH
#define OPS_CUDA_PEER_CUH

#include "ops/cuda/comm_clock.cuh"
#include "ops/peer.h"

namespace {

/* A PeerGroup as an argument. */
typedef struct Peers {
    int                n, me, etp, channel, layer;
    int                E, row_capacity;
    long long         *state, *status;
    char *const       *table;
    unsigned long long timeout;              /* nanoseconds */
} Peers;

inline Peers peers_of(const PeerGroup *g, int channel, int layer)
{
    return Peers{ g->n, g->me, g->etp, channel, layer, (int)g->E, (int)g->row_capacity,
                  (long long *)g->state, (long long *)g->status, g->table,
                  (unsigned long long)(g->timeout * 1e9) };
}

/* The time of kernels that exchange or wait is exposed communication. */
inline int peer_clock_begin(Backend *be)
{
    if (!be->preparing) return comm_clock_begin(be, cuda_of(be)->stream);
    Status st = comm_clock_open(be);
    if (st && !be->sticky) be->sticky = st;
    return -1;
}

/* ---- words ---- */

__device__ inline long long *mail(const Peers &g, int member) { return (long long *)g.table[member]; }

__device__ inline long long load_acquire(const long long *p)
{
    long long x;
    asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
    return x;
}
__device__ inline void store_release(long long *p, long long x)
{
    asm volatile("st.release.sys.global.b64 [%0], %1;" :: "l"(p), "l"(x) : "memory");
}
__device__ inline unsigned long long now_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
__device__ inline bool has_failed(const Peers &g)
{
    return *(volatile long long *)&g.state[STATE_FAILED];
}

/* The first wait that fails says so. */
__device__ inline void fail_wait(const Peers &g, int member, int channel, long long epoch)
{
    if (atomicCAS((unsigned long long *)&g.state[STATE_FAILED], 0ull, 1ull)) return;
    volatile long long *s = g.status;
    s[STATUS_MEMBER] = member, s[STATUS_CHANNEL] = channel;
    s[STATUS_EPOCH] = epoch, s[STATUS_LAYER] = g.layer;
    __threadfence_system();
    s[STATUS_FAILED] = 1;
}

/* Waits until a word of this member's mailbox has reached the epoch. The host's word is read now and then. */
__device__ inline bool await(const Peers &g, int64_t word, long long epoch, int member, int channel)
{
    enum { POLLS = 256 };
    const long long   *p = mail(g, g.me) + word;
    unsigned long long since = now_ns();
    for (int i = 1; load_acquire(p) < epoch; i++) {
        if (has_failed(g)) return false;
        bool stop = i % POLLS == 0 && *(volatile long long *)&g.status[STATUS_ABORT];
        if (stop || now_ns() - since > g.timeout) {
            fail_wait(g, member, channel, epoch);
            return false;
        }
        __nanosleep(100);
    }
    return true;
}

/* The same for the words of all members from `first` on, by a block; false in every thread if one failed. */
__device__ inline bool await_all(const Peers &g, int64_t first, long long epoch, int channel)
{
    bool good = true;
    for (int m = threadIdx.x; m < g.n; m += blockDim.x) good &= await(g, first + m, epoch, m, channel);
    return __syncthreads_and(good);
}

/* Writes an epoch into the mailboxes of all members, after everything that this block has written or seen
 * written. */
__device__ inline void show_all(const Peers &g, int64_t word, long long epoch)
{
    __syncthreads();
    __threadfence_system();
    for (int m = threadIdx.x; m < g.n; m += blockDim.x) store_release(mail(g, m) + word, epoch);
}

/* True in all threads of the last block that gets here: all writes of the others are seen. */
__device__ inline bool is_last_block(const Peers &g, int counter)
{
    __shared__ bool last;
    __syncthreads();
    if (!threadIdx.x) {
        unsigned long long *done = (unsigned long long *)&g.state[STATE_BLOCKS + counter];
        __threadfence_system();
        last = atomicAdd(done, 1ull) + 1 == gridDim.x;
        if (last) *done = 0;
        __threadfence_system();
    }
    __syncthreads();
    return last;
}

}

#endif
