/* comm/watch.c -- see watch.h. */
#include "comm/watch.h"
#include "base/clock.h"
#include "base/cond.h"
#include "comm/transport.h"

#include <stdio.h>
#include <string.h>

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_ACQUIRE)

/* ---- progress ---- */

void watch_open(Watch *w, Trace *trace)
{
    *w = (Watch){ .trace = trace, .activity = activity_self() };
    watch_restart(w, clock_now());
}

void watch_restart(Watch *w, double now) { w->changed = w->polled = now; }

void watch_sample(Watch *w, double now)
{
    uint64_t marks = LOAD(w->activity->marks), polls = LOAD(w->activity->polls);
    int64_t  device = LOAD(w->device_progress);
    if (marks != w->marks || device != w->device) watch_restart(w, now);
    if (polls != w->polls) w->polled = now;
    w->marks = marks, w->polls = polls, w->device = device;
}

/* ---- calls on the device ---- */

/* A Comm may have several queues, so that calls are done out of order. Of calls that were started longest ago
 * the transport knows nothing any more: they count as done. Returns how far the device has come since the
 * last time. */
static int64_t poll_comm(Comm *c)
{
    int64_t started = LOAD(c->started), before = c->device_progress;
    int64_t from = started - c->finished > COMM_RECENT ? started - COMM_RECENT : c->finished;
    int64_t first[CALL_FINISHED + 1] = { [CALL_QUEUED] = started, [CALL_RUNNING] = started }, sum = 0;
    for (int64_t at = started - 1; at >= from; at--) {
        CallProgress p = c->transport->call_progress(c, at);
        first[p] = at, sum += p;
    }
    int64_t queued = first[CALL_QUEUED], running = first[CALL_RUNNING];
    __atomic_store_n(&c->finished, queued < running ? queued : running, __ATOMIC_RELEASE);
    __atomic_store_n(&c->reached, queued, __ATOMIC_RELEASE);
    __atomic_store_n(&c->running, running < started ? running : -1, __ATOMIC_RELEASE);
    c->device_progress = CALL_FINISHED * from + sum;
    return c->device_progress - before;
}

static void poll_error(Watch *w, Comm *c)
{
    Status st = c->transport->async_error ? c->transport->async_error(c) : OK;
    if (!st || w->device_error) return;
    snprintf(w->device_text, sizeof w->device_text, "%s", status_text());
    __atomic_store_n(&w->device_error, st, __ATOMIC_RELEASE);
}

static void poll_word(Watch *w)
{
    uint32_t word = w->trace->device_word ? LOAD(*w->trace->device_word) : 0;
    if (word != w->device_word) __atomic_fetch_add(&w->device_progress, 1, __ATOMIC_RELEASE);
    w->device_word = word;
}

void watch_poll_device(Watch *w)
{
    if (!mutex_lock_within(&w->trace->comms_lock, 0.1)) return;
    poll_word(w);
    for (Comm *c = w->trace->comms; c; c = c->next) {
        if (!c->transport->call_progress) continue;
        __atomic_fetch_add(&w->device_progress, poll_comm(c), __ATOMIC_RELEASE);
        poll_error(w, c);
    }
    pthread_mutex_unlock(&w->trace->comms_lock);
}

/* The oldest call that the device works on; NULL: there is none. */
static Comm *oldest_on_device(const Watch *w, TraceCall *out)
{
    Comm *found = NULL;
    for (Comm *c = w->trace->comms; c; c = c->next) {
        int64_t at = LOAD(c->running);
        if (!c->transport->call_progress || at < 0) continue;
        TraceCall call = trace_get(w->trace, c->recent[at % COMM_RECENT]);
        if (!call.op || (found && call.began >= out->began)) continue;
        found = c, *out = call;
    }
    return found;
}

bool watch_asks_device(const Comm *c) { return c->transport->call_progress != NULL; }

bool watch_is_finished(Comm *c, int64_t call)
{
    return call < LOAD(c->finished) || call >= LOAD(c->started) || call < LOAD(c->started) - COMM_RECENT ||
           c->transport->call_progress(c, call) == CALL_FINISHED;
}

int64_t watch_oldest_unfinished(const Watch *w)
{
    int64_t oldest = -1;
    for (Comm *c = w->trace->comms; c; c = c->next) {
        int64_t at = LOAD(c->finished);
        if (!c->transport->call_progress || watch_is_finished(c, at)) continue;
        int64_t call = c->recent[at % COMM_RECENT];
        if (oldest < 0 || call < oldest) oldest = call;
    }
    return oldest;
}

/* ---- the state of the rank ---- */

static Comm *comm_of_group(const Watch *w, int group)
{
    for (Comm *c = w->trace->comms; c; c = c->next)
        if (c->group == group && c->size > 1) return c;
    return NULL;
}

static void list_members(const Comm *c, RankState *out)
{
    out->members = c->size;
    for (int i = 0; i < c->size && i < WATCH_MEMBERS; i++) out->member[i] = (uint16_t)c->world[i];
}

/* The number of collectives that the rank has arrived at: those started, up to the first one that the device
 * has not reached. */
static int64_t arrived_at(const Watch *w, const Comm *c)
{
    int64_t   seq = LOAD(c->seq), at = LOAD(c->reached);
    if (!c->transport->call_progress || at >= LOAD(c->started)) return seq;
    TraceCall call = trace_get(w->trace, c->recent[at % COMM_RECENT]);
    return call.op && !call.peer ? call.seq : seq;
}

/* A group may have two Comms: one over a device transport and its companion on the host, which counts
 * nothing. */
