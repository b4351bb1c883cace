/* tests/test_peer.c -- dispatch through mapped memory: overflow, ranks that do not come, ranks of uneven
 * speed, two lanes at once. Rows and sums are checked in test_dispatch.c, which runs every dispatcher. */
#include "dispatchlab.h"

#include <stdatomic.h>

static atomic_int running;               /* ranks whose peers may still write into their memory */

typedef struct PeerRank {
    Comm   *world;
    Case    k;
    int     rank;
    double  took;
    bool    overflow, same;
    Status  status;
    char    text[1024];
    void  (*run)(struct PeerRank *p, Layer *l, Dispatcher *d);
} PeerRank;

static Case peer_case(int world)
{
    Case k = base(DISPATCHER_peer);
    k.world = k.ep = world;
    return k;
}

/* Two nodes of two ranks, of which the ranks of one map each other's memory. */
static Case hops_case(void)
{
    Case k = base(DISPATCHER_deepep_peer);
    k.world = k.ep = 4, k.per_node = 2;
    return k;
}

static void *peer_main(void *arg)
{
    PeerRank  *p = arg;
    Layer      l;
    Mesh       mesh;
    Dispatcher d = { 0 };
    omp_set_num_threads(1);
    Status st = rank_open(&l, &mesh, &d, &p->k, p->world, "cpu");
    if (st) snprintf(p->text, sizeof p->text, "%s", status_text());
    d.host_counts = false;
    layer_batch(&l, &p->k, p->rank);
    l.env.mesh = &mesh, l.env.dispatcher = &d;
    if (!st) p->run(p, &l, &d);
    p->status = st ? st : p->status;
    running--;
    while (running) sched_yield();
    dispatch_close(&d);
    mesh_close(&mesh);
    layer_close(&l);
    return NULL;
}

static void run_ranks(PeerRank *p, Case k, void (*ranks_do)(PeerRank *, Layer *, Dispatcher *))
{
    Comm     *world[MAX_RANKS];
    pthread_t thread[MAX_RANKS];
    EXPECT_OK(comm_open_threads(world, k.world, k.per_node));
    running = k.world;
    for (int r = 0; r < k.world; r++) {
        p[r] = (PeerRank){ .world = world[r], .k = k, .rank = r, .run = ranks_do };
        pthread_create(&thread[r], NULL, peer_main, &p[r]);
    }
    for (int r = 0; r < k.world; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < k.world; r++) comm_close(world[r]);
}

/* ---- overflow ---- */

static void overflowing_layer(PeerRank *p, Layer *l, Dispatcher *d)
{
    l->c.evaluates = false;                        /* one without a backward may be part of a step */
    layer_run(l);
    p->same = !memcmp(l->y.data, l->res.data, (size_t)t_bytes(l->y));
    p->status = dispatch_overflowed(d, &p->overflow);
    bool again = true;
    if (!p->status) p->status = dispatch_overflowed(d, &again);
    p->overflow &= !again;
}

/* Every rank sees it, nothing is sent, and asking clears it. */
static void expect_overflow(Case k)
{
    PeerRank p[4];
    k.rank_capacity = 1;
    run_ranks(p, k, overflowing_layer);
    for (int r = 0; r < 4; r++)
        EXPECT(!p[r].status && p[r].overflow && p[r].same, "%s: rank %d: %s, overflow %d, sent nothing %d",
               k.name, r, p[r].text, p[r].overflow, p[r].same);
    k.eval = true;
    run_ranks(p, k, overflowing_layer);
    for (int r = 0; r < 4; r++)
        EXPECT(!p[r].status && p[r].overflow, "%s: rank %d: %s", k.name, r, p[r].text);
    k.skew = NATURAL, k.rank_capacity = 4;
    run_ranks(p, k, overflowing_layer);
    for (int r = 0; r < 4; r++)
        EXPECT(!p[r].status && !p[r].overflow && !p[r].same, "%s: rank %d: %s", k.name, r, p[r].text);
}

static void overflow_is_seen_by_all(void)
{
    Case k = peer_case(4);
    k.skew = HOT;
    expect_overflow(k);
}

/* With one expert for all tokens, those that arrive at its node are twice the rows of an even share. */
static void overflow_between_nodes(void)
{
    Case k = hops_case();
    k.skew = ONE, k.K = 1;
    expect_overflow(k);
}

/* All tokens fit the buffers of the members that forward them, but not those of an expert's rank: the ranks
 * of its node see it, those of the other do not. */
static void overflow_of_one_node(void)
{
    PeerRank p[4];
    Case     k = hops_case();
    k.skew = HOT, k.rank_capacity = 1;
    run_ranks(p, k, overflowing_layer);
    for (int r = 0; r < 4; r++)
        EXPECT(!p[r].status && p[r].overflow == (r < 2), "rank %d: %s, overflow %d", r, p[r].text,
               p[r].overflow);
}

/* ---- a rank that does not come ---- */

