/* Calls between ranks against plain loops: over threads, or over MPI when mpirun starts this program (see
 * tests/mpi.sh). Arguments: `staged` imitates a device whose memory MPI cannot read; `loop` makes calls until
 * it is stopped, for tests that kill a rank; `abort`, `leave` and `stall` are ways to fail; `kinds` prints
 * the transports of the build. */
#include "base/activity.h"
#include "commlab.h"
#include "linklab.h"

#include <signal.h>

static const DType sums[]  = { F32, BF16, F64, I32, I64 };
static const DType moves[] = { F32, BF16, F64, I32, I64, U8 };
enum { SUMS = sizeof sums / sizeof *sums, MOVES = sizeof moves / sizeof *moves };

static void check_reduce(Comm *c, DType d, int64_t n, Reduce r, int64_t salt)
{
    Tensor t = fresh(d, n, 1), want = fresh(d, n, 1);
    put_values(t.data, d, n, c->world[c->rank], salt);
    for (int64_t i = 0; i < n; i++) put_sum(want.data, i, d, i, c, salt, r);
    comm_all_reduce(c, t, r);
    EXPECT(same_bits(t, want.data), "all_reduce %s of %d members", t_fmt(t), c->size);
    free(t.data), free(want.data);
}

static void reduce_rank(Peer *p)
{
    static const int64_t sizes[] = { 0, 1, 2, 7, 1000, 70001 };
    for (int d = 0; d < SUMS; d++)
        for (int i = 0; i < 6; i++)
            for (int r = 0; r < 2; r++) check_reduce(p->world, sums[d], sizes[i], (Reduce)r, 100 * d + i);
    EXPECT(!p->be.sticky, "%s", status_text());
}
static void all_reduce_is_the_sum_in_order(void) { on_some_ranks(reduce_rank); }

/* A call started while preparing sends nothing. Only rank 0 makes it, so a rank that did communicate would
 * hang. */
static void quiet_rank(Peer *p)
{
    Tensor t = fresh(F32, 9, 1), all = fresh(F32, 9 * p->world->size, 1);
    float *x = t.data, *y = all.data;
    if (p->rank == 0) {
        for (int i = 0; i < 9; i++) x[i] = 1;
        for (int i = 0; i < 9 * p->world->size; i++) y[i] = 2;
        p->be.preparing = true;
        Ticket sum = comm_all_reduce_start(p->world, t, RED_SUM);
        Ticket gather = comm_all_gather_start(p->world, all, t);
        p->be.preparing = false;
        comm_join(gather), comm_join(sum);
        EXPECT(x[8] == 1 && (p->world->size == 1 || y[0] == 2), "%g %g", (double)x[8], (double)y[0]);
    }
    check_reduce(p->world, F32, 100, RED_SUM, 3);
    free(t.data), free(all.data);
}
static void preparing_ranks_are_silent(void) { on_some_ranks(quiet_rank); }

static void check_gather(Comm *c, DType d, int64_t n, bool in_place, int64_t salt)
{
    Tensor out = fresh(d, n * c->size, 3), in = in_place ? t_rows(out, n * c->rank, n) : fresh(d, n, 3);
    Tensor want = fresh(d, n * c->size, 3);
    put_values(in.data, d, t_count(in), c->world[c->rank], salt);
    for (int m = 0; m < c->size; m++)
        put_values(t_rows(want, n * m, n).data, d, t_count(in), c->world[m], salt);
    comm_all_gather(c, out, in);
    EXPECT(same_bits(out, want.data), "all_gather %s of %d members", t_fmt(in), c->size);
    free(out.data), free(want.data);
    if (!in_place) free(in.data);
}

static void gather_rank(Peer *p)
{
    for (int d = 0; d < MOVES; d++)
        for (int64_t n = 0; n < 5000; n = 3 * n + 1) check_gather(p->world, moves[d], n, n & 1, n + d);
    EXPECT(!p->be.sticky, "%s", status_text());
}
static void all_gather_brings_every_part(void) { on_some_ranks(gather_rank); }

static void check_scatter(Comm *c, DType d, int64_t n, bool in_place, Reduce r, int64_t salt)
{
    Tensor in = fresh(d, n * c->size, 2), out = in_place ? t_rows(in, n * c->rank, n) : fresh(d, n, 2);
    Tensor want = fresh(d, n, 2);
    put_values(in.data, d, t_count(in), c->world[c->rank], salt);
    for (int64_t i = 0; i < 2 * n; i++) put_sum(want.data, i, d, 2 * n * c->rank + i, c, salt, r);
    comm_reduce_scatter(c, out, in, r);
    EXPECT(same_bits(out, want.data), "reduce_scatter %s of %d members", t_fmt(in), c->size);
    free(in.data), free(want.data);
    if (!in_place) free(out.data);
}

