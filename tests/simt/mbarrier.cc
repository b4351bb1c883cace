/* tests/simt/mbarrier.cc -- mbarriers: a phase ends when all arrivals have come and as many bytes as were
 * announced. Their 8 bytes of shared memory hold a mark and a number, so that a barrier that was never
 * initialised, or written over, is found. */
#include "simt/threads.h"

#include <stdio.h>

#include <deque>

namespace simt {

enum { COUNT_MOST = (1 << 20) - 1, BYTES_MOST = (1 << 20) - 1 };
const uint32_t MARK = 0x6d626172;

struct Mbarrier {
    uint32_t at;
    int      count, pending, bytes;                     /* of arrivals; bytes: announced, not yet here */
    unsigned phase;
    bool     published;                                 /* to other blocks and the asynchronous proxy */
    Thread  *by;                                        /* has initialised it */
    Waiters  waiters;
};

static std::deque<Mbarrier> barriers[CLUSTER_MOST];

void mbarriers_open(Block *b) { barriers[b->slot].clear(); }

static Mbarrier *find(const Place &p)
{
    uint32_t word[2];
    memcpy(word, shared_bytes(p, 8, 8), 8);
    if (word[0] != (MARK ^ p.at) || word[1] >= barriers[p.block->slot].size())
        fail("there is no mbarrier at shared address %#x, or it was written over", p.at);
    return &barriers[p.block->slot][word[1]];
}

void mbarrier_init(uint32_t at, int count)
{
    uint32_t word[2] = { MARK ^ at, (uint32_t)barriers[here->slot].size() };
    if (count < 1 || count > COUNT_MOST) fail("an mbarrier of %d arrivals", count);
    for (const Mbarrier &m : barriers[here->slot])
        if (m.at == at) fail("the mbarrier at shared address %#x is initialised again", at);
    memcpy(shared_target(at, 8, 8), word, 8);
    barriers[here->slot].push_back({ at, count, count, 0, 0, false, self(), { } });
}

void mbarriers_publish()
{
    for (Mbarrier &m : barriers[here->slot]) m.published = m.published || m.by == self();
}

static void need_published(const Mbarrier *m)
{
    if (!m->published)
        fail("the mbarrier at shared address %#x is used by TMA or another block, without "
             "fence.mbarrier_init after its initialisation", m->at);
}

static void end_phase(Mbarrier *m)
{
    if (m->pending || m->bytes) return;
    m->phase ^= 1, m->pending = m->count;
    wake(m->waiters);
}

static void arrive(Mbarrier *m, int bytes)
{
    if (!m->pending) fail("more than %d arrivals in a phase of the mbarrier at shared address %#x", m->count,
                          m->at);
    m->bytes += bytes, m->pending--;
    if (bytes < 0 || m->bytes > BYTES_MOST) fail("an mbarrier that expects %d bytes", m->bytes);
    end_phase(m);
}

void mbarrier_arrive(uint32_t at, int bytes)
{
    shared_pointer(at, 8, 8);
    arrive(find({ here, at }), bytes);
    yield_warp();
}

void mbarrier_arrive_cluster(uint32_t at)
{
    Mbarrier *m = find(cluster_place(at));
    need_published(m);
    arrive(m, 0);
    yield_warp();
}

void mbarrier_check(const Place &p) { need_published(find(p)); }

void mbarrier_complete(Block *b, uint32_t at, int bytes)
{
    Mbarrier *m = find({ b, at });
    m->bytes -= bytes;
    if (m->bytes < -BYTES_MOST) fail("%d bytes too many at the mbarrier at %#x", -m->bytes, at);
    end_phase(m);
}

/* Asks as often as it is woken: a thread that sleeps through two phases waits for a third. */
void mbarrier_wait(uint32_t at, int parity, Site site)
{
    shared_pointer(at, 8, 8);
    Mbarrier *m = find({ here, at });
    if (parity & ~1) fail("an mbarrier's parity is 0 or 1, not %d", parity);
    while (m->phase == (unsigned)parity)
        wait_in(m->waiters, "mbarrier.try_wait", site, __builtin_return_address(0), at, (uint32_t)parity);
}

void print_barrier(const Thread *t)
{
    for (const Mbarrier &m : barriers[t->block->slot])
        if (!strcmp(t->what, "mbarrier.try_wait") && m.at == t->about[0])
            fprintf(stderr, " (shared address %#x, parity %u; %d of %d arrivals and %d bytes are missing)",
                    m.at, t->about[1], m.pending, m.count, m.bytes);
    if (!strcmp(t->what, "bar.sync")) fprintf(stderr, " (%u, %u threads)", t->about[0], t->about[1]);
}

}
