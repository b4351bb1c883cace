/* base/cond.h -- condition variables whose timed waits use the monotonic clock: setting the time of the
 * machine neither ends nor prolongs a wait. */
#ifndef BASE_COND_H
#define BASE_COND_H

#include <pthread.h>
#include <stdbool.h>

void cond_open(pthread_cond_t *c);
/* Waits at most `seconds` for a condition variable that cond_open has made; false: the time is over. */
bool cond_wait_for(pthread_cond_t *c, pthread_mutex_t *lock, double seconds);
/* The same up to a moment of clock_now(). */
bool cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, double when);
/* Locks a mutex whose holder may be stopped; false: it was not free for `seconds`. */
bool mutex_lock_within(pthread_mutex_t *m, double seconds);

#endif
