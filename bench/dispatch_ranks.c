/* bench/dispatch_ranks.c -- `mpirun -n N treb bench dispatch`: token dispatch and combine between ranks on
 * the device, peer against alltoall.
 *
 * A round is the forward of a layer without its experts: routing, dispatch, combine. Rounds are queued one
 * after another and timed together, and so are rounds of a part of it. Combine includes the sum of the rows
 * with the residual. The ceiling is a copy of T K rows within the device, on all ranks at once: with several
 * ranks on one GPU they share its memory, in the copies as in the dispatch. */
#include "bench/bench.h"
#include "bench/dispatch.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

enum { MOST_ROUNDS = 50 };

/* Counts what the host waits for: fetches and gathers of the host. */
typedef struct HostWaits { CostListener listener; int64_t n; } HostWaits;

static void count_op(CostListener *m, const Ledger *l, int op, double flops, int64_t bytes, double rows) { }
static void count_start(CostListener *m, const CostCall *c)
{
    ((HostWaits *)m)->n += c->kind == CALL_HOST_GATHER;
}
static void count_join(CostListener *m, int group, int slot) { }
static void count_fetch(CostListener *m) { ((HostWaits *)m)->n++; }
static void count_side(CostListener *m, CostSide what, int lane, int mark, int64_t bytes) { }
static void count_phase(CostListener *m, CostPhase what, int chunk, bool last) { }

typedef struct Round { double route, dispatch, combine, copy, launches, calls, waits; } Round;

/* Rows of experts, and T K rows to copy from. */
typedef struct Buffers { Tensor rows, from; } Buffers;

static void route(ExpertLayer *l)
{
    const DispatchOps *ops = l->dispatcher.ops;
    ops->reserve(&l->c, &l->moe, &l->act, l->x.n[0]);
    ops->build_routing(&l->c, &l->moe, &l->act, l->act.idx);
}

static void dispatch(ExpertLayer *l, Tensor rows)
{
    Exchange w = { .at_once = true };
    rows = t_rows(rows, 0, l->act.R);
    l->dispatcher.ops->dispatch_start(&l->c, &l->act.route, &w, l->x, rows);
    l->dispatcher.ops->dispatch_finish(&l->c, &l->act.route, &w, rows);
}

static void combine(ExpertLayer *l, Tensor rows)
{
    Exchange w = { .at_once = true };
    rows = t_rows(rows, 0, l->act.R);
    l->dispatcher.ops->combine_start(&l->c, &l->act.route, &w, rows);
    l->dispatcher.ops->combine_finish(&l->c, &l->act.route, &w, l->y, l->x);
}

typedef enum { DO_ROUTE = 1, DO_DISPATCH = 2, DO_COMBINE = 4, DO_COPY = 8 } What;

static void do_round(ExpertLayer *l, int what, const Buffers *b)
{
    ArenaMark act = arena_mark(&l->arena), scratch = arena_mark(&l->scratch);
    if (what & DO_ROUTE)    route(l);
    if (what & DO_DISPATCH) dispatch(l, b->rows);
    if (what & DO_COMBINE)  combine(l, b->rows);
    if (what & DO_COPY)     op_copy(&l->be, t_rows(b->rows, 0, b->from.n[0]), b->from);
    arena_reset(&l->scratch, scratch);
    if (what & DO_ROUTE) arena_reset(&l->arena, act);
}

/* Seconds of `rounds` rounds on the slowest rank. */
static double time_some(ExpertLayer *l, Comm *world, int rounds, int what, const Buffers *b)
{
    if (backend_sync(&l->be)) return 0;
    comm_barrier(world);
    double start = clock_now();
    for (int i = 0; i < rounds; i++) do_round(l, what, b);
    if (backend_sync(&l->be)) return 0;
    double took = clock_now() - start;
    comm_host_max(world, &took, 1);
    return took;
}

/* Seconds of a round, of as many as take about a third of a second. */
static double time_rounds(ExpertLayer *l, Comm *world, int what, const Buffers *b)
{
    double once = time_some(l, world, 2, what, b) / 2;
    int    rounds = once > 0.3 / MOST_ROUNDS ? (int)(0.3 / once) : MOST_ROUNDS;
    if (rounds < 2) return once;
    return time_some(l, world, rounds, what, b) / rounds;
}

/* Random experts for every token, evenly spread. */
static void select_experts(ExpertLayer *l, const DispatchBench *b, int rank)
{
    int64_t T = l->x.n[0];
    Tensor  logits = t2(&l->arena, "logits", F32, T, b->E), lse = t2(&l->arena, "lse", F32, T, 1);
    l->act.idx = t2(&l->arena, "idx", I32, T, b->K);
    l->act.weight = t2(&l->arena, "weight", F32, T, b->K);
    op_normal(&l->be, logits, 7, (uint64_t)rank, 0, b->E, 1.0f);
    op_router_fwd(&l->be, l->act.idx, l->act.weight, lse, logits, true);
}

