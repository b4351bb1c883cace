/* comm/communicators.c -- see communicators.h. The bytes are what users of NCCL report on GPUs with NVLink,
 * not measurements of ours: buffers of a ring and trees for collectives (NVIDIA/nccl issue 964: 544 MB for
 * two members, 688 MB for more), and for exchanges a set of channels to every peer (issue 1685: 3.3 GB for
 * seven peers at 32 channels; ours have half as many). */
#include "comm/communicators.h"

#include <stdlib.h>
#include <string.h>

static const double MB = 1e6, TWO = 544, MORE = 688, PEER = 235, LINK = 64;

static bool has_collectives(GroupTraffic t) { return t == TRAFFIC_STATES || t == TRAFFIC_LAYERS; }
static bool has_exchanges(GroupTraffic t)   { return t == TRAFFIC_EXPERTS || t == TRAFFIC_LAYERS; }

/* Whether an earlier group has the same members and traffic. */
static bool is_shared(const Mesh *m, GroupId g, const int *ranks, int n, int *other)
{
    for (int e = 0; e < (int)g; e++)
        if (group_traffic((GroupId)e) == group_traffic(g) && mesh_group(m, (GroupId)e, other) == n &&
            !memcmp(ranks, other, (size_t)n * sizeof *ranks)) return true;
    return false;
}

static int peers_on_node(const Mesh *m, const int *ranks, int n, int per_node)
{
    int peers = 0;
    for (int i = 0; i < n; i++) peers += ranks[i] != m->rank && ranks[i] / per_node == m->rank / per_node;
    return peers;
}

static void add_group(Communicators *c, const Mesh *m, GroupTraffic t, const int *ranks, int n, int per_node)
{
    if (t == TRAFFIC_LINKS) {
        c->links += 2, c->bytes += 2 * LINK * MB;
        return;
    }
    int peers = has_exchanges(t) ? peers_on_node(m, ranks, n, per_node) : 0;
    c->groups++, c->peers += peers;
    if (has_collectives(t)) c->bytes += (n == 2 ? TWO : MORE) * MB;
    c->bytes += peers * PEER * MB;
}

Communicators communicators_of(const Mesh *m, int per_node)
{
    Communicators c = { 0 };
    size_t bytes = (size_t)m->world * sizeof(int);
    int   *ranks = malloc(bytes), *other = malloc(bytes);
    for (int g = 0; g < GR_N && ranks && other; g++) {
        GroupTraffic t = group_traffic((GroupId)g);
        int n = mesh_group(m, (GroupId)g, ranks);
        if (n == 1 || t == TRAFFIC_HOST) continue;
        if (t == TRAFFIC_LINKS || !is_shared(m, (GroupId)g, ranks, n, other))
            add_group(&c, m, t, ranks, n, per_node > 0 ? per_node : m->world);
    }
    free(ranks), free(other);
    return c;
}
