/* comm/mesh.c -- coordinates, members of groups and their communicators; see mesh.h. parallel/rules.h decides
 * which degrees are legal. */
#include "comm/mesh.h"

#include <stdlib.h>
#include <string.h>

typedef enum { WHOLE, BLOCK, ACROSS, ENDS } GroupPart;

typedef struct GroupRow {
    const char  *name, *use;
    GroupPart    part;
    uint32_t     axes;
    GroupId      base;
    GroupTraffic traffic;
} GroupRow;

static const GroupRow rows[GR_N] = {
#define GROUP(name, axes, traffic, use) \
    [GR_##name] = { #name, use, WHOLE, axes, GR_##name, TRAFFIC_##traffic },
#define PART(name, base, part, traffic, use) \
    [GR_##name] = { #name, use, part, 0, GR_##base, TRAFFIC_##traffic },
    GROUPS(GROUP)
    PARTS(PART)
#undef GROUP
#undef PART
    [GR_embd] = { "embd", "tied embeddings of the first and the last stage", ENDS, 0, GR_pp,
                  TRAFFIC_STATES },
};

const char *group_name(GroupId g) { return rows[g].name; }
const char *group_use(GroupId g)  { return rows[g].use; }

GroupTraffic group_traffic(GroupId g) { return rows[g].traffic; }

int group_direction(GroupId g) { return g == GR_pp_back ? -1 : 1; }

static int at_least_one(int n) { return n < 1 ? 1 : n; }

/* The axes of both meshes; the first one varies fastest with the rank. */
static const MeshAxis attention_axes[] = { AX_TP, AX_CP, AX_DP, AX_PP };
static const MeshAxis expert_axes[]    = { AX_ETP, AX_EP, AX_EDP, AX_PP };

static void coordinates(int *at, const Mesh *m, int rank, const MeshAxis *axes)
{
    for (int i = 0; i < 4; i++) {
        at[axes[i]] = rank % m->size[axes[i]];
        rank /= m->size[axes[i]];
    }
}

void mesh_place(Mesh *m, int rank, int world, const MeshLayout *layout)
{
    *m = (Mesh){ .rank = rank, .world = world, .layout = *layout };
    MeshLayout *l = &m->layout;
    int *degree[] = { &l->tp, &l->cp, &l->pp, &l->vpp, &l->ep, &l->etp, &l->replicas, &l->cp_inner };
    for (size_t i = 0; i < sizeof degree / sizeof *degree; i++) *degree[i] = at_least_one(*degree[i]);

    int stage = world / l->pp, dense = l->tp * l->cp, sparse = l->etp * l->ep;
    REQUIRE(stage * l->pp == world && stage % dense == 0 && stage % sparse == 0,
            "world %d, tp %d cp %d pp %d, etp %d ep %d", world, l->tp, l->cp, l->pp, l->etp, l->ep);
    if (l->domain < 1 || l->domain > sparse) l->domain = sparse;     /* mesh_open knows the nodes */
    m->size[AX_TP] = l->tp,   m->size[AX_CP] = l->cp, m->size[AX_DP]  = stage / dense;
    m->size[AX_ETP] = l->etp, m->size[AX_EP] = l->ep, m->size[AX_EDP] = stage / sparse;
    m->size[AX_PP] = l->pp;
    coordinates(m->at, m, rank, attention_axes);
    coordinates(m->at, m, rank, expert_axes);
}

/* Ranks whose coordinates differ from this rank's on these axes alone, ascending. */
static int whole_group(const Mesh *m, uint32_t mask, int *ranks)
{
    bool experts = mask != ~0u && mask & (AXIS(ETP) | AXIS(EP) | AXIS(EDP));
    const MeshAxis *axes = experts ? expert_axes : attention_axes;
    int n = 0, at[AX_N];
    for (int r = 0; r < m->world; r++) {
        bool same = true;
        coordinates(at, m, r, axes);
        for (int i = 0; i < 4; i++) same &= mask >> axes[i] & 1 || at[axes[i]] == m->at[axes[i]];
        if (same) ranks[n++] = r;
    }
    return n;
}

/* Members of a block, for a group that is cut out of one of n members. */
static int block_size(const Mesh *m, GroupId g, int n)
{
    const MeshLayout *l = &m->layout;
    switch (g) {
    case GR_cp_inner: case GR_cp_outer: return l->cp_inner;
    case GR_ep_intra_node: case GR_ep_inter_node: return l->domain;
    case GR_kv:      return l->kv_heads > 0 && l->kv_heads < l->tp ? l->tp / l->kv_heads : 1;
    case GR_pp_back: return n;
    default:         return n / l->replicas;
    }
}

static int position_of(const int *ranks, int n, int rank)
{
    for (int i = 0; i < n; i++)
        if (ranks[i] == rank) return i;
    REQUIRE(false, "rank %d is not in its own group", rank);
    return 0;
}

/* Groups that equal another one while ETP is 1. */
static bool is_duplicate(const Mesh *m, GroupId base)
{
    return m->layout.etp == 1 && (base == GR_etp_edp || base == GR_ep_edp);
}

int mesh_group(const Mesh *m, GroupId g, int *ranks)
{
    const GroupRow *row = &rows[g];
    if (is_duplicate(m, row->base)) return ranks[0] = m->rank, 1;
    int n = whole_group(m, rows[row->base].axes, ranks), me = position_of(ranks, n, m->rank);
    if (row->part == WHOLE) return n;
    if (row->part == ENDS) {
        bool end = me == 0 || me == n - 1;
        ranks[0] = end ? ranks[0] : m->rank;
        if (!end || n == 1) return 1;
        ranks[1] = ranks[n - 1];
        return 2;
    }
    int block = block_size(m, g, n);
    REQUIRE(block > 0 && n % block == 0, "%s: blocks of %d in %s of %d", row->name, block,
            rows[row->base].name, n);
    if (row->part == BLOCK) {
        memmove(ranks, ranks + me - me % block, (size_t)block * sizeof *ranks);
        return block;
    }
    for (int i = 0; i < n / block; i++) ranks[i] = ranks[i * block + me % block];
    return n / block;
}

static int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }

/* The largest block that divides every run of consecutive members on one node, in every etp_ep group. All
 * ranks know all nodes, so they get the same number. */
static int node_domain(const Mesh *m, const int *node)
{
    int n = m->size[AX_ETP] * m->size[AX_EP], block = n;
    for (int from = 0; from < m->world; from += n)
        for (int i = 0, run = 0; i < n; i++) {
            run++;
            if (i + 1 < n && node[from + i + 1] == node[from + i]) continue;
            block = common_divisor(block, run);
            run = 0;
        }
    return block;
}

/* Every rank makes its group of every row, in the order of the rows: dp_cp is the first communicator. */
Status mesh_open(Mesh *m, Comm *world, const MeshLayout *layout)
{
    Status st = OK;
    mesh_place(m, world->rank, world->size, layout);
    if (layout->domain < 1) m->layout.domain = node_domain(m, world->node);
    m->comm[GR_world] = world;
    m->borrowed = true;
    int *ranks = malloc((size_t)world->size * sizeof *ranks);
    if (!ranks) return fail(E_FIT, "no host memory for the groups of %d ranks", world->size);
    for (int g = 0; g < GR_N && !st; g++) {
        if (g == GR_world) continue;
        int n = mesh_group(m, (GroupId)g, ranks);
        st = comm_group(world, ranks, n, g, &m->comm[g]);
        if (st) st = wrap(st, "group %s of rank %d", rows[g].name, m->rank);
    }
    free(ranks);
    if (st) mesh_close(m);
    return st;
}

void mesh_close(Mesh *m)
{
    for (int g = GR_N - 1; g >= 0; g--) {
        if (g != GR_world || !m->borrowed) comm_close(m->comm[g]);
        else if (m->comm[g] && m->bound)   comm_bind(m->comm[g], m->world_backend);
        m->comm[g] = NULL;
    }
    m->bound = false;
}

void mesh_bind(Mesh *m, Backend *be)
{
    if (!m->bound) m->world_backend = m->comm[GR_world]->be, m->bound = true;
    for (int g = 0; g < GR_N; g++) comm_bind(m->comm[g], be);
}

/* "0-7", "0 2 … 14", "3 5 8" */
static void put_ranks(FILE *out, const int *r, int n)
{
    bool even = n > 2;
    for (int i = 2; i < n; i++) even &= r[i] - r[i - 1] == r[1] - r[0];
    if (even && r[1] - r[0] == 1) {
        fprintf(out, "%d-%d", r[0], r[n - 1]);
        return;
    }
    for (int i = 0; i < n; i++) {
        if (n > 8 && i >= 3 && i < n - 1) {
            if (i == 3) fputs(" …", out);
            continue;
        }
        fprintf(out, i ? " %d" : "%d", r[i]);
    }
}

static int nodes_of(const int *node, const int *r, int n)
{
    int nodes = 0;
    for (int i = 0; i < n; i++) {
        bool seen = false;
        for (int k = 0; k < i && !seen; k++) seen = node[r[k]] == node[r[i]];
        nodes += !seen;
    }
    return nodes;
}

void mesh_print(FILE *out, const Mesh *m)
{
    const int *s = m->size, *at = m->at, *node = m->comm[GR_world] ? m->comm[GR_world]->node : NULL;
    int *ranks = malloc((size_t)m->world * sizeof *ranks);
    if (!ranks) return;
    fprintf(out, "%d rank%s: pp %d x (attention tp %d x cp %d x dp %d = experts etp %d x ep %d x edp %d)\n",
            m->world, m->world > 1 ? "s" : "", s[AX_PP], s[AX_TP], s[AX_CP], s[AX_DP], s[AX_ETP], s[AX_EP],
            s[AX_EDP]);
    fprintf(out, "rank %d is tp %d cp %d dp %d pp %d; etp %d ep %d edp %d\n", m->rank, at[AX_TP], at[AX_CP],
            at[AX_DP], at[AX_PP], at[AX_ETP], at[AX_EP], at[AX_EDP]);
    int width = node ? 15 : 0;                               /* the column is left out if nodes are unknown */
    if (m->world > 1)
        fprintf(out, "  %-14s %5s  %-*s%-48s %s\n", "group", "ranks", width, node ? "where" : "", "use",
                "members");
    for (int g = 0; g < GR_N; g++) {
        char where[24] = "";
        int n = mesh_group(m, (GroupId)g, ranks), nodes = node ? nodes_of(node, ranks, n) : 0;
        if (n == 1) continue;
        if (node) snprintf(where, sizeof where, nodes == 1 ? "within a node" : "over %d nodes", nodes);
        fprintf(out, "  %-14s %5d  %-*s%-48s ", rows[g].name, n, width, where, rows[g].use);
        put_ranks(out, ranks, n);
        putc('\n', out);
    }
    free(ranks);
}
