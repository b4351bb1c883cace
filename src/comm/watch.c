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

/* The first call of c that the device works on (p: CALL_RUNNING) or has not reached (CALL_QUEUED); -1: there
 * is none. */
static int64_t first_on_device(const Comm *c, CallProgress p)
{
    if (!c->transport->call_progress) return -1;
    if (p == CALL_RUNNING) return LOAD(c->running);
    int64_t queued = LOAD(c->reached);
    return queued < LOAD(c->started) ? queued : -1;
}

/* The Comm whose first call by progress p (first_on_device) was begun first; NULL: no Comm has one. */
static Comm *oldest_on_device(const Watch *w, CallProgress p, TraceCall *out)
{
    Comm *found = NULL;
    for (Comm *c = w->trace->comms; c; c = c->next) {
        int64_t at = first_on_device(c, p);
        if (at < 0) continue;
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

/* A group may have two Comms: one over a device transport and its companion on the host. The first number of
 * the one is the number after the last of the other, so that the larger count is that of the group. */
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

/* Where the rank is: after its last call, in a call, or before one that its device has not reached. */
typedef enum { AFTER_CALL, IN_CALL_ON_HOST, IN_CALL_ON_DEVICE, BEFORE_CALL } Position;

static bool waits_at(Position p) { return p == IN_CALL_ON_HOST || p == IN_CALL_ON_DEVICE; }

/* Finds the position of the rank and the call that it refers to. *comm: the Comm of a call that the rank
 * waits in, if it is known. */
static Position find_position(const Watch *w, TraceCall *call, double *since, Comm **comm)
{
    bool inside = trace_current(w->trace, call, since);
    *comm = inside ? comm_of_group(w, call->group) : NULL;
    if (inside && waits_inside(w, *comm, call)) return IN_CALL_ON_HOST;
    if ((*comm = oldest_on_device(w, CALL_RUNNING, call))) return IN_CALL_ON_DEVICE;
    return oldest_on_device(w, CALL_QUEUED, call) ? BEFORE_CALL : AFTER_CALL;
}

/* Without the lock the list of Comms may be changing: then members and counts stay unknown. */
static Position state_of_comms(const Watch *w, RankState *out, TraceCall *call, double now)
{
    double since;
    Comm  *c;
    if (!mutex_lock_within(&w->trace->comms_lock, 0.1))
        return trace_current(w->trace, call, &since) ? IN_CALL_ON_HOST : AFTER_CALL;
    Position at = find_position(w, call, &since, &c);
    if (c) list_members(c, out);
    if (waits_at(at)) out->waits = now - (at == IN_CALL_ON_HOST ? since : w->changed);
    for (c = w->trace->comms; c; c = c->next) count_calls(w, c, out);
    pthread_mutex_unlock(&w->trace->comms_lock);
    return at;
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

/* The host may be far ahead of a device that computes: the call that comes next there says where it is. */
static void describe_compute(RankState *out, Position at, const char *host, const char *call)
{
    char idle[32];
    snprintf(idle, sizeof idle, "%.1f s", out->progress.idle);
    if (at == BEFORE_CALL)
        snprintf(out->line, sizeof out->line, "computes for %s before %.170s; its host is in %.140s", idle,
                 call, host);
    else
        snprintf(out->line, sizeof out->line, "computes for %s in %.140s, after %.170s", idle, host, call);
}

static void describe(const Watch *w, Position at, const TraceCall *call, RankState *out)
{
    char host[160], text[200] = "the opening of the run";
    activity_describe(&w->activity->place, host, sizeof host);
    if (call->op) trace_describe_call(call, text, sizeof text);
    switch (out->progress.doing) {
    case RANK_WAITS: snprintf(out->line, sizeof out->line, "waits %.1f s in %s", out->waits, text); break;
    case RANK_STOPPED:
        snprintf(out->line, sizeof out->line, "is stopped for %.1f s inside %s", out->progress.idle, text);
        break;
    default: describe_compute(out, at, host, text); break;
    }
}

void watch_state(const Watch *w, double now, RankState *out)
{
    TraceCall call;
    *out = (RankState){ 0 };
    Position at = state_of_comms(w, out, &call, now);
    out->progress = progress_of(w, now, waits_at(at));
    snprintf(out->op, sizeof out->op, "%s", call.op ? call.op : "");
    out->group = call.group, out->peer = call.peer, out->seq = call.seq, out->bytes = call.bytes;
    out->layer = call.layer, out->micro_batch = call.micro_batch;
    describe(w, at, &call, out);
}

RankProgress watch_progress(const Watch *w, double now)
{
    TraceCall call;
    double    since;
    bool      waits;
    Comm     *c;
    if (mutex_lock_within(&w->trace->comms_lock, 0.1)) {
        waits = waits_at(find_position(w, &call, &since, &c));
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