static void scatter_rank(Peer *p)
{
    for (int d = 0; d < SUMS; d++)
        for (int64_t n = 0; n < 5000; n = 3 * n + 1) {
            check_scatter(p->world, sums[d], n, false, RED_SUM, n + d);
            check_scatter(p->world, sums[d], n, true, RED_MAX, n - d);
        }
    EXPECT(!p->be.sticky, "%s", status_text());
}
static void reduce_scatter_gives_each_its_part(void) { on_some_ranks(scatter_rank); }

/* ---- all_to_all ---- */

/* Rows from member a to member b of call `salt`; some pairs have none, some calls none at all. */
static int64_t rows_between(int a, int b, int64_t salt)
{
    if (salt % 5 == 4) return 0;
    uint64_t h = mix((uint64_t)(a * 64 + b) + (uint64_t)salt * 4096);
    return h % 3 ? (int64_t)(h >> 8) % 9 : 0;
}

typedef struct Trade { Tensor out, in, want; int64_t at[4][32]; } Trade;

/* Sent ranges overlap: every member is given rows from the front of `in`; received ones lie one after the
 * other, last member first. */
static RowRanges trade_make(Trade *t, RowRanges *give, const Comm *c, DType d, int64_t salt)
{
    enum { W = 5 };
    int64_t all = 0, most = 0;
    for (int m = c->size - 1; m >= 0; m--) {
        t->at[0][m] = all, t->at[1][m] = rows_between(m, c->rank, salt), all += t->at[1][m];
        t->at[2][m] = m % 2, t->at[3][m] = rows_between(c->rank, m, salt);
        if (t->at[2][m] + t->at[3][m] > most) most = t->at[2][m] + t->at[3][m];
    }
    t->out = fresh(d, all, W), t->want = fresh(d, all, W), t->in = fresh(d, most, W);
    put_values(t->in.data, d, t_count(t->in), c->world[c->rank], salt);
    for (int m = 0; m < c->size; m++)
        for (int64_t i = 0; i < t->at[1][m] * W; i++) {
            char *to = (char *)t->want.data + (t->at[0][m] * W + i) * (int64_t)dtype_size(d);
            put_value(to, d, (c->rank % 2) * W + i, c->world[m], salt);
        }
    *give = (RowRanges){ t->at[2], t->at[3] };
    return (RowRanges){ t->at[0], t->at[1] };
}

static void trade_check(Trade *t)
{
    EXPECT(same_bits(t->out, t->want.data), "all_to_all %s", t_fmt(t->out));
    free(t->out.data), free(t->want.data), free(t->in.data);
}

static void exchange_rank(Peer *p)
{
    for (int64_t salt = 0; salt < 60; salt++) {
        Trade t;
        RowRanges give, get = trade_make(&t, &give, p->world, moves[salt % MOVES], salt);
        Ticket k = comm_all_to_all_start(p->world, t.out, get, t.in, give);
        memset(t.at, 0xff, sizeof t.at);                   /* the caller may reuse the arrays */
        comm_join(k);
        trade_check(&t);
    }
    EXPECT(!p->be.sticky, "%s", status_text());
}
static void all_to_all_of_uneven_rows(void) { on_some_ranks(exchange_rank); }

/* ---- sends ---- */

static void letters_rank(Peer *p)
{
    enum { N = 20 };
    Comm  *c = p->world;
    Ticket k[2 * N];
    Tensor got[N], sent[N];
    int    next = (c->rank + 1) % c->size, prev = (c->rank + c->size - 1) % c->size;
    for (int i = 0; i < N; i++) {
        sent[i] = fresh(F32, 1 + i * 997 % 3000, 1), got[i] = fresh(F32, 1 + i * 997 % 3000, 1);
        put_values(sent[i].data, F32, t_count(sent[i]), c->rank, i);
        k[i]     = comm_send_start(c, sent[i], next);
        k[N + i] = comm_recv_start(c, got[i], prev);
    }
    for (int i = 2 * N - 1; i >= 0; i--) comm_join(k[(i * 7 + c->rank) % (2 * N)]);
    for (int i = 0; i < N; i++) {
        put_values(sent[i].data, F32, t_count(sent[i]), prev, i);
        EXPECT(same_bits(got[i], sent[i].data), "letter %d from %d", i, prev);
        free(got[i].data), free(sent[i].data);
    }
    EXPECT(!p->be.sticky, "%s", status_text());
}
static void sends_meet_recvs_in_order(void) { on_some_ranks(letters_rank); }

/* ---- several at once ---- */

