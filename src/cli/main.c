/* cli/main.c -- finds the verb and runs it; the only place that prints an error and picks an exit code. */
#include "cli/commands.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

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

int main(int argc, char **argv)
{
    Status st = run(argc, argv);
    if ((fflush(stdout) || ferror(stdout)) && !st) st = fail(E_IO, "writing the output: %s", strerror(errno));
    if (st) fprintf(stderr, "treb: %s\n", status_text());
    return status_exit_code(st);
}
