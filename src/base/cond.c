/* base/cond.c -- see cond.h. */
#include "base/cond.h"
#include "base/clock.h"

#include <time.h>

void cond_open(pthread_cond_t *c)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
}

bool cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, double when)
{
    struct timespec until = { .tv_sec = (time_t)when };
    until.tv_nsec = (long)(1e9 * (when - (double)until.tv_sec));
    return !pthread_cond_timedwait(c, lock, &until);
}

bool cond_wait_for(pthread_cond_t *c, pthread_mutex_t *lock, double seconds)
{
    return cond_wait_until(c, lock, clock_now() + seconds);
}

bool mutex_lock_within(pthread_mutex_t *m, double seconds)
{
    double until = clock_now() + seconds;
    while (pthread_mutex_trylock(m)) {
        if (clock_now() > until) return false;
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    return true;
}
