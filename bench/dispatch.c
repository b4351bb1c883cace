/* bench/dispatch.c -- `treb bench dispatch`: what each token dispatcher sends, and how long it takes. Under
 * mpirun: dispatch_ranks.c.
 *
 * The first table is of plans: one rank of a fake world of nodes of 8, a layer forward and backward, even
 * routing; the ledger says what it would send. Beside it the copies of a token that leave its node are
 * counted over tokens drawn at random. The second runs ranks as threads of this machine: only the growth with
 * the number of tokens means something there. */
#include "bench/bench.h"
#include "bench/dispatch.h"
#include "cli/command.h"

#include "base/clock.h"
#include "base/rng.h"
#include "comm/peer_memory.h"

#include <inttypes.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODE = 8, RANKS = 4, ROUNDS = 9, MOST_K = 64, MOST_E = 4096 };

/* ---- one expert layer of one rank ---- */

static void declare(ExpertLayer *l, Param *p, int rank, const int64_t *n)
{
    *p = (Param){ .shard.w = t_new(&l->arena, "w", BF16, rank, n),
                  .shard.g = t_new(&l->arena, "g", F32, rank, n) };
    memcpy(p->shard.shape, n, (size_t)rank * sizeof *n);
}

/* Whether the dispatcher works within a node alone and the world spans several. */
static bool dispatcher_refuses(const char *name, int ranks, int per_node)
{
    return dispatcher_within_node(&dispatcher_rows[dispatcher_find(name)]) && ranks > per_node;
}

static Status open_memory(ExpertLayer *l, const DispatchBench *b, int64_t T, const char *dispatcher,
                          Comm *world, const char *backend, size_t bytes)
{
    Arena *mapped[] = { &l->arena, &l->scratch };
    MoeShape shape = { .E = b->E, .K = b->K, .T = T, .row = 2 * b->D };
    TRY(backend_open(&l->be, backend));
    TRY(mesh_open(&l->mesh, world, &(MeshLayout){ .ep = world->size }));
    mesh_bind(&l->mesh, &l->be);
    TRY(dispatch_open(&l->dispatcher, &l->mesh, &(DispatchConf){ .name = dispatcher, .shape = shape }));
    l->be.shares = l->dispatcher.row->maps && peer_memory_shares(l->mesh.comm[GR_ep_intra_node]);
    TRY(backend_arena_open(&l->be, &l->arena, "act", bytes));
    TRY(backend_arena_open(&l->be, &l->scratch, "scratch", bytes));
    TRY(backend_host_arena_open(&l->be, &l->host, "host", 4096));
    return dispatch_bind(&l->dispatcher, &l->be, &(DispatchArenas){ &l->arena, &l->host, mapped, 2 });
}

Status expert_layer_open(ExpertLayer *l, const DispatchBench *b, int64_t T, const char *dispatcher,
                         Comm *world, const char *backend, size_t bytes)
{
    int64_t El = b->E / world->size;
    *l = (ExpertLayer){ 0 };
    TRY(open_memory(l, b, T, dispatcher, world, backend, bytes));
    policy_default(l->policy);
    declare(l, &l->router, 2, (int64_t[]){ b->E, b->D });
    declare(l, &l->gu, 3, (int64_t[]){ El, 2 * b->F, b->D });
    declare(l, &l->down, 3, (int64_t[]){ El, b->D, b->F });
    l->moe = (Moe){ .E = b->E, .K = b->K, .F = b->F, .renorm = true, .w_router = &l->router, .w_gu = &l->gu,
                    .w_d = &l->down };
    l->x = t2(&l->arena, "x", BF16, T, b->D), l->y = t2(&l->arena, "y", BF16, T, b->D);
    op_normal(&l->be, l->x, 3, (uint64_t)world->rank, 0, b->D, 1.0f);
    op_normal(&l->be, l->router.shard.w, 4, 0, 0, b->D, 1.0f);
    l->batch = (Batch){ .T = T, .real = T, .groups = 1, .group = t1(&l->arena, "group", I32, T) };
    l->aux.coef = l->aux.count = t3(&l->arena, "stat", F32, 1, 1, b->E);
    l->aux.prob = t3(&l->arena, "stat", F32, 1, 1, b->E), l->aux.zsum = t1(&l->arena, "stat", F32, 1);
    l->env = (Env){ .be = &l->be, .mesh = &l->mesh, .dispatcher = &l->dispatcher, .dtype = BF16 };
    l->c = (Pass){ .env = &l->env, .be = &l->be, .batch = &l->batch, .act = &l->arena, .scratch = &l->scratch,
                   .policy = l->policy, .aux = &l->aux };
    return OK;
}

