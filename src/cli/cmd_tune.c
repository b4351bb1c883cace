/* cli/cmd_tune.c -- treb tune recipe.yaml: measured changes of a recipe, one at a time; with --validate the
 * acceptance of one. */
#include "cli/commands.h"
#include "tune/tune.h"
#include "tune/validate.h"

#include <string.h>

typedef struct TuneArgs {
    int64_t     ranks, warmup, window;
    const char *budget, *out, *baseline;
    double      tolerance;
    bool        validate, training;
    OptionList  set;
} TuneArgs;

static const Option options[] = {
    OPTION_LIST(TuneArgs, set, "--set", "KEY=A|B|C",
                "measure these values of a key; without --set the diagnosis of the runs decides"),
    OPTION_TEXT(TuneArgs, budget, "--budget", "TIME", "end after this time: 90s, 30m, 2h (default no limit)"),
    OPTION_INT(TuneArgs, ranks, "-n", "N", 1, 65536, "ranks of a run, started as by treb launch (default 1)"),
    OPTION_INT(TuneArgs, warmup, "--warmup", "N", 1, 64, "steps of a run that are not counted (default 4)"),
    OPTION_INT(TuneArgs, window, "--steps", "N", 2, 64, "steps of a run that are counted (default 8)"),
    OPTION_TEXT(TuneArgs, out, "--out", "FOLDER",
                "for runs and results (default: the run's folder and -tune)"),
    OPTION_END
};

static const Option validate_options[] = {
    OPTION_FLAG(TuneArgs, validate, "--validate", "accept or refuse the recipe; exit code 0 or 7"),
    OPTION_FLAG(TuneArgs, training, "--training", "refuse a run whose numbers are benchmark-only"),
    OPTION_TEXT(TuneArgs, baseline, "--baseline", "RECIPE",
                "whose loss counts (default: the recipe itself in bf16 without graphs and overlap)"),
    OPTION_REAL(TuneArgs, tolerance, "--tolerance", "X", 0, 1,
                "relative difference of losses (default 0.02)"),
    OPTION_INT(TuneArgs, ranks, "-n", "N", 1, 65536, "ranks of a run, started as by treb launch (default 1)"),
    OPTION_TEXT(TuneArgs, out, "--out", "FOLDER",
                "for runs and results (default: the run's folder and -validate)"),
    OPTION_END
};

static bool asks_validate(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--validate")) return true;
    return false;
}

static Status validate(const TuneArgs *a, const PlainArgs *plain)
{
    ValidateAsk ask = { .recipe = plain->value[0], .override = (char **)plain->value + 1,
                        .overrides = plain->n - 1, .baseline = a->baseline, .folder = a->out,
                        .ranks = (int)a->ranks, .training = a->training, .tolerance = a->tolerance };
    return validate_run(&ask);
}

static Status tune(const TuneArgs *a, const PlainArgs *plain)
{
    TuneAsk ask = { .recipe = plain->value[0], .override = (char **)plain->value + 1,
                    .overrides = plain->n - 1, .sets = a->set.n, .folder = a->out, .ranks = (int)a->ranks,
                    .warmup = (int)a->warmup, .window = (int)a->window };
    if (a->set.n > TUNE_SETS) return fail(E_CONFIG, "--set: at most %d keys", TUNE_SETS);
    for (int i = 0; i < a->set.n; i++) ask.set[i] = a->set.value[i];
    if (a->budget) TRY(tune_seconds(&ask.budget, a->budget));
    return tune_run(&ask);
}

static Status cmd_tune(int argc, char **argv)
{
    TuneArgs  a = { .ranks = 1, .warmup = 4, .window = 8, .tolerance = 0.02 };
    PlainArgs plain = { .least = 1, .most = PLAIN_ANY, .what = "a recipe" };
    bool      checks = asks_validate(argc, argv);
    TRY(options_parse(argc, argv, checks ? validate_options : options, &a, &plain));
    Status st = checks ? validate(&a, &plain) : tune(&a, &plain);
    plain_args_close(&plain);
    return st;
}

static const Usage usage = {
    .args    = "recipe.yaml [section.key=value ...]",
    .options = options,
    .notes   = "Each change is measured alone against the recipe so far, in runs of its own (A B B A), and "
               "kept if it gains more than two equal runs differ. Writes best.yaml, tune.jsonl, tune.html.",
};

static const Usage usage_validate = {
    .args    = "--validate recipe.yaml [section.key=value ...]",
    .options = validate_options,
    .notes   = "50 steps, of which 41 to 50 count: finite losses, no step skipped, the loss of the baseline "
               "at equal tokens, 25 steps and 25 resumed ones as 50, memory within the plan, and proof that "
               "dispatcher, graphs and precision of the recipe were used.",
};

const Command command_tune = {
    .name     = "tune",
    .help     = "measure changes of a recipe and keep what makes it faster; validate the result",
    .run      = cmd_tune,
    .usage    = USAGE(&usage, &usage_validate),
};
