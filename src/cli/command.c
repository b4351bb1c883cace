/* cli/command.c -- finds verbs, runs them and prints their usage from the tables. */
#include "cli/command.h"

#include "base/config_table.h"
#include "base/str.h"
#include "base/version.h"
#include "cli/program.h"

#include <limits.h>
#include <string.h>

const Command *command_find(const Program *p, const char *name)
{
    for (const Command *const *c = p->verbs; *c; c++)
        if (!strcmp((*c)->name, name)) return *c;
    return NULL;
}

static const Command *find_nearest(const Program *p, const char *name)
{
    const Command *best = NULL;
    int least = INT_MAX;
    for (const Command *const *c = p->verbs; *c; c++) {
        int distance = str_unlike(name, (*c)->name);
        if (distance < least) least = distance, best = *c;
    }
    return best;
}

Status command_unknown(const Program *p, const char *name)
{
    const Command *best = find_nearest(p, name);
    if (best) return fail(E_CONFIG, "%.80s: not a verb. Did you mean %s?", name, best->name);
    return fail(E_CONFIG, "%.80s: not a verb. `%s --help` lists them.", name, p->name);
}

static bool reads_recipes(const Program *p)
{
    for (const Command *const *c = p->verbs; *c; c++)
        if ((*c)->sections) return true;
    return false;
}

static void command_list(FILE *out, const Program *p)
{
    int n;
    const ConfigSection *s = config_sections(&n);
    bool recipes = reads_recipes(p);
    fprintf(out, "usage: %s <verb> %s\n\n", p->name,
            recipes ? "[recipe.yaml] [section.key=value ...]" : "[--option ...]");
    for (const Command *const *c = p->verbs; *c; c++) fprintf(out, "  %-9s %s\n", (*c)->name, (*c)->help);
    fprintf(out, "\n`%s %s` says more.", p->name, recipes ? "help <verb>" : "<verb> --help");
    if (recipes) fprintf(out, " `%s help <section>` lists the keys of a section of the recipe:\n ", p->name);
    for (int i = 0; recipes && i < n; i++) fprintf(out, " %s", s[i].name);
    putc('\n', out);
}

/* ---- usage of one verb ---- */

static void print_option(FILE *out, const Option *o)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    enum { HELP = 33 };
    int column = fprintf(out, "    %-28s", left);
    if (column >= HELP) column = fprintf(out, "\n%*s", HELP, "") - 1;      /* a long name has its own line */
    else                column += fprintf(out, " ");
    str_print_wrapped(out, o->help, column, HELP);
}

static void print_form(FILE *out, const char *program, const Command *c, const Usage *u)
{
    fprintf(out, "\nusage: %s %s%s%s%s%s\n", program, c->name, u->sub ? " " : "", u->sub ? u->sub : "",
            *u->args ? " " : "", u->args);
    for (const Option *o = u->options; o && o->name; o++) print_option(out, o);
    if (u->notes) fputs("  ", out), str_print_wrapped(out, u->notes, 2, 2);
}

static Status print_sections(FILE *out, const char *rest)
{
    size_t len;
    if (!strcmp(rest, ALL_SECTIONS)) return putc('\n', out), config_help(out, NULL);
    for (const char *item; (item = str_item(&rest, ',', &len));) {
        char section[32];
        snprintf(section, sizeof section, "%.*s", (int)len, item);
        putc('\n', out);
        TRY(config_help(out, section));
    }
    return OK;
}

static Status command_usage(FILE *out, const char *program, const Command *c)
{
    fprintf(out, "%s %s: %s\n", program, c->name, c->help);
    for (const Usage *const *u = c->usage; *u; u++) print_form(out, program, c, *u);
    return c->sections ? print_sections(out, c->sections) : OK;
}

Status command_help(const Program *p, int argc, char **argv)
{
    if (argc < 2) return command_list(stdout, p), OK;
    if (!strcmp(argv[1], "--man")) return command_man(stdout, p), OK;
    if (!strcmp(argv[1], "--completion")) return command_completion(stdout, p, argc > 2 ? argv[2] : "bash");
    if (argc > 2) return fail(E_CONFIG, "help: one verb or section at a time");
    const Command *c = command_find(p, argv[1]);
    if (c && c->program) return program_exec_sibling(c->program, 2, (char *[]){ argv[1], "--help", NULL });
    if (c) return command_usage(stdout, p->name, c);
    if (config_has_section(argv[1])) return config_help(stdout, argv[1]);
    if (find_nearest(p, argv[1])) return command_unknown(p, argv[1]);
    return fail(E_CONFIG, "help: %.80s is neither a verb nor a section; `%s help` lists both", argv[1],
                p->name);
}

/* ---- running ---- */

static bool is_help(const char *arg) { return !strcmp(arg, "--help") || !strcmp(arg, "-h"); }

static bool asks_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (is_help(argv[i])) return true;
    return false;
}

static const Usage *find_sub(const Command *c, const char *name)
{
    for (const Usage *const *u = c->usage; *u; u++)
        if ((*u)->sub && name && !strcmp((*u)->sub, name)) return *u;
    return NULL;
}

static Status refuse_sub(const Command *c, const char *name)
{
    char names[256] = "";
    for (const Usage *const *u = c->usage; *u; u++) {
        size_t at = strlen(names);
        if ((*u)->sub) snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", (*u)->sub);
    }
    if (!name) return fail(E_CONFIG, "%s: name one of %s; see treb help %s", c->name, names, c->name);
    return fail(E_CONFIG, "%s: %.80s is not one of %s; see treb help %s", c->name, name, names, c->name);
}

/* Runs a verb or a sub-verb under its whole name, "data pack" or "bench step", as its errors say it. program:
 * "treb", or "treb bench", whose verbs are sub-verbs of treb. */
static Status run_named(const char *program, const Command *c, const Usage *sub, int argc, char **argv)
{
    const char *above = strchr(program, ' ');
    char        name[64];
    snprintf(name, sizeof name, "%s%s%s%s%s", above ? above + 1 : "", above ? " " : "", c->name,
             sub ? " " : "", sub ? sub->sub : "");
    argv[0] = name;
    return sub ? sub->run(argc, argv) : c->run(argc, argv);
}

Status command_run(const char *program, const Command *c, int argc, char **argv)
{
    const char  *name = argc > 1 ? argv[1] : NULL;
    const Usage *sub = find_sub(c, name);
    if (c->program) return program_exec_sibling(c->program, argc, argv);
    if (sub && sub->program) return program_exec_sibling(sub->program, argc - 1, argv + 1);
    if (asks_help(argc, argv)) return command_usage(stdout, program, c);
    if (c->run) return run_named(program, c, NULL, argc, argv);
    return sub ? run_named(program, c, sub, argc - 1, argv + 1) : refuse_sub(c, name);
}

Status program_run(const Program *p, int argc, char **argv)
{
    if (argc < 2 || is_help(argv[1])) return command_list(stdout, p), OK;
    if (!strcmp(argv[1], "--version")) return printf("%s %s\n", p->name, version_text()), OK;
    const Command *c = command_find(p, argv[1]);
    return c ? command_run(p->name, c, argc - 1, argv + 1) : command_unknown(p, argv[1]);
}
