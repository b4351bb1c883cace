/* comm/heartbeat_watchdog.c -- decides that a run must end, and ends it; see heartbeat.h for the rules. */
#include "base/clock.h"
#include "base/cond.h"
#include "comm/heartbeat_private.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Seconds that the parts of an end may take, after comm.timeout: together less than 10. */
#define ANSWER_SECONDS 2.0
#define SAVE_SECONDS   3.0
#define ABORT_SECONDS  30.0             /* for a rank that has failed to close and exit with its own code */
#define ALONE_SECONDS  8.0              /* then a rank that rank 0 does not end exits by itself */
#define HELLO_SECONDS  5.0              /* for a connection to say which rank it is */
#define TURN_SECONDS   2.0              /* a longer turn of the thread: the process was stopped */

/* ---- exits ---- */

static bool is_saving(const Heartbeat *h)
{
    return __atomic_load_n(&h->watch.trace->saving, __ATOMIC_ACQUIRE) > 0;
}

/* The main thread may hold any lock but the heartbeat's, malloc's too: nothing here or in the writer takes
 * another one that it waits for without a limit. */
void heartbeat_exit(Heartbeat *h, const char *why, bool record)
{
    char line[MESSAGE_TEXT + 100];
    snprintf(line, sizeof line, "treb: rank %d exits: %s\n", h->rank, why);
    heartbeat_say(h, line);
    heartbeat_write_last(h, why, record);
    double until = clock_now() + SAVE_SECONDS;
    while (h->wait_for_save && is_saving(h) && clock_now() < until) poll(NULL, 0, 20);
    _exit(status_exit_code(E_COMM));
}

static void describe_failed(const Heartbeat *h, int rank, const char *what, char *out, size_t n)
{
    char own[160];
    if (rank == h->rank) heartbeat_identity(own, sizeof own);
    const char *identity = rank == h->rank ? own : h->peer[is_rank_0(h) ? rank : 0].identity;
    if (rank >= 0) snprintf(out, n, "rank %d (%s) %s", rank, identity, what);
    else           snprintf(out, n, "the run %s", what);
}

/* Adds what this rank is doing. */
static void exit_with_state(Heartbeat *h, const char *why)
{
    char      text[MESSAGE_TEXT];
    RankState s;
    watch_state(&h->watch, clock_now(), &s);
    snprintf(text, sizeof text, "%.700s; this rank %s", why, s.line);
    heartbeat_exit(h, text, true);
}

/* `rank` has failed: rank 0 makes the others exit, then this rank exits unless it is the one that failed. A
 * rank that has lost rank 0 says what it knows. */
void heartbeat_exit_all(Heartbeat *h, int rank, const char *what)
{
    char why[MESSAGE_TEXT];
    describe_failed(h, rank, what, why, sizeof why);
    if (!is_rank_0(h)) exit_with_state(h, why);
    heartbeat_send_to_all(h, MSG_END, rank, why, (int)strlen(why), rank, 200);
    if (rank != h->rank) heartbeat_exit(h, why, false);
}

/* ---- asking the ranks ---- */

static void ask_states(Heartbeat *h, double now)
{
    h->query_due = 0, h->queried_at = now;
    memset(h->state, 0, (size_t)h->size * sizeof *h->state);
    watch_state(&h->watch, now, &h->state[0]);
    heartbeat_send_to_all(h, MSG_STATE_QUERY, 0, "", 0, -1, 0);
}

static bool all_answered(const Heartbeat *h)
{
    for (int i = 1; i < h->size; i++)
        if (!h->state[i].line[0] && is_reachable(&h->peer[i])) return false;
    return true;
}

void heartbeat_begin_end(Heartbeat *h, int rank, const char *reason, bool wait_for_save)
{
    if (h->ending || h->aborting) return;
    h->ending = true, h->failed_rank = rank, h->wait_for_save = wait_for_save;
    snprintf(h->reason, sizeof h->reason, "%s", reason);
    ask_states(h, clock_now());
}

static void finish_end(Heartbeat *h)
{
    char why[MESSAGE_TEXT];
    describe_failed(h, h->failed_rank, h->reason, why, sizeof why);
    MessageKind kind = h->wait_for_save ? MSG_END_OF_SAVE : MSG_END_OF_HANG;
    heartbeat_send_to_all(h, kind, h->failed_rank, why, (int)strlen(why), -1, 200);
    heartbeat_explain(h);
    heartbeat_exit(h, why, true);
}

/* ---- what ends a run ---- */

static void send_ping(Heartbeat *h, double now)
{
    if (now < h->next_ping) return;
    h->next_ping = now + (h->timeout < 4 ? h->timeout / 4 : 1);
    RankProgress p = h->progress[h->rank] = watch_progress(&h->watch, now);
    if (!is_rank_0(h)) connection_send(&h->peer[0], MSG_PING, h->rank, &p, sizeof p, 0);
    for (int i = 1; is_rank_0(h) && i < h->size; i++) connection_send(&h->peer[i], MSG_PING, 0, "", 0, 0);
}

/* A rank that has left waits in the library for the others. Rank 0 pings it until all have left. */
static bool sends_heartbeats(const Heartbeat *h, const Connection *c)
{
    if (h->aborting) return false;
    return h->leaving && !is_rank_0(h) ? c->fd >= 0 && !h->all_left_at : is_reachable(c);
}

