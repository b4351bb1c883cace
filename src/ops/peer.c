/* ops/peer.c -- token dispatch through mapped memory (ops/peer.h): contract, cost, CPU.
 *
 *   peer_route    kept (T, K): the expert of each assignment, -1: none. Exchanges the counts and sets, on
 *                 every member by the same numbers: rows (T, K), for an assignment to an expert of EP rank r
 *                 r row_capacity + its row there, where rows are ordered by expert, source member, token and
 *                 k; slots (T, K) = t K + k; both -1 where there is none. offsets: of the own experts. If
 *                 some member's rows would exceed row_capacity, or a member does not answer, all rows are -1
 *                 and all offsets 0; unless host_counts, STATUS_OVERFLOW is set too.
 *   peer_post     Posts rows (capacity, D), gate (capacity, 1) f32, origin (capacity, 1) i32, the last two
 *                 or none, and waits for the posts of all.
 *   peer_push     x[t] to the rows of its assignments on all etp members of their EP rank. With weight
 *                 (T, K) f32 also gate = weight[t,k] and origin = me slots + t K + k. With wait: as
 *                 peer_wait after it.
 *   peer_return   x[r], r < offsets[last], to the return buffer of the member it came from, by its origin:
 *                 row (me % etp) slots + t K + k. With wait: as peer_wait after it.
 *   peer_wait     Waits until the rows of all members have come.
 *
 * Costs are those of T K rows for each of etp members, evenly spread: the host does not know the counts. */
#include "ops/cpu/cpu_rows.h"
#include "ops/peer.h"

#include "base/activity.h"
#include "base/clock.h"

#include <sched.h>
#include <time.h>

static int64_t bytes_of_row(Tensor t) { return row_width(t) * (int64_t)dtype_size((DType)t.dtype); }

static bool is_index(Tensor t) { return t.dtype == I32 && t_dense(t); }

Cost peer_route_cost(Backend *be, const PeerGroup *g, Tensor offsets, Tensor rows, Tensor slots, Tensor kept,
                     bool host_counts, int layer)
{
    REQUIRE(is_index(offsets) && is_index(rows) && is_index(slots) && is_index(kept) && t_same(rows, kept) &&
            t_same(slots, kept) && t_count(kept) <= g->slots &&
            g->E * g->etp == (t_count(offsets) - 1) * g->n,
            "peer_route: offsets %s rows %s slots %s kept %s", t_fmt(offsets), t_fmt(rows), t_fmt(slots),
            t_fmt(kept));
    return (Cost){ .rd = t_bytes(kept) + 4 * g->n * g->E, .wr = t_bytes(rows) * 2 + 4 * g->n * g->E };
}

Cost peer_post_cost(Backend *be, const PeerGroup *g, int channel, Tensor rows, Tensor gate, Tensor origin,
                    int layer)
{
    REQUIRE(t_dense(rows) && rows.n[0] >= g->row_capacity && t_has(gate) == t_has(origin) &&
            (!t_has(gate) || (gate.dtype == F32 && t_dense(gate) && is_index(origin))),
            "peer_post: rows %s gate %s origin %s", t_fmt(rows), t_fmt(gate), t_fmt(origin));
    return (Cost){ .wr = 8 * g->n };
}

Cost peer_push_cost(Backend *be, const PeerGroup *g, int channel, Tensor x, Tensor rows, Tensor weight,
                    bool wait, int layer)
{
    REQUIRE(x.rank == 2 && is_index(rows) && rows.n[0] == x.n[0] && x.s[1] == 1 &&
            (!t_has(weight) || (weight.dtype == F32 && t_dense(weight) && t_count(weight) == t_count(rows))),
            "peer_push: x %s rows %s weight %s", t_fmt(x), t_fmt(rows), t_fmt(weight));
    int64_t each = bytes_of_row(x) + (t_has(weight) ? 8 : 0);
    return (Cost){ .rd = t_bytes(x) + t_bytes(rows), .wr = t_count(rows) * g->etp * each };
}

Cost peer_return_cost(Backend *be, const PeerGroup *g, int channel, Tensor x, Tensor origin, Tensor offsets,
                      bool wait, int layer)
{
    REQUIRE(x.rank == 2 && t_dense(x) && is_index(origin) && t_count(origin) >= x.n[0] && is_index(offsets),
            "peer_return: x %s origin %s offsets %s", t_fmt(x), t_fmt(origin), t_fmt(offsets));
    return (Cost){ .rd = expert_bytes(be, x) + expert_bytes(be, t_rows(origin, 0, x.n[0])),
                   .wr = expert_bytes(be, x) };
}

