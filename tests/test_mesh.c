/* tests/test_mesh.c -- ranks and groups: worked examples, and random layouts whose groups are partitions. */
#include "comm/communicators.h"
#include "commlab.h"

enum { MOST = 64 };

/* All groups of a row as "[0,1][2,3]", in the order of their first members. */
static const char *groups(int world, MeshLayout l, GroupId g)
{
    static char text[4096];
    int ranks[MOST], at = 0;
    text[0] = 0;
    for (int r = 0; r < world; r++) {
        Mesh m;
        mesh_place(&m, r, world, &l);
        int n = mesh_group(&m, g, ranks);
        if (ranks[0] != r) continue;
        for (int i = 0; i < n; i++)
            at += snprintf(text + at, sizeof text - (size_t)at, "%c%d", i ? ',' : '[', ranks[i]);
        at += snprintf(text + at, sizeof text - (size_t)at, "]");
    }
    return text;
}

#define IS(world, l, g, want) do {                                                                \
        const char *got_ = groups(world, l, g);                                                   \
        EXPECT(!strcmp(got_, want), "%s: %s, want %s", group_name(g), got_, want);                \
    } while (0)
#define ALL8   "[0,1,2,3,4,5,6,7]"
#define ALONE8 "[0][1][2][3][4][5][6][7]"
#define PAIRS8 "[0,1][2,3][4,5][6,7]"

static void example_a(void)
{
    MeshLayout l = { .tp = 2, .cp = 2, .ep = 4 };
    IS(8, l, GR_tp, PAIRS8);
    IS(8, l, GR_cp, "[0,2][1,3][4,6][5,7]");
    IS(8, l, GR_dp, "[0,4][1,5][2,6][3,7]");
    IS(8, l, GR_dp_cp, "[0,2,4,6][1,3,5,7]");
    IS(8, l, GR_tp_cp, "[0,1,2,3][4,5,6,7]");
    IS(8, l, GR_ep, "[0,1,2,3][4,5,6,7]");
    IS(8, l, GR_etp, ALONE8);
    IS(8, l, GR_edp, "[0,4][1,5][2,6][3,7]");
    IS(8, l, GR_etp_ep, "[0,1,2,3][4,5,6,7]");
    IS(8, l, GR_tp_dp_cp, ALL8);
    IS(8, l, GR_world, ALL8);
}

static void example_b(void)
{
    MeshLayout l = { .tp = 2, .pp = 2, .ep = 4 };
    IS(16, l, GR_tp, "[0,1][2,3][4,5][6,7][8,9][10,11][12,13][14,15]");
    IS(16, l, GR_dp, "[0,2,4,6][1,3,5,7][8,10,12,14][9,11,13,15]");
    IS(16, l, GR_pp, "[0,8][1,9][2,10][3,11][4,12][5,13][6,14][7,15]");
    IS(16, l, GR_embd, "[0,8][1,9][2,10][3,11][4,12][5,13][6,14][7,15]");
    IS(16, l, GR_ep, "[0,1,2,3][4,5,6,7][8,9,10,11][12,13,14,15]");
    IS(16, l, GR_edp, "[0,4][1,5][2,6][3,7][8,12][9,13][10,14][11,15]");
}

static void example_c(void)
{
    MeshLayout l = { .tp = 2, .cp = 2, .pp = 2, .etp = 2, .ep = 4 };
    IS(16, l, GR_etp, "[0,1][2,3][4,5][6,7][8,9][10,11][12,13][14,15]");
    IS(16, l, GR_ep, "[0,2,4,6][1,3,5,7][8,10,12,14][9,11,13,15]");
    IS(16, l, GR_etp_ep, "[0,1,2,3,4,5,6,7][8,9,10,11,12,13,14,15]");
    IS(16, l, GR_edp, "[0][1][2][3][4][5][6][7][8][9][10][11][12][13][14][15]");
    IS(16, l, GR_cp, "[0,2][1,3][4,6][5,7][8,10][9,11][12,14][13,15]");
    IS(16, l, GR_dp, "[0,4][1,5][2,6][3,7][8,12][9,13][10,14][11,15]");
    IS(16, l, GR_dp_cp, "[0,2,4,6][1,3,5,7][8,10,12,14][9,11,13,15]");
}