static void overlap_rank(Peer *p)
{
    enum { N = 40, ROWS = 777 };
    Comm  *c = p->world, *back;
    int    all[32];
    for (int i = 0; i < p->size; i++) all[i] = p->size - 1 - i;
    EXPECT_OK(comm_group(c, all, p->size, GR_tp, &back));
    Ticket k[N];
    Tensor t[N];
    for (int i = 0; i < N; i++) {
        t[i] = fresh(F32, ROWS + i, 1);
        put_values(t[i].data, F32, ROWS + i, c->rank, i);
        k[i] = comm_all_reduce_start(i % 3 ? c : back, t[i], RED_SUM);
    }
    for (int i = 0; i < N; i++) comm_join(k[p->rank % 2 ? i : (i * 7 + 3) % N]);   /* in its own order */
    for (int i = 0; i < N; i++) {
        Tensor want = fresh(F32, ROWS + i, 1);
        for (int64_t j = 0; j < ROWS + i; j++) put_sum(want.data, j, F32, j, i % 3 ? c : back, i, RED_SUM);
        EXPECT(same_bits(t[i], want.data), "call %d", i);
        free(want.data), free(t[i].data);
    }
    comm_close(back);
}
static void joins_come_in_any_order(void) { on_some_ranks(overlap_rank); }

/* Tickets stay pending while more calls are made than may be pending at a time, and than a transport has
 * tags. */
static void held_rank(Peer *p)
{
    enum { HELD = 4, CALLS = 5000, ROWS = 20000 };
    Comm  *c = p->world;
    Trade  t[HELD];
    Tensor sum[HELD];
    Ticket k[2 * HELD];
    for (int i = 0; i < HELD; i++) {
        RowRanges give, get = trade_make(&t[i], &give, c, F32, 5 * i);
        k[i]   = comm_all_to_all_start(c, t[i].out, get, t[i].in, give);
        sum[i] = fresh(F32, ROWS, 1);
        put_values(sum[i].data, F32, ROWS, c->rank, i);
        k[HELD + i] = comm_all_reduce_start(c, sum[i], RED_SUM);
    }
    for (int i = 0; i < CALLS; i++) {
        Trade u;
        RowRanges give, get = trade_make(&u, &give, c, F32, i);
        comm_all_to_all(c, u.out, get, u.in, give);
        trade_check(&u);
        if (i % 100 == 0) comm_barrier(c);
        if (i % (CALLS / 2 / HELD) == 1) comm_join(k[i / (CALLS / 2 / HELD) ^ (p->rank & 1)]);
    }
    for (int i = 0; i < HELD; i++) {
        Tensor want = fresh(F32, ROWS, 1);
        for (int64_t j = 0; j < ROWS; j++) put_sum(want.data, j, F32, j, c, i, RED_SUM);
        EXPECT(same_bits(sum[i], want.data), "sum %d", i);
        trade_check(&t[i]);
        free(want.data), free(sum[i].data);
    }
    EXPECT(!c->pending && !p->be.sticky, "%s", status_text());
}
static void tickets_outlast_other_calls(void) { on_ranks(3, 0, held_rank); }

/* The first member holds pending sums; messages that it sends meanwhile must not be taken for theirs. */
static void ahead_rank(Peer *p)
{
    enum { CALLS = 5000, ROWS = 64 };
    Comm   *c = p->world;
    int64_t at[32] = { 0 }, none[32] = { 0 }, one[32] = { 0 };
    RowRanges nothing = { at, none }, some = { at, one };
    Tensor  t[2], line = fresh(I64, 1, 1), got = fresh(I64, 1, 1), want = fresh(F32, ROWS, 1);
    Ticket  k[2];
    int     bad = 0;
    for (int i = 1; i < c->size && c->rank == 0; i++) one[i] = 1;
    if (c->rank) one[0] = 1, usleep(100000);
    for (int i = 0; i < 2; i++) {
        t[i] = fresh(F32, ROWS, 1);
        put_values(t[i].data, F32, ROWS, c->rank, i);
        k[i] = comm_all_reduce_start(c, t[i], RED_SUM);
    }
    for (int64_t i = 0; i < CALLS; i++) {
        *(int64_t *)line.data = i;
        comm_all_to_all(c, got, c->rank ? some : nothing, line, c->rank ? nothing : some);
        bad += c->rank && *(int64_t *)got.data != i;
    }
    for (int i = 0; i < 2; i++) {
        comm_join(k[i]);
        for (int64_t j = 0; j < ROWS; j++) put_sum(want.data, j, F32, j, c, i, RED_SUM);
        EXPECT(same_bits(t[i], want.data), "sum %d", i);
        free(t[i].data);
    }
    EXPECT(!bad && !p->be.sticky, "%d lines of others: %s", bad, status_text());
    free(line.data), free(got.data), free(want.data);
}
static void one_rank_runs_ahead(void) { on_ranks(3, 0, ahead_rank); }

