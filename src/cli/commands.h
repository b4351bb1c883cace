/* cli/commands.h -- the verbs of treb. A verb is a file cmd_<verb>.c and one row in commands.c. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "base/status.h"
#include <stdio.h>

#define TREB_VERSION "0.1.0"

typedef struct Command {
    const char *name, *help;                    /* help: one line */
    Status    (*run)(int argc, char **argv);    /* argv[0] is the verb itself; --help never gets here */
    const char *usage;                          /* what follows "treb <verb>", then free text, lines ended */
    const char *sections;                       /* of the recipe: "model,data", ALL_SECTIONS, or NULL */
} Command;

#define ALL_SECTIONS "*"

const Command *command_find(const char *name);  /* NULL: no such verb */
const Command *command_like(const char *name);  /* the nearest spelling; NULL: none comes near */
MUST Status    command_unknown(const char *name);
void           command_list(FILE *out);         /* one line a verb */
MUST Status    command_usage(FILE *out, const Command *c);

#endif