/* Groups of what ETP does not cut and of what it cuts; with ETP = 1 each rank is alone in them. */
static void groups_of_adapters(void)
{
    MeshLayout l = { .ep = 2, .etp = 2 };
    IS(8, l, GR_etp_edp, "[0,1,4,5][2,3,6,7]");
    IS(8, l, GR_ep_edp, "[0,2,4,6][1,3,5,7]");
    l.replicas = 2;
    IS(8, l, GR_shard_etp_edp, PAIRS8);
    IS(8, l, GR_copy_etp_edp, "[0,4][1,5][2,6][3,7]");
    IS(8, l, GR_shard_ep_edp, "[0,2][1,3][4,6][5,7]");
    MeshLayout plain = { .tp = 2, .ep = 4 };
    IS(8, plain, GR_etp_edp, ALONE8);
    IS(8, plain, GR_ep_edp, ALONE8);
    IS(8, plain, GR_shard_ep_edp, ALONE8);
}

static void example_d(void)
{
    MeshLayout l = { .tp = 2, .ep = 8 };
    IS(8, l, GR_ep, ALL8);
    IS(8, l, GR_edp, ALONE8);
    IS(8, l, GR_dp_cp, "[0,2,4,6][1,3,5,7]");
}

static void parts_of_groups(void)
{
    MeshLayout l = { .cp = 4, .ep = 2, .replicas = 2, .cp_inner = 2 };
    IS(8, l, GR_shard_dp_cp, "[0,1,2,3][4,5,6,7]");
    IS(8, l, GR_copy_dp_cp, "[0,4][1,5][2,6][3,7]");
    IS(8, l, GR_shard_edp, "[0,2][1,3][4,6][5,7]");
    IS(8, l, GR_copy_edp, "[0,4][1,5][2,6][3,7]");
    IS(8, l, GR_cp_inner, PAIRS8);
    IS(8, l, GR_cp_outer, "[0,2][1,3][4,6][5,7]");
    MeshLayout kv = { .tp = 8, .kv_heads = 2, .ep = 8, .domain = 4 };
    IS(8, kv, GR_kv, "[0,1,2,3][4,5,6,7]");
    IS(8, kv, GR_ep_intra_node, "[0,1,2,3][4,5,6,7]");
    IS(8, kv, GR_ep_inter_node, "[0,4][1,5][2,6][3,7]");
    MeshLayout many = { .tp = 2, .kv_heads = 4 };
    IS(8, many, GR_kv, ALONE8);
    MeshLayout deep = { .pp = 4, .tp = 2 };
    IS(8, deep, GR_embd, "[0,6][1,7][2][3][4][5]");
    MeshLayout flat = { .tp = 8 };
    IS(8, flat, GR_embd, ALONE8);
    IS(8, flat, GR_cp_outer, ALONE8);
    IS(8, flat, GR_shard_tp_dp_cp, ALL8);
}

/* A random divisor of n. */
static int drawn(int n, uint64_t *index)
{
    int d;
    do d = 1 + (int)rng_below(5, rng_stream("mesh"), (*index)++, (uint64_t)n);
    while (n % d);
    return d;
}