static void groups_rank(Peer *p)
{
    Comm *half, *again, *turned, *alone;
    int   mine[32], n = 0, all[32];
    for (int i = 0; i < p->size; i++) if (i % 2 == p->rank % 2) mine[n++] = i;
    for (int i = 0; i < p->size; i++) all[i] = p->size - 1 - i;
    EXPECT_OK(comm_group(p->world, mine, n, GR_dp, &half));
    EXPECT_OK(comm_group(p->world, mine, n, GR_dp, &again));
    EXPECT_OK(comm_group(p->world, all, p->size, GR_tp, &turned));
    EXPECT_OK(comm_group(p->world, &p->rank, 1, GR_cp, &alone));
    EXPECT(half->size == n && half->world[half->rank] == p->rank, "its place in a half");
    EXPECT(turned->rank == p->size - 1 - p->rank, "its place among all in reverse");
    EXPECT(alone->size == 1 && alone->transport == &transport_self, "a group of one is self");
    for (int i = 0; i < 3; i++) {
        check_reduce(half, F32, 100, RED_SUM, i);
        check_reduce(turned, BF16, 100, RED_SUM, i);
        check_gather(again, I64, 10, true, i);
        check_gather(turned, F32, 10, false, i);
        check_scatter(alone, F32, 10, false, RED_SUM, i);
        check_reduce(alone, F32, 10, RED_SUM, i);
        check_gather(alone, F32, 10, false, i);
        check_scatter(again, F64, 10, false, RED_SUM, i);
    }
    const LedgerComm *l = p->be.ledger.comm;
    EXPECT(!l[GR_cp].calls && l[GR_dp].calls == (n > 1 ? 9 : 0), "dp: %lld calls", (long long)l[GR_dp].calls);
    comm_close(half), comm_close(again), comm_close(turned), comm_close(alone);
}
static void groups_are_lists_of_ranks(void) { on_some_ranks(groups_rank); }

/* More bytes than a round of staging holds. */
static void large_rank(Peer *p)
{
    int64_t part = 2000003 / p->size * 4;
    check_reduce(p->world, F32, 4 * 2000003, RED_SUM, 1);
    check_scatter(p->world, BF16, part, true, RED_SUM, 2);
    check_gather(p->world, F32, part / 3, true, 3);
}
static void large_ones(void) { on_ranks(3, 0, large_rank); }

/* ---- host calls ---- */

static void host_rank(Peer *p)
{
    Comm   *c = p->world;
    int64_t all[32], n[2] = { p->rank, (int64_t)1 << 60 };
    double  x[3] = { 0.1 * p->rank, 1e300, -p->rank }, y = 0.1 * p->rank, sum = 0;
    int64_t me = 7 * p->rank;
    comm_host_gather(c, all, &me, sizeof me);
    for (int i = 0; i < p->size; i++) EXPECT(all[i] == 7 * i, "gathered %lld at %d", (long long)all[i], i);
    for (int i = 0; i < p->size; i++) sum = i ? sum + 0.1 * i : 0;
    comm_host_sum(c, x, 1);
    EXPECT(!memcmp(&x[0], &sum, sizeof sum), "sum %.17g of %.17g", x[0], sum);
    comm_host_max(c, &x[1], 2);
    EXPECT(x[1] == 1e300 && x[2] == 0, "max %g %g", x[1], x[2]);
    comm_host_sum64(c, n, 1);
    EXPECT(n[0] == p->size * (p->size - 1) / 2, "sum64 %lld", (long long)n[0]);
    comm_host_max(c, &y, 1);
    EXPECT(y == 0.1 * (p->size - 1), "max %g", y);
    for (int i = 0; i < 100; i++) comm_barrier(c);
}
static void host_calls(void) { on_some_ranks(host_rank); }

static void agree_rank(Peer *p)
{
    EXPECT_OK(comm_agree(p->world, OK));
    Status mine = p->rank == 1 ? fail(E_DATA, "the file of rank 1 is bad") : OK;
    if (p->rank == 1) EXPECT_FAIL(comm_agree(p->world, mine), E_DATA, "is bad");
    else              EXPECT_FAIL(comm_agree(p->world, mine), E_COMM, "rank 1: the file of rank 1 is bad");
    comm_abort(p->world, "all ranks have agreed already");
    EXPECT_OK(comm_agree(p->world, OK));
}
static void agree_reaches_all_ranks(void) { on_some_ranks(agree_rank); }

/* ---- failures: over threads a rank survives them ---- */

static void abort_rank(Peer *p)
{
    Tensor t = fresh(F32, 10, 1), u = fresh(F32, 10, 1);
    if (p->rank == 1) {
        usleep(30000);
        comm_abort(p->world, "its disk is full");
    } else {
        Ticket a = comm_all_reduce_start(p->world, t, RED_SUM);
        Ticket b = p->rank == 0 ? comm_recv_start(p->world, u, 1) : (Ticket){ 0 };
        comm_join(a);
        EXPECT(p->be.sticky == E_COMM, "sticky %d", p->be.sticky);
        EXPECT(strstr(status_text(), "rank 1 aborted: its disk is full"), "%s", status_text());
        comm_join(b);
        double x = 3;
        comm_host_sum(p->world, &x, 1);
        EXPECT(x == 3, "a dead transport sums to %g", x);
        EXPECT_FAIL(comm_agree(p->world, OK), E_COMM, "rank 1");
        comm_all_reduce(p->world, t, RED_SUM);
    }
    free(t.data), free(u.data);
}
static void abort_wakes_all(void)
{
    if (commlab_.mpi) SKIP("ends the processes; tests/mpi.sh");
    for (int n = 2; n <= 16; n *= 2) on_ranks(n, 0, abort_rank);
}

