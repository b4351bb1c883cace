/* tests/linklab.h -- ranks that are threads, over a slow link: what a rank sends takes its bytes over the
 * rate of the link, one call after the other, and no core. linklab_slow(world, rate) before groups are
 * made. */
#ifndef TESTS_LINKLAB_H
#define TESTS_LINKLAB_H

#include "comm/transport.h"

#include <time.h>

typedef struct LinkCall { const Comm *comm; int slot; double due; } LinkCall;

/* Of this rank's thread: the link, and the calls that are under way. */
static __thread struct { double rate, busy_until; LinkCall call[256]; int calls; } link_;

static inline double link_bytes(const Comm *c, const CommCall *k)
{
    double others = c->size - 1, sum = 0;
    switch (k->kind) {
    case CALL_ALL_REDUCE:     return 2 * others / c->size * (double)t_bytes(k->in);
    case CALL_ALL_GATHER:     return others * (double)t_bytes(k->in);
    case CALL_REDUCE_SCATTER: return others * (double)t_bytes(k->out);
    case CALL_SEND:           return (double)t_bytes(k->in);
    case CALL_ALL_TO_ALL:
        for (int i = 0; i < c->size; i++)
            if (i != c->rank) sum += (double)(k->give.n[i] * call_row(k->in));
        return sum;
    default: return 0;
    }
}

static inline void link_start(Comm *c, int slot, const CommCall *k)
{
    double now = clock_now(), from = link_.busy_until > now ? link_.busy_until : now;
    link_.busy_until = from + link_bytes(c, k) / link_.rate;
    REQUIRE(link_.calls < 256, "more calls than the link keeps");
    link_.call[link_.calls++] = (LinkCall){ c, slot, link_.busy_until };
    transport_threads.start(c, slot, k);
}

static inline void link_join(Comm *c, int slot)
{
    transport_threads.join(c, slot);
    for (int i = 0; i < link_.calls; i++) {
        if (link_.call[i].comm != c || link_.call[i].slot != slot) continue;
        double left = link_.call[i].due - clock_now();
        if (c->ended[slot] < link_.call[i].due) c->ended[slot] = link_.call[i].due;
        link_.call[i] = link_.call[--link_.calls];
        if (left > 0) nanosleep(&(struct timespec){ (time_t)left, (long)(1e9 * (left - (long)left)) }, NULL);
        return;
    }
}

/* rate: bytes a second. Called by the rank's thread. */
static inline void linklab_slow(Comm *world, double rate)
{
    static __thread Transport slow;
    slow = transport_threads, slow.start = link_start, slow.join = link_join;
    link_.rate = rate, link_.busy_until = 0, link_.calls = 0;
    world->transport = &slow;
}

#endif