static MeshLayout random_layout(int *world, uint64_t *index)
{
    MeshLayout l = { .pp = 1 + (int)rng_below(5, 1, (*index)++, 4) };
    int stage = 1 + (int)rng_below(5, 2, (*index)++, (uint64_t)(MOST / l.pp));
    *world = stage * l.pp;
    l.tp = drawn(stage, index), l.cp = drawn(stage / l.tp, index);
    l.etp = drawn(stage, index), l.ep = drawn(stage / l.etp, index);
    l.cp_inner = drawn(l.cp, index), l.domain = drawn(l.etp * l.ep, index), l.kv_heads = drawn(l.tp, index);
    int dp_cp = stage / l.tp, edp = stage / (l.etp * l.ep);
    do l.replicas = drawn(dp_cp, index);
    while (edp % l.replicas);
    return l;
}

/* Each rank's list contains it, all members have the same list, and so the lists cover the world once. */
static void expect_partition(int world, MeshLayout l, GroupId g)
{
    static int list[MOST][MOST], size[MOST];
    for (int r = 0; r < world; r++) {
        Mesh m;
        mesh_place(&m, r, world, &l);
        size[r] = mesh_group(&m, g, list[r]);
    }
    for (int r = 0; r < world; r++) {
        bool in = false;
        for (int i = 0; i < size[r]; i++) {
            int other = list[r][i];
            in |= other == r;
            EXPECT(size[other] == size[r] && !memcmp(list[other], list[r], sizeof(int) * (size_t)size[r]),
                   "%s: ranks %d and %d of %d disagree", group_name(g), r, other, world);
        }
        EXPECT(in, "%s: rank %d of %d is not in its own group", group_name(g), r, world);
    }
}

static void groups_partition_the_world(void)
{
    uint64_t index = 0;
    for (int k = 0; k < 300 && !lab_.bad; k++) {
        int world;
        MeshLayout l = random_layout(&world, &index);
        for (int g = 0; g < GR_N; g++) expect_partition(world, l, (GroupId)g);
        if (lab_.bad)
            printf("    world %d tp %d cp %d pp %d etp %d ep %d replicas %d\n", world, l.tp, l.cp, l.pp,
                   l.etp, l.ep, l.replicas);
    }
}

/* The coordinates of both meshes give the rank, and ranks with equal expert coordinates but for pp are a pp
 * group of the attention mesh too. */
static void both_meshes_share_the_pipeline(void)
{
    uint64_t index = 1000;
    for (int k = 0; k < 300; k++) {
        int world, ranks[MOST];
        MeshLayout l = random_layout(&world, &index);
        for (int r = 0; r < world; r++) {
            Mesh m;
            mesh_place(&m, r, world, &l);
            const int *s = m.size, *at = m.at;
            int a = at[AX_TP] + s[AX_TP] * (at[AX_CP] + s[AX_CP] * (at[AX_DP] + s[AX_DP] * at[AX_PP]));
            int e = at[AX_ETP] + s[AX_ETP] * (at[AX_EP] + s[AX_EP] * (at[AX_EDP] + s[AX_EDP] * at[AX_PP]));
            EXPECT(a == r && e == r, "rank %d: %d %d", r, a, e);
            int n = mesh_group(&m, GR_pp, ranks);
            EXPECT(n == l.pp, "%d stages of %d", n, l.pp);
            for (int p = 0; p < n; p++) {
                int want = at[AX_ETP] + s[AX_ETP] * (at[AX_EP] + s[AX_EP] * (at[AX_EDP] + s[AX_EDP] * p));
                EXPECT(ranks[p] == want, "stage %d: %d, experts say %d", p, ranks[p], want);
            }
        }
    }
}

static void printed(void)
{
    char *text = NULL;
    size_t len;
    Mesh m;
    MeshLayout l = { .tp = 2, .pp = 2, .ep = 4 };
    mesh_place(&m, 5, 16, &l);
    FILE *f = open_memstream(&text, &len);
    mesh_print(f, &m);
    fclose(f);
    EXPECT(strstr(text, "16 ranks: pp 2 x (attention tp 2 x cp 1 x dp 4 = experts etp 1 x ep 4 x edp 2)"),
           "%s", text);
    EXPECT(strstr(text, "rank 5 is tp 1 cp 0 dp 2 pp 0; etp 0 ep 1 edp 1"), "%s", text);
    EXPECT(strstr(text, "tokens to experts") && strstr(text, "4-7"), "%s", text);
    EXPECT(!strstr(text, "parts of an expert"), "a group of one is not listed:\n%s", text);
    free(text);
}