void expert_layer_close(ExpertLayer *l)
{
    dispatch_unbind(&l->dispatcher, l->be.device && !l->be.sticky);
    dispatch_close(&l->dispatcher);
    if (l->be.device) {
        backend_arena_close(&l->be, &l->scratch);
        backend_arena_close(&l->be, &l->arena);
        backend_host_arena_close(&l->be, &l->host);
    }
    mesh_close(&l->mesh);
    backend_close(&l->be);
}

/* ---- bytes ---- */

typedef struct Load { double intra_node, inter_node; int64_t intra_messages, inter_messages; } Load;

static Load load_of(const ExpertLayer *l)
{
    static const GroupId groups[] = { GR_etp_ep, GR_ep_intra_node, GR_ep_inter_node };
    Load sum = { 0 };
    for (int g = 0; g < 3; g++) {
        const LedgerComm *a = &l->be.ledger.comm[groups[g]];
        const Comm *c = l->mesh.comm[groups[g]];
        sum.intra_node += (double)a->intra_node, sum.inter_node += (double)a->inter_node;
        for (int i = 0; i < c->size; i++) {
            if (i == c->rank) continue;
            *(c->node[i] == c->node[c->rank] ? &sum.intra_messages : &sum.inter_messages) += a->calls;
        }
    }
    return sum;
}

static Status plan_dispatch(Load *out, const DispatchBench *b, const char *dispatcher, int ep)
{
    Comm       *world;
    ExpertLayer l;
    TRY(comm_open(&world, &(CommConf){ .kind = "fake", .size = ep, .per_node = NODE }));
    Status st = expert_layer_open(&l, b, b->T, dispatcher, world, "meta", (size_t)1 << 42);
    if (!st) {
        ledger_clear(&l.be.ledger);
        moe_fwd(&l.c, &l.moe, &l.act, l.y, l.x, l.x);
        moe_bwd(&l.c, &l.moe, &l.act, l.y, l.y, l.x);
        st   = backend_sync(&l.be);
        *out = load_of(&l);
    }
    expert_layer_close(&l);
    comm_close(world);
    return st;
}

/* Copies of a token that leave its node, over tokens that choose K of E at random: one for each slot, or one
 * for each node. */
static void count_copies(const DispatchBench *b, int ep, double *slots, double *nodes)
{
    int64_t per_node = b->E / ep * (ep < NODE ? ep : NODE);
    *slots = *nodes = 0;
    for (int64_t t = 0; t < b->T; t++) {
        int64_t chosen[MOST_K];
        bool    seen[MOST_E] = { false };
        for (int64_t k = 0, draw = 0; k < b->K; draw++) {
            int64_t e = (int64_t)rng_below(5, (uint64_t)t, (uint64_t)draw, (uint64_t)b->E);
            bool    twice = false;
            for (int64_t i = 0; i < k; i++) twice |= chosen[i] == e;
            if (twice) continue;
            chosen[k++] = e;
            *slots += e / per_node != 0;
            *nodes += e / per_node != 0 && !seen[e / per_node];
            seen[e / per_node] = true;
        }
    }
    *slots /= (double)b->T, *nodes /= (double)b->T;
}

static Status bytes_table(const DispatchBench *b)
{
    printf("a layer forward and backward on one of EP ranks, nodes of %d: %" PRId64 " tokens a rank, %" PRId64
           " of %" PRId64 " experts each, width %" PRId64 ", bf16\n", NODE, b->T, b->K, b->E, b->D);
    printf("%4s %-12s %14s %14s %10s %10s   %s\n", "EP", "dispatcher", "MiB in node", "MiB to others",
           "messages", "to others", "copies of a token to other nodes, counted");
    for (int ep = 8; ep <= 64 && b->E % ep == 0; ep *= 2) {
        double slots, nodes;
        count_copies(b, ep, &slots, &nodes);
        for (int i = 0; i < DISPATCHER_COUNT; i++) {
            Load l = { 0 };
            const char *name = dispatcher_rows[i].name;
            if (dispatcher_refuses(name, ep, NODE)) continue;
            TRY_CTX(plan_dispatch(&l, b, name, ep), "%s over %d ranks", name, ep);
            printf("%4d %-12s %14.1f %14.1f %10" PRId64 " %10" PRId64 "   %.3f\n", ep, name,
                   l.intra_node / (1 << 20), l.inter_node / (1 << 20), l.intra_messages, l.inter_messages,
                   dispatcher_rows[i].two_level ? nodes : slots);
        }
    }
    return OK;
}

/* ---- time ---- */

typedef struct Rank {
    const DispatchBench *b;
    Comm                *world;
    const char          *dispatcher;
    int64_t              T;
    double               seconds;
    Status               st;
} Rank;

