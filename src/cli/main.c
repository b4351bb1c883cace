/* cli/main.c -- finds the verb and runs it. */
#include "cli/commands.h"
#include "cli/program.h"

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
    program_start(argv);
    return program_finish(run(argc, argv));
}
