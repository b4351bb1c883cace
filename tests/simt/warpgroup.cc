/* tests/simt/warpgroup.cc -- instructions that the four warps of a warpgroup must all execute, each in its
 * own time: that they do, and setmaxnreg. */
#include "simt/threads.h"

namespace simt {

enum { GROUPS = WARPS / 4, REGISTERS = 64 << 10 };

struct Executed { const char *what; uint64_t operands; };
struct Warpgroup { std::vector<Executed> log; size_t at[4]; };
static Warpgroup groups[CLUSTER_MOST][GROUPS];
static int       registers[CLUSTER_MOST][WARPS];        /* of a thread; 0: as launched */

void warpgroups_open(Block *b)
{
    for (Warpgroup &g : groups[b->slot]) g.log.clear(), memset(g.at, 0, sizeof g.at);
    memset(registers[b->slot], 0, sizeof registers[b->slot]);
}

void agree(const char *what, uint64_t operands)
{
    int        warp = self()->number / LANES;
    Warpgroup *g = &groups[here->slot][warp / 4];
    size_t     i = g->at[warp % 4]++;
    if ((warp / 4 + 1) * 4 * LANES > here->threads) fail("%s in a warpgroup of fewer than four warps", what);
    if (i == g->log.size()) { g->log.push_back({ what, operands }); return; }
    if (strcmp(g->log[i].what, what) || g->log[i].operands != operands)
        fail("a warp executes %s where another of its warpgroup executed %s%s", what, g->log[i].what,
             strcmp(g->log[i].what, what) ? "" : " with other operands");
}

/* ---- setmaxnreg ---- */

struct Registers { int n; bool more; };

static int launched_with(const Block *b)
{
    int most = REGISTERS / b->threads / 8 * 8;
    return most < 248 ? most : 248;
}

static void set_registers(void *const *operand)
{
    const Registers *r = NULL;
    for (int l = 0; l < LANES; l++) {
        if (!operand[l]) fail("setmaxnreg without lane %d", l);
        r = (const Registers *)operand[l];
    }
    int *own = &registers[here->slot][self()->number / LANES], before = *own ? *own : launched_with(here);
    if (r->n < 24 || r->n > 256 || r->n % 8) fail("setmaxnreg of %d registers", r->n);
    if (r->more ? r->n < before : r->n > before)
        fail("setmaxnreg.%s to %d registers from %d", r->more ? "inc" : "dec", r->n, before);
    agree(r->more ? "setmaxnreg.inc" : "setmaxnreg.dec", (uint64_t)r->n);
    *own = r->n;
}

void registers_set(int n, bool more, Site site)
{
    Registers r = { n, more };
    meet_warp("setmaxnreg", ~0u, &r, set_registers, site);
}

/* ---- at the end of a block ---- */

void warpgroups_close(Block *b)
{
    int all = 0, some = 0, pool = launched_with(b) * b->threads;
    for (int w = 0; w * LANES < b->threads; w++) {
        const Warpgroup *g = &groups[b->slot][w / 4];
        int own = registers[b->slot][w];
        some |= own, all += (own ? own : launched_with(b)) * LANES;
        if (!g->log.empty() && g->at[w % 4] != g->log.size())
            fail("warp %d ends without %s, which another of its warpgroup executed", w,
                 g->log[g->at[w % 4]].what);
    }
    if (some && all > pool) fail("setmaxnreg: the warps want %d registers, the block has %d", all, pool);
}

}
