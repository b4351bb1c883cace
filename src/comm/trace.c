/* comm/trace.c -- see trace.h. */
#include "comm/trace.h"
#include "base/clock.h"

#include <stdio.h>

void trace_open(Trace *t)
{
    *t = (Trace){ .layer = -1 };
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->comms_lock, NULL);
}

void trace_close(Trace *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_mutex_destroy(&t->comms_lock);
}

int64_t trace_begin(Trace *t, const char *op, const char *group, int64_t seq, int64_t bytes)
{
    pthread_mutex_lock(&t->lock);
    int64_t at = t->calls++;
    t->call[at % TRACE_CALLS] = (TraceCall){ .op = op, .group = group, .seq = seq, .bytes = bytes,
                                             .layer = t->layer, .began = clock_now() };
    pthread_mutex_unlock(&t->lock);
    return at;
}

void trace_wait(Trace *t, int64_t call)
{
    pthread_mutex_lock(&t->lock);
    t->waits = call + 1;
    t->since = clock_now();
    pthread_mutex_unlock(&t->lock);
}

void trace_end(Trace *t, int64_t call, double waited)
{
    pthread_mutex_lock(&t->lock);
    if (t->calls - call <= TRACE_CALLS) t->call[call % TRACE_CALLS].ended = clock_now();
    t->waits = 0;
    t->waited += waited;
    pthread_mutex_unlock(&t->lock);
}

double trace_waiting_seconds(Trace *t)
{
    pthread_mutex_lock(&t->lock);
    double waits = t->waits ? clock_now() - t->since : 0;
    pthread_mutex_unlock(&t->lock);
    return waits;
}

/* The details of a call are lost when TRACE_CALLS others were started during its join. */
void trace_describe(Trace *t, char *out, size_t n)
{
    pthread_mutex_lock(&t->lock);
    double    now = clock_now();              /* after locking: a join may begin while waiting for the lock */
    int64_t   at = t->waits ? t->waits - 1 : t->calls - 1;
    TraceCall c  = at >= 0 && t->calls - at <= TRACE_CALLS ? t->call[at % TRACE_CALLS] : (TraceCall){ 0 };
    bool      waits = t->waits > 0;
    double    since = t->since;
    pthread_mutex_unlock(&t->lock);
    if (!c.op) {
        snprintf(out, n, waits ? "waits in a call started long ago" : "has made no call yet");
        return;
    }
    char layer[32] = "";
    if (c.layer >= 0) snprintf(layer, sizeof layer, ", layer %d", c.layer);
    if (!waits) since = c.ended > 0 ? c.ended : c.began;
    snprintf(out, n, waits ? "waits %.1f s in %s %lld of %s (%lld bytes%s)"
                           : "computes for %.1f s after %s %lld of %s (%lld bytes%s)",
             now - since, c.op, (long long)c.seq, c.group, (long long)c.bytes, layer);
}