Cost peer_wait_cost(Backend *be, const PeerGroup *g, int channel, int layer) { return (Cost){ 0 }; }

/* ---- words ---- */

static int64_t *mail_of(const PeerGroup *g, int member) { return (int64_t *)(void *)g->table[member]; }

static void show(int64_t *word, int64_t epoch) { __atomic_store_n(word, epoch, __ATOMIC_RELEASE); }

static bool fail_wait(const PeerGroup *g, int member, int channel, int64_t epoch, int layer)
{
    const int64_t why[] = { 1, member, channel, epoch, layer };
    g->state[STATE_FAILED] = 1;
    memcpy(g->status + STATUS_FAILED, why, sizeof why);
    return false;
}

static bool may_wait(const PeerGroup *g, double since)
{
    return clock_now() - since < g->timeout && !__atomic_load_n(&g->status[STATUS_ABORT], __ATOMIC_RELAXED) &&
           !(g->aborted && g->aborted(g->comm));
}

/* Ranks may outnumber the cores: one that waits for long sleeps. */
static void pause_wait(int polls)
{
    enum { YIELDS = 20 };
    if (polls < YIELDS) sched_yield();
    else                nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
}

/* Waits until word has reached the epoch. */
static bool await(const PeerGroup *g, const int64_t *word, int64_t epoch, int member, int channel, int layer)
{
    double since = clock_now();
    for (int polls = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) < epoch; polls++) {
        if (g->state[STATE_FAILED]) return false;
        if (!may_wait(g, since)) return fail_wait(g, member, channel, epoch, layer);
        activity_poll();
        pause_wait(polls);
    }
    return true;
}

/* The words that members have in this member's mailbox from position `first` on. */
static bool await_all(const PeerGroup *g, int64_t first, int64_t epoch, int channel, int layer)
{
    for (int m = 0; m < g->n; m++)
        if (!await(g, mail_of(g, g->me) + first + m, epoch, m, channel, layer)) return false;
    return true;
}

static void show_all(const PeerGroup *g, int64_t at, int64_t epoch)
{
    for (int m = 0; m < g->n; m++) show(mail_of(g, m) + at, epoch);
}

/* ---- route ---- */

static int32_t *counts_in(const PeerGroup *g, int mailbox, int64_t epoch, int from)
{
    return (int32_t *)(mail_of(g, mailbox) + mail_counts(g->n)) + ((epoch & 1) * g->n + from) * g->E;
}

static bool exchange_counts(const PeerGroup *g, int64_t epoch, const int32_t *count, int layer)
{
    for (int m = 0; m < g->n; m++) memcpy(counts_in(g, m, epoch, g->me), count, (size_t)g->E * 4);
    show_all(g, g->me, epoch);
    return await_all(g, 0, epoch, -1, layer);
}

/* start[e]: the row of this member's first assignment to expert e on its EP rank. Returns the rows of the
 * fullest EP rank. */
static int64_t set_starts(const PeerGroup *g, int64_t epoch, int32_t *start, int32_t *offsets)
{
    int64_t local = g->E * g->etp / g->n, most = 0, at = 0;
    for (int64_t e = 0; e < g->E; e++) {
        bool own = e / local == g->me / g->etp;
        if (e % local == 0) at = 0;
        if (own) offsets[e % local] = (int32_t)at;
        for (int m = 0; m < g->n; m++) {
            if (m == g->me) start[e] = (int32_t)(e / local * g->row_capacity + at);
            at += counts_in(g, g->me, epoch, m)[e];
        }
        if (own) offsets[e % local + 1] = (int32_t)at;
        most = at > most ? at : most;
    }
    return most;
}

static void place_assignments(int32_t *rows, int32_t *slots, const int32_t *kept, int64_t n, int32_t *start,
                              int64_t E, bool none)
{
    for (int64_t i = 0; i < n; i++) {
        bool has = !none && kept[i] >= 0 && kept[i] < E;
        rows[i]  = has ? start[kept[i]]++ : -1;
        slots[i] = has ? (int32_t)i : -1;
    }
}

void cpu_peer_route(Backend *be, const PeerGroup *g, Tensor offsets, Tensor rows, Tensor slots, Tensor kept,
                    bool host_counts, int layer)
{
    int32_t       *start = (int32_t *)cpu_shared(be);
    const int32_t *e = kept.data;
    int64_t        n = t_count(kept), epoch = ++g->state[STATE_ROUTE];
    memset(start, 0, (size_t)g->E * 4);
    for (int64_t i = 0; i < n; i++)
        if (e[i] >= 0 && e[i] < g->E) start[e[i]]++;
    bool    failed = !exchange_counts(g, epoch, start, layer);
    int64_t most = failed ? 0 : set_starts(g, epoch, start, offsets.data);
    bool    none = failed || most > g->row_capacity;
    if (none) memset(offsets.data, 0, (size_t)t_bytes(offsets));
    if (none && !failed && !host_counts) g->status[STATUS_OVERFLOW] = 1;
    g->state[STATE_MAX_ROWS] = most;
    place_assignments(rows.data, slots.data, e, n, start, g->E, none);
}

