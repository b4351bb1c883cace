/* cli/command.h -- what a verb is: its forms, their options and the recipe sections it reads. A program is a
 * table of verbs (cli/commands.c is treb's). Usage, errors, the man page and shell completion come from
 * it. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "cli/options.h"

#include <stdio.h>

/* One form of a verb: `treb plan RECIPE`, `treb plan --gpus N`, or a sub-verb such as `treb data check`. */
typedef struct Usage {
    const char   *args;                  /* plain arguments as a usage line shows them */
    const Option *options;               /* NULL: none */
    const char   *notes;                 /* sentences below the options; NULL: none */
    const char   *sub;                   /* "check"; NULL: a form of the verb itself */
    Status      (*run)(int argc, char **argv);   /* of a sub-verb */
    const char   *program;               /* a program beside this one that has the sub-verb; NULL: none */
} Usage;

typedef struct Command {
    const char  *name, *help;            /* help: one line */
    Status     (*run)(int argc, char **argv);    /* argv[0] is the verb; NULL: the sub-verb decides */
    const Usage *const *usage;           /* ended by NULL: USAGE(&form, ...) */
    const char  *sections;               /* of the recipe: "model,data", ALL_SECTIONS, or NULL */
    const char  *program;                /* a program beside this one that has the verb; NULL: this one has */
} Command;

#define ALL_SECTIONS "*"
#define USAGE(...) (const Usage *const[]){ __VA_ARGS__, NULL }

typedef struct Program {
    const char           *name, *about;  /* "treb"; one line for the man page */
    const Command *const *verbs;         /* ended by NULL */
} Program;

/* Runs the verb that argv[1] names; or one verb whose arguments are argv[1..]. --help prints usage. */
MUST Status    program_run(const Program *p, int argc, char **argv);
MUST Status    command_run(const char *program, const Command *c, int argc, char **argv);

const Command *command_find(const Program *p, const char *name);         /* NULL: no such verb */
MUST Status    command_unknown(const Program *p, const char *name);      /* names the nearest one */
/* help [verb | section | --man | --completion SHELL] */
MUST Status    command_help(const Program *p, int argc, char **argv);

/* command_man.c, command_completion.c */
void           command_man(FILE *out, const Program *p);
MUST Status    command_completion(FILE *out, const Program *p, const char *shell);

#endif
