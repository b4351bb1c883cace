/* ops/peer.c -- token dispatch through mapped memory (ops/peer.h): contract, cost, CPU.
 *
 *   peer_route    kept (T, K): the expert of each assignment, -1: none. Exchanges the counts and sets, on
 *                 every member by the same numbers: rows (T, K), for an assignment to an expert of EP rank r
 *                 r row_capacity + its row there, where rows are ordered by expert, source member, token and
 *                 k; -1 where there is none. offsets: of the own experts. If some member's rows would exceed
 *                 row_capacity, or a member does not answer, all rows are -1 and all offsets 0; unless
 *                 host_counts, STATUS_OVERFLOW is set too.
 *   peer_post     Posts rows (capacity, D) and, or none, gate (capacity, 1) f32. With wait: as peer_wait for
 *                 PEER_READY after it.
 *   peer_push     x[t] to the rows of its assignments on all etp members of their EP rank. With weight
 *                 (T, K) f32 also gate = weight[t,k]. With wait: as peer_wait for PEER_DONE after it.
 *   peer_pull     y[t] = the rows of its assignments on all etp members of their EP rank + res[t], which may
 *                 be absent or y. Sums run in f32, by k and then by member, res last, and round once: as
 *                 combine does. Ends when all members have pulled.
 *   peer_wait     Waits until all members have posted, or until they have pushed.
 *
 * Costs are those of Ledger.expert_rows rows, or of T K for each of etp members: the host does not know the
 * counts. */
#include "ops/cpu/cpu_rows.h"
#include "ops/peer.h"

#include "base/activity.h"
#include "base/clock.h"

#include <sched.h>
#include <time.h>

static int64_t bytes_of_row(Tensor t) { return row_width(t) * (int64_t)dtype_size((DType)t.dtype); }

static bool is_index(Tensor t) { return t.dtype == I32 && t_dense(t); }

Cost peer_route_cost(Backend *be, const PeerGroup *g, Tensor offsets, Tensor rows, Tensor kept,
                     bool host_counts, int layer)
{
    REQUIRE(is_index(offsets) && is_index(rows) && is_index(kept) && t_same(rows, kept) &&
            g->E * g->etp == (t_count(offsets) - 1) * g->n,
            "peer_route: offsets %s rows %s kept %s", t_fmt(offsets), t_fmt(rows), t_fmt(kept));
    return (Cost){ .rd = t_bytes(kept) + 4 * g->n * g->E, .wr = t_bytes(rows) + 4 * g->n * g->E };
}

Cost peer_post_cost(Backend *be, const PeerGroup *g, int channel, Tensor rows, Tensor gate, bool wait,
                    int layer)
{
    REQUIRE(t_dense(rows) && rows.n[0] >= g->row_capacity &&
            (!t_has(gate) || (gate.dtype == F32 && t_dense(gate))),
            "peer_post: rows %s gate %s", t_fmt(rows), t_fmt(gate));
    return (Cost){ .wr = 8 * g->n };
}

Cost peer_push_cost(Backend *be, const PeerGroup *g, int channel, Tensor x, Tensor rows, Tensor weight,
                    bool wait, int layer)
{
    REQUIRE(x.rank == 2 && is_index(rows) && rows.n[0] == x.n[0] && x.s[1] == 1 &&
            (!t_has(weight) || (weight.dtype == F32 && t_dense(weight) && t_count(weight) == t_count(rows))),
            "peer_push: x %s rows %s weight %s", t_fmt(x), t_fmt(rows), t_fmt(weight));
    int64_t each = bytes_of_row(x) + (t_has(weight) ? 4 : 0);
    return (Cost){ .rd = t_bytes(x) + t_bytes(rows), .wr = expert_rows(be, t_count(rows) * g->etp) * each };
}

Cost peer_pull_cost(Backend *be, const PeerGroup *g, int channel, Tensor y, Tensor rows, Tensor res,
                    int layer)
{
    REQUIRE(y.rank == 2 && y.s[1] == 1 && is_index(rows) && rows.rank == 2 && rows.n[0] == y.n[0] &&
            (!t_has(res) || t_same(res, y)),
            "peer_pull: y %s rows %s res %s", t_fmt(y), t_fmt(rows), t_fmt(res));
    int64_t taken = expert_rows(be, t_count(rows) * g->etp);
    return (Cost){ .flops = (double)(taken * row_width(y)),
                   .rd    = taken * bytes_of_row(y) + t_bytes(rows) + opt_bytes(res),
                   .wr    = t_bytes(y) };
}

Cost peer_wait_cost(Backend *be, const PeerGroup *g, int channel, PeerMark mark, int layer)
{
    return (Cost){ 0 };
}

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