static void check_silence(Heartbeat *h, double now)
{
    char text[100];
    for (int i = 0; i < h->peers; i++) {
        Connection *c = &h->peer[i];
        bool   unidentified = is_rank_0(h) && i >= h->size;
        double limit = unidentified && h->timeout > HELLO_SECONDS ? HELLO_SECONDS : h->timeout;
        if (!sends_heartbeats(h, c) || now - c->last_message <= limit) continue;
        if (unidentified) { connection_close(c); continue; }
        snprintf(text, sizeof text, "sent no heartbeat for %.0f s (comm.timeout)", now - c->last_message);
        if (is_rank_0(h)) heartbeat_begin_end(h, i, text, false);
        else           heartbeat_exit_all(h, 0, text);
    }
}

/* A call that waits for a rank which has left in good order will never end. */
static void check_left(Heartbeat *h)
{
    char   text[100];
    double waits = h->left >= 0 && !h->aborting ? trace_waiting_seconds(h->watch.trace) : 0;
    if (waits <= h->timeout) return;
    snprintf(text, sizeof text, "waits %.0f s in a call, but rank %d has left the run", waits, h->left);
    if (is_rank_0(h)) heartbeat_exit_all(h, h->rank, text);
    heartbeat_exit(h, text, true);
}

static bool is_over(const Heartbeat *h, const RankProgress *p)
{
    bool slow = p->slow && p->doing == RANK_COMPUTES;
    return p->doing != RANK_UNKNOWN && p->idle > h->timeout * (slow ? HEARTBEAT_SLOW : 1);
}

static bool takes_part(const Heartbeat *h, int rank)
{
    return rank ? is_reachable(&h->peer[rank]) : !h->leaving;
}

/* A rank that waits in a call may wait for one that works on: only a rank that does not wait and makes no
 * progress, or all ranks together, end the run. */
static void check_progress(Heartbeat *h)
{
    char   text[100];
    bool   all = !h->leaving;
    int    worst = -1;                     /* it stopped first: others may have stopped because of it */
    double least = 1e9;
    for (int i = 0; i < h->size; i++) {
        const RankProgress *p = &h->progress[i];
        if (!takes_part(h, i)) continue;
        bool over = is_over(h, p);
        all &= over;
        if (p->idle < least) least = p->idle;
        if (over && p->doing != RANK_WAITS && (worst < 0 || p->idle > h->progress[worst].idle)) worst = i;
    }
    if (worst >= 0) {
        snprintf(text, sizeof text, "has made no progress for %.0f s (comm.timeout)",
                 h->progress[worst].idle);
        heartbeat_begin_end(h, worst, text, true);
        return;
    }
    snprintf(text, sizeof text, "has made no progress on any rank for %.0f s (comm.timeout)", least);
    if (all) heartbeat_begin_end(h, -1, text, true);
}

/* Rank 0 should have ended this rank by now. */
static void check_alone(Heartbeat *h, double now)
{
    char text[120];
    RankProgress p = watch_progress(&h->watch, now);
    p.idle -= ALONE_SECONDS;
    if (h->leaving || p.doing == RANK_WAITS || !is_over(h, &p)) return;
    snprintf(text, sizeof text, "its main thread has made no progress for %.0f s", p.idle + ALONE_SECONDS);
    exit_with_state(h, text);
}

/* Once all ranks have left, the library closes at once, unless a rank is stopped while it does. */
static void check_leaving(Heartbeat *h, double now)
{
    char   text[160];
    double waited = h->all_left_at > 0 ? now - h->all_left_at : 0;
    if (!h->leaving || waited <= h->timeout) return;
    snprintf(text, sizeof text, "all ranks have ended, but MPI does not close for %.0f s (comm.timeout)",
             waited);
    heartbeat_exit(h, text, false);
}

/* A library that loses a rank may notice before its heartbeat connection closes, which says which rank it is:
 * the error waits for that. */
static void check_device(Heartbeat *h, double now)
{
    char text[MESSAGE_TEXT];
    if (h->aborting || !__atomic_load_n(&h->watch.device_error, __ATOMIC_ACQUIRE)) return;
    if (!h->device_failed_at) h->device_failed_at = now;
    if (now - h->device_failed_at < DEVICE_SECONDS) return;
    snprintf(text, sizeof text, "%.400s", h->watch.device_text);
    if (is_rank_0(h)) heartbeat_begin_end(h, h->rank, text, false);
    else if (!h->device_reported)
        h->device_reported = connection_send(&h->peer[0], MSG_FAILED, h->rank, text, (int)strlen(text), 200);
}

/* After a stop of the whole process (SIGSTOP, a suspended machine) nothing is late yet. */
static void restart_after_stop(Heartbeat *h, double now)
{
    bool stopped = now - h->last_turn > TURN_SECONDS;
    h->last_turn = now;
    if (!stopped) return;
    watch_restart(&h->watch, now);
    for (int i = 0; i < h->peers; i++) h->peer[i].last_message = now;
    for (int i = 0; is_rank_0(h) && i < h->size; i++) h->progress[i].idle = 0;
}

/* A rank that has failed may hang while it closes. */
static void check_aborting(Heartbeat *h, double now)
{
    if (h->aborting && now - h->aborted_at > ABORT_SECONDS)
        heartbeat_exit(h, "it has failed and does not close", false);
}

void heartbeat_check(Heartbeat *h)
{
    double now = clock_now();
    restart_after_stop(h, now);
    watch_sample(&h->watch, now);
    send_ping(h, now);
    check_silence(h, now);
    check_left(h);
    check_leaving(h, now);
    check_aborting(h, now);
    check_device(h, now);
    if (is_rank_0(h)) check_progress(h);
    else           check_alone(h, now);
    if (h->query_due > 0 && now > h->query_due && !h->ending) ask_states(h, now);
    if (!h->queried_at || (!all_answered(h) && now - h->queried_at < ANSWER_SECONDS)) return;
    h->queried_at = 0;
    if (h->ending) finish_end(h);
    h->print_due = h->print != NULL;
    pthread_cond_broadcast(&h->changed);
}
