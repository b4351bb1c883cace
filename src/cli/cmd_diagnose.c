/* cli/cmd_diagnose.c -- treb diagnose RECIPE | RUN | profile.json: which wall a step runs into, and what to
 * change. */
#include "cli/commands.h"
#include "cli/data_look.h"
#include "diagnose/source.h"

#include <string.h>

typedef struct DiagnoseArgs {
    const char *hardware;
    int64_t     ranks, per_node;
    bool        json;
} DiagnoseArgs;

static const Option options[] = { OPTION_TEXT(DiagnoseArgs, hardware, "--hardware", "ID",
                                              "a GPU by name, or `this` (default: that of the run)"),
                                  OPTION_INT(DiagnoseArgs, ranks, "--ranks", "N", 1, 1 << 20,
                                             "ranks (default: those of the run, of parallel.ranks, or "
                                             "the least)"),
                                  OPTION_INT(DiagnoseArgs, per_node, "--per-node", "N", 1, 1 << 20,
                                             "ranks of a node"),
                                  OPTION_FLAG(DiagnoseArgs, json, "--json", "print the diagnosis as JSON"),
                                  OPTION_END };

static Status print(const DiagnoseSource *s, bool as_json)
{
    Diagnosis *d;
    Json      *o = NULL;
    TRY(diagnose_open(&d, &s->ask));
    Status st = as_json ? diagnose_json(&o, d) : OK;
    if (!as_json) diagnose_print(stdout, d);
    else if (!st) json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9)), putchar('\n');
    json_decref(o);
    diagnose_close(d);
    return st;
}

static Status cmd_diagnose(int argc, char **argv)
{
    DiagnoseArgs   a = { 0 };
    PlainArgs      plain = { .least = 1, .most = PLAIN_ANY,
                             .what = "a recipe, a run folder or a profile.json" };
    DiagnoseSource s;
    Log            log = { .world = 1, .least = LOG_WARN };
    TRY(options_parse(argc, argv, options, &a, &plain));
    SourceAsk ask = { .path = plain.value[0], .overrides = (char **)plain.value + 1, .n = plain.n - 1,
                      .hardware = a.hardware, .ranks = a.ranks, .per_node = a.per_node };
    Status st = source_open(&s, &ask);
    if (!st && !s.ask.content && data_content(&s.content, &s.recipe, &log)) s.ask.content = &s.content;
    if (!st) st = print(&s, a.json);
    if (!st) source_close(&s);
    plain_args_close(&plain);
    return st;
}

static const Usage usage = {
    .args    = "RECIPE | RUN | profile.json [section.key=value ...]",
    .options = options,
    .notes   = "Names the wall (memory, communication, pipeline bubble, host, data, vision, imbalance, "
               "compute) with its evidence and the most that removing it would give; lists changes of the "
               "recipe, each with the step and the memory that the plan predicts with it. A recipe is "
               "planned; a run or a profile is measured, and the plan is fitted to it.",
};

const Command command_diagnose = {
    .name     = "diagnose",
    .help     = "name the wall that a step runs into, and which changes would help by how much",
    .run      = cmd_diagnose,
    .usage    = USAGE(&usage),
};
