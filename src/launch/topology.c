/* launch/topology.c -- see topology.h. */
#define _GNU_SOURCE                      /* cpu_set_t */
#include "launch/topology.h"

#include "ops/backend.h"

#include <ctype.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- lists of CPUs ---- */

void cpu_list_parse(cpu_set_t *out, const char *text)
{
    CPU_ZERO(out);
    for (const char *at = text; isdigit((unsigned char)*at);) {
        char *end;
        long from = strtol(at, &end, 10), to = *end == '-' ? strtol(end + 1, &end, 10) : from;
        for (long i = from; i <= to && i < TOPOLOGY_CPUS; i++) CPU_SET((size_t)i, out);
        at = *end == ',' ? end + 1 : end;
    }
}

void cpu_list_text(char *out, size_t n, const cpu_set_t *set)
{
    size_t at = 0;
    *out = 0;
    for (size_t i = 0, to; i < TOPOLOGY_CPUS && at < n; i = to + 1) {
        for (to = i; to < TOPOLOGY_CPUS && CPU_ISSET(to, set); to++) { }
        if (to == i) continue;
        const char *comma = at ? "," : "";
        if (to == i + 1) at += (size_t)snprintf(out + at, n - at, "%s%zu", comma, i);
        else             at += (size_t)snprintf(out + at, n - at, "%s%zu-%zu", comma, i, to - 1);
    }
}

/* ---- files of the kernel ---- */

typedef struct KernelPath { char text[512]; } KernelPath;

__attribute__((format(printf, 2, 3))) static bool read_line(char line[4096], const char *fmt, ...)
{
    KernelPath path;
    va_list    args;
    va_start(args, fmt);
    vsnprintf(path.text, sizeof path.text, fmt, args);
    va_end(args);
    FILE *f = fopen(path.text, "re");
    bool  got = f && fgets(line, 4096, f);
    if (f) fclose(f);
    return got;
}

static int read_numa_node(const char *root, const char *bus)
{
    char line[4096];
    bool got = read_line(line, "%s/sys/bus/pci/devices/%s/numa_node", root, bus);
    return got && atoi(line) >= 0 ? atoi(line) : NUMA_UNKNOWN;
}

/* ---- cores ---- */

/* The first CPU of the core of `cpu`. */
static int first_sibling(const char *root, int cpu)
{
    char      line[4096];
    cpu_set_t set;
    if (!read_line(line, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, cpu))
        return cpu;
    cpu_list_parse(&set, line);
    for (int i = 0; i < cpu; i++)
        if (CPU_ISSET((size_t)i, &set)) return i;
    return cpu;
}

static void read_nodes(int node_of[TOPOLOGY_CPUS], const char *root)
{
    char      line[4096];
    cpu_set_t online, cpus;
    memset(node_of, 0, TOPOLOGY_CPUS * sizeof *node_of);
    if (!read_line(line, "%s/sys/devices/system/node/online", root)) return;
    cpu_list_parse(&online, line);
    for (int node = 0; node < TOPOLOGY_CPUS; node++) {
        if (!CPU_ISSET((size_t)node, &online)) continue;
        if (!read_line(line, "%s/sys/devices/system/node/node%d/cpulist", root, node)) continue;
        cpu_list_parse(&cpus, line);
        for (size_t i = 0; i < TOPOLOGY_CPUS; i++) if (CPU_ISSET(i, &cpus)) node_of[i] = node;
    }
}

static int by_node(const void *a, const void *b)
{
    const TopologyCore *x = a, *y = b;
    return x->node != y->node ? (x->node > y->node) - (x->node < y->node)
                              : (x->cpu > y->cpu) - (x->cpu < y->cpu);
}

static int find_core(const Topology *t, int first)
{
    for (int i = 0; i < t->cores; i++) if (t->core[i].cpu == first) return i;
    return -1;
}