static void poisoned_rank(Peer *p)
{
    Tensor t = fresh(F32, 10, 1);
    if (p->rank == p->size - 1) p->be.sticky = fail(E_DEVICE, "its GPU is too hot");
    comm_all_gather(p->world, t, t_rows(t, 0, 10 / p->size));
    EXPECT(p->be.sticky == (p->rank == p->size - 1 ? E_DEVICE : E_COMM), "sticky %d", p->be.sticky);
    if (p->rank != p->size - 1) EXPECT(strstr(status_text(), "its GPU is too hot"), "%s", status_text());
    free(t.data);
}
static void a_poisoned_rank_ends_its_peers(void)
{
    if (commlab_.mpi) SKIP("ends the processes; tests/mpi.sh");
    on_ranks(2, 0, poisoned_rank), on_ranks(5, 0, poisoned_rank);
}

static void differ_rank(Peer *p)
{
    Tensor t = fresh(F32, 12, 1);
    comm_all_reduce(p->world, p->rank ? t : t_rows(t, 0, 6), RED_SUM);
    EXPECT(p->be.sticky == E_COMM, "sticky %d", p->be.sticky);
    EXPECT(strstr(status_text(), "all_reduce f32(6, 1) on rank 0"), "%s", status_text());
    free(t.data);
}
static void calls_that_differ_are_reported(void)
{
    if (commlab_.mpi) SKIP("ends the processes; tests/mpi.sh");
    on_ranks(3, 0, differ_rank);
}

/* ---- many ---- */

static void random_rank(Peer *p)
{
    enum { KINDS = 5 };
    Comm    *half, *c;
    int64_t  calls = commlab_.mpi ? 2000 : 10000;      /* processes that wait for each other take turns */
    int      mine[32], n = 0;
    for (int i = 0; i < p->size; i++) if (i / 2 == p->rank / 2) mine[n++] = i;
    EXPECT_OK(comm_group(p->world, mine, n, GR_tp, &half));
    for (int64_t i = 0; i < calls; i++) {
        uint64_t h = mix((uint64_t)i);
        int64_t  rows = (int64_t)(h >> 8) % 20;
        DType    d = sums[(h >> 16) % SUMS];
        c = h >> 24 & 1 ? half : p->world;
        if (mix(h + (uint64_t)p->rank) % 500 == 0) usleep(100);         /* ranks drift apart */
        switch (h % KINDS) {
        case 0: check_reduce(c, d, rows, (Reduce)(h >> 20 & 1), i); break;
        case 1: check_gather(c, d, rows, h >> 20 & 1, i);           break;
        case 2: check_scatter(c, d, rows, h >> 20 & 1, RED_SUM, i); break;
        case 3: {
            Trade t, u;
            RowRanges give, get = trade_make(&t, &give, c, d, i);
            Ticket a = comm_all_to_all_start(c, t.out, get, t.in, give);
            get = trade_make(&u, &give, c, d, i + 1);
            Ticket b = comm_all_to_all_start(c, u.out, get, u.in, give);
            comm_join(p->rank % 2 ? a : b), comm_join(p->rank % 2 ? b : a);
            trade_check(&t), trade_check(&u);
            break;
        }
        default: {
            double x = (double)(i + p->rank), want = 0;
            for (int m = 0; m < c->size; m++) want += (double)(i + c->world[m]);
            comm_host_sum(c, &x, 1);
            EXPECT(x == want, "host sum");
        }
        }
    }
    EXPECT(!p->be.sticky, "%s", status_text());
    comm_close(half);
}
static void thousands_of_small_calls(void) { on_ranks(4, 0, random_rank); }

static void many_rank(Peer *p) { overlap_rank(p), exchange_rank(p), letters_rank(p), host_rank(p); }
static void more_ranks_than_cores(void) { on_ranks(24, 0, many_rank); }

/* ---- the ledger ---- */

static LedgerComm account_[16];

static void some_calls(Comm *c, Tensor t, Tensor out)
{
    int64_t at[8] = { 0 }, n[8];
    for (int i = 0; i < 8; i++) n[i] = 1;
    comm_all_reduce(c, t, RED_SUM);
    comm_all_gather(c, out, t);
    comm_reduce_scatter(c, t, out, RED_SUM);
    comm_all_to_all(c, out, (RowRanges){ (int64_t[]){ 0, 1, 2, 3, 4, 5, 6, 7 }, n }, t, (RowRanges){ at, n });
    if (c->rank == 0) comm_send(c, t, 5);
    if (c->rank == 5) comm_recv(c, t, 0);
}

