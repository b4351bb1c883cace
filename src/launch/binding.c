/* launch/binding.c -- see binding.h. */
#define _GNU_SOURCE                      /* cpu_set_t */
#include "launch/binding.h"

#include <stdio.h>

typedef struct CoreRange { int from, to; } CoreRange;                       /* of Topology.core */

static CoreRange cores_of_node(const Topology *t, int node)
{
    CoreRange r = { 0, 0 };
    while (r.from < t->cores && t->core[r.from].node != node) r.from++;
    for (r.to = r.from; r.to < t->cores && t->core[r.to].node == node;) r.to++;
    return r;
}

static int count_nodes(const Topology *t)
{
    int n = 0;
    for (int i = 0; i < t->cores; i++) n += !i || t->core[i].node != t->core[i - 1].node;
    return n;
}

static int nth_node(const Topology *t, int n)
{
    int i = 0;
    for (; n > 0; n--) i = cores_of_node(t, t->core[i].node).to;
    return t->core[i].node;
}

static int gpu_of(const Topology *t, int local) { return t->gpus ? local % t->gpus : -1; }

/* The cores that a rank shares with the ranks that have the same answer. */
static CoreRange shared_cores(const Topology *t, int local, int size)
{
    int gpu = gpu_of(t, local), nodes = count_nodes(t);
    if (gpu >= 0) {
        CoreRange beside = cores_of_node(t, t->gpu[gpu].node);
        if (beside.to > beside.from) return beside;
    }
    if (size >= nodes) return cores_of_node(t, nth_node(t, local * nodes / size));
    return (CoreRange){ cores_of_node(t, nth_node(t, local * nodes / size)).from,
                        cores_of_node(t, nth_node(t, (local + 1) * nodes / size - 1)).to };
}

static CoreRange own_cores(const Topology *t, int local, int size, int *sharers)
{
    CoreRange all = shared_cores(t, local, size);
    int cores = all.to - all.from, before = 0, n = 0;
    for (int i = 0; i < size; i++) {
        CoreRange r = shared_cores(t, i, size);
        bool same = r.from == all.from && r.to == all.to;
        n += same, before += same && i < local;
    }
    *sharers = cores < n ? n : 1;
    if (cores < n) return all;
    return (CoreRange){ all.from + before * cores / n, all.from + (before + 1) * cores / n };
}

void binding_find(RankBinding *b, const Topology *t, int local, int size)
{
    int sharers = 1;
    CoreRange r = own_cores(t, local, size, &sharers);
    *b = (RankBinding){ .cores = r.to - r.from, .gpu = gpu_of(t, local) };
    b->threads = b->cores / sharers;
    if (t->quota && b->threads > t->quota / size) b->threads = t->quota / size;
    if (b->threads < 1) b->threads = 1;
    b->node = t->core[r.from].node == t->core[r.to - 1].node ? t->core[r.from].node : NUMA_UNKNOWN;
    CPU_ZERO(&b->cpus);
    for (int i = 0; i < TOPOLOGY_CPUS; i++)
        if (t->core_of[i] >= r.from && t->core_of[i] < r.to) CPU_SET((size_t)i, &b->cpus);
}

void binding_text(char *out, size_t n, const RankBinding *b)
{
    char cpus[256], node[16] = "several", gpu[16] = "none";
    cpu_list_text(cpus, sizeof cpus, &b->cpus);
    if (b->node >= 0) snprintf(node, sizeof node, "%d", b->node);
    if (b->gpu >= 0)  snprintf(gpu, sizeof gpu, "%d", b->gpu);
    snprintf(out, n, "CPUs %s, NUMA node %s, GPU %s, %d thread%s", cpus, node, gpu, b->threads,
             b->threads == 1 ? "" : "s");
}