static Buffers open_buffers(ExpertLayer *l, const DispatchBench *b)
{
    return (Buffers){ .rows = t2(&l->scratch, "rows", BF16, l->dispatcher.row_capacity, b->D),
                      .from = t2(&l->scratch, "from", BF16, l->x.n[0] * b->K, b->D) };
}

/* What the host does in a round. */
static void count_round(ExpertLayer *l, const Buffers *f, Round *out)
{
    HostWaits waits = { { count_op, count_start, count_join, count_fetch, count_side, count_phase,
                          NULL, NULL }, 0 };
    ledger_clear(&l->be.ledger);
    l->be.ledger.meter = &waits.listener;
    do_round(l, DO_ROUTE | DO_DISPATCH | DO_COMBINE, f);
    l->be.ledger.meter = NULL;
    out->launches = (double)l->be.ledger.launches, out->waits = (double)waits.n;
    out->calls = (double)l->be.ledger.comm[GR_etp_ep].calls;
}

/* Times mean nothing where a member did not come or rows did not fit. */
static Status check_exchanges(ExpertLayer *l, int64_t T)
{
    bool overflow;
    TRY(backend_sync(&l->be));
    TRY(dispatch_overflowed(&l->dispatcher, &overflow));
    return overflow ? fail(E_FIT, "%lld tokens have more rows than the buffers of a rank hold", (long long)T)
                    : OK;
}

static Status measure(ExpertLayer *l, const DispatchBench *b, Comm *world, Round *out)
{
    Buffers f = open_buffers(l, b);
    select_experts(l, b, world->rank);
    out->copy = time_rounds(l, world, DO_COPY, &f);
    route(l);
    do_round(l, DO_DISPATCH | DO_COMBINE, &f);       /* sends the gates, which later rounds leave out */
    out->dispatch = time_rounds(l, world, DO_DISPATCH, &f);
    out->combine  = time_rounds(l, world, DO_COMBINE, &f);
    out->route    = time_rounds(l, world, DO_ROUTE, &f);
    count_round(l, &f, out);
    return check_exchanges(l, l->x.n[0]);
}

static Status time_dispatcher(const DispatchBench *b, Comm *world, int64_t T, const char *name, Round *out)
{
    ExpertLayer l;
    const char *backend = backend_pick("auto");
    int64_t     share = 2 * b->D * T * b->K, weights = b->E / world->size * b->F * b->D * 24;
    size_t      bytes = (size_t)(10 * share + weights + T * b->E * 8) + ((size_t)6 << 27);
    Status st = expert_layer_open(&l, b, T, name, world, backend, bytes);
    if (!st) st = measure(&l, b, world, out);
    expert_layer_close(&l);
    return comm_agree(world, st);
}

static void print_round(const DispatchBench *b, int64_t T, const char *name, const Round *r)
{
    double bytes = (double)(T * b->K * b->D * 2);
    printf("%7lld %-9s %6.0f %8.3f %8.3f %8.3f %8.3f %8.0f %8.0f %8.0f%% %7.0f%% %8.0f %6.0f %6.0f\n",
           (long long)T, name, bytes / (1 << 20), 1e3 * r->route, 1e3 * r->dispatch, 1e3 * r->combine,
           1e3 * r->copy, bytes / r->dispatch / 1e9, bytes / r->combine / 1e9, 100 * r->copy / r->dispatch,
           100 * r->copy / r->combine, r->launches, r->calls, r->waits);
    fflush(stdout);
}

static Status run_world(const DispatchBench *b, Comm *world)
{
    static const char *const names[] = { "peer", "alltoall" };
    if (world->rank == 0)
        printf("%d ranks, %s, %s: %lld of %lld experts a token, width %lld, bf16; ms, GB/s, share of the "
               "rate of a copy of these rows;\nlaunches, calls and waits of the host a layer\n"
               "%7s %-9s %6s %8s %8s %8s %8s %8s %8s %9s %8s %8s %6s %6s\n", world->size,
               backend_pick("auto"), comm_name(world), (long long)b->K, (long long)b->E, (long long)b->D,
               "tokens", "", "MiB", "route", "dispatch", "combine", "copy", "dispatch", "combine",
               "dispatch%", "combine%", "launches", "calls", "waits");
    bool gpu = strcmp(backend_pick("auto"), "cpu");
    for (int64_t T = b->T; T <= (gpu ? 8 : 1) * b->T; T *= 8)
        for (int i = 0; i < 2; i++) {
            Round r = { 0 };
            TRY_CTX(time_dispatcher(b, world, T, names[i], &r), "%s, %lld tokens", names[i], (long long)T);
            if (world->rank == 0) print_round(b, T, names[i], &r);
        }
    return OK;
}

Status dispatch_ranks_run(const DispatchBench *b)
{
    Comm *world;
    TRY(comm_open(&world, &(CommConf){ .kind = b->comm, .timeout = 60 }));
    Status st = b->E % world->size ? fail(E_CONFIG, "%lld experts on %d ranks", (long long)b->E, world->size)
                                   : run_world(b, world);
    comm_close(world);
    return st;
}
