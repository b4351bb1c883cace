/* base/thread_pool.c -- see thread_pool.h. One lock guards the queue and every counter in it; a thread holds
 * it for a few instructions per handful of calls, never during one. */
#define _GNU_SOURCE                   /* sched_getaffinity */
#include "base/thread_pool.h"
#include "base/activity.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void queue_remove(ThreadPool *p, ThreadPoolJob *j)
{
    ThreadPoolJob **at = &p->queue;
    while (*at && *at != j) at = &(*at)->behind;
    if (*at) *at = j->behind;
}

static void queue_append(ThreadPool *p, ThreadPoolJob *j)
{
    ThreadPoolJob **at = &p->queue;
    while (*at) at = &(*at)->behind;
    *at = j;
}

/* Called and returns with the lock held. Handfuls shrink as the job runs out, so that the last ones end
 * together; a short job is handed out one call at a time. */
static void work_on(ThreadPool *p, ThreadPoolJob *j)
{
    int64_t share = (j->count - j->next) / (8 * ((int64_t)p->workers + 1)), from = j->next;
    int64_t to = from + (share > 1 ? share : 1), i = from;
    Status  st = OK;
    j->next = to;
    if (to == j->count) queue_remove(p, j);
    pthread_mutex_unlock(&p->lock);
    Activity *own = activity_adopt(j->activity);
    for (; i < to && !st; i++) st = j->fn(j->arg, i), activity_mark();
    activity_adopt(own);
    pthread_mutex_lock(&p->lock);
    if (st && (!j->status || i - 1 < j->failed)) {
        j->status = st, j->failed = i - 1;
        snprintf(j->text, sizeof j->text, "%s", status_text());
    }
    j->left -= to - from;
    if (st && j->next < j->count) {                         /* what was not begun never will be */
        j->left -= j->count - j->next;
        j->next = j->count;
        queue_remove(p, j);
    }
    if (j->left == 0) pthread_cond_broadcast(&p->done);
}

static void *worker(void *arg)
{
    ThreadPool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (p->queue || !p->stop) {
        if (p->queue) work_on(p, p->queue);
        else          pthread_cond_wait(&p->work, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Workers inherit a mask without the signals people send, which are the main thread's to handle. */
static int start(ThreadPool *p, int workers)
{
    static const int sent[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM };
    sigset_t mine, theirs;
    int      err = 0;
    sigemptyset(&theirs);
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) sigaddset(&theirs, sent[i]);
    pthread_sigmask(SIG_BLOCK, &theirs, &mine);
    while (!err && p->workers < workers) {
        err = pthread_create(&p->thread[p->workers], NULL, worker, p);
        if (!err) p->workers++;
    }
    pthread_sigmask(SIG_SETMASK, &mine, NULL);
    return err;
}

Status thread_pool_open(ThreadPool *p, int workers)
{
    *p = (ThreadPool){ .open = true };
    REQUIRE(workers >= 0, "%d workers", workers);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    p->thread = calloc((size_t)workers + 1, sizeof *p->thread);
    int err = p->thread ? start(p, workers) : ENOMEM;
    if (!err) return OK;
    thread_pool_close(p);
    return fail(E_OTHER, "cannot start %d worker threads: %s; ask for fewer, or raise `ulimit -u`",
                workers, strerror(err));
}

void thread_pool_close(ThreadPool *p)
{
    if (!p->open) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    while (p->queue) work_on(p, p->queue);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->workers; i++) pthread_join(p->thread[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    free(p->thread);
    *p = (ThreadPool){ 0 };
}

void thread_pool_submit(ThreadPool *p, ThreadPoolJob *j, int64_t count, ThreadPoolFn *fn, void *arg)
{
    REQUIRE(p->open && count >= 0, "%lld calls", (long long)count);
    *j = (ThreadPoolJob){ .fn = fn, .arg = arg, .count = count, .left = count,
                          .activity = activity_self() };
    if (count == 0) return;
    pthread_mutex_lock(&p->lock);
    queue_append(p, j);
    if (count == 1) pthread_cond_signal(&p->work);
    else            pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
}

Status thread_pool_wait(ThreadPool *p, ThreadPoolJob *j)
{
    pthread_mutex_lock(&p->lock);
    while (j->left > 0) {
        if (j->next < j->count) work_on(p, j);
        else                    pthread_cond_wait(&p->done, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return j->status ? fail(j->status, "%s", j->text) : OK;
}

Status thread_pool_run(ThreadPool *p, int64_t count, ThreadPoolFn *fn, void *arg)
{
    ThreadPoolJob j;
    thread_pool_submit(p, &j, count, fn, arg);
    return thread_pool_wait(p, &j);
}

int cpu_count(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return n > 0 ? n : 1;
}