static void place_assignments(int32_t *rows, const int32_t *kept, int64_t n, int32_t *start, int64_t E,
                              bool none)
{
    for (int64_t i = 0; i < n; i++)
        rows[i] = !none && kept[i] >= 0 && kept[i] < E ? start[kept[i]]++ : -1;
}

void cpu_peer_route(Backend *be, const PeerGroup *g, Tensor offsets, Tensor rows, Tensor kept,
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
    place_assignments(rows.data, e, n, start, g->E, none);
}

/* ---- rows ---- */

void cpu_peer_wait(Backend *be, const PeerGroup *g, int channel, PeerMark mark, int layer)
{
    await_all(g, mail_mark(g->n, channel, mark), g->state[STATE_CHANNEL + channel], channel, layer);
}

void cpu_peer_post(Backend *be, const PeerGroup *g, int channel, Tensor rows, Tensor gate, bool wait,
                   int layer)
{
    int64_t epoch = ++g->state[STATE_CHANNEL + channel];
    int64_t at[PEER_ADDRESSES] = { peer_address(g, rows), peer_address(g, gate) };
    for (int m = 0; m < g->n; m++)
        memcpy(mail_of(g, m) + mail_address(g->n, channel, g->me), at, sizeof at);
    show_all(g, mail_ready(g->n, channel, g->me), epoch);
    if (wait) cpu_peer_wait(be, g, channel, PEER_READY, layer);
}

static void finish_rows(Backend *be, const PeerGroup *g, int channel, bool wait, int layer)
{
    show_all(g, mail_done(g->n, channel, g->me), g->state[STATE_CHANNEL + channel]);
    if (wait) cpu_peer_wait(be, g, channel, PEER_DONE, layer);
}

/* What a member has posted: 0: rows, 1: gates. */
static char *posted(const PeerGroup *g, int channel, int member, int what)
{
    int64_t at = mail_of(g, g->me)[mail_address(g->n, channel, member) + what];
    return g->table[table_region(at >> PEER_OFFSET_BITS) * g->n + member] +
           (at & (((int64_t)1 << PEER_OFFSET_BITS) - 1));
}

/* The member of etp member p that has row `at` of an assignment. */
static int member_of(const PeerGroup *g, int32_t at, int64_t p)
{
    return (int)(at / g->row_capacity * g->etp + p);
}

static void push_gates(const PeerGroup *g, int channel, Tensor rows, const float *weight)
{
    const int32_t *to = rows.data;
    for (int64_t i = 0; i < t_count(rows); i++)
        for (int p = 0; p < g->etp && to[i] >= 0; p++) {
            char *gate = posted(g, channel, member_of(g, to[i], p), 1);
            ((float *)(void *)gate)[to[i] % g->row_capacity] = weight[i];
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
        for (int p = 0; p < g->etp && to[i] >= 0; p++)
            memcpy(posted(g, channel, member_of(g, to[i], p), 0) +
                   (size_t)(to[i] % g->row_capacity) * bytes, row_ptr(x, i / K), bytes);
    if (n && t_has(weight)) push_gates(g, channel, rows, weight.data);
    finish_rows(be, g, channel, wait, layer);
}

/* acc += columns col .. col + n - 1 of the rows of a token, which are as wide as those of y. */
static void add_sources(const PeerGroup *g, int channel, float *acc, Tensor y, const int32_t *from, int64_t K,
                        int64_t col, int64_t n)
{
    int64_t shape[] = { g->row_capacity, row_width(y) };
    for (int64_t i = 0; i < K * g->etp; i++) {
        int32_t at = from[i / g->etp];
        if (at < 0) continue;
        char *rows = posted(g, channel, member_of(g, at, i % g->etp), 0);
        piece_add(acc, t_wrap(rows, (DType)y.dtype, 2, shape), at % g->row_capacity, col, n);
    }
}

void cpu_peer_pull(Backend *be, const PeerGroup *g, int channel, Tensor y, Tensor rows, Tensor res, int layer)
{
    int64_t T = g->state[STATE_FAILED] ? 0 : y.n[0], D = row_width(y), K = rows.n[1];
    #pragma omp parallel for schedule(static) if(worth_threads(T * D * K))
    for (int64_t t = 0; t < T; t++)
        for (int64_t c = 0; c < D; c += PIECE) {
            float   acc[PIECE];
            int64_t n = D - c < PIECE ? D - c : PIECE;
            memset(acc, 0, (size_t)n * sizeof *acc);
            add_sources(g, channel, acc, y, (const int32_t *)rows.data + t * K, K, c, n);
            if (t_has(res)) piece_add(acc, res, t, c, n);
            piece_store(y, t, c, acc, n);
        }
    finish_rows(be, g, channel, true, layer);
}