static void read_cores(Topology *t, const char *root, const cpu_set_t *allowed)
{
    int node_of[TOPOLOGY_CPUS], first[TOPOLOGY_CPUS];
    read_nodes(node_of, root);
    for (int i = 0; i < TOPOLOGY_CPUS; i++) {
        if (!CPU_ISSET((size_t)i, allowed)) continue;
        first[i] = first_sibling(root, i);
        if (find_core(t, first[i]) < 0) t->core[t->cores++] = (TopologyCore){ first[i], node_of[i] };
    }
    qsort(t->core, (size_t)t->cores, sizeof *t->core, by_node);
    for (int i = 0; i < TOPOLOGY_CPUS; i++)
        t->core_of[i] = CPU_ISSET((size_t)i, allowed) ? find_core(t, first[i]) : -1;
}

/* "800000 100000" microseconds of each period, or "max 100000". */
static int read_quota(const char *root)
{
    char line[4096];
    long quota = 0, period = 0;
    if (!read_line(line, "%s/sys/fs/cgroup/cpu.max", root)) return 0;
    if (sscanf(line, "%ld %ld", &quota, &period) != 2 || period <= 0) return 0;
    return quota > period ? (int)(quota / period) : 1;
}

/* ---- GPUs ---- */

/* A container shows every GPU of its host in /proc; its own ones have a device file. */
static bool has_device_file(const char *root, const char *bus)
{
    KernelPath path;
    char       line[256];
    int        minor = -1;
    snprintf(path.text, sizeof path.text, "%s/proc/driver/nvidia/gpus/%s/information", root, bus);
    FILE *f = fopen(path.text, "re");
    while (f && fgets(line, sizeof line, f)) sscanf(line, "Device Minor: %d", &minor);
    if (f) fclose(f);
    snprintf(path.text, sizeof path.text, "%s/dev/nvidia%d", root, minor);
    return minor >= 0 && !access(path.text, F_OK);
}

static int by_bus(const void *a, const void *b)
{
    return strcmp(((const TopologyGpu *)a)->bus, ((const TopologyGpu *)b)->bus);
}

static void read_gpus(Topology *t, const char *root)
{
    KernelPath path;
    snprintf(path.text, sizeof path.text, "%s/proc/driver/nvidia/gpus", root);
    DIR *d = opendir(path.text);
    for (struct dirent *e; d && (e = readdir(d)) && t->gpus < TOPOLOGY_GPUS;) {
        if (e->d_name[0] == '.' || !has_device_file(root, e->d_name)) continue;
        TopologyGpu *g = &t->gpu[t->gpus++];
        snprintf(g->bus, sizeof g->bus, "%.20s", e->d_name);
        for (char *c = g->bus; *c; c++) *c = (char)tolower((unsigned char)*c);
        g->node = read_numa_node(root, g->bus);
    }
    if (d) closedir(d);
    qsort(t->gpu, (size_t)t->gpus, sizeof *t->gpu, by_bus);
}

void topology_limit_gpus(Topology *t, const char *visible)
{
    TopologyGpu all[TOPOLOGY_GPUS];
    int         n = t->gpus;
    if (!visible) return;
    memcpy(all, t->gpu, sizeof all);
    t->gpus = 0;
    for (const char *at = visible; *at && t->gpus < TOPOLOGY_GPUS; at += strcspn(at, ","), at += *at == ',') {
        int i = atoi(at);
        if (isdigit((unsigned char)*at) && i >= n) return;           /* CUDA ignores the rest of the list */
        t->gpu[t->gpus++] = isdigit((unsigned char)*at) ? all[i] : (TopologyGpu){ .node = NUMA_UNKNOWN };
    }
}

void topology_read(Topology *t, const char *root, const cpu_set_t *allowed)
{
    *t = (Topology){ 0 };
    read_cores(t, root, allowed);
    t->quota = read_quota(root);
    read_gpus(t, root);
}

void topology_read_host(Topology *t)
{
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed)) CPU_SET(0, &allowed);
    topology_read(t, "", &allowed);
    topology_limit_gpus(t, getenv("CUDA_VISIBLE_DEVICES"));
    if (!strstr(backend_names(), "cuda")) t->gpus = 0;
}