static Status time_rank(Rank *r)
{
    ExpertLayer l;
    Status      st = expert_layer_open(&l, r->b, r->T, r->dispatcher, r->world, "cpu", (size_t)1 << 32);
    if (!st) {
        moe_fwd(&l.c, &l.moe, &l.act, (Tensor){ 0 }, l.x, l.x);
        for (int i = 0; i < ROUNDS; i++) {
            Exchange there = { 0 }, back = { 0 };
            arena_clear(&l.scratch);
            comm_barrier(r->world);
            double start = clock_now();
            l.dispatcher.ops->dispatch_start(&l.c, &l.act.route, &there, l.x, l.act.x);
            l.dispatcher.ops->dispatch_finish(&l.c, &l.act.route, &there, l.act.x);
            l.dispatcher.ops->combine_start(&l.c, &l.act.route, &back, l.act.x);
            l.dispatcher.ops->combine_finish(&l.c, &l.act.route, &back, l.y, (Tensor){ 0 });
            double took = clock_now() - start;
            if (!i || took < r->seconds) r->seconds = took;      /* whatever else runs here can only add */
        }
        st = backend_sync(&l.be);
    }
    expert_layer_close(&l);
    return st;
}

static void *rank_main(void *arg)
{
    Rank *r = arg;
    omp_set_num_threads(1);
    r->st = time_rank(r);
    return NULL;
}

static Status time_dispatcher(const DispatchBench *b, const char *dispatcher, int64_t T, double *seconds)
{
    Comm     *world[RANKS];
    pthread_t thread[RANKS];
    Rank      rank[RANKS];
    Status    st = OK;
    TRY(comm_open_threads(world, RANKS, RANKS / 2));
    for (int r = 0; r < RANKS; r++) {
        comm_bind(world[r], NULL);
        rank[r] = (Rank){ b, world[r], dispatcher, T, 0, OK };
        REQUIRE(!pthread_create(&thread[r], NULL, rank_main, &rank[r]), "no thread for a rank");
    }
    *seconds = 0;
    for (int r = 0; r < RANKS; r++) {
        pthread_join(thread[r], NULL);
        if (rank[r].st) st = rank[r].st;
        if (rank[r].seconds > *seconds) *seconds = rank[r].seconds;
    }
    for (int r = 0; r < RANKS; r++) comm_close(world[r]);
    return st ? fail(st, "%s: a rank failed", dispatcher) : OK;
}

static Status time_table(const DispatchBench *b)
{
    printf("\nthere and back, %d ranks as threads on nodes of %d, ms (us a token)\n%8s", RANKS, RANKS / 2,
           "tokens");
    for (int i = 0; i < DISPATCHER_COUNT; i++) printf(" %20s", dispatcher_rows[i].name);
    putchar('\n');
    for (int64_t T = b->T / 8 < 16 ? 16 : b->T / 8; T <= b->T; T *= 2) {
        printf("%8" PRId64, T);
        for (int i = 0; i < DISPATCHER_COUNT; i++) {
            double s = 0;
            if (dispatcher_refuses(dispatcher_rows[i].name, RANKS, RANKS / 2)) {
                printf("   %18s", "one node alone");
                continue;
            }
            TRY(time_dispatcher(b, dispatcher_rows[i].name, T, &s));
            printf("   %9.2f (%6.2f)", s * 1e3, s * 1e6 / (double)T);
        }
        putchar('\n');
        fflush(stdout);
    }
    return OK;
}

static const Option options[] = {
    OPTION_INT(DispatchBench, T, "--tokens", "N", 16, 1 << 20, "tokens of a rank (default 4096)"),
    OPTION_INT(DispatchBench, E, "--experts", "N", 8, MOST_E, "experts (default 128)"),
    OPTION_INT(DispatchBench, K, "--top", "N", 1, MOST_K, "experts of a token (default 8)"),
    OPTION_INT(DispatchBench, D, "--width", "N", 8, 1 << 16, "hidden size (default 2048)"),
    OPTION_TEXT(DispatchBench, comm, "--comm", "KIND",
                "transport between ranks that mpirun started (default auto)"),
    OPTION_END
};

static Status run_dispatch(int argc, char **argv)
{
    DispatchBench b = { 4096, 128, 8, 2048, 768, "auto" };
    TRY(options_parse(argc, argv, options, &b, NULL));
    if (b.E % 8 || b.K > b.E)
        return fail(E_CONFIG, "bench dispatch: %" PRId64 " of %" PRId64 " experts; want a multiple of 8",
                    b.K, b.E);
    if (comm_launched()) return dispatch_ranks_run(&b);
    TRY(bytes_table(&b));
    DispatchBench small = b;                               /* ranks of this machine share its memory */
    small.T = b.T < 2048 ? b.T : 2048, small.D = b.D < 512 ? b.D : 512, small.F = 16;
    return time_table(&small);
}

static const Usage usage = {
    .args    = "",
    .options = options,
};

const Command bench_dispatch = {
    .name  = "dispatch",
    .help  = "bytes and times of each token dispatcher",
    .run   = run_dispatch,
    .usage = USAGE(&usage),
};
