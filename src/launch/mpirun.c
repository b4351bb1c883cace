/* launch/mpirun.c -- see mpirun.h. */
#include "launch/mpirun.h"

#include "launch/process.h"
#include "launch/rank.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* ---- finding it ---- */

static Status refuse_other(const char *name, char *version)
{
    bool hydra = strstr(version, "HYDRA") || strstr(version, "Intel");
    version[strcspn(version, "\n")] = 0;
    return fail(E_CONFIG, "launch: %s is not Open MPI's (%.80s)%s; install openmpi-bin, or name Open MPI's "
                "mpirun by --mpirun PATH", name, version,
                hydra ? ": ranks use Open MPI 4 or 5, and MPICH's launcher cannot start them" : "");
}

Status mpirun_find(Mpirun *m, const char *name)
{
    char  version[1024];
    int   code = 0;
    Words w = { 0 };
    if (!name) name = "mpirun";
    if (strlen(name) >= sizeof m->path) return fail(E_CONFIG, "--mpirun: the path is too long");
    strcpy(m->path, name);
    Status st = words_add_all(&w, 2, (char *[]){ (char *)name, "--version" });
    if (!st) st = process_read(version, sizeof version, &code, &w, 30);
    words_close(&w);
    if (st) return st;
    if (code == PROCESS_NOT_FOUND)
        return fail(E_CONFIG, "launch: %s is not installed; install openmpi-bin, or name Open MPI's mpirun "
                    "by --mpirun PATH", name);
    const char *at = strstr(version, "(Open MPI) ");
    m->major = at ? atoi(at + strlen("(Open MPI) ")) : 0;
    return m->major >= 4 ? OK : refuse_other(name, version);
}

/* ---- its command line ---- */

/* A batch system has allocated several hosts, which mpirun asks it for. */
static bool is_allocated(void)
{
    const char *nodes = getenv("SLURM_JOB_NUM_NODES");
    return (nodes && atoi(nodes) > 1) || getenv("PBS_NODEFILE") || getenv("LSB_DJOB_HOSTFILE");
}

/* Variables that ranks on other hosts need; mpirun passes on its own. */
static bool is_passed_on(const char *name)
{
    static const char *const begin[] = { "TREB_", "OMP_", "GOMP_", "CUDA_", "NCCL_", "UCX_",
                                         "LD_LIBRARY_PATH=" };
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
        if (!strncmp(name, begin[i], strlen(begin[i]))) return true;
    return false;
}

static Status pass_on(Words *command, char *const *words)
{
    for (; words && *words; words++) {
        if (!is_passed_on(*words)) continue;
        TRY(words_add(command, "-x"));
        TRY(words_add(command, "%.*s", (int)strcspn(*words, "="), *words));
    }
    return OK;
}

static Status add_hosts(Words *w, const Words *environment, const Mpirun *m, const RankCommand *c)
{
    size_t size = (size_t)c->hosts.n * (HOST_NAME + 16) + 1;
    char  *list = malloc(size);
    if (!list) return fail(E_FIT, "no memory for hosts");
    hosts_text(list, size, &c->hosts, false);
    Status st = words_add(w, "--host");
    if (!st) st = words_add(w, "%s", list);
    free(list);
    if (!st && c->agent)
        st = words_add_all(w, 3, m->major < 5
                           ? (char *[]){ "--mca", "plm_rsh_agent", (char *)c->agent }
                           : (char *[]){ "--prtemca", "plm_ssh_agent", (char *)c->agent });
    if (!st) st = pass_on(w, environ);
    return st ? st : pass_on(w, environment->at);
}

static Status add_flags(Words *w, const Words *environment, const Mpirun *m, const RankCommand *c)
{
    TRY(words_add(w, "%s", m->path));
    if (!geteuid()) TRY(words_add(w, "--allow-run-as-root"));
    TRY(words_add_all(w, 4, (char *[]){ "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE" }));
    if (c->hosts.n) TRY(add_hosts(w, environment, m, c));
    TRY(words_add(w, "-n"));
    return words_add(w, "%d", c->ranks);
}

static Status add_program(Words *w, const RankCommand *c)
{
    Path path;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0) return fail(E_IO, "/proc/self/exe: %s", strerror(errno));
    TRY(words_add(w, "%.*s", (int)n, path));
    TRY(words_add_all(w, c->words, c->verb));
    return words_add_all(w, c->overrides.n, c->overrides.at);
}

/* Open MPI chooses among the network libraries it finds; on one host each of them would listen on all
 * interfaces, where any program that reaches the port can disturb the run. */
static Status add_environment(Words *w, const Mpirun *m, const RankCommand *c)
{
    TRY(words_add(w, LAUNCH_VARIABLE "=%s%s", c->bind ? "bind" : "plain", c->verbose ? "-verbose" : ""));
    TRY(words_add(w, "CUDA_DEVICE_ORDER=PCI_BUS_ID"));
    if (c->hosts.n || is_allocated()) return OK;
    TRY(words_add(w, "OMPI_MCA_pml=ob1"));
    TRY(words_add(w, "OMPI_MCA_btl=self,%s", m->major < 5 ? "vader" : "sm"));
    return words_add(w, "PMIX_MCA_ptl_tcp_if_include=lo");
}

Status mpirun_command(Words *command, Words *environment, const Mpirun *m, const RankCommand *c)
{
    TRY(add_environment(environment, m, c));
    TRY(add_flags(command, environment, m, c));
    return add_program(command, c);
}
