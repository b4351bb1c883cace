/* cli/commands.c -- the verbs of treb. A verb is a file cmd_<verb>.c that ends in its row, and its name
 * here. */
#include "cli/commands.h"

/* In the order that `treb --help` lists them. */
#define VERBS(V) \
    V(init) V(train) V(launch) V(plan) V(profile) V(diagnose) V(tune) V(config) V(data) V(convert) \
    V(parity) V(bench) V(image) V(tokenize) V(report) V(watch) V(eval) V(generate) V(chat) V(doctor)

#define V(name) extern const Command command_##name;
VERBS(V)
#undef V

static Status cmd_help(int argc, char **argv) { return command_help(&treb, argc, argv); }

static const Usage help_usage = {
    .args    = "[verb | section]",
    .notes   = "A name that is both, such as train, shows the verb; its usage ends with its sections.",
};

static const Command help_row = {
    .name     = "help",
    .help     = "say more about a verb, or about a section of the recipe",
    .run      = cmd_help,
    .usage    = USAGE(&help_usage),
};

static const Command *const verbs[] = {
#define V(name) &command_##name,
    VERBS(V)
#undef V
    &help_row, NULL,
};

const Program treb = { "treb", "trains mixture-of-experts language and vision-language models", verbs };
