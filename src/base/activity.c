/* base/activity.c -- see activity.h. */
#include "base/activity.h"
#include "base/clock.h"
#include "base/cond.h"

#include <stdio.h>

static _Thread_local Activity  own;
static _Thread_local Activity *adopted;

Activity *activity_self(void) { return adopted ? adopted : &own; }

Activity *activity_adopt(Activity *a)
{
    Activity *before = activity_self();
    adopted = a == &own ? NULL : a;
    return before;
}

void activity_mark(void)       { __atomic_fetch_add(&activity_self()->marks, 1, __ATOMIC_RELAXED); }
void activity_slow_begin(void) { __atomic_fetch_add(&activity_self()->slow, 1, __ATOMIC_RELAXED); }

void activity_slow_end(void)
{
    __atomic_fetch_sub(&activity_self()->slow, 1, __ATOMIC_RELAXED);
    activity_mark();
}

void activity_poll(void)       { __atomic_fetch_add(&activity_self()->polls, 1, __ATOMIC_RELAXED); }
void activity_poll_end(void)   { __atomic_fetch_sub(&activity_self()->polling, 1, __ATOMIC_RELAXED); }

void activity_poll_begin(void)
{
    activity_poll();
    __atomic_fetch_add(&activity_self()->polling, 1, __ATOMIC_RELAXED);
}

/* ---- where in the run ---- */

#define SET(field, value) __atomic_store_n(&activity_self()->place.field, value, __ATOMIC_RELAXED)

void activity_layer(int64_t number)
{
    SET(layer, (int)number + 1);
    activity_mark();
}

void activity_micro_batch(int64_t number, const char *pass)
{
    SET(micro_batch, (int)number + 1);
    SET(pass, pass);
    activity_layer(-1);
}

void activity_phase(const char *phase, int64_t step)
{
    SET(phase, phase);
    SET(step, step);
    activity_micro_batch(-1, NULL);
}

void activity_describe(const ActivityPlace *p, char *out, size_t n)
{
    int at = p->phase ? snprintf(out, n, "%s %lld", p->phase, (long long)p->step)
                      : snprintf(out, n, "the opening of the run");
    if (p->micro_batch && at < (int)n)
        at += snprintf(out + at, n - (size_t)at, ", micro-batch %d", p->micro_batch - 1);
    if (p->layer && at < (int)n) at += snprintf(out + at, n - (size_t)at, ", layer %d", p->layer - 1);
    if (p->pass && at < (int)n) snprintf(out + at, n - (size_t)at, ", %s", p->pass);
}

/* ---- waiting for other threads ---- */

bool activity_is_slow(const Activity *a, double now)
{
    double until;
    __atomic_load(&a->slow_until, &until, __ATOMIC_RELAXED);
    return __atomic_load_n(&a->slow, __ATOMIC_RELAXED) > 0 || now < until;
}

void activity_wait(pthread_cond_t *cond, pthread_mutex_t *lock, const Activity *others, uint64_t *seen)
{
    enum { WAIT_SECONDS = 1, LATE_SECONDS = 2 };
    double now = clock_now(), until = activity_is_slow(others, now) ? now + WAIT_SECONDS + LATE_SECONDS : 0;
    __atomic_store(&activity_self()->slow_until, &until, __ATOMIC_RELAXED);
    cond_wait_for(cond, lock, WAIT_SECONDS);
    uint64_t marks = __atomic_load_n(&others->marks, __ATOMIC_RELAXED);
    if (marks != *seen) activity_mark();
    *seen = marks;
}
