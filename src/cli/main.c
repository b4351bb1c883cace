/* cli/main.c -- finds the verb and runs it; the only place that prints an error and picks an exit code. */
#include "cli/commands.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_help(const char *arg) { return !strcmp(arg, "--help") || !strcmp(arg, "-h"); }

static Status run(int argc, char **argv)
{
    if (argc < 2 || is_help(argv[1])) return command_list(stdout), OK;
    if (!strcmp(argv[1], "--version")) return puts("treb " TREB_VERSION), OK;
    const Command *c = command_find(argv[1]);
    if (!c) return command_unknown(argv[1]);
    for (int i = 2; i < argc; i++)
        if (is_help(argv[i])) return command_usage(stdout, c);
    return c->run(argc - 1, argv + 1);
}

/* OpenMP's threads spin for milliseconds before they sleep. Where cores are shared, with our own loader or
 * with others, that holds up the very thread that is waited for: a step then takes several times as long. A
 * shorter spin costs a machine of one's own nothing. libgomp reads the setting before main, so the program
 * begins once more; where that cannot be, it is slower and not wrong. */
static void calm_threads(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (!setenv("GOMP_SPINCOUNT", "10000", 1)) execv("/proc/self/exe", argv);
}

/* A limit on the size of files (ulimit -f) is a disk that is full: the write fails and says so, with the name
 * of the file. By itself the signal would end the program in the middle of a run without a word. */
static void hear_of_limits(void) { signal(SIGXFSZ, SIG_IGN); }

int main(int argc, char **argv)
{
    calm_threads(argv);
    hear_of_limits();
    Status st = run(argc, argv);
    if ((fflush(stdout) || ferror(stdout)) && !st) st = fail(E_IO, "writing the output: %s", strerror(errno));
    if (st) fprintf(stderr, "treb: %s\n", status_text());
    return status_exit_code(st);
}
