/* tests/test_moe_chunked.c -- MoE layers whose rows do not fit the buffers at once: in chunks of tokens they
 * compute the same gradients. Routing is as uneven as possible, capacity as small as allowed. */
#include "dispatchlab.h"

static const double TOL = 1e-5;

/* Layouts of two, four and eight members, on one level and on two. */
static const struct { int world, ep, etp, per_node; } layouts[] = {
    { 2, 2, 1, 0 }, { 4, 4, 1, 0 }, { 4, 4, 1, 2 }, { 4, 2, 2, 0 }, { 4, 2, 2, 2 }, { 4, 2, 2, 1 },
    { 8, 4, 2, 4 }, { 8, 4, 1, 2 },
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static Case chunked(int dispatcher, int layout, Skew skew, double capacity)
{
    Case k = base(dispatcher);
    k.world = layouts[layout].world, k.ep = layouts[layout].ep, k.etp = layouts[layout].etp;
    k.per_node = layouts[layout].per_node, k.skew = skew, k.rank_capacity = capacity;
    return k;
}

/* Compares with one rank; *chunks: how many it took. */
static void check_chunks(Case k, int64_t *chunks)
{
    Result *want = reference(k), *o = run(k);
    if (all_well(&k, o)) compare(&k, o, want, k.dtype == F32 ? TOL : 4e-2);
    for (int r = 0; r < k.world; r++)                       /* every group of etp_ep decides for itself */
        EXPECT(o[r].chunks == o[r / (k.ep * k.etp) * k.ep * k.etp].chunks && o[r].chunks >= 1,
               "%s: rank %d runs %lld chunks", say(&k), r, (long long)o[r].chunks);
    if (chunks) *chunks = o[0].chunks;
    free(o), free(want);
}

static void one_rank_gets_it_all(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 0; j < LAYOUTS; j++) {
            Case    k = chunked(i, j, HOT, 1);
            int64_t n;
            check_chunks(k, &n);
            EXPECT(k.ep == 2 ? n >= 2 : n >= 4, "%s: %lld chunks", say(&k), (long long)n);
        }
}

/* One expert, one choice a token: all rows are one expert's. Every dispatcher has every second layout. */
static void one_expert_gets_it_all(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = i % 2; j < LAYOUTS; j += 2) {
            Case    k = chunked(i, j, ONE, 1);
            int64_t n;
            k.K = 1;
            check_chunks(k, &n);
            EXPECT(n >= k.ep, "%s: %lld chunks", say(&k), (long long)n);
        }
}

/* Each half of the tokens goes to one rank: two chunks are not enough. */
static void chunks_may_be_as_uneven(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++) {
        Case    k = chunked(i, 1, TURNS, 1.5);
        int64_t n;
        check_chunks(k, &n);
        EXPECT(n == 4, "%s: %lld chunks", say(&k), (long long)n);
    }
}

/* The smallest capacity: one token of each rank at a time. */
static void down_to_a_token(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int uneven = 0; uneven < 2; uneven++) {
            Case    k = chunked(i, 6, HOT, 1);
            int64_t n;
            k.T = 4, k.uneven = uneven;
            check_chunks(k, &n);
            EXPECT(uneven || n == 4, "%s: %lld chunks", say(&k), (long long)n);
        }
}

static void ranks_without_tokens(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 0; j < LAYOUTS; j++) {
            Case k = chunked(i, j, j & 1 ? HOT : LEAN, 1);
            k.uneven = true, k.chunk = 5;
            check_chunks(k, NULL);
        }
}

static void every_recompute(void)
{
    static const char *const words[] = { "moe_act", "moe_dispatch", "moe", "full" };
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int w = 0; w < 4; w++) {
            Case k = chunked(i, 2 + 2 * (w & 1), HOT, 1.25);
            k.recompute = words[w];
            check_chunks(k, NULL);
        }
}

static void evaluations(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 1; j < 5; j++) {
            Case    k = chunked(i, j, HOT, 1);
            int64_t n;
            k.eval = true;
            check_chunks(k, &n);
            EXPECT(n > 1, "%s", say(&k));
        }
}

