/* launch/topology.h -- the cores, NUMA nodes and GPUs of this host that a process may use, from /sys and
 * /proc.
 *
 * A core is one or more CPUs (hardware threads) that share their execution units. The lists of the kernel are
 * read directly: what hwloc adds to them (caches, distances) no binding here uses. Files that include this
 * define _GNU_SOURCE, for cpu_set_t. */
#ifndef LAUNCH_TOPOLOGY_H
#define LAUNCH_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

enum { TOPOLOGY_CPUS = CPU_SETSIZE, TOPOLOGY_GPUS = 64, NUMA_UNKNOWN = -1 };

typedef struct TopologyCore { int cpu, node; } TopologyCore;     /* its first CPU; NUMA node, 0 if unknown */
typedef struct TopologyGpu  { char bus[24]; int node; } TopologyGpu;     /* node: NUMA_UNKNOWN: not known */

typedef struct Topology {
    TopologyCore core[TOPOLOGY_CPUS];        /* ordered by node, then by CPU */
    int          core_of[TOPOLOGY_CPUS];     /* index of a CPU's core; -1: the process may not use the CPU */
    int          cores;
    int          quota;                      /* CPUs that a container may keep busy; 0: no limit */
    TopologyGpu  gpu[TOPOLOGY_GPUS];         /* by bus address, as with CUDA_DEVICE_ORDER=PCI_BUS_ID */
    int          gpus;
} Topology;

/* root: "" or, for tests, a folder that contains sys, proc and dev. allowed: the CPUs of the process. */
void topology_read(Topology *t, const char *root, const cpu_set_t *allowed);
/* What this process may use; its GPUs are those of CUDA_VISIBLE_DEVICES, none in a build without CUDA. */
void topology_read_host(Topology *t);
/* Drops all GPUs but those that CUDA_VISIBLE_DEVICES lists as numbers; NULL: it is not set. Identifiers
 * (UUIDs) are counted, and their nodes are unknown. */
void topology_limit_gpus(Topology *t, const char *visible);

/* "0-3,8" to a set and back. */
void cpu_list_parse(cpu_set_t *out, const char *text);
void cpu_list_text(char *out, size_t n, const cpu_set_t *set);

#endif
