/* launch/rank.c -- see rank.h. */
#define _GNU_SOURCE                      /* sched_setaffinity */
#include "launch/rank.h"

#include "launch/binding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int number_from(const char *name, int missing)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : missing;
}

static void print_binding(const RankBinding *b)
{
    char host[64] = "", text[320];
    gethostname(host, sizeof host - 1);
    binding_text(text, sizeof text, b);
    fprintf(stderr, "launch: rank %d, host %s: %s\n", number_from("OMPI_COMM_WORLD_RANK", 0), host, text);
}

static void bind_rank(bool bind, bool verbose)
{
    static Topology t;
    RankBinding b;
    char    threads[16];
    int     local = number_from("OMPI_COMM_WORLD_LOCAL_RANK", 0);
    int     size = number_from("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    topology_read_host(&t);
    binding_find(&b, &t, local, size > local ? size : local + 1);
    if (bind && sched_setaffinity(0, sizeof b.cpus, &b.cpus)) perror("launch: binding to cores");
    snprintf(threads, sizeof threads, "%d", b.threads);
    setenv("OMP_NUM_THREADS", threads, 0);
    if (verbose) print_binding(&b);
}

bool launch_rank_start(void)
{
    const char *how = getenv(LAUNCH_VARIABLE);
    if (!how || !strcmp(how, "bound")) return false;
    bind_rank(!strncmp(how, "bind", 4), strstr(how, "verbose"));
    return !setenv(LAUNCH_VARIABLE, "bound", 1);
}

void launch_rank_exit(int code)
{
    char line[80];
    if (!getenv(LAUNCH_VARIABLE)) return;
    int rank = number_from("OMPI_COMM_WORLD_RANK", 0);
    int n = snprintf(line, sizeof line, LAUNCH_EXIT "%d code %d\n", rank, code);
    if (write(STDERR_FILENO, line, (size_t)n) < 0) { }
}