/* What a full expert refuses is refused before the tokens are cut. */
static void capacities(void)
{
    int64_t most = 0, n;
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 1; j < LAYOUTS; j++) {
            Case k = chunked(i, j, HOT, 1);
            k.capacity = 3;
            check_chunks(k, &n);
            if (n > most) most = n;
            if (!dispatcher_rows[i].pads) continue;
            k.pad = true;
            check_chunks(k, &n);
            EXPECT(n == 1, "%s: padding is cut", say(&k));
        }
    EXPECT(most > 1, "none was cut");
}

/* Four experts are full after the first tokens of a rank: later chunks keep no assignment at all. */
static void chunks_whose_choices_are_dropped(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 0; j < LAYOUTS; j++) {
            Case k = chunked(i, j, HOT, 1);
            k.K = 1, k.capacity = 2;
            check_chunks(k, NULL);
        }
}

static void half_precision(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++) {
        Case k = chunked(i, 6, HOT, 1);
        k.dtype = BF16;
        check_chunks(k, NULL);
    }
}

static bool same_bits(const Case *k, const Result *a, const Result *b)
{
    bool same = all_well(k, a) && all_well(k, b);
    for (int r = 0; r < k->world && same; r++)
        same = !memcmp(a[r].y, b[r].y, sizeof a[r].y) && !memcmp(a[r].dx, b[r].dx, sizeof a[r].dx) &&
               !memcmp(a[r].gu, b[r].gu, sizeof a[r].gu) && !memcmp(a[r].down, b[r].down, sizeof a[r].down) &&
               !memcmp(a[r].router, b[r].router, sizeof a[r].router);
    return same;
}

static void two_runs_are_the_same(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 2; j < LAYOUTS; j += 2) {
            Case k = chunked(i, j, LEAN, 1);
            Result *a = run(k), *b = run(k);
            EXPECT(same_bits(&k, a, b), "%s", say(&k));
            k.recompute = "moe";                                /* chunks are recomputed whatever is kept */
            Result *c = run(k);
            EXPECT(a[0].chunks == 1 || same_bits(&k, a, c), "%s", say(&k));
            free(a), free(b), free(c);
        }
}

/* A capacity that is enough changes no bit and no call. */
static void enough_capacity_needs_no_chunks(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 0; j < LAYOUTS; j++) {
            Case k = chunked(i, j, NATURAL, 0);
            Result *a = run(k);
            k.rank_capacity = k.ep;
            Result *b = run(k);
            k.rank_capacity = 1.9;
            Result *c = run(k);
            EXPECT(same_bits(&k, a, b), "%s", say(&k));
            EXPECT(c[0].chunks > 1 || same_bits(&k, a, c), "%s", say(&k));
            for (int r = 0; r < k.world; r++)
                for (int g = 0; g < LEDGER_GROUPS; g++) {
                    const LedgerComm *x = &a[r].after.comm[g], *y = &b[r].after.comm[g];
                    EXPECT(x->calls == y->calls && x->intra_node == y->intra_node &&
                           x->inter_node == y->inter_node,
                           "%s: rank %d says other things", say(&k), r);
                }
            free(a), free(b), free(c);
        }
}

/* A step in chunks takes the memory of a step without. */
static void plans_hold(void)
{
    static const char *const words[] = { NULL, "moe_act", "moe_dispatch", "moe" };
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 0; j < LAYOUTS; j++)
            for (int s = 0; s < 2; s++) {
                Case k = chunked(i, j, s ? HOT : NATURAL, s ? 1 : 1.5);
                Ledger ledger;
                size_t act, scratch;
                k.recompute = words[(i + j) % 4], k.eval = (i + j) % 5 == 0, k.capacity = j == 4 ? 4 : 0;
                Result *o = run(k);
                for (int r = 0; r < k.world && all_well(&k, o); r++) {
                    plan(&k, r, &act, &scratch, &ledger);
                    bool whole = o[r].chunks == 1;
                    EXPECT(act == o[r].act && scratch == o[r].scratch,
                           "%s: rank %d in %lld chunks: planned %zu + %zu, used %zu + %zu", say(&k), r,
                           (long long)o[r].chunks, act, scratch, o[r].act, o[r].scratch);
                    EXPECT(o[r].after.chunked_layers == (whole ? 0 : 2) && ledger.chunked_layers == 0,
                           "%s: rank %d counts %lld", say(&k), r, (long long)o[r].after.chunked_layers);
                }
                free(o);
            }
}