static void account_rank(Peer *p)
{
    Tensor t = fresh(F32, 8, 100), out = fresh(F32, 64, 100);
    memset(t.data, 0, (size_t)t_bytes(t)), memset(out.data, 0, (size_t)t_bytes(out));
    some_calls(p->world, t, out);
    account_[p->rank] = p->be.ledger.comm[GR_world];
    free(t.data), free(out.data);
}

/* Eight ranks on nodes of four: a dry run charges what a real one does. */
static void the_ledger_is_charged(void)
{
    if (commlab_.mpi) SKIP("has its own number of ranks");
    on_ranks(8, 4, account_rank);
    int64_t part = 8 * 100 * 4;
    const LedgerComm *first = &account_[0];
    EXPECT(first->intra_node == 3 * (2 * part / 8 + 2 * part + 400), "intra_node %lld",
           (long long)first->intra_node);
    EXPECT(first->inter_node == 4 * (2 * part / 8 + 2 * part + 400) + part, "inter_node %lld",
           (long long)first->inter_node);
    EXPECT(first->exposed > 0 && first->length >= first->exposed, "exposed %g of %g s", first->exposed,
           first->length);
    for (int r = 0; r < 8; r++) {
        Comm   *c;
        Backend be;
        Arena   a;
        EXPECT_OK(comm_open(&c, &(CommConf){ .kind = "fake", .rank = r, .size = 8, .per_node = 4 }));
        EXPECT_OK(backend_open(&be, "meta"));
        EXPECT_OK(backend_arena_open(&be, &a, "a", 1 << 20));
        comm_bind(c, &be);
        some_calls(c, t2(&a, "t", F32, 8, 100), t2(&a, "out", F32, 64, 100));
        LedgerComm *l = &be.ledger.comm[GR_world], *want = &account_[r];
        EXPECT(l->calls == want->calls && l->intra_node == want->intra_node &&
                   l->inter_node == want->inter_node,
               "rank %d: %lld %lld", r, (long long)l->intra_node, (long long)l->inter_node);
        EXPECT_OK(backend_sync(&be));
        backend_arena_close(&be, &a), backend_close(&be), comm_close(c);
    }
}

enum { LATE_MS = 200 };
static LedgerComm late_[32], busy_[32];

static void sleep_ms(int ms) { nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000l }, NULL); }

/* Rank 0 arrives late; the others compute for `compute_ms` between start and join. */
static LedgerComm reduce_late(Peer *p, int compute_ms)
{
    float x[4] = { 1, 2, 3, 4 };
    comm_barrier(p->world);
    memset(&p->be.ledger, 0, sizeof p->be.ledger);
    if (p->rank == 0) sleep_ms(LATE_MS);
    Ticket t = comm_all_reduce_start(p->world, t_wrap(x, F32, 1, (int64_t[]){ 4 }), RED_SUM);
    if (p->rank && compute_ms) sleep_ms(compute_ms);
    comm_join(t);
    return p->be.ledger.comm[GR_world];
}

static void late_rank(Peer *p)
{
    late_[p->rank] = reduce_late(p, 0);
    busy_[p->rank] = reduce_late(p, 2 * LATE_MS);
}

/* The wait for a rank that is late by a known time is exposed, unless compute covers it. Ranks do not leave a
 * barrier at exactly the same time. */
static void exposed_time_is_measured(void)
{
    on_ranks(3, 0, late_rank);
    const double late = LATE_MS * 1e-3;
    for (int r = 0; r < 3; r++) {
        if (commlab_.mpi && commlab_.mpi->rank != r) continue;
        const LedgerComm *a = &late_[r], *b = &busy_[r];
        bool waits = r > 0;
        EXPECT(waits ? a->exposed > 0.9 * late : a->exposed < 0.5 * late, "rank %d: exposed %g s", r,
               a->exposed);
        EXPECT(a->exposed < 2 * late && a->length >= a->exposed, "rank %d: exposed %g of %g s", r, a->exposed,
               a->length);
        if (waits)
            EXPECT(b->exposed < 0.5 * late && b->length > 0.9 * late, "rank %d: exposed %g of %g s", r,
                   b->exposed, b->length);
    }
}

/* ---- a slow link ---- */

enum { LINK_BYTES = 1 << 20 };
static LedgerComm slow_[2][2];
static double slow_compute_[2];

/* Two gathers of LINK_BYTES over a link of 20 MB/s, 52 ms each; then the same beside compute of half the
 * time. */
static void slow_rank(Peer *p)
{
    Tensor in = fresh(U8, LINK_BYTES, 1), out = fresh(U8, 2 * LINK_BYTES, 1);
    linklab_slow(p->world, 20e6);
    for (int ahead = 0; ahead < 2; ahead++) {
        comm_barrier(p->world);
        memset(&p->be.ledger, 0, sizeof p->be.ledger);
        for (int i = 0; i < 2; i++) {
            Ticket t = comm_all_gather_start(p->world, out, in);
            double from = clock_now();
            if (ahead) sleep_ms(26), slow_compute_[p->rank] += clock_now() - from;
            comm_join(t);
        }
        slow_[ahead][p->rank] = p->be.ledger.comm[GR_world];
    }
    free(in.data), free(out.data);
}

