/* comm/communicators.h -- which communicators the NCCL transport opens on a rank of a layout, and what device
 * memory they take: for plans. */
#ifndef COMM_COMMUNICATORS_H
#define COMM_COMMUNICATORS_H

#include "comm/mesh.h"

typedef struct Communicators {
    int    groups;                       /* that collectives or exchanges use, each shared by equal groups */
    int    links;                        /* of a pipeline */
    int    peers;                        /* connections of exchanges, to members of the same node */
    double bytes;                        /* an estimate */
} Communicators;

/* mesh has been placed (mesh_place); per_node: ranks of a node. */
Communicators communicators_of(const Mesh *mesh, int per_node);

#endif