/* ---- rows ---- */

void cpu_peer_post(Backend *be, const PeerGroup *g, int channel, Tensor rows, Tensor gate, Tensor origin,
                   int layer)
{
    int64_t epoch = ++g->state[STATE_CHANNEL + channel];
    int64_t at[PEER_ADDRESSES] = { peer_address(g, rows), peer_address(g, gate), peer_address(g, origin) };
    for (int m = 0; m < g->n; m++)
        memcpy(mail_of(g, m) + mail_address(g->n, channel, g->me), at, sizeof at);
    show_all(g, mail_ready(g->n, channel, g->me), epoch);
    await_all(g, mail_ready(g->n, channel, 0), epoch, channel, layer);
}

void cpu_peer_wait(Backend *be, const PeerGroup *g, int channel, int layer)
{
    await_all(g, mail_done(g->n, channel, 0), g->state[STATE_CHANNEL + channel], channel, layer);
}

static void finish_push(Backend *be, const PeerGroup *g, int channel, bool wait, int layer)
{
    show_all(g, mail_done(g->n, channel, g->me), g->state[STATE_CHANNEL + channel]);
    if (wait) cpu_peer_wait(be, g, channel, layer);
}

/* What a member has posted: 0: rows, 1: gates, 2: origins. */
static char *posted(const PeerGroup *g, int channel, int member, int what)
{
    int64_t at = mail_of(g, g->me)[mail_address(g->n, channel, member) + what];
    return g->table[table_region(at >> PEER_OFFSET_BITS) * g->n + member] +
           (at & (((int64_t)1 << PEER_OFFSET_BITS) - 1));
}

static void push_gates(const PeerGroup *g, int channel, Tensor rows, const float *weight)
{
    const int32_t *to = rows.data;
    for (int64_t i = 0; i < t_count(rows); i++)
        for (int p = 0; p < g->etp && to[i] >= 0; p++) {
            int     member = (int)(to[i] / g->row_capacity) * g->etp + p;
            int64_t row = to[i] % g->row_capacity;
            ((float *)(void *)posted(g, channel, member, 1))[row] = weight[i];
            ((int32_t *)(void *)posted(g, channel, member, 2))[row] = (int32_t)(g->me * g->slots + i);
        }
}

void cpu_peer_push(Backend *be, const PeerGroup *g, int channel, Tensor x, Tensor rows, Tensor weight,
                   bool wait, int layer)
{
    const int32_t *to = rows.data;
    int64_t        K = rows.n[1], n = g->state[STATE_FAILED] ? 0 : t_count(rows);
    size_t         bytes = (size_t)bytes_of_row(x);
    #pragma omp parallel for schedule(static) if(worth_threads(n * row_width(x)))
    for (int64_t i = 0; i < n; i++)
        for (int p = 0; p < g->etp && to[i] >= 0; p++) {
            int member = (int)(to[i] / g->row_capacity) * g->etp + p;
            memcpy(posted(g, channel, member, 0) + (size_t)(to[i] % g->row_capacity) * bytes,
                   row_ptr(x, i / K), bytes);
        }
    if (n && t_has(weight)) push_gates(g, channel, rows, weight.data);
    finish_push(be, g, channel, wait, layer);
}

void cpu_peer_return(Backend *be, const PeerGroup *g, int channel, Tensor x, Tensor origin, Tensor offsets,
                     bool wait, int layer)
{
    const int32_t *from = origin.data;
    int64_t        n = g->state[STATE_FAILED] ? 0 : ((int32_t *)offsets.data)[t_count(offsets) - 1];
    size_t         bytes = (size_t)bytes_of_row(x);
    g->state[STATE_CHANNEL + channel]++;
    #pragma omp parallel for schedule(static) if(worth_threads(n * row_width(x)))
    for (int64_t r = 0; r < n; r++) {
        int64_t slot = g->me % g->etp * g->slots + from[r] % g->slots;
        memcpy(g->table[table_return(channel) * g->n + from[r] / g->slots] + (size_t)slot * bytes,
               row_ptr(x, r), bytes);
    }
    finish_push(be, g, channel, wait, layer);
}
