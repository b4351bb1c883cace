/* comm/trace.c -- see trace.h. */
#include "comm/trace.h"
#include "base/activity.h"
#include "base/clock.h"
#include "base/cond.h"
#include "comm/mesh.h"

#include <stdio.h>
#include <string.h>

void trace_open(Trace *t)
{
    *t = (Trace){ 0 };
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->comms_lock, NULL);
}

void trace_close(Trace *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_mutex_destroy(&t->comms_lock);
}

/* ---- the rank's thread ---- */

int64_t trace_begin(Trace *t, TraceCall call)
{
    const ActivityPlace *p = &activity_self()->place;
    call.layer = p->layer, call.micro_batch = p->micro_batch, call.ended = 0;
    activity_mark();
    pthread_mutex_lock(&t->lock);
    int64_t at = t->calls++;
    t->since = call.began = clock_now(), t->waits = at + 1;
    t->call[at % TRACE_CALLS] = call;
    pthread_mutex_unlock(&t->lock);
    return at;
}

void trace_started(Trace *t, int64_t call)
{
    activity_mark();
    pthread_mutex_lock(&t->lock);
    if (t->waits == call + 1) t->waits = 0;
    pthread_mutex_unlock(&t->lock);
}

void trace_wait(Trace *t, int64_t call)
{
    activity_mark();
    pthread_mutex_lock(&t->lock);
    t->waits = call + 1;
    t->since = clock_now();
    pthread_mutex_unlock(&t->lock);
}

void trace_end(Trace *t, int64_t call, double waited)
{
    activity_mark();
    pthread_mutex_lock(&t->lock);
    if (t->calls - call <= TRACE_CALLS) t->call[call % TRACE_CALLS].ended = clock_now();
    t->waits = 0;
    t->waited += waited;
    pthread_mutex_unlock(&t->lock);
}

/* ---- any thread ---- */

static bool lock_to_read(Trace *t) { return mutex_lock_within(&t->lock, 0.1); }

static void unlock_after(Trace *t, bool locked)
{
    if (locked) pthread_mutex_unlock(&t->lock);
}

double trace_waiting_seconds(Trace *t)
{
    bool   locked = lock_to_read(t);
    double waits = t->waits ? clock_now() - t->since : 0;
    unlock_after(t, locked);
    return waits;
}

static TraceCall call_at(const Trace *t, int64_t at)
{
    return at >= 0 && t->calls - at <= TRACE_CALLS ? t->call[at % TRACE_CALLS] : (TraceCall){ 0 };
}

TraceCall trace_get(Trace *t, int64_t call)
{
    bool      locked = lock_to_read(t);
    TraceCall c = call_at(t, call);
    unlock_after(t, locked);
    return c;
}

bool trace_current(Trace *t, TraceCall *call, double *since)
{
    bool locked = lock_to_read(t), waits = t->waits > 0;
    *call  = call_at(t, waits ? t->waits - 1 : t->calls - 1);
    *since = waits ? t->since : call->ended > 0 ? call->ended : call->began;
    unlock_after(t, locked);
    return waits;
}

int64_t trace_calls(Trace *t) { return __atomic_load_n(&t->calls, __ATOMIC_RELAXED); }

int trace_copy(Trace *t, int64_t *from, TraceCall *out, int n)
{
    bool    locked = lock_to_read(t);
    int64_t oldest = t->calls > TRACE_CALLS ? t->calls - TRACE_CALLS : 0;
    if (*from < oldest) *from = oldest;
    if (n > t->calls - *from) n = (int)(t->calls - *from);
    for (int i = 0; i < n; i++) out[i] = t->call[(*from + i) % TRACE_CALLS];
    unlock_after(t, locked);
    return n;
}

/* ---- words ---- */

void trace_describe_call(const TraceCall *c, char *out, size_t n)
{
    char peer[32] = "", layer[32] = "", micro[32] = "";
    const char *way = !strcmp(c->op, "send") ? "to" : "from";
    if (c->peer) snprintf(peer, sizeof peer, " %s rank %d", way, c->peer - 1);
    if (c->layer) snprintf(layer, sizeof layer, ", layer %d", c->layer - 1);
    if (c->micro_batch) snprintf(micro, sizeof micro, ", micro-batch %d", c->micro_batch - 1);
    snprintf(out, n, "%s %lld%s of %s (%lld bytes%s%s)", c->op, (long long)c->seq, peer,
             group_name((GroupId)c->group), (long long)c->bytes, layer, micro);
}

/* The details of a call are lost when TRACE_CALLS others were started during its join. */
void trace_describe(Trace *t, char *out, size_t n)
{
    TraceCall c;
    double    since;
    char      call[200];
    bool      waits = trace_current(t, &c, &since);
    if (!c.op) {
        snprintf(out, n, waits ? "waits in a call started long ago" : "has made no call yet");
        return;
    }
    trace_describe_call(&c, call, sizeof call);
    const char *fmt = waits ? "waits %.1f s in %s" : "computes for %.1f s after %s";
    snprintf(out, n, fmt, clock_now() - since, call);
}