static void count_calls(const Watch *w, const Comm *c, RankState *out)
{
    int64_t arrived = arrived_at(w, c);
    if (arrived > out->arrived[c->group]) out->arrived[c->group] = arrived;
    for (int i = 0; i < c->size && out->messages < WATCH_MESSAGES; i++) {
        MessageCount m = { c->group, c->world[i], LOAD(c->sent[i]), LOAD(c->received[i]) };
        if (m.sent || m.received) out->message[out->messages++] = m;
    }
}

static bool device_has_unfinished(const Watch *w)
{
    for (Comm *c = w->trace->comms; c; c = c->next)
        if (c->transport->call_progress && LOAD(c->finished) < LOAD(c->started)) return true;
    return false;
}

static bool is_op(const TraceCall *call, const char *op) { return call->op && !strcmp(call->op, op); }

/* Whether the main thread, which is inside a call of c on the host, waits there for other members: it polls,
 * or it is in a library's function that may block. Starting a call of a transport that polls takes no time;
 * starting one on a device takes long where the device is behind, which has work of its own to finish. */
static bool waits_inside(const Watch *w, const Comm *c, const TraceCall *call)
{
    bool blocks = is_op(call, "open") || is_op(call, "bind") || is_op(call, "push");
    if (LOAD(w->activity->polling) > 0 || blocks || !c) return true;
    return c->transport->call_progress && !device_has_unfinished(w);
}

/* Finds the call that the rank waits in, on the host or on the device; returns its Comm, NULL: none. */
static Comm *find_wait(const Watch *w, TraceCall *call, double *since, bool *waits, bool *host)
{
    bool  inside = trace_current(w->trace, call, since);
    Comm *c = inside ? comm_of_group(w, call->group) : NULL;
    *host = *waits = inside && waits_inside(w, c, call);
    if (*host) return c;
    c = oldest_on_device(w, call);
    *waits = c != NULL;
    return c;
}

/* Without the lock the list of Comms may be changing: then members and counts stay unknown. */
static void state_of_comms(const Watch *w, RankState *out, TraceCall *call, double now, bool *waits)
{
    bool   host;
    double since;
    if (!mutex_lock_within(&w->trace->comms_lock, 0.1)) {
        *waits = trace_current(w->trace, call, &since);
        return;
    }
    Comm *c = find_wait(w, call, &since, waits, &host);
    if (c) list_members(c, out);
    if (*waits) out->waits = now - (host ? since : w->changed);
    for (c = w->trace->comms; c; c = c->next) count_calls(w, c, out);
    pthread_mutex_unlock(&w->trace->comms_lock);
}

/* A thread that polls does so many times a second, on a crowded machine too. */
static RankProgress progress_of(const Watch *w, double now, bool waits)
{
    RankProgress p = { .doing = waits ? RANK_WAITS : RANK_COMPUTES,
                       .slow = activity_is_slow(w->activity, now), .idle = now - w->changed };
    if (LOAD(w->activity->polling) <= 0 || now - w->polled < 1) return p;
    p.doing = RANK_STOPPED, p.idle = now - w->polled;
    return p;
}

static void describe(const Watch *w, const TraceCall *call, RankState *out)
{
    char place[160], text[200] = "the opening of the run";
    activity_describe(&w->activity->place, place, sizeof place);
    if (call->op) trace_describe_call(call, text, sizeof text);
    double idle = out->progress.idle;
    switch (out->progress.doing) {
    case RANK_WAITS: snprintf(out->line, sizeof out->line, "waits %.1f s in %s", out->waits, text); break;
    case RANK_STOPPED:
        snprintf(out->line, sizeof out->line, "is stopped for %.1f s inside %s", idle, text);
        break;
    default:
        snprintf(out->line, sizeof out->line, "computes for %.1f s in %s, after %s", idle, place, text);
        break;
    }
}

void watch_state(const Watch *w, double now, RankState *out)
{
    TraceCall call;
    bool      waits;
    *out = (RankState){ 0 };
    state_of_comms(w, out, &call, now, &waits);
    out->progress = progress_of(w, now, waits);
    snprintf(out->op, sizeof out->op, "%s", call.op ? call.op : "");
    out->group = call.group, out->peer = call.peer, out->seq = call.seq, out->bytes = call.bytes;
    out->layer = call.layer, out->micro_batch = call.micro_batch;
    describe(w, &call, out);
}

RankProgress watch_progress(const Watch *w, double now)
{
    TraceCall call;
    double    since;
    bool      waits, host;
    if (mutex_lock_within(&w->trace->comms_lock, 0.1)) {
        find_wait(w, &call, &since, &waits, &host);
        pthread_mutex_unlock(&w->trace->comms_lock);
    } else
        waits = trace_current(w->trace, &call, &since);
    return progress_of(w, now, waits);
}

/* ---- questions about other ranks ---- */

bool watch_is_member(const RankState *s, int other)
{
    if (s->peer) return s->peer == other + 1;
    for (int i = 0; i < s->members && i < WATCH_MEMBERS; i++)
        if (s->member[i] == other) return true;
    return false;
}

bool watch_knows_members(const RankState *s)
{
    return s->peer || (s->members > 0 && s->members <= WATCH_MEMBERS);
}

bool watch_has_arrived(const RankState *s, const RankState *waiting, int rank)
{
    bool same = s->waits > 0 && s->group == waiting->group && s->seq == waiting->seq;
    if (!waiting->peer)
        return (same && !strcmp(s->op, waiting->op)) || s->arrived[waiting->group] > waiting->seq;
    bool receives = !strcmp(waiting->op, "recv");
    for (int i = 0; i < s->messages; i++) {
        const MessageCount *m = &s->message[i];
        if (m->group != waiting->group || m->peer != rank) continue;
        return (receives ? m->sent : m->received) > waiting->seq;
    }
    return false;
}
