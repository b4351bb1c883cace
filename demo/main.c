/* demo/main.c -- the program treb-demo, which is also `treb data synth`: draws the demo set into a folder. */
#include "base/clock.h"
#include "cli/command.h"
#include "cli/program.h"
#include "demo/synth.h"

#include <stdio.h>

static void print_summary(const SynthConf *c, double seconds)
{
    const SynthChoice *choice = &c->set.choice;
    char text[COLOURS_CAP];
    printf("%s: %lld questions to train on, %lld held out, drawn in %.1f s (seed %llu)\n", c->dir,
           (long long)c->items[SYNTH_TRAIN], (long long)c->items[SYNTH_EVAL], seconds,
           (unsigned long long)c->set.seed);
    if (choice->about) printf("  every picture shows %s\n", colours_text(text, choice->about));
    if (choice->without) printf("  without %s\n", colours_text(text, choice->without));
    printf("  chance without the picture:");
    for (int i = 0; i < synth_channels(choice); i++) {
        int answers, pictures;
        const char *name = synth_channel(choice, i, &answers, &pictures);
        if (pictures) printf(" %s 1/%d ", name, answers);
    }
    putchar('\n');
}

typedef struct SynthArgs { const char *out, *without, *about; int64_t train, eval, seed; } SynthArgs;

static const Option options[] = {
    OPTION_TEXT(SynthArgs, out, "--out", "DIR", "the folder to write to (required)"),
    OPTION_INT(SynthArgs, train, "--train", "N", 0, 10000000, "questions to train on (default 40000)"),
    OPTION_INT(SynthArgs, eval, "--eval", "N", 0, 10000000, "held-out questions (default 900)"),
    OPTION_INT(SynthArgs, seed, "--seed", "N", 0, 9000000000000000, "seed of the set (default 1)"),
    OPTION_TEXT(SynthArgs, without, "--without", "COLOUR,...",
                "colours that no picture shows and no text names"),
    OPTION_TEXT(SynthArgs, about, "--about", "COLOUR,...", "every picture shows one of these colours"),
    OPTION_END
};

static Status draw_set(int argc, char **argv)
{
    SynthArgs a = { .train = 40000, .eval = 900, .seed = 1 };
    bool drawn;
    TRY(options_parse(argc, argv, options, &a, NULL));
    if (!a.out) return fail(E_CONFIG, "data synth: --out DIR is missing: the folder to write to");
    SynthConf conf = { .dir = a.out, .items = { [SYNTH_TRAIN] = a.train, [SYNTH_EVAL] = a.eval } };
    conf.set.seed = (uint64_t)a.seed;
    if (a.without) TRY(colours_parse(&conf.set.choice.without, "--without", a.without));
    if (a.about) TRY(colours_parse(&conf.set.choice.about, "--about", a.about));
    double start = clock_now();
    TRY(synth_write(&conf, &drawn));
    if (drawn) print_summary(&conf, clock_now() - start);
    else       printf("%s: the set exists already\n", conf.dir);
    return OK;
}

static const Usage usage = {
    .args    = "--out DIR",
    .options = options,
    .notes   = "Draws the demo's visual questions.",
};

static const Command synth = {
    .name  = "synth",
    .help  = "draw the demo's questions and pictures",
    .run   = draw_set,
    .usage = USAGE(&usage),
};

int main(int argc, char **argv)
{
    program_start(argv);
    return program_finish(command_run("treb data", &synth, argc, argv));
}
