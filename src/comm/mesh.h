/* comm/mesh.h -- the ranks as two meshes, one for attention and one for experts, and the groups made of them.
 *
 *   attention   TP  x CP x DP  x PP       rank = t + TP  (c + CP (d + DP  p))
 *   experts     ETP x EP x EDP x PP       rank = x + ETP (e + EP (y + EDP p))
 *
 * TP CP DP = ETP EP EDP = world / PP. CP has no meaning for experts, whose tokens are independent of each
 * other, so its ranks are folded into EP and EDP. With ETP = 1 the groups etp_edp and ep_edp would equal edp
 * and tp_dp_cp; they are not made again, each rank is alone in them. */
#ifndef COMM_MESH_H
#define COMM_MESH_H

#include "comm/comm.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { AX_TP, AX_CP, AX_DP, AX_ETP, AX_EP, AX_EDP, AX_PP, AX_N } MeshAxis;

/* The traffic of a group. Groups of equal members and equal traffic may share a communicator; calls of
 * different traffic never wait for each other in one queue. */
typedef enum {
    TRAFFIC_HOST,                        /* no calls on tensors */
    TRAFFIC_LAYERS,                      /* inside a layer: the compute stream soon waits for them */
    TRAFFIC_EXPERTS,                     /* token dispatch: all_to_all alone */
    TRAFFIC_STATES,                      /* weights, gradients, counts: no all_to_all */
    TRAFFIC_LINKS                        /* send and recv between neighbours of a ring alone */
} GroupTraffic;

/* GROUP(name, axes, traffic, use). The axes belong to one of the two meshes. The first group is made first:
 * some fabrics reduce in the network for the first communicator alone. */
#define AXIS(a) (1u << AX_##a)
#define GROUPS(GROUP)                                                                              \
    GROUP(dp_cp,     AXIS(DP) | AXIS(CP),            STATES,  "gradients and shards of what TP cuts")   \
    GROUP(tp_dp_cp,  AXIS(TP) | AXIS(DP) | AXIS(CP), STATES,  "gradients and shards of what TP repeats") \
    GROUP(edp,       AXIS(EDP),                      STATES,  "gradients and shards of experts")        \
    GROUP(tp,        AXIS(TP),                       LAYERS,  "activations of a layer, cut by TP")      \
    GROUP(cp,        AXIS(CP),                       LAYERS,  "keys and values of a sequence")          \
    GROUP(dp,        AXIS(DP),                       STATES,  "counts and losses of a step")            \
    GROUP(tp_cp,     AXIS(TP) | AXIS(CP),            LAYERS,  "one micro-batch: router statistics, images") \
    GROUP(pp,        AXIS(PP),                       LINKS,   "activations from stage to stage")        \
    GROUP(ep,        AXIS(EP),                       HOST,    "tokens to experts")                      \
    GROUP(etp,       AXIS(ETP),                      HOST,    "parts of an expert")                     \
    GROUP(etp_ep,    AXIS(ETP) | AXIS(EP),           EXPERTS, "tokens to parts of experts")             \
    GROUP(etp_edp,   AXIS(ETP) | AXIS(EDP),          STATES,  "adapters of experts that ETP leaves whole") \
    GROUP(ep_edp,    AXIS(EP) | AXIS(EDP),           STATES,  "an adapter of all experts that ETP cuts") \
    GROUP(world,     ~0u,                            STATES,  "all ranks")

/* PART(name, base, part, traffic, use): groups that are a part of another, which is cut into blocks of
 * consecutive members (block_size in mesh.c). BLOCK is the block of this rank; ACROSS is one member of every
 * block, those with the same position in it. Blocks are the shards of a replica, the inner level of
 * hierarchical context parallelism, the ranks that share a kv head, an NVLink domain ("node";
 * moe.ranks_per_domain ranks), or all of pp, which so gets a second communicator. */