static void a_slow_link_is_exposed(void)
{
    if (commlab_.mpi) SKIP("ranks are threads");
    on_ranks(2, 0, slow_rank);
    const double gathers = 2 * LINK_BYTES / 20e6;
    for (int r = 0; r < 2; r++) {
        const LedgerComm *all = &slow_[0][r], *half = &slow_[1][r];
        EXPECT(all->exposed > 0.95 * gathers && all->exposed < 1.5 * gathers, "rank %d: exposed %g of %g s",
               r, all->exposed, gathers);
        EXPECT(half->exposed > 0.95 * gathers - slow_compute_[r] && half->exposed < 0.9 * gathers &&
                   half->length > 0.99 * gathers,
               "rank %d: exposed %g of %g s beside %g s of compute", r, half->exposed, half->length,
               slow_compute_[r]);
    }
}

/* ---- kinds ---- */

static void a_fake_world(void)
{
    Comm   *c, *tp;
    Backend be;
    EXPECT_FAIL(comm_open(&c, &(CommConf){ .kind = "fake", .rank = 4, .size = 4 }), E_CONFIG, "rank 4 of 4");
    EXPECT_OK(comm_open(&c, &(CommConf){ .kind = "fake", .rank = 3, .size = 1024, .per_node = 8 }));
    EXPECT_OK(backend_open(&be, "cpu"));
    EXPECT_OK(comm_group(c, (int[]){ 9, 3 }, 2, GR_tp, &tp));
    EXPECT(tp->rank == 1 && tp->node[0] == 1 && tp->node[1] == 0, "place");
    comm_bind(c, &be), comm_bind(tp, &be);
    float  in[2] = { 1, 2 }, out[4] = { 9, 9, 9, 9 };
    double x = 1;
    comm_all_gather(tp, t_wrap(out, F32, 1, (int64_t[]){ 4 }), t_wrap(in, F32, 1, (int64_t[]){ 2 }));
    EXPECT(out[0] == 9 && out[1] == 9, "others' parts stay: %g %g", out[0], out[1]);
    EXPECT(out[2] == 1 && out[3] == 2, "its own comes: %g %g", out[2], out[3]);
    comm_all_reduce(c, t_wrap(in, F32, 1, (int64_t[]){ 2 }), RED_SUM);
    EXPECT(in[0] == 1 && in[1] == 2, "sums leave data as it is");
    comm_host_sum(c, &x, 1);
    EXPECT(x == 1024, "host sum %g", x);
    EXPECT_OK(comm_agree(c, OK));
    comm_close(tp), comm_close(c), backend_close(&be);
}

static void kinds_that_are_not_there(void)
{
    Comm *c;
    EXPECT_FAIL(comm_open(&c, &(CommConf){ .kind = "pigeon" }), E_CONFIG, "pigeon: not in this build");
    EXPECT_FAIL(comm_open(&c, &(CommConf){ .kind = "threads" }), E_CONFIG, "for tests");
    EXPECT(!c, "nothing is left open");
    if (!strstr(comm_kinds(), ", mpi"))
        EXPECT_FAIL(comm_open(&c, &(CommConf){ .kind = "mpi" }), E_CONFIG, "no MPI");
    comm_close(NULL);
}

/* The line is `before`, any number of seconds, `after`. */
static bool line_says(const char *line, const char *before, const char *after)
{
    size_t n = strlen(before);
    char  *end = NULL;
    return !strncmp(line, before, n) && strtod(line + n, &end) >= 0 && !strcmp(end, after);
}

static void trace_names_the_pending_call(void)
{
    const char *after_waits = " s in all_reduce 1742 of tp (4096 bytes, layer 7, micro-batch 3)";
    const char *after_computes = " s after all_reduce 1742 of tp (4096 bytes, layer 7, micro-batch 3)";
    Trace t;
    char  line[200];
    trace_open(&t);
    trace_describe(&t, line, sizeof line);
    EXPECT(!strcmp(line, "has made no call yet"), "%s", line);
    activity_phase("step", 12);
    activity_micro_batch(3, "forward");
    activity_layer(7);
    TraceCall sum = { .op = "all_reduce", .group = GR_tp, .seq = 1742, .bytes = 4096 };
    int64_t   a = trace_begin(&t, sum);
    trace_describe(&t, line, sizeof line);
    EXPECT(line_says(line, "waits ", after_waits), "a start that lasts: %s", line);
    trace_started(&t, a);
    trace_describe(&t, line, sizeof line);
    EXPECT(line_says(line, "computes for ", after_computes), "%s", line);
    trace_wait(&t, a);
    trace_describe(&t, line, sizeof line);
    EXPECT(line_says(line, "waits ", after_waits), "%s", line);
    trace_end(&t, a, 0.5);
    trace_describe(&t, line, sizeof line);
    EXPECT(line_says(line, "computes for ", after_computes), "%s", line);
    TraceCall send = { .op = "send", .group = GR_pp, .peer = 1 + 5, .seq = 9, .bytes = 1 };
    activity_phase("step", 13);
    trace_describe_call(&send, line, sizeof line);
    EXPECT(!strcmp(line, "send 9 to rank 5 of pp (1 bytes)"), "%s", line);
    trace_wait(&t, a);
    for (int i = 0; i <= TRACE_CALLS; i++) trace_started(&t, trace_begin(&t, send));
    trace_wait(&t, a);
    trace_describe(&t, line, sizeof line);
    EXPECT(!strcmp(line, "waits in a call started long ago"), "%s", line);
    EXPECT(t.waited == 0.5, "waited");
    trace_close(&t);
}

