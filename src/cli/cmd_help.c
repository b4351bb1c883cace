/* cli/cmd_help.c -- treb help [verb | section]. A name that is both, such as train, shows the verb, whose
 * usage ends with its sections. */
#include "base/config.h"
#include "cli/commands.h"

Status cmd_help(int argc, char **argv)
{
    if (argc < 2) return command_list(stdout), OK;
    if (argc > 2) return fail(E_CONFIG, "help: one verb or section at a time");
    const Command *c = command_find(argv[1]);
    if (c) return command_usage(stdout, c);
    if (config_has_section(argv[1]) || !command_like(argv[1])) return config_help(stdout, argv[1]);
    return command_unknown(argv[1]);
}