/* Eight ranks on two nodes: communicators have the members of the lists, in that order. */
static void opened_rank(Peer *p)
{
    Mesh m = { 0 };
    MeshLayout l = { .tp = 2, .cp = 2, .ep = 8, .kv_heads = 1, .cp_inner = 2 };
    int ranks[8];
    EXPECT_OK(mesh_open(&m, p->world, &l));
    EXPECT(m.layout.domain == 4 && m.borrowed, "four of a node are a domain: %d", m.layout.domain);
    mesh_bind(&m, &p->be);
    for (int g = 0; g < GR_N; g++) {
        Comm *c = m.comm[g];
        int n = mesh_group(&m, (GroupId)g, ranks);
        double sum = p->rank, want = 0;
        for (int i = 0; i < n; i++) want += ranks[i];
        EXPECT(c && c->size == n && ranks[c->rank] == p->rank, "%s", group_name((GroupId)g));
        comm_host_sum(c, &sum, 1);
        EXPECT(sum == want, "%s: %g, want %g", group_name((GroupId)g), sum, want);
    }
    mesh_close(&m);
    mesh_close(&m);
}

static void opened(void) { on_ranks(8, 4, opened_rank); }

/* With nodes of different sizes the domain divides every run of consecutive ranks on one node. */
static void uneven_rank(Peer *p)
{
    Mesh m = { 0 };
    char *text = NULL;
    size_t len;
    EXPECT_OK(mesh_open(&m, p->world, &(MeshLayout){ .ep = 6 }));           /* nodes 0 0 0 0 1 1 */
    EXPECT(m.layout.domain == 2, "runs of 4 and 2: %d", m.layout.domain);
    FILE *f = open_memstream(&text, &len);
    mesh_print(f, &m);
    fclose(f);
    EXPECT(strstr(text, "over 2 nodes") && strstr(text, "in a node"), "%s", text);
    free(text);
    mesh_close(&m);
}

static void uneven_nodes(void) { on_ranks(6, 4, uneven_rank); }

static Communicators counted(int world, MeshLayout layout)
{
    Mesh m;
    mesh_place(&m, 0, world, &layout);
    return communicators_of(&m, 8);
}

/* Equal groups share a communicator if their traffic is the same; every link of a pipeline has its own. */
static void communicators(void)
{
    Communicators one = counted(1, (MeshLayout){ 0 }), dp = counted(8, (MeshLayout){ 0 });
    Communicators ep = counted(16, (MeshLayout){ .ep = 16, .domain = 8 });
    Communicators pp = counted(4, (MeshLayout){ .pp = 4 });
    EXPECT(!one.groups && !one.links && one.bytes == 0, "one rank: %d", one.groups);
    EXPECT(dp.groups == 1 && !dp.peers && dp.bytes > 0, "dp 8: %d groups, %d peers", dp.groups, dp.peers);
    EXPECT(ep.groups == 4 && ep.peers == 14, "ep 16 on two nodes: %d groups, %d peers", ep.groups,
           ep.peers);
    EXPECT(pp.links == 4 && pp.groups == 2 && !pp.peers, "pp 4: %d links, %d groups", pp.links, pp.groups);
}

int main(void)
{
    RUN(example_a);
    RUN(example_b);
    RUN(example_c);
    RUN(example_d);
    RUN(groups_of_adapters);
    RUN(parts_of_groups);
    RUN(groups_partition_the_world);
    RUN(both_meshes_share_the_pipeline);
    RUN(printed);
    RUN(opened);
    RUN(uneven_nodes);
    RUN(communicators);
    return lab_report();
}
