/* tests/lazylab.h -- a CPU backend whose side copies run as late as allowed: when something waits for an
 * event recorded after them, or never. Code that reads or overwrites too early then computes wrong
 * numbers, as it may on a busy GPU. One engine a thread at a time. */
#ifndef TESTS_LAZYLAB_H
#define TESTS_LAZYLAB_H

#include "lab.h"
#include "ops/backend.h"

enum { LAZY_OPS = 1 << 12 };

/* A copy, or a wait for the progress of another lane. */
typedef struct LazyOp { void *dst; const void *src; size_t bytes; int lane, upto; } LazyOp;

static __thread struct {
    Device machine;
    LazyOp  op[COPY_STREAMS][LAZY_OPS];
    int     head[COPY_STREAMS], tail[COPY_STREAMS];
    struct { int lane, at; } mark[COPY_EVENTS];
    int64_t late;                        /* copies that had to wait */
} lazy_;

static inline void lazy_run(int lane, int upto)
{
    while (lazy_.head[lane] < upto) {
        LazyOp o = lazy_.op[lane][lazy_.head[lane]++ % LAZY_OPS];
        if (o.dst) memcpy(o.dst, o.src, o.bytes), lazy_.late++;
        else       lazy_run(o.lane, o.upto);
    }
}

static inline void lazy_push(int lane, LazyOp o)
{
    if (lazy_.tail[lane] - lazy_.head[lane] == LAZY_OPS)
        printf("a lane of %d copies is full\n", LAZY_OPS), exit(1);
    lazy_.op[lane][lazy_.tail[lane]++ % LAZY_OPS] = o;
}

static inline void lazy_copy(Backend *be, CopyStream lane, void *dst, const void *src, size_t bytes)
{
    (void)be;
    lazy_push(lane, (LazyOp){ dst, src, bytes, 0, 0 });
}
static inline void lazy_mark(Backend *be, CopyStream lane, int id)
{
    (void)be;
    lazy_.mark[id].lane = lane, lazy_.mark[id].at = lazy_.tail[lane];
}
static inline void lazy_wait(Backend *be, int id)
{
    (void)be;
    lazy_run(lazy_.mark[id].lane, lazy_.mark[id].at);
}
static inline void lazy_side_wait(Backend *be, CopyStream lane, int id)
{
    (void)be;
    lazy_push(lane, (LazyOp){ .lane = lazy_.mark[id].lane, .upto = lazy_.mark[id].at });
}
static inline void lazy_drain(Backend *be)
{
    (void)be;
    for (int i = 0; i < COPY_STREAMS; i++) lazy_run(i, lazy_.tail[i]);
}

/* From here on the side copies of be, a CPU backend, are late. */
static inline void lazy_make(Backend *be)
{
    static const CopyOps lanes = { lazy_copy, NULL, lazy_mark, lazy_wait, lazy_side_wait, lazy_drain };
    memset(&lazy_, 0, sizeof lazy_);
    lazy_.machine = *be->device;
    lazy_.machine.lanes = &lanes;
    be->device = &lazy_.machine;
}

#endif