#define PARTS(PART)                                                                                \
    PART(shard_dp_cp,    dp_cp,    BLOCK,  STATES,  "shards of what TP cuts, inside a replica")         \
    PART(copy_dp_cp,     dp_cp,    ACROSS, STATES,  "the same shard in every replica")                  \
    PART(shard_tp_dp_cp, tp_dp_cp, BLOCK,  STATES,  "shards of what TP repeats, inside a replica")      \
    PART(copy_tp_dp_cp,  tp_dp_cp, ACROSS, STATES,  "the same shard in every replica")                  \
    PART(shard_edp,      edp,      BLOCK,  STATES,  "shards of experts, inside a replica")              \
    PART(copy_edp,       edp,      ACROSS, STATES,  "the same shard in every replica")                  \
    PART(shard_etp_edp,  etp_edp,  BLOCK,  STATES,  "shards of adapters that ETP leaves whole")         \
    PART(copy_etp_edp,   etp_edp,  ACROSS, STATES,  "the same shard in every replica")                  \
    PART(shard_ep_edp,   ep_edp,   BLOCK,  STATES,  "shards of an adapter that ETP cuts")               \
    PART(copy_ep_edp,    ep_edp,   ACROSS, STATES,  "the same shard in every replica")                  \
    PART(cp_inner,       cp,       BLOCK,  LAYERS,  "heads exchanged in the inner level of cp")         \
    PART(cp_outer,       cp,       ACROSS, LAYERS,  "keys and values in the outer level of cp")         \
    PART(kv,             tp,       BLOCK,  STATES,  "one kv head")                                      \
    PART(ep_intra_node,  etp_ep,   BLOCK,  EXPERTS, "tokens forwarded within an NVLink domain")         \
    PART(ep_inter_node,  etp_ep,   ACROSS, EXPERTS, "tokens sent to another NVLink domain")             \
    PART(pp_back,        pp,       BLOCK,  LINKS,   "gradients from stage to stage")

typedef enum {
#define GROUP(name, axes, traffic, use) GR_##name,
#define PART(name, base, part, traffic, use) GR_##name,
    GROUPS(GROUP)
    PARTS(PART)
#undef GROUP
#undef PART
    GR_embd,                             /* the two ends of a pipeline; ranks between them are alone */
    GR_N
} GroupId;

typedef struct MeshLayout {              /* degrees of a recipe; dp and edp follow from them; 0 means 1 */
    int tp, cp, pp, vpp, ep, etp;
    int replicas;                        /* copies of each shard (HSDP); 1: none but itself */
    int cp_inner;                         /* ranks of cp that exchange heads (hierarchical); 1: none */
    int kv_heads;                        /* of the model; fewer than tp are shared by consecutive ranks */
    int domain;                          /* ranks of etp_ep in an NVLink domain; 0: by host name */
} MeshLayout;

typedef struct Mesh {
    int    rank, world;
    MeshLayout layout;
    int    size[AX_N], at[AX_N];         /* degree of each axis; this rank's coordinate */
    Comm  *comm[GR_N];                   /* not NULL once open: a lone rank gets the transport self */
    bool   borrowed;                     /* comm[GR_world] belongs to the caller */
    bool   bound;                        /* by mesh_bind; before that the world had: */
    Backend *world_backend;
} Mesh;

/* Collective over the world. The degrees have been checked (parallel/rules.h). */
MUST Status mesh_open(Mesh *m, Comm *world, const MeshLayout *layout);
/* May be called twice. The world stays open, bound as before mesh_bind. */
void        mesh_close(Mesh *m);
void        mesh_bind(Mesh *m, Backend *be);

/* Without any Comm, for plans and tests: sets the coordinates of `rank`; lists the members of its group g and
 * returns their number (ranks has an entry for every rank of the world). */
void        mesh_place(Mesh *m, int rank, int world, const MeshLayout *layout);
int         mesh_group(const Mesh *m, GroupId g, int *ranks);
const char *group_name(GroupId g);
const char *group_use(GroupId g);
GroupTraffic group_traffic(GroupId g);
/* A group of links is a ring: +1 if member i sends to member i + 1, -1 if to i - 1. */
int         group_direction(GroupId g);
/* Prints the degrees, the groups of this rank and how many nodes each spans. */
void        mesh_print(FILE *out, const Mesh *m);

static inline int  mesh_size(const Mesh *m, MeshAxis a) { return m ? m->size[a] : 1; }
static inline int  mesh_at(const Mesh *m, MeshAxis a)   { return m ? m->at[a] : 0; }

#ifdef __cplusplus
}
#endif
#endif
