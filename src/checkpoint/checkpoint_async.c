/* checkpoint/checkpoint_async.c -- see checkpoint_async.h. */
#include "checkpoint/checkpoint_async.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* Pinning takes one page after the other, and would also zero those that are not there yet: all threads
 * touch them first, huge pages where the system has them. */
static void touch_pages(const AsyncCheckpointer *v)
{
    (void)madvise(v->copy, v->bytes, MADV_HUGEPAGE);
    volatile char *at = v->copy;
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < v->bytes; i += PAGE) at[i] = 0;
}

static void pin_copy(const AsyncCheckpointer *v, bool on)
{
    if (!v->copy || !v->pin) return;
    activity_slow_begin();
    if (on) touch_pages(v);
    v->pin(v->copy, v->bytes, on);
    activity_slow_end();
}

Status checkpoint_async_open(AsyncCheckpointer *v, const Model *m, Backend *be, bool async, bool only_model)
{
    LocalShards l;
    double free_bytes, all_bytes;
    *v = (AsyncCheckpointer){ .async = async, .pin = be->device->pin };
    if (!async) return OK;
    pthread_mutex_init(&v->lock, NULL);
    cond_open(&v->ended);
    TRY(shards_list_local(&l, m, only_model));
    v->bytes = l.bytes;
    shards_free_local(&l);
    backend_memory("cpu", &free_bytes, &all_bytes);
    size_t whole = (v->bytes / HUGE_PAGE + 1) * HUGE_PAGE;
    if ((double)v->bytes <= free_bytes) v->copy = aligned_alloc(HUGE_PAGE, whole);
    if (!v->copy)
        return fail(E_FIT, "asynchronous checkpoints need a copy of %.1f GiB in host memory, which has not "
                    "that much free; set checkpoint.async=false", (double)v->bytes / (1 << 30));
    pin_copy(v, true);
    return OK;
}

/* The thread of a save. It leaves its error in v for the next poll or wait. */
static void *run_save(void *arg)
{
    AsyncCheckpointer *v = arg;
    double from = clock_now();
    activity_adopt(&v->activity);
    Status st = checkpoint_save_write(&v->job, NULL, v->copy);
    if (!st) st = checkpoint_save_finish(&v->job);
    if (st) st = checkpoint_save_failed(&v->job, st);
    if (st) snprintf(v->text, sizeof v->text, "%s", status_text());
    v->status = st, v->seconds = clock_now() - from;
    if (v->world) comm_saving(v->world, -1);
    pthread_mutex_lock(&v->lock);
    __atomic_store_n(&v->done, 1, __ATOMIC_RELEASE);
    pthread_cond_signal(&v->ended);
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

static Status start_thread(AsyncCheckpointer *v)
{
    v->done = v->stop = 0, v->job.stop = v->job.ranks > 1 ? &v->stop : NULL;
    if (v->world) comm_saving(v->world, 1);
    int bad = thread_start(&v->thread, run_save, v);
    if (bad && v->world) comm_saving(v->world, -1);
    v->joinable = !bad;
    return bad ? fail(E_OTHER, "cannot start a thread to write the checkpoint: %s", strerror(bad)) : OK;
}

/* Returns the thread's error, once. The waiting thread makes progress while the other one does. */
static Status join_thread(AsyncCheckpointer *v)
{
    uint64_t seen = 0;
    if (!v->joinable) return OK;
    pthread_mutex_lock(&v->lock);
    while (!v->done) activity_wait(&v->ended, &v->lock, &v->activity, &seen);
    pthread_mutex_unlock(&v->lock);
    pthread_join(v->thread, NULL);
    v->joinable = false;
    checkpoint_save_close(&v->job);
    return v->status ? fail(v->status, "%s", v->text) : OK;
}

static Status agree(const AsyncCheckpointer *v, Status st)
{
    return v->world ? comm_agree(v->world, st) : st;
}

Status checkpoint_async_poll(AsyncCheckpointer *v)
{
    if (!v->in_flight) return OK;
    Status st = v->joinable && __atomic_load_n(&v->done, __ATOMIC_ACQUIRE) ? join_thread(v) : OK;
    double any[2] = { v->joinable, st != OK };               /* a rank still writes; a rank has failed */
    if (v->world) comm_host_max(v->world, any, 2);
    v->in_flight = any[0] > 0;
    return any[1] > 0 ? agree(v, st) : OK;
}

Status checkpoint_async_wait(AsyncCheckpointer *v)
{
    if (!v->in_flight) return OK;
    Status st = join_thread(v);
    v->in_flight = false;
    return agree(v, st);
}

static Status begin_async(AsyncCheckpointer *v, const Snapshot *s)
{
    Status st = checkpoint_save_open(&v->job, s);
    REQUIRE(st || v->job.list.bytes <= v->bytes, "%zu bytes, %zu planned", v->job.list.bytes, v->bytes);
    if (!st) st = shards_copy_local(&v->job.list, s->be, v->copy);
    TRY(agree(v, st));
    TRY(checkpoint_save_prepare(&v->job));
    st = start_thread(v);
    if (st) st = checkpoint_save_failed(&v->job, st);
    return agree(v, st);
}

Status checkpoint_async_begin(AsyncCheckpointer *v, const Snapshot *s)
{
    double from = clock_now();
    TRY(checkpoint_async_wait(v));
    v->world = s->mesh && s->mesh->world > 1 ? s->mesh->comm[GR_world] : NULL;
    Status st = v->async ? begin_async(v, s) : checkpoint_save(s);
    v->in_flight = v->joinable;
    if (!v->async) v->seconds = clock_now() - from;
    else if (!v->joinable) checkpoint_save_close(&v->job);
    return st;
}

void checkpoint_async_close(AsyncCheckpointer *v)
{
    __atomic_store_n(&v->stop, 1, __ATOMIC_RELEASE);
    Status st = join_thread(v);
    (void)st;                                                /* checkpoint_async_wait reports errors */
    pin_copy(v, false);
    free(v->copy);
    if (v->async) pthread_mutex_destroy(&v->lock), pthread_cond_destroy(&v->ended);
    *v = (AsyncCheckpointer){ 0 };
}
