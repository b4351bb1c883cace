/* cli/program.c -- see program.h. */
#include "cli/program.h"

#include "base/folder.h"
#include "launch/rank.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Threads of OpenMP spin for milliseconds before they sleep. Where they share cores with the data loader or
 * with other programs, a spinning thread delays the thread it waits for, and a step takes several times as
 * long. A shorter spin costs nothing on an idle machine. True: the environment has changed. */
static bool limit_omp_spin(void)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return false;
    return !setenv("GOMP_SPINCOUNT", "10000", 1);
}

enum { STACK_LEAST = 1 << 20, STACK_USUAL = 8 << 20 };

/* Raises a stack limit that the program and its threads would overflow, as far as it may be raised. True: the
 * limit has changed. */
static bool raise_stack_limit(void)
{
    struct rlimit now, more;
    if (getrlimit(RLIMIT_STACK, &now) || now.rlim_cur >= STACK_LEAST) return false;
    more = (struct rlimit){ STACK_USUAL, now.rlim_max < STACK_USUAL ? STACK_USUAL : now.rlim_max };
    if (!setrlimit(RLIMIT_STACK, &more)) return true;
    more.rlim_cur = more.rlim_max = now.rlim_max;
    return now.rlim_max > now.rlim_cur && !setrlimit(RLIMIT_STACK, &more);
}

static void refuse_small_stack(void)
{
    struct rlimit now;
    if (getrlimit(RLIMIT_STACK, &now) || now.rlim_cur >= STACK_LEAST) return;
    exit(program_finish(fail(E_CONFIG,
                             "the stack of this process may have %lld KiB (ulimit -s), which is too small; "
                             "start it with `ulimit -s 8192`",
                             (long long)now.rlim_cur >> 10)));
}

/* libgomp reads its settings and the cores of the process before main, and threads get the stack limit of the
 * start, so the program executes itself once more; if that fails it runs slower, with the same results. */
static void prepare_threads(char **argv)
{
    bool bound = launch_rank_start(), limited = limit_omp_spin(), raised = raise_stack_limit();
    if (bound || limited || raised) execv("/proc/self/exe", argv);
    refuse_small_stack();
}

/* With SIGXFSZ ignored, a write beyond the file size limit (ulimit -f) fails like a write to a full disk, and
 * the error names the file. The default action would end the program without a message. */
static void ignore_sigxfsz(void) { signal(SIGXFSZ, SIG_IGN); }

/* A file opened while one of the first three descriptors is closed would get its number, and what is printed
 * would be written into the file. */
static void open_standard_files(void)
{
    int fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO) fd = dup(fd);
    if (fd > STDERR_FILENO) close(fd);
}

void program_start(char **argv)
{
    open_standard_files();
    prepare_threads(argv);
    ignore_sigxfsz();
}

void program_print_error(void) { fprintf(stderr, "treb: %s\n", status_text()); }

int program_finish(Status st)
{
    if ((fflush(stdout) || ferror(stdout)) && !st) st = fail(E_IO, "writing the output: %s", strerror(errno));
    if (st && *status_text()) program_print_error();        /* "": it has been printed, see ranks.h */
    launch_rank_exit(status_exit_code(st));
    return status_exit_code(st);
}

static Status sibling_path(Path out, const char *name)
{
    ssize_t n = readlink("/proc/self/exe", out, sizeof(Path) - 1);
    if (n < 0) return fail(E_IO, "/proc/self/exe: %s", strerror(errno));
    out[n] = 0;
    char *slash = strrchr(out, '/');
    if (slash) *slash = 0;
    Path folder;
    memcpy(folder, out, sizeof folder);
    return path_join(out, folder, name);
}

Status program_exec_sibling(const char *name, int argc, char **argv)
{
    Path   path;
    char **list;
    TRY(sibling_path(path, name));
    if (!(list = calloc((size_t)argc + 1, sizeof *list))) return fail(E_FIT, "no memory for %d arguments",
                                                                      argc);
    list[0] = path;
    for (int i = 1; i < argc; i++) list[i] = argv[i];
    fflush(stdout);
    execv(path, list);
    Status st = fail(E_IO, "%s: %s; `make` builds it beside treb", path, strerror(errno));
    free(list);
    return st;
}
