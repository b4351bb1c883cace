/* tests/simt/simt.cc -- see simt.h: threads as fibers, which one runs, where they meet, blocks in turn. */
#include "simt/threads.h"

#include <vector>

uint3 threadIdx, blockIdx;
dim3  blockDim, gridDim;

namespace simt {

Cluster cluster;
Block  *here;
char   *shared_base;
const Grid *launched;

static Block blocks[CLUSTER_MOST];
static struct {
    int      self, warp;                                /* in `here` */
    bool     lanes_fall, warps_fall, blocks_fall;       /* the order in which they run */
    bool     at_once, yields;                        /* what hardware does beside threads; yield_warp */
    const std::function<void()> *kernel;
    Fiber    main;
} now;
static std::vector<Fiber *> &idle = *new std::vector<Fiber *>;  /* to the end: they are no leak */
static std::vector<std::function<void()>> &under_way = *new std::vector<std::function<void()>>;
static uint64_t drawn;

uint64_t draw()
{
    uint64_t x = ++drawn * 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}

/* ---- which thread runs ---- */

Thread *self() { return &here->thread[now.self]; }

int lane() { return now.self % LANES; }

static int pick(uint32_t set, bool falls) { return falls ? 31 - __builtin_clz(set) : __builtin_ctz(set); }

/* Makes a thread the one that fail() names, and whose lane() is asked for. */
static void enter(Thread *t)
{
    here = t->block, now.self = t->number, now.warp = t->number / LANES;
    blockIdx = here->index, threadIdx = t->index, shared_base = here->memory;
}

static void make_ready(Thread *t)
{
    int w = t->number / LANES;
    if (t->state == IN_BLOCK) t->block->in_block--;
    t->state = t->fiber ? RUNS : NEW;
    t->block->ready[w] |= 1u << t->number % LANES, t->block->ready_warps |= 1u << w;
}

static void make_waiting(State s)
{
    int w = now.self / LANES;
    self()->state = s;
    here->ready[w] &= ~(1u << lane());
    if (!here->ready[w]) here->ready_warps &= ~(1u << w);
    if (s == IN_BLOCK) here->in_block++;
    if (s == RETURNED) here->live--, here->returned = true;
}

static bool any_ready()
{
    for (int r = 0; r < cluster.size; r++)
        if (cluster.block[r]->ready_warps) return true;
    return false;
}

/* The next thread becomes `self`; false: none can run. */
static bool choose_next()
{
    int rank = here->rank;
    for (int i = 1; i < cluster.size && !cluster.block[rank]->ready_warps; i++)
        rank = (here->rank + (now.blocks_fall ? cluster.size - i : i)) % cluster.size;
    Block *b = cluster.block[rank];
    if (!b->ready_warps) return false;
    if (b != here || !b->ready[now.warp]) now.warp = pick(b->ready_warps, now.warps_fall);
    enter(&b->thread[now.warp * LANES + pick(b->ready[now.warp], now.lanes_fall)]);
    return true;
}

static void run_threads(void *fiber);

static Fiber *take_fiber()
{
    if (idle.empty()) return fiber_open(run_threads);
    Fiber *f = idle.back();
    idle.pop_back();
    return f;
}

/* From a fiber that keeps its place to that of the next thread, or to the cluster's. */
static void switch_from(Fiber *from)
{
    if (!choose_next()) { fiber_switch(from, &now.main); return; }
    if (!self()->fiber) self()->fiber = take_fiber();
    if (self()->fiber != from) fiber_switch(from, self()->fiber);
}

/* A fiber runs a thread to its end, then a thread that has not begun, if that is the next one. */
static void run_threads(void *fiber)
{
    for (;;) {
        (*now.kernel)();
        bulk_returned(self());
        make_waiting(RETURNED);
        barriers_returned();
        self()->fiber = NULL;
        bool runs = choose_next();
        if (runs && !self()->fiber) { self()->fiber = (Fiber *)fiber; continue; }
        idle.push_back((Fiber *)fiber);
        fiber_switch((Fiber *)fiber, runs ? self()->fiber : &now.main);
    }
}

/* ---- waiting ---- */

static void begin_waiting(State s, const char *what, unsigned mask, Site site, const void *caller)
{
    Thread *t = self();
    t->what = what, t->mask = mask, t->site = site, t->caller = caller;
    make_waiting(s);
}

void wait_in(Waiters &w, const char *what, Site site, const void *caller, uint32_t a, uint32_t b)
{
    Thread *t = self();
    t->about[0] = a, t->about[1] = b;
    w.push_back(t);
    begin_waiting(WAITS, what, ~0u, site, caller);
    switch_from(t->fiber);
}

void wake(Waiters &w)
{
    for (Thread *t : w) make_ready(t);
    w.clear();
}

static void run_other(int warp, uint32_t lanes)
{
    Thread *t = self();
    enter(&here->thread[warp * LANES + pick(lanes, now.lanes_fall)]);
    if (!self()->fiber) self()->fiber = take_fiber();
    fiber_switch(t->fiber, self()->fiber);
}

void yield_warp()
{
    uint32_t own = 1u << lane(), *yielding = &here->yielding[now.warp];
    if (!now.yields) return;
    *yielding |= own;                           /* two lanes that yield do not wait for each other */
    while (uint32_t others = here->ready[now.warp] & ~*yielding) run_other(now.warp, others);
    *yielding &= ~own;
    uint32_t set = here->ready_warps;
    for (int i = (int)(draw() % (unsigned)__builtin_popcount(set)); i; i--) set &= set - 1;
    int warp = __builtin_ctz(set);
    if (warp != now.warp) run_other(warp, here->ready[warp]);
}

void later(std::function<void()> work)
{
    Thread *t = self();
    if (now.at_once) { work(); return; }
    under_way.push_back([t, work] { enter(t), work(); });
}

static bool do_later()
{
    if (under_way.empty()) return false;
    size_t i = draw() % under_way.size();
    std::function<void()> work = std::move(under_way[i]);
    under_way[i] = std::move(under_way.back());
    under_way.pop_back();
    work();
    return true;
}

/* A thread that sleeps looks again when no other can run, and nothing is under way. */
enum { SLEEPS_MOST = 1000 };
static Waiters &sleepers = *new Waiters;
static int      sleeps;                                 /* in a row that nothing else came of */

void sleep_thread(Site site) { wait_in(sleepers, "__nanosleep", site, __builtin_return_address(0)); }

static bool end_sleep()
{
    if (sleepers.empty()) return false;
    if (++sleeps > SLEEPS_MOST) {
        print_threads();
        fail("threads wait for what no thread of the block does: a later block, another kernel or the host");
    }
    wake(sleepers);
    return true;
}

/* ---- meeting ---- */

/* Whether every lane of the mask waits in this instruction or has returned. */
static bool all_there(const Thread *t)
{
    int warp = t->number / LANES;
    for (uint32_t left = t->mask; left; left &= left - 1) {
        int i = warp * LANES + __builtin_ctz(left);
        const Thread *o = &t->block->thread[i];
        if (i >= t->block->threads || o->state == RETURNED) continue;
        if (o->state != IN_WARP || o->what != t->what || o->mask != t->mask) return false;
    }
    return true;
}

static void end_meeting(Thread *t)
{
    void    *operand[LANES] = { };
    unsigned mask = t->mask;
    int      first = t->number / LANES * LANES;
    for (int l = 0; l < LANES; l++) {
        Thread *o = &t->block->thread[first + l];
        if (mask >> l & 1 && first + l < t->block->threads && o->state == IN_WARP) operand[l] = o->operand;
    }
    if (t->resolve) t->resolve(operand);
    for (int l = 0; l < LANES; l++)
        if (operand[l]) make_ready(&t->block->thread[first + l]);
}

void meet_warp(const char *what, unsigned mask, void *operand, Resolve resolve, Site site)
{
    Thread *t = self();
    if (!(mask >> lane() & 1)) fail("%s at %s:%d: the mask %08x lacks the calling lane", what, site.file,
                                    site.line, mask);
    t->operand = operand, t->resolve = resolve;
    begin_waiting(IN_WARP, what, mask, site, __builtin_return_address(0));
    if (all_there(t)) end_meeting(t);
    if (t->state != RUNS) switch_from(t->fiber);
}

void meet_block(const char *what, void *operand, Resolve resolve, Site site)
{
    Thread *t = self();
    t->operand = operand, t->resolve = resolve;
    begin_waiting(IN_BLOCK, what, ~0u, site, __builtin_return_address(0));
    switch_from(t->fiber);
}

/* Lanes that waited for one that has returned since. */
static bool end_warp_meetings(Block *b)
{
    bool any = false;
    if (!b->returned) return false;
    b->returned = false;
    for (int i = 0; i < b->threads; i++) {
        Thread *t = &b->thread[i];
        if (t->state == IN_WARP && all_there(t)) enter(t), end_meeting(t), any = true;
    }
    return any;
}

/* Of all threads that have not returned, when the others are not on their way. */
static bool end_barrier(Block *b)
{
    void   *operand[THREADS] = { };
    Thread *first = NULL;
    if (!b->live || b->in_block != b->live) return false;
    for (int i = 0; i < b->threads; i++) {
        Thread *t = &b->thread[i];
        if (t->state == RETURNED) continue;
        if (!first) first = t;
        if (t->what != first->what || t->site.line != first->site.line) return false;
        operand[i] = t->operand;
    }
    enter(first);
    if (first->resolve) first->resolve(operand);
    for (int i = 0; i < b->threads; i++)
        if (b->thread[i].state == IN_BLOCK) make_ready(&b->thread[i]);
    return true;
}

static bool end_meetings()
{
    bool any = false;
    for (int r = 0; r < cluster.size; r++)
        any = end_warp_meetings(cluster.block[r]) || end_barrier(cluster.block[r]) || any;
    return any;
}

/* ---- blocks ---- */

static void open_threads(Block *b)
{
    b->threads = b->live = threads_of_block();
    b->in_block = b->under_way = 0, b->returned = false;
    for (int i = 0; i < b->threads; i++) {
        unsigned u = (unsigned)i;
        b->thread[i] = { };
        b->thread[i].block = b, b->thread[i].number = i;
        b->thread[i].index = { u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y };
        make_ready(&b->thread[i]);
    }
}

static void open_block(int slot, int rank, uint3 index)
{
    Block *b = &blocks[slot];
    b->slot = slot, b->rank = rank, b->index = index;
    cluster.block[rank] = b;
    memory_open(b), barriers_open(b), mbarriers_open(b), warpgroups_open(b), products_open(b), copies_open(b);
    bulk_open(b);
    open_threads(b);
}

/* What a kernel with __cluster_dims__(n) does first. The first thread of all has run no further than here:
 * the other blocks of its cluster begin. */
void cluster_begin(int n)
{
    if (cluster.size == n) return;
    if (gpu().major < 9) fail("clusters on a GPU of compute capability %d.%d", gpu().major, gpu().minor);
    if (cluster.size != 1 || n > CLUSTER_MOST || gridDim.x % (unsigned)n)
        fail("a grid of %u blocks in clusters of %d; at most %d are emulated", gridDim.x, n, CLUSTER_MOST);
    unsigned first = blockIdx.x / (unsigned)n * (unsigned)n;
    int      own = (int)(blockIdx.x - first), slot = 1;
    cluster.size = n, here->rank = own, cluster.block[own] = here;
    for (int r = 0; r < n; r++)
        if (r != own) open_block(slot++, r, { first + (unsigned)r, blockIdx.y, blockIdx.z });
}

static bool go_on()
{
    if (!end_meetings() && !do_later()) return false;
    sleeps = 0;
    return true;
}

static void run_cluster(uint3 index)
{
    cluster.size = 1;
    memory_close();
    open_block(0, 0, index);
    enter(&blocks[0].thread[0]);
    sleeps = 0;
    do {
        while (any_ready()) switch_from(&now.main);
    } while (go_on() || end_sleep());
    for (int r = 0; r < cluster.size; r++)
        if (cluster.block[r]->live) {
            print_threads();
            fail("threads wait for others that never come");
        }
    for (int r = 0; r < cluster.size; r++)
        enter(&cluster.block[r]->thread[0]), warpgroups_close(here), products_close(here);
    bulk_close();
}

/* A permutation of 0 .. n - 1 that differs from launch to launch. */
struct Order { uint64_t n, first; bool falls; };
static unsigned at(Order o, uint64_t i) { return (unsigned)((o.first + (o.falls ? o.n - 1 - i : i)) % o.n); }

void run_grid(const Grid &g, const std::function<void()> &kernel)
{
    uint64_t x = draw(), n = (uint64_t)g.blocks.x * g.blocks.y * g.blocks.z;
    Order    o = { n, x % n, (x >> 20 & 1) != 0 };
    std::vector<bool> done(n);
    now.lanes_fall = x >> 21 & 1, now.warps_fall = x >> 22 & 1, now.blocks_fall = x >> 23 & 1;
    now.at_once = (x >> 24 & 3) == 0, now.yields = x >> 26 & 1;
    fiber_here(&now.main);
    launched = &g, now.kernel = &kernel, blockDim = g.threads, gridDim = g.blocks;
    for (uint64_t i = 0; i < n; i++) {
        unsigned b = at(o, i);
        if (done[b]) continue;
        run_cluster({ b % g.blocks.x, b / g.blocks.x % g.blocks.y, b / g.blocks.x / g.blocks.y });
        unsigned first = b - b % g.blocks.x % (unsigned)cluster.size;
        for (int r = 0; r < cluster.size; r++) done[first + (unsigned)r] = true;
    }
    launched = NULL;
}

}