/* The default is two even shares, or the rows of a small buffer; plans and runs use the same function. */
static void default_capacity(void)
{
    static const struct { int64_t T, row; double asked, rows; } at[] = {     /* E 128, K 8, ep 16 */
        { 4096, 4096, 0,  2.0 * 4096 * 8 },  { 4096, 4096, 1.5, 1.5 * 4096 * 8 },
        { 4096, 4096, 16, 16.0 * 4096 * 8 }, { 4096, 4096, 99,  16.0 * 4096 * 8 },
        { 64, 4096, 0, 16 * 64 * 8 },        { 4096, 0, 0, 16.0 * 4096 * 8 },
        { 512, 4096, 0, 16384 },             { 2048, 4096, 0, 2048 * 8 * 2 },
    };
    Comm *world;
    Mesh  mesh;
    EXPECT_OK(comm_open(&world, &(CommConf){ .kind = "fake", .size = 16 }));
    EXPECT_OK(mesh_open(&mesh, world, &(MeshLayout){ .ep = 16 }));
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        Dispatcher d;
        MoeShape s = { .E = 128, .K = 8, .T = at[i].T, .row = at[i].row };
        EXPECT_OK(dispatch_open(&d, &mesh, &(DispatchConf){ .name = "alltoall", .shape = s,
                                                            .rank_capacity = at[i].asked }));
        EXPECT((double)d.row_capacity == at[i].rows && d.bounded == (d.row_capacity < 16 * at[i].T * 8),
               "%zu: capacity %lld", i,
               (long long)d.row_capacity);
        dispatch_close(&d);
    }
    mesh_close(&mesh);
    comm_close(world);
}

/* Anything with anything; TREB_SEED repeats it, TREB_CHUNKED sets the number of cases. */
static void random_cases(void)
{
    const char *text = getenv("TREB_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL), at = 0;
    const char *many = getenv("TREB_CHUNKED");
    int      cases = many ? atoi(many) : 10;
    int64_t  cut = 0, n;
    for (int i = 0; i < cases; i++) {
#define DRAW(n) ((int)rng_below(seed, (uint64_t)i, at++, (uint64_t)(n)))
        int  dispatcher = DRAW(3), layout = DRAW(LAYOUTS), skew = DRAW(SKEWS);
        Case k = chunked(dispatcher, layout, (Skew)skew, 1 + 0.25 * DRAW(6));
        k.K = 1 + DRAW(MAX_K), k.uneven = DRAW(2), k.chunk = 2 + DRAW(MAX_T), k.drop = DRAW(2);
        k.domain = DRAW(2) ? 1 << DRAW(2) : 0, k.capacity = DRAW(3) ? 0 : 1.0 + DRAW(8);
#undef DRAW
        if (i == 0) k.skew = HOT, k.rank_capacity = 1, k.capacity = 0, k.uneven = false;     /* is cut */
        check_chunks(k, &n);
        cut += n > 1;
        if (lab_.bad) {
            printf("    case %d of TREB_SEED=%llu\n", i, (unsigned long long)seed);
            return;
        }
    }
    EXPECT(cut > 0, "nothing was cut with TREB_SEED=%llu", (unsigned long long)seed);
}

int main(void)
{
    RUN(one_rank_gets_it_all);
    RUN(one_expert_gets_it_all);
    RUN(chunks_may_be_as_uneven);
    RUN(down_to_a_token);
    RUN(ranks_without_tokens);
    RUN(every_recompute);
    RUN(evaluations);
    RUN(capacities);
    RUN(chunks_whose_choices_are_dropped);
    RUN(half_precision);
    RUN(two_runs_are_the_same);
    RUN(enough_capacity_needs_no_chunks);
    RUN(plans_hold);
    RUN(default_capacity);
    RUN(random_cases);
    return lab_report();
}
