/* comm/mesh.h -- two factorings of the same ranks: passed down, never a global.
 *
 *   attention   TP  x CP x DP  x PP       rank = t + TP  (c + CP (d + DP  p))
 *   experts     ETP x EP x EDP x PP       rank = x + ETP (e + EP (y + EDP p))
 *
 * TP CP DP = ETP EP EDP = world / PP. CP has no meaning for experts, whose tokens are independent of each
 * other, so its ranks are folded into EP and EDP. Without ETP etp_edp is edp and ep_edp tp_dp_cp: nobody
 * makes them a second time, ranks are alone in them then. */
#ifndef COMM_MESH_H
#define COMM_MESH_H

#include "comm/comm.h"

#include <stdio.h>

typedef enum { AX_TP, AX_CP, AX_DP, AX_ETP, AX_EP, AX_EDP, AX_PP, AX_N } MeshAxis;

/* GROUP(name, axes, what it is for). Axes are of one of the two factorings. The first is made first: some
 * fabrics reduce in the network for the first communicator alone. */
#define AXIS(a) (1u << AX_##a)
#define GROUPS(GROUP)                                                                              \
    GROUP(dp_cp,     AXIS(DP) | AXIS(CP),             "gradients and shards of what TP cuts")      \
    GROUP(tp_dp_cp,  AXIS(TP) | AXIS(DP) | AXIS(CP),  "gradients and shards of what is everywhere")\
    GROUP(edp,       AXIS(EDP),                       "gradients and shards of experts")           \
    GROUP(tp,        AXIS(TP),                        "rows and slices of a layer")                \
    GROUP(cp,        AXIS(CP),                        "keys and values of a sequence")             \
    GROUP(dp,        AXIS(DP),                        "counts and losses of a step")               \
    GROUP(tp_cp,     AXIS(TP) | AXIS(CP),             "one micro-batch: router statistics, pictures")\
    GROUP(pp,        AXIS(PP),                        "activations through the stages")            \
    GROUP(ep,        AXIS(EP),                        "tokens to experts")                         \
    GROUP(etp,       AXIS(ETP),                       "slices of an expert")                       \
    GROUP(etp_ep,    AXIS(ETP) | AXIS(EP),            "tokens to slices of experts")               \
    GROUP(etp_edp,   AXIS(ETP) | AXIS(EDP),           "adapters of experts that ETP leaves whole") \
    GROUP(ep_edp,    AXIS(EP) | AXIS(EDP),            "an adapter of all experts that ETP cuts")   \
    GROUP(world,     ~0u,                             "all ranks")

/* PART(name, base, road, what it is for): groups cut out of others. NEAR: blocks of neighbours in the list of
 * the base; FAR: those of equal place in its blocks. Blocks are the shards of a replica, the inner level of a
 * hierarchical cp, the ranks that share a kv head, those a fast link joins, and all of pp a second time
 * (block_size in mesh.c). */
#define PARTS(PART)                                                                                \
    PART(shard_dp_cp,    dp_cp,    NEAR, "shards of what TP cuts, inside a replica")               \
    PART(copy_dp_cp,     dp_cp,    FAR,  "the same shard in every replica")                        \
    PART(shard_tp_dp_cp, tp_dp_cp, NEAR, "shards of what is everywhere, inside a replica")         \
    PART(copy_tp_dp_cp,  tp_dp_cp, FAR,  "the same shard in every replica")                        \
    PART(shard_edp,      edp,      NEAR, "shards of experts, inside a replica")                    \
    PART(copy_edp,       edp,      FAR,  "the same shard in every replica")                        \
    PART(shard_etp_edp,  etp_edp,  NEAR, "shards of adapters that ETP leaves whole")                \
    PART(copy_etp_edp,   etp_edp,  FAR,  "the same shard in every replica")                        \
    PART(shard_ep_edp,   ep_edp,   NEAR, "shards of an adapter that ETP cuts")                      \
    PART(copy_ep_edp,    ep_edp,   FAR,  "the same shard in every replica")                        \
    PART(cp_inner,        cp,       NEAR, "heads exchanged inside a level of cp")                   \
    PART(cp_outer,         cp,       FAR,  "ring over the levels of cp")                             \
    PART(kv,             tp,       NEAR, "one kv head")                                            \
    PART(ep_intra_node,        etp_ep,   NEAR, "tokens forwarded over a fast link")                      \
    PART(ep_inter_node,         etp_ep,   FAR,  "tokens that cross to another domain")                    \
    PART(pp_back,        pp,       NEAR, "gradients back through the stages")

typedef enum {
#define GROUP(name, axes, what) GR_##name,
#define PART(name, base, road, what) GR_##name,
    GROUPS(GROUP)
    PARTS(PART)
#undef GROUP
#undef PART
    GR_embd,                             /* the two ends of a pipeline; ranks between them are alone */
    GR_N
} GroupId;

typedef struct MeshLayout {                  /* degrees, as a recipe says them; dp and edp follow; 0 is 1 */
    int tp, cp, pp, vpp, ep, etp;
    int replicas;                        /* shards are repeated so many times (HSDP); 1: one shard set */
    int cp_inner;                         /* ranks of cp whose heads are exchanged (hierarchical); 1: none */
    int kv_heads;                        /* of the model: fewer than tp are shared by neighbours */
    int domain;                          /* ranks of etp_ep that a fast link joins; 0: those of a node */
} MeshLayout;

typedef struct Mesh {
    int    rank, world;
    MeshLayout layout;
    int    size[AX_N], at[AX_N];         /* degree of each axis, my coordinate on it */
    Comm  *comm[GR_N];                   /* never NULL once open: a lone rank gets self */
    bool   borrowed;                     /* comm[GR_world] is the caller's */
} Mesh;

/* Collective over the world. The degrees have been checked (parallel/rules.h). */
MUST Status mesh_open(Mesh *m, Comm *world, const MeshLayout *layout);
void        mesh_close(Mesh *m);                              /* twice is fine; the world stays */
void        mesh_bind(Mesh *m, Backend *be);

/* Without any Comm: for plans of numbers and tests. rank's coordinates; the members of rank's group. */
void        mesh_place(Mesh *m, int rank, int world, const MeshLayout *layout);
int         mesh_group(const Mesh *m, GroupId g, int *ranks);      /* their number; ranks has world places */

const char *group_name(GroupId g);
const char *group_use(GroupId g);
/* Lines for a person: degrees, groups of this rank, which of them leave the node. */
void        mesh_print(FILE *out, const Mesh *m);

static inline int  mesh_size(const Mesh *m, MeshAxis a) { return m ? m->size[a] : 1; }
static inline int  mesh_at(const Mesh *m, MeshAxis a)   { return m ? m->at[a] : 0; }

#endif
