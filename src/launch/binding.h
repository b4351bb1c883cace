/* launch/binding.h -- which cores, NUMA node and GPU a rank of a host uses, and its share of threads.
 *
 * Ranks with a GPU share the cores of their GPU's NUMA node; other ranks share all cores, and no rank's cores
 * span two nodes unless there are fewer ranks than nodes. Where a node has fewer cores than ranks, its ranks
 * may use all of the node's cores, with one thread each. */
#ifndef LAUNCH_BINDING_H
#define LAUNCH_BINDING_H

#include "launch/topology.h"

typedef struct RankBinding {
    cpu_set_t cpus;                      /* every hardware thread of its cores */
    int       cores;
    int       threads;                   /* cores over the ranks that share them, within the quota */
    int       node;                      /* NUMA node; NUMA_UNKNOWN: several */
    int       gpu;                       /* -1: none */
} RankBinding;

/* Rank `local` of the `size` ranks of this host. */
void binding_find(RankBinding *b, const Topology *t, int local, int size);
/* "cores 0-3, NUMA node 0, GPU 0, 4 threads" */
void binding_text(char *out, size_t n, const RankBinding *b);

#endif
