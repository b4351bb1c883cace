/* checkpoint/checkpoint_async.c -- see saving.h. */
#include "checkpoint/checkpoint_async.h"

#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Status checkpoint_async_open(AsyncCheckpointer *v, const Model *m, Backend *be, bool async)
{
    LocalShards l;
    double left, all;
    *v = (AsyncCheckpointer){ .async = async, .pin = be->device->pin };
    if (!async) return OK;
    TRY(shards_list_local(&l, m));
    v->bytes = l.bytes;
    shards_free_local(&l);
    backend_memory("cpu", &left, &all);
    if ((double)v->bytes <= left) v->copy = malloc(v->bytes + 1);
    if (!v->copy)
        return fail(E_FIT, "no host memory for a copy of %.1f GiB to save from; set checkpoint.async=false",
                    (double)v->bytes / (1 << 30));
    if (v->pin) v->pin(v->copy, v->bytes, true);
    return OK;
}

/* The thread of a save: its failure waits in v until the run asks. */
static void *write_all(void *arg)
{
    AsyncCheckpointer *v = arg;
    double from = clock_now();
    Status st = checkpoint_save_write(&v->job, NULL, v->copy);
    if (!st) st = checkpoint_save_finish(&v->job);
    if (st) st = checkpoint_save_failed(&v->job, st);
    if (st) snprintf(v->text, sizeof v->text, "%s", status_text());
    v->status = st, v->seconds = clock_now() - from;
    __atomic_store_n(&v->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Signals are the run's to hear. */
static Status start(AsyncCheckpointer *v)
{
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    v->done = v->stop = 0, v->job.stop = v->job.ranks > 1 ? &v->stop : NULL;
    int bad = pthread_create(&v->thread, NULL, write_all, v);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    v->busy = !bad;
    return bad ? fail(E_OTHER, "no thread to save with: %s", strerror(bad)) : OK;
}

/* Its failure is told once. */
static Status fetch_thread(AsyncCheckpointer *v)
{
    if (!v->busy) return OK;
    pthread_join(v->thread, NULL);
    v->busy = false;
    checkpoint_save_close(&v->job);
    return v->status ? fail(v->status, "%s", v->text) : OK;
}

static Status agree(const AsyncCheckpointer *v, Status st) { return v->world ? comm_agree(v->world, st) : st; }

Status checkpoint_async_poll(AsyncCheckpointer *v)
{
    if (!v->out) return OK;
    Status st = v->busy && __atomic_load_n(&v->done, __ATOMIC_ACQUIRE) ? fetch_thread(v) : OK;
    double trouble[2] = { v->busy, st != OK };
    if (v->world) comm_host_max(v->world, trouble, 2);
    v->out = trouble[0] > 0;
    return trouble[1] > 0 ? agree(v, st) : OK;
}

Status checkpoint_async_wait(AsyncCheckpointer *v)
{
    if (!v->out) return OK;
    Status st = fetch_thread(v);
    v->out = false;
    return agree(v, st);
}

static Status begin(AsyncCheckpointer *v, const Snapshot *s)
{
    Status st = checkpoint_save_open(&v->job, s);
    REQUIRE(st || v->job.list.bytes <= v->bytes, "%zu bytes, %zu planned", v->job.list.bytes, v->bytes);
    if (!st) st = shards_copy_local(&v->job.list, s->be, v->copy);
    TRY(agree(v, st));
    TRY(checkpoint_save_prepare(&v->job));
    st = start(v);
    if (st) st = checkpoint_save_failed(&v->job, st);
    return agree(v, st);
}

Status checkpoint_async_begin(AsyncCheckpointer *v, const Snapshot *s)
{
    double from = clock_now();
    TRY(checkpoint_async_wait(v));
    v->world = s->mesh && s->mesh->world > 1 ? s->mesh->comm[GR_world] : NULL;
    Status st = v->async ? begin(v, s) : checkpoint_save(s);
    v->out = v->busy;
    if (!v->async) v->seconds = clock_now() - from;
    else if (!v->busy) checkpoint_save_close(&v->job);
    return st;
}

void checkpoint_async_close(AsyncCheckpointer *v)
{
    __atomic_store_n(&v->stop, 1, __ATOMIC_RELEASE);
    Status st = fetch_thread(v);                             /* whoever cares has called checkpoint_async_wait */
    (void)st;
    if (v->copy && v->pin) v->pin(v->copy, v->bytes, false);
    free(v->copy);
    *v = (AsyncCheckpointer){ 0 };
}
