/* tests/clocklab.h -- ranks that are threads, each with a clock of its own: it advances by the CPU time of
 * the thread and by waits for calls over a simulated link, so that times do not depend on what else the
 * machine does, and nothing sleeps. A rank's link sends one call after the other; a call is done when the
 * last member has sent. Include it in one file of a program: it replaces clock_now().
 *
 *   clocklab_start(world, rate)          by each rank's thread, before groups are made */
#ifndef TESTS_CLOCKLAB_H
#define TESTS_CLOCKLAB_H

#include "comm/comm_threads.h"
#include "linklab.h"

#include <time.h>

static double real_seconds(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static __thread struct { bool on; double began, waited, rate, busy_until; } clock_;

double clock_now(void)
{
    if (!clock_.on) return real_seconds(CLOCK_MONOTONIC);
    return 1 + real_seconds(CLOCK_THREAD_CPUTIME_ID) - clock_.began + clock_.waited;
}

double clock_wall(void) { return real_seconds(CLOCK_REALTIME); }

/* A call that some members have started and not all have joined; a message has two. */
typedef struct ClockCall {
    const ThreadGroup *group;
    int64_t            number;
    int                from, to;         /* of a message; -1 */
    int                members, left;
    double             due;
} ClockCall;

enum { CLOCK_CALLS = 8192 };
static ClockCall       clock_call[CLOCK_CALLS];
static pthread_mutex_t clock_lock = PTHREAD_MUTEX_INITIALIZER;

static inline ClockCall *find_call(const ClockCall *key)
{
    ClockCall *unused = NULL;
    for (int i = 0; i < CLOCK_CALLS; i++) {
        ClockCall *c = &clock_call[i];
        if (!c->members && !unused) unused = c;
        if (c->members && c->group == key->group && c->number == key->number && c->from == key->from &&
            c->to == key->to) return c;
    }
    REQUIRE(unused, "more calls than the clock keeps");
    *unused = *key;
    return unused;
}

/* This member has sent its part by `done`. */
static inline ClockCall *post_call(const ClockCall *key, double done)
{
    pthread_mutex_lock(&clock_lock);
    ClockCall *c = find_call(key);
    if (done > c->due) c->due = done;
    pthread_mutex_unlock(&clock_lock);
    return c;
}

static inline void wait_call(ClockCall *c)
{
    pthread_mutex_lock(&clock_lock);
    double due = c->due, now = clock_now();
    if (++c->left == c->members) *c = (ClockCall){ 0 };
    pthread_mutex_unlock(&clock_lock);
    if (due > now) clock_.waited += due - now;
}

/* ---- the transport ---- */

typedef struct ClockTicket { const Comm *comm; int slot; ClockCall *call; } ClockTicket;
static __thread struct { ClockTicket at[256]; int n; } clock_tickets;

static inline ClockCall call_key(const Comm *c, const CommCall *k)
{
    const ThreadMember *m = c->priv;
    if (k->kind == CALL_SEND) return (ClockCall){ m->group, m->sent[k->peer], c->rank, k->peer, 2, 0, 0 };
    if (k->kind == CALL_RECV) return (ClockCall){ m->group, m->got[k->peer], k->peer, c->rank, 2, 0, 0 };
    return (ClockCall){ m->group, m->calls, -1, -1, c->size, 0, 0 };
}

static inline void clock_start(Comm *c, int slot, const CommCall *k)
{
    double now = clock_now(), from = clock_.busy_until > now ? clock_.busy_until : now;
    double sent = link_bytes(c, k);
    double done = sent > 0 ? from + sent / clock_.rate : now;
    ClockCall key = call_key(c, k);
    if (sent > 0) clock_.busy_until = done;
    REQUIRE(clock_tickets.n < 256, "more calls than the clock keeps");
    clock_tickets.at[clock_tickets.n++] = (ClockTicket){ c, slot, post_call(&key, done) };
    transport_threads.start(c, slot, k);
}

static inline void clock_join(Comm *c, int slot)
{
    transport_threads.join(c, slot);
    for (int i = 0; i < clock_tickets.n; i++) {
        ClockTicket t = clock_tickets.at[i];
        if (t.comm != c || t.slot != slot) continue;
        clock_tickets.at[i] = clock_tickets.at[--clock_tickets.n];
        c->ended[slot] = t.call->due;
        wait_call(t.call);
        return;
    }
}

static inline Status clock_host_gather(Comm *c, void *out, const void *in, size_t bytes)
{
    const ThreadMember *m = c->priv;
    ClockCall  key = { m->group, m->calls, -1, -1, c->size, 0, 0 }, *call = post_call(&key, clock_now());
    Status     st = transport_threads.host_gather(c, out, in, bytes);
    wait_call(call);
    return st;
}

static inline void clocklab_start(Comm *world, double rate)
{
    static __thread Transport slow;
    slow = transport_threads, slow.start = clock_start, slow.join = clock_join;
    slow.host_gather = clock_host_gather;
    clock_.began = real_seconds(CLOCK_THREAD_CPUTIME_ID), clock_.waited = clock_.busy_until = 0;
    clock_.rate = rate, clock_.on = true, clock_tickets.n = 0;
    if (world->size > 1) world->transport = &slow;
}

#endif
