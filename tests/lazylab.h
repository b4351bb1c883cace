/* tests/lazylab.h -- a device whose asynchronous copies run as late as allowed: when an event behind them is
 * waited for, or never. Code that reads or overwrites too early shows in the numbers, as it might on a GPU.
 * One engine per thread at a time. */
#ifndef TESTS_LAZYLAB_H
#define TESTS_LAZYLAB_H

#include "lab.h"
#include "ops/backend.h"

enum { LAZY_OPS = 1 << 12 };

/* A copy, or a wait for another stream's event. */
typedef struct LazyOp { void *dst; const void *src; size_t bytes; int stream, upto; } LazyOp;

static __thread struct {
    Device  device;
    LazyOp  op[COPY_STREAMS][LAZY_OPS];
    int     head[COPY_STREAMS], tail[COPY_STREAMS];
    struct { int stream, at; } event[COPY_EVENTS];
    int64_t late;                        /* copies that ran at a wait */
} lazy_;

static inline void lazy_run(int stream, int upto)
{
    while (lazy_.head[stream] < upto) {
        LazyOp o = lazy_.op[stream][lazy_.head[stream]++ % LAZY_OPS];
        if (o.dst) memcpy(o.dst, o.src, o.bytes), lazy_.late++;
        else       lazy_run(o.stream, o.upto);
    }
}

static inline void lazy_push(int stream, LazyOp o)
{
    if (lazy_.tail[stream] - lazy_.head[stream] == LAZY_OPS)
        printf("a stream of %d copies is full\n", LAZY_OPS), exit(1);
    lazy_.op[stream][lazy_.tail[stream]++ % LAZY_OPS] = o;
}

static inline void lazy_copy(Backend *be, CopyStream stream, void *dst, const void *src, size_t bytes)
{
    (void)be;
    lazy_push(stream, (LazyOp){ dst, src, bytes, 0, 0 });
}
static inline void lazy_record(Backend *be, CopyStream stream, int id)
{
    (void)be;
    lazy_.event[id].stream = stream, lazy_.event[id].at = lazy_.tail[stream];
}
static inline void lazy_wait(Backend *be, int id)
{
    (void)be;
    lazy_run(lazy_.event[id].stream, lazy_.event[id].at);
}
static inline void lazy_copy_wait(Backend *be, CopyStream stream, int id)
{
    (void)be;
    lazy_push(stream, (LazyOp){ .stream = lazy_.event[id].stream, .upto = lazy_.event[id].at });
}
static inline void lazy_sync(Backend *be)
{
    (void)be;
    for (int i = 0; i < COPY_STREAMS; i++) lazy_run(i, lazy_.tail[i]);
}

/* From here on the asynchronous copies of be, a CPU backend, run late. */
static inline void lazy_make(Backend *be)
{
    static const CopyOps copies = { lazy_copy, NULL, lazy_record, lazy_wait, lazy_copy_wait, lazy_sync };
    memset(&lazy_, 0, sizeof lazy_);
    lazy_.device = *be->device;
    lazy_.device.copies = &copies;
    be->device = &lazy_.device;
}

#endif
