/* tests/simt/threads.h -- the threads of a cluster of blocks as the parts of the emulated GPU see them: which
 * one runs, how it waits, and what the hardware does beside the threads. A launch without clusters has
 * clusters of one block. */
#ifndef TESTS_SIMT_THREADS_H
#define TESTS_SIMT_THREADS_H

#include "simt/device.h"
#include "simt/fiber.h"

#include <vector>

namespace simt {

enum { LANES = 32, WARPS = 32, THREADS = LANES * WARPS, CLUSTER_MOST = 8 };
enum State { NEW, RUNS, IN_WARP, IN_BLOCK, WAITS, RETURNED };

struct Block;

struct Thread {
    Block      *block;
    int         number;                                 /* in the block */
    uint3       index;
    State       state;
    Fiber      *fiber;
    const char *what;                                   /* the thread waits in it, at `site` */
    Site        site;
    const void *caller;                                 /* in code of the kernel, where it waits; or NULL */
    uint32_t    about[2];                               /* of an mbarrier: address and parity */
    unsigned    mask;
    void       *operand;
    Resolve     resolve;
    unsigned    fences;                                 /* of the asynchronous proxy, that it executed */
};

struct Block {
    int      slot, rank;                                /* of CLUSTER_MOST; in the cluster */
    uint3    index;
    int      threads, live, in_block;                   /* live: not returned; in_block: IN_BLOCK */
    int      under_way;                                 /* asynchronous writes to its shared memory */
    bool     returned;                                  /* some thread, since warps were looked through */
    char    *memory;                                    /* shared */
    uint32_t ready[WARPS], ready_warps;                 /* lanes that can run, warps that have such lanes */
    uint32_t yielding[WARPS];                           /* of them, lanes that let others run: yield_warp */
    Thread   thread[THREADS];
};

struct Cluster { int size; Block *block[CLUSTER_MOST]; };
extern Cluster cluster;
extern Block  *here;                                    /* the block of the thread that runs */
Thread *self();
extern const Grid *launched;                            /* NULL: no kernel runs */

/* ---- waiting: for a condition that others make true, then wake ---- */

typedef std::vector<Thread *> Waiters;
void wait_in(Waiters &w, const char *what, Site site, const void *caller, uint32_t a = 0, uint32_t b = 0);
void wake(Waiters &w);

/* In half of the launches: the thread stays where it is, ready, until the other lanes of its warp have come
 * as far as they can, and any warp runs next. Called where a thread tells others that it is done. */
void yield_warp();

/* ---- what the hardware does beside the threads ----
 *
 * It happens when no thread of the cluster can run, in any order; in some launches at once instead. */
void later(std::function<void()> work);
uint64_t draw();                                        /* a number that differs; the same in each run */

inline int threads_of_block() { return (int)(blockDim.x * blockDim.y * blockDim.z); }

/* ---- parts: what a block has at its begin, and what must hold at its end ---- */

void memory_open(Block *b);                             /* shared.cc */
void memory_close();                                    /* of a whole cluster */
void barriers_open(Block *b);                           /* barriers.cc */
void barriers_returned();                               /* a thread has */
void mbarriers_open(Block *b);                          /* mbarrier.cc */
void warpgroups_open(Block *b);                         /* warpgroup.cc */
void warpgroups_close(Block *b);
void products_open(Block *b);                           /* wgmma.cc */
void products_close(Block *b);
void copies_open(Block *b);                             /* copies.cc */
void bulk_open(Block *b);                               /* tma.cc */
void bulk_returned(Thread *t);
void bulk_close();                                      /* of a whole cluster: writes to device memory */

/* ---- shared memory: addresses are offsets in a block's; those of mapa have the rank, plus 1, on top ---- */

enum { WINDOW_BITS = 24 };
struct Place { Block *block; uint32_t at; };
Place cluster_place(uint32_t at);                       /* of either kind of address */
char *shared_bytes(const Place &p, uint32_t bytes, uint32_t align);

/* Which ordinary stores the asynchronous proxy does not see yet: those of threads that have not executed
 * fence.proxy.async since. */
void note_stores(uint32_t at, uint32_t bytes);          /* by the calling thread */
void forget_stores(const Place &p, uint32_t bytes);     /* the asynchronous proxy has written there */
void need_fenced(const Place &p, uint32_t bytes, const char *reader);

void mbarrier_complete(Block *b, uint32_t at, int bytes);       /* asynchronous bytes have arrived */
void mbarrier_check(const Place &p);                    /* that they may arrive there */

/* ---- warpgroups ---- */

/* All four warps of a warpgroup must execute the same of these, in the same order; one call for a warp. */
void agree(const char *what, uint64_t operands);

/* ---- errors ---- */

void print_threads();
void print_barrier(const Thread *t);                    /* an mbarrier or a named one, that it waits at */

}

#endif
