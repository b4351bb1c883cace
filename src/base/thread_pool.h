/* base/thread_pool.h -- a pool of worker threads: parallel loops and background jobs.
 *
 * A job is `count` calls fn(arg, i), handed out to free workers. thread_pool_submit queues it and returns;
 * thread_pool_wait runs calls itself until all are done; thread_pool_run is both. Since the waiting thread
 * works too, a pool of 0 workers is legal, and a job may call thread_pool_run on its own pool without a
 * deadlock.
 *
 * fn returns a Status. After a failure no further calls are begun, and thread_pool_wait returns the failure
 * of the lowest index that failed, with its text copied to the waiting thread.
 *
 * Calls mark progress (activity.h) for the thread that submitted the job.
 *
 * Calls run in no particular order; results must not depend on it: give each i its own place to write. */
#ifndef BASE_THREAD_POOL_H
#define BASE_THREAD_POOL_H

#include "base/status.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef Status ThreadPoolFn(void *arg, int64_t i);

typedef struct ThreadPoolJob { /* memory of the caller; must stay until thread_pool_wait has returned */
    ThreadPoolFn *fn;
    void         *arg;
    int64_t count, next, left;        /* calls in all, the next to hand out, those not finished */
    Status  status;
    int64_t failed;                   /* the index whose failure status and text describe */
    char    text[1024];
    struct Activity *activity;        /* of the thread that submitted the job; its calls mark there */
    struct ThreadPoolJob *behind;     /* queue of jobs that still have calls to hand out */
} ThreadPoolJob;

typedef struct ThreadPool {
    pthread_mutex_t lock;
    pthread_cond_t  work, done;
    pthread_t      *thread;
    int             workers;
    bool            open, stop;
    ThreadPoolJob  *queue;
} ThreadPool;

MUST Status thread_pool_open(ThreadPool *p, int workers);
void        thread_pool_close(ThreadPool *p); /* finishes what was submitted; twice is fine */

void        thread_pool_submit(ThreadPool *p, ThreadPoolJob *j, int64_t count, ThreadPoolFn *fn, void *arg);
MUST Status thread_pool_wait(ThreadPool *p, ThreadPoolJob *j);
MUST Status thread_pool_run(ThreadPool *p, int64_t count, ThreadPoolFn *fn, void *arg);

int         cpu_count(void);                      /* cores this process may use, at least 1 */

#ifdef __cplusplus
}
#endif
#endif