/* ---- under mpirun ---- */

static void on_signal(int n) { }

static void say_line(void *self, const char *line) { fprintf(stderr, "stuck: %s\n", line); }

/* A run of endless calls, until rank 1 aborts, leaves, or sleeps long enough to be reported. */
static int loop(Comm *c, const char *how)
{
    double x[64] = { 0 }, began = clock_now();
    Tensor t = t_wrap(x, F64, 1, (int64_t[]){ 64 });
    bool   stall = !strcmp(how, "stall");
    signal(SIGTERM, on_signal);                       /* like a trainer, which ends its step first */
    fprintf(stderr, "rank %d is process %d\n", c->rank, (int)getpid());
    for (int64_t i = 0; !c->be->sticky && !(stall && i == 200); i++) {
        if (stall) comm_watch(c, 0.5, say_line, NULL);
        activity_layer(i % 5);
        comm_all_reduce(c, t, RED_SUM);
        for (int j = 0; j < 64; j++) x[j] = 1;
        usleep(1000);
        if (c->rank != 1) continue;
        if (stall && i == 100) sleep(2);
        if (clock_now() - began < 1) continue;
        if (!strcmp(how, "abort")) c->be->sticky = fail(E_DATA, "a file is not what it was");
        if (!strcmp(how, "leave")) break;
    }
    Status st = c->be->sticky;
    if (st) fprintf(stderr, "rank %d: %s\n", c->rank, status_text()), comm_abort(c, status_text());
    comm_watch(c, 0, NULL, NULL);
    comm_close(c);
    return status_exit_code(st);
}

static void mpi_begin(bool staged, double timeout)
{
    if (comm_open(&commlab_.mpi, &(CommConf){ .kind = "mpi", .timeout = timeout }) ||
        backend_open(&commlab_.be, "cpu"))
        fprintf(stderr, "%s\n", status_text()), exit(6);
    commlab_.machine = *commlab_.be.device;
    commlab_.machine.host_memory = !staged;
    commlab_.be.device = &commlab_.machine;
    comm_bind(commlab_.mpi, &commlab_.be);
}

/* Rank 0 prints for all. */
static int mpi_end(void)
{
    int64_t failed = lab_.failed, bad[2] = { lab_.failed, 1 };
    comm_host_sum64(commlab_.mpi, bad, 1);
    if (failed != bad[0]) printf("  FAIL on other ranks, %lld in all\n", (long long)bad[0]);
    lab_.failed = (int)bad[0];
    bool first = commlab_.mpi->rank == 0;
    comm_close(commlab_.mpi);
    backend_close(&commlab_.be);
    return first ? lab_report() : 0;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "kinds")) return puts(comm_kinds()), 0;
    if (*how || comm_launched()) mpi_begin(!strcmp(how, "staged"), argc > 2 ? atof(argv[2]) : 30);
    if (*how && strcmp(how, "staged")) return loop(commlab_.mpi, how);
    RUN(all_reduce_is_the_sum_in_order);
    RUN(preparing_ranks_are_silent);
    RUN(all_gather_brings_every_part);
    RUN(reduce_scatter_gives_each_its_part);
    RUN(all_to_all_of_uneven_rows);
    RUN(sends_meet_recvs_in_order);
    RUN(joins_come_in_any_order);
    RUN(tickets_outlast_other_calls);
    RUN(one_rank_runs_ahead);
    RUN(groups_are_lists_of_ranks);
    RUN(large_ones);
    RUN(host_calls);
    RUN(agree_reaches_all_ranks);
    RUN(thousands_of_small_calls);
    RUN(more_ranks_than_cores);
    RUN(abort_wakes_all);
    RUN(a_poisoned_rank_ends_its_peers);
    RUN(calls_that_differ_are_reported);
    RUN(the_ledger_is_charged);
    RUN(exposed_time_is_measured);
    RUN(a_slow_link_is_exposed);
    RUN(a_fake_world);
    RUN(kinds_that_are_not_there);
    RUN(trace_names_the_pending_call);
    return commlab_.mpi ? mpi_end() : lab_report();
}
