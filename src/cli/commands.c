/* cli/commands.c -- the table of verbs, and what is said about them. */
#include "cli/commands.h"

#include "base/config.h"
#include "base/str.h"
#include <limits.h>
#include <string.h>

Status cmd_bench(int argc, char **argv);
Status cmd_config(int argc, char **argv);
Status cmd_convert(int argc, char **argv);
Status cmd_doctor(int argc, char **argv);
Status cmd_help(int argc, char **argv);
Status cmd_parity(int argc, char **argv);

static const Command commands[] = {
    { "config",  "check a recipe and print every key of it", cmd_config,
      "recipe.yaml [section.key=value ...]\n"
      "  Prints the recipe as it would run: defaults, then the file, then the overrides.\n", ALL_SECTIONS },
    { "convert", "a checkpoint in any form that is read here, in the hub's form", cmd_convert,
      "FROM TO [--dtype f32|bf16|f16] [--shard-mb N]\n"
      "  FROM is a model folder, TO a new one; --dtype as in FROM unless given.\n", NULL },
    { "parity",  "this build against recorded reference tensors", cmd_parity,
      "CASE [--backend NAME] [--dtype f32|bf16] [--steps N] [--recompute LABELS] [--out FILE] [--json]\n"
      "  CASE is a folder of recorded tensors; ends with exit code 7 when one differs too much.\n", NULL },
    { "bench",   "ops and whole steps against ceilings measured in the same run", cmd_bench,
      "ops [--dtype f32|bf16] [--repeat N] [--json]\n"
      "       treb bench step [--model DIR] [--tokens N] [--doc N] [--images N] [--grid N] [--dtype f32|bf16]\n"
      "                       [--repeat N] [--json]\n"
      "  ops: every op at a training size, its time over its floor. step: forward, backward and AdamW of a\n"
      "  model (a small built-in one unless given) on synthetic documents of --doc tokens, --images pictures\n"
      "  of --grid x --grid patches.\n", NULL },
    { "doctor",  "what this machine has and what that allows", cmd_doctor,
      "[--json]\n", NULL },
    { "help",    "more about a verb, or about a section of the recipe", cmd_help,
      "[verb | section]\n", NULL },
};

enum { COMMANDS = sizeof commands / sizeof *commands };

const Command *command_find(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i].name, name)) return &commands[i];
    return NULL;
}

const Command *command_like(const char *name)
{
    const Command *best = NULL;
    int least = INT_MAX;
    for (int i = 0; i < COMMANDS; i++) {
        int unlike = str_unlike(name, commands[i].name);
        if (unlike < least) least = unlike, best = &commands[i];
    }
    return best;
}

Status command_unknown(const char *name)
{
    const Command *best = command_like(name);
    if (best) return fail(E_CONFIG, "%.80s: not a verb. Did you mean %s?", name, best->name);
    return fail(E_CONFIG, "%.80s: not a verb. `treb --help` lists them.", name);
}

void command_list(FILE *out)
{
    fputs("usage: treb <verb> [recipe.yaml] [section.key=value ...]\n\n", out);
    for (int i = 0; i < COMMANDS; i++) fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].help);
    fputs("\n`treb help <verb>` says more; `treb help <section>` lists the keys of a recipe.\n", out);
}

Status command_usage(FILE *out, const Command *c)
{
    fprintf(out, "treb %s: %s\n\nusage: treb %s %s", c->name, c->help, c->name, c->usage);
    size_t len;
    const char *rest = c->sections;
    if (!rest) return OK;
    if (!strcmp(rest, ALL_SECTIONS)) return putc('\n', out), config_help(out, NULL);
    for (const char *item; (item = str_item(&rest, ',', &len));) {
        char section[32];
        snprintf(section, sizeof section, "%.*s", (int)len, item);
        putc('\n', out);
        TRY(config_help(out, section));
    }
    return OK;
}