static void stalls(PeerRank *p, Layer *l, Dispatcher *d)
{
    bool overflow;
    double start = clock_now();
    if (p->rank != 1) moe_fwd(&l->c, &l->moe, &l->a, l->y, l->x, l->res);
    p->took = clock_now() - start;
    p->status = dispatch_overflowed(d, &overflow);
    if (p->status) snprintf(p->text, sizeof p->text, "%s", status_text());
}

static void a_rank_that_does_not_come_is_named(void)
{
    PeerRank p[4];
    Case     k = peer_case(4);
    k.timeout = 0.3;
    run_ranks(p, k, stalls);
    for (int r = 0; r < 4; r++) {
        bool named = strstr(p[r].text, "MoE layer 5: no counts from rank 1 within") != NULL;
        EXPECT(r == 1 ? !p[r].status : p[r].status == E_COMM && named && p[r].took < 3,
               "rank %d: %s, %.1f s", r, p[r].text, p[r].took);
    }
}

static void is_stopped(PeerRank *p, Layer *l, Dispatcher *d)
{
    if (p->rank == 1) comm_end_waits(p->world), comm_abort(p->world, "a test");
    stalls(p, l, d);
}

static void an_abort_ends_a_wait(void)
{
    PeerRank p[2];
    run_ranks(p, peer_case(2), is_stopped);
    EXPECT(p[0].status == E_COMM && p[0].took < 10, "%s after %.1f s", p[0].text, p[0].took);
}

/* ---- uneven speed ---- */

static void dawdle(int rank, int round, int64_t at)
{
    int64_t us = (int64_t)rng_below(9, (uint64_t)(rank * 1000 + round), (uint64_t)at, 4) * 150;
    if (us) nanosleep(&(struct timespec){ .tv_nsec = us * 1000 }, NULL);
}

/* Tokens of a round: rows that differ by rank, token and round. */
static void fill_tokens(const Layer *l, Tensor x, int rank, int round)
{
    float *v = x.data;
    for (int64_t i = 0; i < t_count(x); i++) v[i] = (float)(round % 50 * 1000 + rank * 100) + (float)(i / D);
}

/* An echo gives K times every token; lane 1 runs inside lane 0. */
static bool echoes(const Layer *l, Tensor y, Tensor x)
{
    const float *a = y.data, *b = x.data;
    for (int64_t i = 0; i < t_count(x); i++)
        if (a[i] != (float)l->moe.K * b[i]) return false;
    return true;
}

typedef struct EchoLane { Pass c; MoeAct a; Exchange there, back; Tensor x, rows, y; } EchoLane;

static void lane_open(EchoLane *e, Layer *l, int lane)
{
    *e = (EchoLane){ .c = l->c, .a = l->a };
    e->c.lane = lane, e->a.route.table = NULL;
    e->x = t2(&l->act, "x", F32, l->x.n[0], D), e->y = t2(&l->act, "y", F32, l->x.n[0], D);
    e->rows = t2(&l->act, "rows", F32, l->a.R, D);
    l->env.dispatcher->ops->reserve(&e->c, &l->moe, &e->a, l->x.n[0]);
    l->env.dispatcher->ops->build_routing(&e->c, &l->moe, &e->a, l->a.idx);
}

static void two_lanes(PeerRank *p, Layer *l, Dispatcher *d)
{
    const DispatchOps *by = d->ops;
    EchoLane e[2];
    moe_fwd(&l->c, &l->moe, &l->a, l->y, l->x, l->res);
    for (int i = 0; i < 2; i++) lane_open(&e[i], l, i);
    p->same = true;
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < 2; i++) {
            fill_tokens(l, e[i].x, p->rank + 50 * i, round);
            dawdle(p->rank, round, i);
            by->dispatch_start(&e[i].c, &e[i].a.route, &e[i].there, e[i].x, e[i].rows);
        }
        for (int i = 0; i < 2; i++) {
            by->dispatch_finish(&e[i].c, &e[i].a.route, &e[i].there, e[i].rows);
            dawdle(p->rank, round, 2 + i);
            by->combine_start(&e[i].c, &e[i].a.route, &e[i].back, e[i].rows);
        }
        for (int i = 0; i < 2; i++) {
            dawdle(p->rank, round, 4 + i);
            by->combine_finish(&e[i].c, &e[i].a.route, &e[i].back, e[i].y, (Tensor){ 0 });
            p->same &= echoes(l, e[i].y, e[i].x);
        }
    }
    p->status = backend_sync(&l->be);
}

static void ranks_of_uneven_speed(void)
{
    for (int i = 0; i < 2; i++) {
        PeerRank p[4];
        Case     k = i ? hops_case() : peer_case(4);
        k.overlap = true, k.K = 3;
        run_ranks(p, k, two_lanes);
        for (int r = 0; r < 4; r++)
            EXPECT(!p[r].status && p[r].same, "%s: rank %d: %s", k.name, r, p[r].text);
    }
}

int main(void)
{
    RUN(overflow_is_seen_by_all);
    RUN(overflow_between_nodes);
    RUN(overflow_of_one_node);
    RUN(a_rank_that_does_not_come_is_named);
    RUN(an_abort_ends_a_wait);
    RUN(ranks_of_uneven_speed);
    return lab_report();
}
