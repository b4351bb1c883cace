/* tests/test_dispatch.c -- dispatch and combine over ranks: every dispatcher, rows, bytes, plans. */
#include "dispatchlab.h"

static void agrees_with_one_rank(void)
{
    static const struct { int world, ep, etp, per_node, domain; } at[] = {
        { 2, 2, 1, 0, 0 }, { 4, 4, 1, 0, 0 }, { 4, 4, 1, 2, 0 }, { 4, 4, 1, 1, 0 },  { 4, 2, 2, 2, 0 },
        { 4, 2, 2, 0, 1 }, { 8, 8, 1, 4, 0 }, { 8, 8, 1, 2, 0 }, { 8, 4, 1, 2, 0 },  { 8, 4, 2, 4, 0 },
        { 8, 2, 2, 0, 2 }, { 8, 4, 2, 2, 0 }, { 8, 8, 1, 8, 4 }, { 16, 8, 2, 4, 0 }, { 4, 1, 2, 2, 0 },
        { 4, 1, 4, 2, 0 },
    };
    for (size_t j = 0; j < sizeof at / sizeof *at; j++)
        for (int i = 0; i < DISPATCHER_COUNT; i++) {
            Case k = base(i);
            k.world = at[j].world, k.ep = at[j].ep, k.etp = at[j].etp;
            k.per_node = at[j].per_node, k.domain = at[j].domain;
            check(k, 2e-6);
        }
}

static void skewed_routing(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 0; j < 8; j++) {
            Case k = base(i);
            k.skew = j % 4 < 2 ? ONE : NONE, k.uneven = j & 1, k.per_node = j & 4 ? 2 : 0;
            k.K = k.skew == ONE ? 1 + j : 4;
            if (k.K > MAX_K) k.K = MAX_K;
            check(k, 2e-6);
        }
}

/* A rank with no tokens, on every layout of two levels. */
static void uneven_ranks(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 0; j < 4; j++) {
            Case k = base(i);
            k.world = 8, k.ep = j & 1 ? 4 : 8, k.etp = j & 1 ? 2 : 1, k.per_node = j & 2 ? 4 : 2,
            k.uneven = true;
            k.chunk = 5;
            check(k, 2e-6);
        }
}

static void capacity_drops(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 0; j < 8; j++) {
            Case k = base(i);
            k.capacity = j & 1 ? 1.0 : 0.4, k.pad = j & 2 && dispatcher_rows[i].pads,
            k.skew     = j & 4 ? ONE : NATURAL;
            k.per_node = 2, k.uneven = j == 5;
            check(k, 2e-6);
        }
}

static void recompute_changes_nothing(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++) {
        Case k = base(i), again;
        k.per_node = 2, again = k, again.drop = true;
        Result *a = run(k), *b = run(again);
        bool same = all_well(&k, a) && all_well(&again, b);
        for (int r = 0; r < k.world && same; r++)
            same = !memcmp(a[r].dx, b[r].dx, sizeof a[r].dx) && !memcmp(a[r].gu, b[r].gu, sizeof a[r].gu) &&
                   !memcmp(a[r].down, b[r].down, sizeof a[r].down) &&
                   !memcmp(a[r].router, b[r].router, sizeof a[r].router);
        EXPECT(same, "%s", say(&k));
        int64_t asked = 0;
        for (int r = 0; r < k.world; r++)
            asked += b[r].after.comm[GR_etp_ep].calls - a[r].after.comm[GR_etp_ep].calls;
        EXPECT(!dispatcher_rows[i].two_level || asked == 0, "%s: recompute made %lld calls to the group",
               say(&k), (long long)asked);
        free(a), free(b);
    }
}

static void same_bits_every_time(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 0; j < 2; j++) {
            Case k = base(i);
            k.world = 8, k.ep = 4, k.etp = 2, k.per_node = 4, k.dtype = j ? BF16 : F32;
            Result *a = run(k), *b = run(k);
            bool same = all_well(&k, a) && all_well(&k, b);
            for (int r = 0; r < k.world && same; r++)
                same = !memcmp(a[r].y, b[r].y, sizeof a[r].y) && !memcmp(a[r].dx, b[r].dx, sizeof a[r].dx) &&
                       !memcmp(a[r].gu, b[r].gu, sizeof a[r].gu) &&
                       !memcmp(a[r].down, b[r].down, sizeof a[r].down);
            EXPECT(same, "%s", say(&k));
            free(a), free(b);
        }
}

