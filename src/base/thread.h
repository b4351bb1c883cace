/* base/thread.h -- a pool of worker threads: loops in parallel and jobs in the background.
 *
 * Both are the same thing. A job is `count` calls fn(arg, i), handed out a few at a time to whoever is
 * free; pool_submit queues it and returns, pool_wait helps with what is left and returns when all is done,
 * pool_run is the one after the other. The one who waits works too, so a pool of 0 workers is legal, and a
 * job may itself call pool_run on the same pool without a deadlock.
 *
 * fn returns a Status. After a failure no further calls are begun, and pool_wait returns the failure of the
 * lowest index that failed, its text carried over to the waiting thread.
 *
 * Calls run in no particular order; results must not depend on it: give each i its own place to write. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include "base/status.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef Status PoolFn(void *arg, int64_t i);

typedef struct PoolJob {              /* memory of the caller; must stay until pool_wait has returned */
    PoolFn *fn;
    void   *arg;
    int64_t count, next, left;        /* calls in all, the next to hand out, those not finished */
    Status  status;
    int64_t failed;                   /* the index that status and text are about */
    char    text[1024];
    struct PoolJob *behind;           /* queue of jobs that still have calls to hand out */
} PoolJob;

typedef struct Pool {
    pthread_mutex_t lock;
    pthread_cond_t  work, done;
    pthread_t      *thread;
    int             workers;
    bool            open, stop;
    PoolJob        *queue;
} Pool;

MUST Status pool_open(Pool *p, int workers);
void        pool_close(Pool *p);                  /* finishes what was submitted; twice is fine */

void        pool_submit(Pool *p, PoolJob *j, int64_t count, PoolFn *fn, void *arg);
bool        pool_done(Pool *p, PoolJob *j);       /* a look without waiting; pool_wait is still owed */
MUST Status pool_wait(Pool *p, PoolJob *j);
MUST Status pool_run(Pool *p, int64_t count, PoolFn *fn, void *arg);

int         cpu_count(void);                      /* cores this process may use, at least 1 */

#ifdef __cplusplus
}
#endif
#endif
