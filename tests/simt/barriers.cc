/* tests/simt/barriers.cc -- named barriers (bar.sync, bar.arrive) and the barrier of a cluster. */
#include "simt/threads.h"

namespace simt {

/* ---- named barriers: warps arrive; `needed` threads end a phase, which the first arrival begins ---- */

enum { NAMED = 16 };
struct Named { int needed, arrived; unsigned phase; Waiters waiters; };
static Named named[CLUSTER_MOST][NAMED];

struct Arrival { int id, threads; unsigned phase; };

static void arrive(void *const *operand)
{
    const Arrival *first = NULL;
    for (int l = 0; l < LANES; l++) {
        Arrival *a = (Arrival *)operand[l];
        if (!a) fail("a named barrier without lane %d", l);
        if (!first) first = a;
        if (a->id != first->id || a->threads != first->threads)
            fail("lanes of a warp arrive at different named barriers");
        a->phase = named[here->slot][first->id].phase;
    }
    Named *n = &named[here->slot][first->id];
    if (!n->arrived) n->needed = first->threads;
    if (n->needed != first->threads)
        fail("named barrier %d is of %d threads, and now of %d", first->id, n->needed, first->threads);
    n->arrived += LANES;
    if (n->arrived > n->needed)
        fail("%d threads at named barrier %d of %d", n->arrived, first->id, n->needed);
    if (n->arrived < n->needed) return;
    n->arrived = 0, n->phase++;
    wake(n->waiters);
}

static Arrival arrive_at(const char *what, int id, int threads, Site site)
{
    Arrival a = { id, threads, 0 };
    if (id < 1 || id >= NAMED) fail("%s: there is no named barrier %d; 0 is __syncthreads", what, id);
    if (threads < LANES || threads % LANES) fail("%s of %d threads, which are no whole warps", what, threads);
    meet_warp(what, ~0u, &a, arrive, site);
    return a;
}

void named_arrive(int id, int threads, Site site) { arrive_at("bar.arrive", id, threads, site); }

void named_sync(int id, int threads, Site site)
{
    Arrival a = arrive_at("bar.sync", id, threads, site);
    Named  *n = &named[here->slot][id];
    while (n->phase == a.phase)
        wait_in(n->waiters, "bar.sync", site, __builtin_return_address(0), (uint32_t)id, (uint32_t)threads);
}

/* ---- the cluster's: every thread of all blocks arrives, then waits; who returned has arrived ---- */

static struct { int arrived; unsigned phase; Waiters waiters; } all;
static unsigned next[CLUSTER_MOST][THREADS];            /* phase that a thread has arrived in, plus 1; or 0 */

void barriers_open(Block *b)
{
    for (Named &n : named[b->slot]) n = { };
    memset(next[b->slot], 0, (size_t)threads_of_block() * sizeof **next);
    if (cluster.size == 1) all = { };
}

static void end_phase()
{
    int live = 0;
    for (int r = 0; r < cluster.size; r++) live += cluster.block[r]->live;
    if (!all.arrived || all.arrived < live) return;
    all.arrived = 0, all.phase++;
    wake(all.waiters);
}

void barriers_returned()
{
    if (next[here->slot][self()->number]) fail("a thread returns between arrival and wait at the cluster's "
                                               "barrier");
    end_phase();
}

void cluster_arrive()
{
    unsigned *n = &next[here->slot][self()->number];
    if (*n) fail("a thread arrives twice at the cluster's barrier");
    *n = all.phase + 1, all.arrived++;
    end_phase();
}

void cluster_wait(Site site)
{
    unsigned *n = &next[here->slot][self()->number];
    if (!*n) fail("a thread waits at the cluster's barrier, where it has not arrived");
    while (all.phase + 1 == *n)
        wait_in(all.waiters, "barrier.cluster.wait", site, __builtin_return_address(0));
    *n = 0;
}

int cluster_rank() { return here->rank; }

}