/* With every dispatcher the experts get the same rows in the same order. */
static void every_dispatcher_delivers_the_same_rows(void)
{
    for (int j = 0; j < 3; j++) {
        Result *o[DISPATCHER_COUNT];
        Case k[DISPATCHER_COUNT];
        for (int i = 0; i < DISPATCHER_COUNT; i++) {
            k[i] = base(i), k[i].world = k[i].ep = 8, k[i].per_node = 4, k[i].uneven = j == 1, k[i].chunk = 4;
            k[i].dtype = j == 2 ? BF16 : F32;
            o[i] = run(k[i]);
        }
        for (int i = 1; i < DISPATCHER_COUNT; i++)
            for (int r = 0; r < k[i].world && all_well(&k[i], o[i]); r++)
                EXPECT(o[i][r].R == o[0][r].R && !memcmp(o[i][r].rows, o[0][r].rows, sizeof o[0][r].rows),
                       "%s: rank %d", say(&k[i]), r);
        for (int i = 0; i < DISPATCHER_COUNT; i++) free(o[i]);
    }
}

/* Results that are read where the experts have written them are summed in the order of alltoall. */
static void peer_has_the_bits_of_alltoall(void)
{
    for (int j = 0; j < 4; j++) {
        Case k = base(DISPATCHER_alltoall), q = base(DISPATCHER_peer);
        k.world = 8, k.ep = j & 1 ? 8 : 4, k.etp = j & 1 ? 1 : 2, k.K = MAX_K, k.dtype = j & 2 ? BF16 : F32;
        q.world = 8, q.ep = k.ep, q.etp = k.etp, q.K = k.K, q.dtype = k.dtype;
        Result *a = run(k), *b = run(q);
        bool same = all_well(&k, a) && all_well(&q, b);
        for (int r = 0; r < k.world && same; r++)
            same = !memcmp(a[r].y, b[r].y, sizeof a[r].y) && !memcmp(a[r].dx, b[r].dx, sizeof a[r].dx) &&
                   !memcmp(a[r].router, b[r].router, sizeof a[r].router);
        EXPECT(same, "%s", say(&q));
        free(a), free(b);
    }
}

static void half_precision(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++) {
        Case k = base(i);
        k.world = 8, k.ep = 4, k.etp = 2, k.per_node = 4, k.dtype = BF16;
        check(k, 3e-2);
    }
}

/* Tokens of `from` that have an expert on node g. */
static int64_t wanted(const Case *k, const Result *from, int g)
{
    int64_t n = 0;
    for (int64_t t = 0; t < from->T; t++) {
        bool hit = false;
        for (int64_t s = 0; s < k->K; s++)
            for (int x = 0; x < k->etp; x++)
                hit |= (from->idx[t * k->K + s] / (E / k->ep) * k->etp + x) / k->per_node == g;
        n += hit;
    }
    return n;
}

/* Bytes between domains: each token once per domain that has an expert of it, with its tag, and one row back;
 * where the members of a domain know no counts of others, also the counts of this hop. */
static void each_token_once_per_node(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 0; dispatcher_rows[i].two_level && j < 3; j++) {
            Case k = base(i);
            k.world = 16, k.per_node = j == 2 ? 2 : 4, k.ep = j ? 8 : 16, k.etp = j ? 2 : 1, k.K = MAX_K;
            int64_t nodes = k.world / k.per_node, counts = (nodes - 1) * (nodes + 1) * 4;
            Result *o = run(k);
            for (int r = 0; r < k.world && all_well(&k, o); r++) {
                int64_t there = 0, back = 0;
                for (int g = 0; g < k.world / k.per_node; g++) {
                    if (g == r / k.per_node) continue;
                    there += wanted(&k, &o[r], g);
                    back  += wanted(&k, &o[g * k.per_node + r % k.per_node], r / k.per_node);
                }
                const LedgerComm *inter_node = &o[r].forward.comm[GR_ep_inter_node];
                EXPECT(inter_node->inter_node == there * (D * 4 + 2 * k.K * 4) + back * D * 4 +
                                                 (dispatcher_rows[i].maps ? counts : 0) &&
                           inter_node->intra_node == 0,
                       "%s: rank %d sent %lld bytes for %lld tokens, back %lld", say(&k), r,
                       (long long)inter_node->inter_node, (long long)there, (long long)back);
                EXPECT(o[r].forward.comm[GR_ep_intra_node].inter_node == 0, "%s: rank %d left its node",
                       say(&k), r);
            }
            free(o);
        }
}

/* Assignments of `from` to the experts of member `to`. */
static int64_t slots(const Case *k, const Result *from, int to)
{
    int64_t n = 0;
    for (int64_t i = 0; i < from->T * k->K; i++) n += from->idx[i] / (E / k->ep) == to / k->etp;
    return n;
}

