/* tests/simt/simt.cc -- see simt.h: the threads of a block as fibers, where they meet, shared memory. */
#include "simt/fiber.h"
#include "simt/device.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <vector>

uint3 threadIdx, blockIdx;
dim3  blockDim, gridDim;

namespace simt {

enum { LANES = 32, WARPS = 32, THREADS = LANES * WARPS };
enum State { NEW, RUNS, IN_WARP, IN_BLOCK, RETURNED };

struct Copy { uint32_t to; const void *from; int bytes, group; };

struct Thread {
    uint3       index;
    State       state;
    Fiber      *fiber;
    const char *what;                                   /* the thread waits in it, at `site` */
    Site        site;
    unsigned    mask;
    void       *operand;
    Resolve     resolve;
    std::vector<Copy> copies;                           /* of cp.async, that no wait has waited for */
    int         groups;                                 /* committed */
};

static struct {
    Thread   thread[THREADS];
    int      threads, self, warp;
    uint32_t ready[WARPS], ready_warps;                 /* lanes that can run, warps that have such lanes */
    bool     lanes_fall, warps_fall;                    /* the order in which they run */
    const Grid *grid;
    const std::function<void()> *kernel;
    Fiber    main;
} block;
static std::vector<Fiber *> &idle = *new std::vector<Fiber *>;  /* to the end: they are no leak */

/* ---- errors ---- */

static void print_kernel(const void *kernel)
{
    Dl_info info = { };
    char    command[512], name[1024] = "";
    dladdr(kernel, &info);
    snprintf(command, sizeof command, "addr2line -Cfe /proc/%d/exe %#zx 2>/dev/null", (int)getpid(),
             (size_t)((const char *)kernel - (const char *)info.dli_fbase));
    FILE *f = popen(command, "r");
    if (f && !fgets(name, sizeof name, f)) *name = 0;
    if (f) pclose(f);
    name[strcspn(name, "\n")] = 0;
    fprintf(stderr, "simt: %s, launched at %s:%d", *name ? name : "a kernel", block.grid->site.file,
            block.grid->site.line);
}

void fail(const char *format, ...)
{
    va_list v;
    fflush(stdout);
    if (block.grid) {
        print_kernel(block.grid->kernel);
        fprintf(stderr, ", block (%u, %u, %u), thread %d: ", blockIdx.x, blockIdx.y, blockIdx.z, block.self);
    }
    va_start(v, format);
    vfprintf(stderr, format, v);
    va_end(v);
    fputc('\n', stderr);
    abort();
}

/* Where all threads are, lanes of a warp that are at one place in a line. */
static void print_threads()
{
    for (int w = 0; w * LANES < block.threads; w++)
        for (int l = 0; l < LANES && w * LANES + l < block.threads; l++) {
            const Thread *t = &block.thread[w * LANES + l];
            unsigned same = 0, before = 0;
            for (int k = 0; k < LANES && w * LANES + k < block.threads; k++) {
                const Thread *o = &block.thread[w * LANES + k];
                if (o->state != t->state) continue;
                if (t->state != RETURNED && (o->what != t->what || o->site.line != t->site.line ||
                                             o->mask != t->mask)) continue;
                same |= 1u << k, before |= (unsigned)(k < l);
            }
            if (before) continue;
            if (t->state == RETURNED) fprintf(stderr, "  warp %d, lanes %08x: returned\n", w, same);
            else
                fprintf(stderr, "  warp %d, lanes %08x: %s(mask %08x) at %s:%d\n", w, same, t->what, t->mask,
                        t->site.file, t->site.line);
        }
}

/* ---- which thread runs ---- */

static Thread *self() { return &block.thread[block.self]; }

int lane() { return block.self % LANES; }

static int pick(uint32_t set, bool falls) { return falls ? 31 - __builtin_clz(set) : __builtin_ctz(set); }

static void make_ready(int i)
{
    block.thread[i].state = block.thread[i].fiber ? RUNS : NEW;
    block.ready[i / LANES] |= 1u << i % LANES, block.ready_warps |= 1u << i / LANES;
}

static void make_waiting(State s)
{
    int w = block.self / LANES;
    self()->state = s;
    block.ready[w] &= ~(1u << lane());
    if (!block.ready[w]) block.ready_warps &= ~(1u << w);
}

/* The next thread becomes `self`; false: none can run. */
static bool choose_next()
{
    if (!block.ready_warps) return false;
    if (!block.ready[block.warp]) block.warp = pick(block.ready_warps, block.warps_fall);
    block.self = block.warp * LANES + pick(block.ready[block.warp], block.lanes_fall);
    threadIdx = self()->index;
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

/* From a fiber that keeps its place to that of the next thread, or to the block's. */
static void switch_from(Fiber *from)
{
    if (!choose_next()) { fiber_switch(from, &block.main); return; }
    if (!self()->fiber) self()->fiber = take_fiber();
    if (self()->fiber != from) fiber_switch(from, self()->fiber);
}

/* A fiber runs a thread to its end, then a thread that has not begun, if that is the next one. */
static void run_threads(void *fiber)
{
    for (;;) {
        (*block.kernel)();
        make_waiting(RETURNED);
        self()->fiber = NULL;
        bool runs = choose_next();
        if (runs && !self()->fiber) { self()->fiber = (Fiber *)fiber; continue; }
        idle.push_back((Fiber *)fiber);
        fiber_switch((Fiber *)fiber, runs ? self()->fiber : &block.main);
    }
}

/* ---- meeting ---- */

/* Whether every lane of the mask waits in this instruction or has returned. */
static bool all_there(int warp, const Thread *t)
{
    for (uint32_t left = t->mask; left; left &= left - 1) {
        int i = warp * LANES + __builtin_ctz(left);
        const Thread *o = &block.thread[i];
        if (i >= block.threads || o->state == RETURNED) continue;
        if (o->state != IN_WARP || o->what != t->what || o->mask != t->mask) return false;
    }
    return true;
}

static void end_meeting(int warp, const Thread *t)
{
    void    *operand[LANES] = { };
    unsigned mask = t->mask;
    for (int l = 0; l < LANES; l++) {
        Thread *o = &block.thread[warp * LANES + l];
        if (mask >> l & 1 && warp * LANES + l < block.threads && o->state == IN_WARP) operand[l] = o->operand;
    }
    if (t->resolve) t->resolve(operand);
    for (int l = 0; l < LANES; l++)
        if (operand[l]) make_ready(warp * LANES + l);
}

static void wait_in(State s, const char *what, unsigned mask, void *operand, Resolve resolve, Site site)
{
    Thread *t = self();
    t->what = what, t->mask = mask, t->operand = operand, t->resolve = resolve, t->site = site;
    make_waiting(s);
}

void meet_warp(const char *what, unsigned mask, void *operand, Resolve resolve, Site site)
{
    Thread *t = self();
    int     i = block.self;
    if (!(mask >> lane() & 1)) fail("%s at %s:%d: the mask %08x lacks the calling lane", what, site.file,
                                    site.line, mask);
    wait_in(IN_WARP, what, mask, operand, resolve, site);
    if (all_there(i / LANES, t)) end_meeting(i / LANES, t);
    if (t->state != RUNS) switch_from(t->fiber);
}

void meet_block(const char *what, void *operand, Resolve resolve, Site site)
{
    Thread *t = self();
    wait_in(IN_BLOCK, what, ~0u, operand, resolve, site);
    switch_from(t->fiber);
}

/* Lanes that waited for one that has returned since. */
static bool end_warp_meetings()
{
    bool any = false;
    for (int i = 0; i < block.threads; i++)
        if (block.thread[i].state == IN_WARP && all_there(i / LANES, &block.thread[i]))
            end_meeting(i / LANES, &block.thread[i]), any = true;
    return any;
}

/* False: all threads have returned. */
static bool end_barrier()
{
    void   *operand[THREADS] = { };
    Thread *first = NULL;
    for (int i = 0; i < block.threads; i++) {
        Thread *t = &block.thread[i];
        if (t->state == RETURNED) continue;
        if (!first) first = t;
        if (t->state != IN_BLOCK || t->what != first->what || t->site.line != first->site.line) {
            print_threads();
            fail("threads wait for others that never come");
        }
        operand[i] = t->operand;
    }
    if (first && first->resolve) first->resolve(operand);
    for (int i = 0; i < block.threads; i++)
        if (block.thread[i].state == IN_BLOCK) make_ready(i);
    return first != NULL;
}

/* ---- shared memory: the dynamic part first, then every declaration as it is first met ---- */

enum { MEMORY = 4 * SHARED_MOST, GAP = SANITIZED ? 64 : 0, POISON = 0xff };
alignas(1024) static char memory[MEMORY];
static size_t memory_used, memory_asked;                /* with and without gaps */
unsigned      shared_epoch;

static void *reserve(size_t bytes, size_t align)
{
    char *at = memory + (memory_used + (memory_used ? GAP : 0) + align - 1) / align * align;
    memory_asked += bytes;
    if (memory_asked > SHARED_MOST)
        fail("%zu bytes of shared memory, the device has %d for a block", memory_asked, (int)SHARED_MOST);
    fiber_unpoison(at, bytes);
    memset(at, POISON, bytes);
    memory_used = (size_t)(at - memory) + bytes;
    return at;
}

void *shared_reserve(size_t bytes, size_t align) { return reserve(bytes, align > 16 ? align : 16); }

void *dynamic_shared(size_t align)
{
    if (align > 1024) fail("dynamic shared memory aligned to %zu bytes", align);
    return memory;
}

static void open_memory()
{
    fiber_poison(memory, memory_used);
    memory_used = memory_asked = 0, shared_epoch++;
    if (block.grid->bytes) reserve(block.grid->bytes, 1024);
}

uint32_t shared_address(const void *p)
{
    if ((const char *)p < memory || (const char *)p > memory + memory_used)
        fail("an address is taken for one of shared memory and is not");
    return (uint32_t)((const char *)p - memory);
}

void *shared_pointer(uint32_t at, uint32_t bytes, uint32_t align)
{
    if (at % align) fail("shared address %#x is not a multiple of %u", at, align);
    if (at + bytes > memory_used)
        fail("%u bytes at shared address %#x: the block has %zu", bytes, at, memory_used);
    return memory + at;
}

void copy_async(uint32_t to, const void *from, int bytes)
{
    if (bytes && (uintptr_t)from % 16) fail("cp.async from %p, which is not a multiple of 16", from);
    if (bytes < 0 || bytes > 16) fail("cp.async of %d bytes", bytes);
    memset(shared_pointer(to, 16, 16), POISON, 16);
    self()->copies.push_back({ to, from, bytes, self()->groups });
}

void copy_async_commit() { self()->groups++; }

void copy_async_wait(int groups)
{
    Thread *t = self();
    size_t  kept = 0;
    for (const Copy &c : t->copies) {
        if (c.group >= t->groups - groups) { t->copies[kept++] = c; continue; }
        memset(memory + c.to, 0, 16);
        if (c.bytes) memcpy(memory + c.to, c.from, (size_t)c.bytes);
    }
    t->copies.resize(kept);
}

/* ---- blocks ---- */

static void open_threads()
{
    block.threads = (int)(blockDim.x * blockDim.y * blockDim.z);
    for (int i = 0; i < block.threads; i++) {
        unsigned u = (unsigned)i;
        block.thread[i].index = { u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y };
        block.thread[i].fiber = NULL, block.thread[i].groups = 0, block.thread[i].copies.clear();
        make_ready(i);
    }
}

static void run_block(unsigned x, unsigned y, unsigned z)
{
    blockIdx = { x, y, z };
    open_memory();
    open_threads();
    do {
        while (block.ready_warps) switch_from(&block.main);
    } while (end_warp_meetings() || end_barrier());
}

/* A permutation of 0 .. n - 1 that differs from launch to launch. */
struct Order { uint64_t n, first; bool falls; };
static unsigned at(Order o, uint64_t i) { return (unsigned)((o.first + (o.falls ? o.n - 1 - i : i)) % o.n); }

void run_grid(const Grid &g, const std::function<void()> &kernel)
{
    static uint64_t launches;
    uint64_t draw = ++launches * 0x9e3779b97f4a7c15u, n = (uint64_t)g.blocks.x * g.blocks.y * g.blocks.z;
    draw ^= draw >> 32;
    Order o = { n, draw % n, (draw >> 20 & 1) != 0 };
    block.lanes_fall = draw >> 21 & 1, block.warps_fall = draw >> 22 & 1;
    fiber_here(&block.main);
    block.grid = &g, block.kernel = &kernel, blockDim = g.threads, gridDim = g.blocks;
    for (uint64_t i = 0; i < n; i++) {
        unsigned b = at(o, i);
        run_block(b % g.blocks.x, b / g.blocks.x % g.blocks.y, b / g.blocks.x / g.blocks.y);
    }
    block.grid = NULL;
}

}
