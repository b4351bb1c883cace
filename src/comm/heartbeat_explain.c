/* comm/heartbeat_explain.c -- the message that ends a run: which rank failed, in which call the others wait,
 * who arrived at it and who did not, and what each rank is doing. On rank 0. */
#include "comm/heartbeat_private.h"

#include <stdio.h>
#include <string.h>

enum { STATE_LINES = 16 };

static void name_rank(const Heartbeat *h, int rank, char *out, size_t n)
{
    char own[160];
    if (rank == h->rank) heartbeat_identity(own, sizeof own);
    snprintf(out, n, "rank %d (%s)", rank, rank == h->rank ? own : h->peer[rank].identity);
}

static bool is_missing(const Heartbeat *h, int rank, int waiting)
{
    const RankState *w = &h->state[waiting];
    return rank != waiting && watch_is_member(w, rank) && !watch_has_arrived(&h->state[rank], w, waiting);
}

static int count_missing(const Heartbeat *h, int waiting)
{
    int n = 0;
    for (int i = 0; i < h->size; i++) n += is_missing(h, i, waiting);
    return n;
}

/* How well the call of rank i explains the end: it waits for the rank that failed, for few ranks,
 * for long. */
static double grade_of(const Heartbeat *h, int i)
{
    int missing = count_missing(h, i);
    bool waits_for_it = h->failed_rank >= 0 && is_missing(h, h->failed_rank, i);
    double few = missing ? 1e6 * (1 - (double)missing / h->size) : 0;
    return (waits_for_it ? 2e6 : 0) + few + h->state[i].waits;
}

/* The rank whose call is explained; -1: no rank waits. */
static int find_waiting(const Heartbeat *h)
{
    int best = -1;
    for (int i = 0; i < h->size; i++) {
        bool waits = h->state[i].progress.doing == RANK_WAITS;
        if (waits && (best < 0 || grade_of(h, i) > grade_of(h, best))) best = i;
    }
    return best;
}

/* Appends the ranks that have arrived at the call of `waiting`, or have not; returns their number. */
static int list_ranks(const Heartbeat *h, int waiting, bool arrived, char *out, size_t n)
{
    int count = 0;
    size_t at = 0;
    for (int i = 0; i < h->size && at + 12 < n; i++) {
        bool member = i == waiting || watch_is_member(&h->state[waiting], i);
        if (!member || is_missing(h, i, waiting) == arrived) continue;
        at += (size_t)snprintf(out + at, n - at, "%s%d", count++ ? ", " : "", i);
    }
    return count;
}

static void explain_call(Heartbeat *h, int waiting)
{
    const RankState *s = &h->state[waiting];
    TraceCall call = { .op = s->op, .group = s->group, .peer = s->peer, .seq = s->seq,
                       .bytes = s->bytes, .layer = s->layer,
                       .micro_batch = s->micro_batch };
    char text[200], arrived[400] = "", missing[400] = "", line[1200];
    trace_describe_call(&call, text, sizeof text);
    int here = list_ranks(h, waiting, true, arrived, sizeof arrived);
    int away = list_ranks(h, waiting, false, missing, sizeof missing);
    bool known = watch_knows_members(s);
    if (!known && !away)
        snprintf(line, sizeof line, "treb: rank %d waits in %s; which ranks have arrived is not known\n",
                 waiting, text);
    else if (away)
        snprintf(line, sizeof line, "treb: rank %d waits in %s: rank%s %s arrived, rank%s %s did not\n",
                 waiting, text, here == 1 ? "" : "s", arrived, away == 1 ? "" : "s", missing);
    else
        snprintf(line, sizeof line, "treb: rank %d waits in %s: all its members (ranks %s) arrived\n",
                 waiting, text, arrived);
    heartbeat_say(h, line);
}

static const char *words_of(const Heartbeat *h, int rank)
{
    if (h->state[rank].line[0]) return h->state[rank].line;
    return rank && h->peer[rank].left ? "has left" : "does not answer";
}

/* Ranks that wait in no call come first: one of them is the rank that the others wait for. */
static void explain_ranks(Heartbeat *h)
{
    char name[200], line[WATCH_LINE + 300];
    int  lines = 0;
    for (int waits = 0; waits < 2; waits++)
        for (int i = 0; i < h->size; i++) {
            if ((h->state[i].progress.doing == RANK_WAITS) != waits || ++lines > STATE_LINES) continue;
            name_rank(h, i, name, sizeof name);
            snprintf(line, sizeof line, "treb: %s %s\n", name, words_of(h, i));
            heartbeat_say(h, line);
        }
    if (lines <= STATE_LINES) return;
    snprintf(line, sizeof line, "treb: %d more ranks wait\n", lines - STATE_LINES);
    heartbeat_say(h, line);
}

void heartbeat_explain(Heartbeat *h)
{
    char line[WATCH_LINE + 400], name[200] = "the run";
    int  waiting = find_waiting(h);
    if (h->failed_rank >= 0) name_rank(h, h->failed_rank, name, sizeof name);
    snprintf(line, sizeof line, "treb: all ranks exit: %s %s\n", name, h->reason);
    heartbeat_say(h, line);
    if (waiting >= 0) explain_call(h, waiting);
    explain_ranks(h);
    if (!h->folder[0]) return;
    snprintf(line, sizeof line, "treb: `treb report %.500s` shows the last calls of the ranks side by side\n",
             h->folder);
    heartbeat_say(h, line);
}

/* Takes the lock for a line at a time: the callback may block. */
void heartbeat_print_states(Heartbeat *h)
{
    char name[200], line[WATCH_LINE + 300];
    for (int waits = 0; waits < 2; waits++)
        for (int i = 0; i < h->size; i++) {
            pthread_mutex_lock(&h->lock);
            bool turn = (h->state[i].progress.doing == RANK_WAITS) == waits;
            name_rank(h, i, name, sizeof name);
            snprintf(line, sizeof line, "%s %s", name, words_of(h, i));
            HeartbeatPrint *print = turn ? h->print : NULL;
            void           *self = h->self;
            pthread_mutex_unlock(&h->lock);
            if (print) print(self, line);
        }
}