/* alltoall: every assignment to every ETP part of its expert, with a gate, and a row back; and the counts. */
static void each_slot_once(void)
{
    for (int j = 0; j < 2; j++) {
        Case k = base(0);
        k.world = 8, k.per_node = 4, k.ep = j ? 4 : 8, k.etp = j ? 2 : 1;
        Result *o = run(k);
        for (int r = 0; r < k.world && all_well(&k, o); r++) {
            int64_t want[2] = { 0 };                                         /* intra-node, inter-node */
            for (int i = 0; i < k.world; i++)
                if (i != r)
                    want[i / k.per_node != r / k.per_node] +=
                        slots(&k, &o[r], i) * (D * 4 + 4) + slots(&k, &o[i], r) * D * 4 + E * 4;
            const LedgerComm *l = &o[r].forward.comm[GR_etp_ep];
            EXPECT(l->intra_node == want[0] && l->inter_node == want[1],
                   "%s: rank %d sent %lld + %lld bytes, not %lld + %lld", say(&k), r,
                   (long long)l->intra_node, (long long)l->inter_node, (long long)want[0],
                   (long long)want[1]);
        }
        free(o);
    }
}

/* Random cases; TREB_SEED repeats one. */
static void random_cases(void)
{
    const char *text = getenv("TREB_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL), at = 0;
    for (int i = 0; i < 16; i++) {
#define DRAW(n) ((int)rng_below(seed, (uint64_t)i, at++, (uint64_t)(n)))
        Case k = base(DRAW(DISPATCHER_COUNT));
        int  group = 2 << DRAW(3);
        k.etp = 1 << DRAW(2), k.ep = group / k.etp, k.world = group * (group < 8 && DRAW(2) ? 2 : 1);
        k.domain = DRAW(2) ? 1 << DRAW(group > 4 ? 3 : 2) : 0, k.per_node = DRAW(2) ? 1 << DRAW(4) : 0;
        k.K = 1 + DRAW(MAX_K), k.skew = (Skew)DRAW(HOT), k.uneven = DRAW(2), k.chunk = 2 + DRAW(MAX_T);
        k.capacity = DRAW(3) ? 0 : 0.3 + DRAW(4), k.drop = DRAW(2), k.dtype = DRAW(4) ? F32 : BF16;
        k.pad = k.capacity > 0 && dispatcher_rows[dispatcher_find(k.name)].pads && !k.uneven && DRAW(2);
#undef DRAW
        check(k, k.dtype == F32 ? 4e-6 : 4e-2);
        if (lab_.bad) {
            printf("    case %d of TREB_SEED=%llu\n", i, (unsigned long long)seed);
            return;
        }
    }
}

static void forced_balance_is_even(void)
{
    Case k = base(0);
    k.skew = ONE, k.balance = true;
    Result *o = run(k);
    for (int r = 0; r < k.world && all_well(&k, o); r++)
        EXPECT(o[r].R > MAX_T * k.K / 2 && o[r].R < MAX_T * k.K * 3 / 2, "rank %d has %lld rows", r,
               (long long)o[r].R);
    free(o);
}

static void says_why_not(void)
{
    Comm *world;
    Mesh  mesh;
    Dispatcher d;
    Case  k = base(0);
    EXPECT_OK(comm_open(&world, &(CommConf){ .kind = "fake", .size = 4 }));
    EXPECT_OK(mesh_open(&mesh, world, &(MeshLayout){ .ep = 4 }));
    DispatchConf c = conf_of(&k);
    c.name = "pigeon";
    EXPECT_FAIL(dispatch_open(&d, &mesh, &c), E_CONFIG, "alltoall");
    c = conf_of(&k), c.shape.E = 6;
    EXPECT_FAIL(dispatch_open(&d, &mesh, &c), E_CONFIG, "6 experts");
    c = conf_of(&k), c.shape.pad = true;
    EXPECT_FAIL(dispatch_open(&d, &mesh, &c), E_CONFIG, "capacity_factor");
    c.name = "deepep", c.shape.capacity = 1;
    EXPECT_FAIL(dispatch_open(&d, &mesh, &c), E_CONFIG, "hybridep");
    c = conf_of(&k), c.rank_capacity = 0.5;
    EXPECT_FAIL(dispatch_open(&d, &mesh, &c), E_CONFIG, "rank_capacity");
    c.shape.T = 1, c.rank_capacity = 1.5;
    EXPECT_FAIL(dispatch_open(&d, &mesh, &c), E_CONFIG, "set 4 or more");
    c = conf_of(&k), c.name = "hybridep", c.chunk = 1;
    EXPECT_FAIL(dispatch_open(&d, &mesh, &c), E_CONFIG, "set 2 or more");
    mesh_close(&mesh);
    EXPECT_OK(mesh_open(&mesh, world, &(MeshLayout){ .ep = 2, .etp = 2, .domain = 1 }));
    c = conf_of(&k), c.name = "deepep_peer";
    EXPECT_FAIL(dispatch_open(&d, &mesh, &c), E_CONFIG, "parts of an expert");
    mesh_close(&mesh);
    EXPECT_OK(mesh_open(&mesh, world, &(MeshLayout){ .ep = 1 }));
    c = conf_of(&k);
    EXPECT_FAIL(dispatch_open(&d, &mesh, &c), E_CONFIG, "local");
    dispatch_close(&d);
    mesh_close(&mesh);
    comm_close(world);
}

/* auto by topology, backend and settings, with the reason. */
static void auto_picks(void)
{
    static const struct { bool gpu, overlap, pad; int node; const char *unmapped, *name, *why; } rows[] = {
        { false, false, false, 0, "", "alltoall", "CPU" },
        { true, false, false, 0, "", "peer", "share a node" },
        { true, false, false, 2, "", "deepep_peer", "several nodes, those of a node map" },
        { true, true, false, 2, "", "deepep_peer", "several nodes" },
        { true, true, false, 0, "", "alltoall", "moe.overlap" },
        { true, false, true, 0, "", "alltoall", "pad_to_capacity" },
        { true, false, false, 0, "no IPC here", "alltoall", "share a node; no IPC here" },
        { true, false, false, 2, "no IPC here", "deepep", "several nodes; no IPC here" },
        { true, false, false, 1, "", "deepep", "a node has one of them" },
        { false, false, false, 2, "", "deepep", "several nodes; on CPUs" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Comm *world;
        Mesh  mesh;
        Dispatcher d;
        Case  k = base(0);
        EXPECT_OK(comm_open(&world, &(CommConf){ .kind = "fake", .size = 4, .per_node = rows[i].node }));
        EXPECT_OK(mesh_open(&mesh, world, &(MeshLayout){ .ep = 4 }));
        k.pad = rows[i].pad, k.capacity = k.pad, k.overlap = rows[i].overlap;
        DispatchConf c = conf_of(&k);
        c.name = "auto", c.on_gpu = rows[i].gpu;
        snprintf(c.unmapped, sizeof c.unmapped, "%s", rows[i].unmapped);
        EXPECT_OK(dispatch_open(&d, &mesh, &c));
        EXPECT(d.automatic && !strcmp(d.row->name, rows[i].name) && strstr(d.why, rows[i].why),
               "%zu: %s because %s", i, d.row->name, d.why);
        dispatch_close(&d);
        mesh_close(&mesh);
        comm_close(world);
    }
}

static void plans_are_kept_to_the_byte(void)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        for (int j = 0; j < 8; j++) {
            Case k = base(i);
            Ledger ledger;
            size_t act, scratch;
            k.world = 8, k.ep = j & 1 ? 4 : 8, k.etp = j & 1 ? 2 : 1, k.per_node = j & 2 ? 4 : 0,
            k.drop = j & 4;
            if (j == 3) k.rank_capacity = 4;
            if (j == 5 && dispatcher_rows[i].pads) k.capacity = 1.5, k.pad = true;
            Result *o = run(k);
            all_well(&k, o);
            for (int r = 0; r < k.world; r += 3) {
                plan(&k, r, &act, &scratch, &ledger);
                EXPECT(act == o[r].act && scratch == o[r].scratch,
                       "%s: rank %d: planned %zu + %zu, used %zu + %zu", say(&k), r, act, scratch, o[r].act,
                       o[r].scratch);
            }
            double want = 18.0 * (double)(MAX_T * k.K) * D * F;     /* three products of an even share */
            double got = ledger.op[OP_grouped_gemm].flops + ledger.op[OP_grouped_swiglu].flops +
                         ledger.op[OP_grouped_dswiglu].flops;
            EXPECT(k.pad || got == want, "%s: %g FLOPs planned, an even share is %g", say(&k), got, want);
            free(o);
        }
}

int main(void)
{
    RUN(agrees_with_one_rank);
    RUN(skewed_routing);
    RUN(uneven_ranks);
    RUN(capacity_drops);
    RUN(recompute_changes_nothing);
    RUN(same_bits_every_time);
    RUN(every_dispatcher_delivers_the_same_rows);
    RUN(peer_has_the_bits_of_alltoall);
    RUN(half_precision);
    RUN(each_token_once_per_node);
    RUN(each_slot_once);
    RUN(random_cases);
    RUN(forced_balance_is_even);
    RUN(says_why_not);
    RUN(auto_picks);
    RUN(plans_are_kept_to_the_byte);
    return lab_report();
}
