/* tests/simt/copies.cc -- cp.async: a thread's copies to shared memory, done when it waits for them. */
#include "simt/threads.h"

namespace simt {

enum { POISON = 0xff };

struct Copy { uint32_t to; const void *from; int bytes, group; };
struct Copies { std::vector<Copy> open; int groups; };  /* that no wait has waited for; committed */

static Copies copies[CLUSTER_MOST][THREADS];

static Copies *own() { return &copies[here->slot][self()->number]; }

void copies_open(Block *b)
{
    for (int i = 0; i < threads_of_block(); i++) {
        Copies *c = &copies[b->slot][i];
        c->open.clear(), c->groups = 0;
    }
}

void copy_async(uint32_t to, const void *from, int bytes)
{
    Copies *c = own();
    if (bytes && (uintptr_t)from % 16) fail("cp.async from %p, which is not a multiple of 16", from);
    if (bytes < 0 || bytes > 16) fail("cp.async of %d bytes", bytes);
    memset(shared_target(to, 16, 16), POISON, 16);
    c->open.push_back({ to, from, bytes, c->groups });
}

void copy_async_commit() { own()->groups++; }

/* All but the newest `groups`; negative: also what no group has. */
void copy_async_wait(int groups)
{
    Copies *c = own();
    size_t  kept = 0;
    for (const Copy &x : c->open) {
        if (x.group >= c->groups - groups) { c->open[kept++] = x; continue; }
        char *to = (char *)shared_pointer(x.to, 16, 16);
        memset(to, 0, 16);
        if (x.bytes) memcpy(to, x.from, (size_t)x.bytes);
    }
    c->open.resize(kept);
}

}
