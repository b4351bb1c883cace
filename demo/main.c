/* demo/main.c -- the program treb-demo, which is also `treb data synth`: draws the demo set into a folder. */
#include "base/clock.h"
#include "cli/options.h"
#include "cli/program.h"
#include "demo/synth.h"

#include <stdio.h>

static void report(const SynthConf *c, double seconds)
{
    const SynthChoice *choice = &c->set.choice;
    char text[COLOURS_CAP];
    printf("%s: %lld questions to train on, %lld held out, drawn in %.1f s (seed %llu)\n", c->dir,
           (long long)c->items[SYNTH_TRAIN], (long long)c->items[SYNTH_EVAL], seconds,
           (unsigned long long)c->set.seed);
    if (choice->about) printf("  every picture shows %s\n", colours_text(text, choice->about));
    if (choice->without) printf("  nowhere in it: %s\n", colours_text(text, choice->without));
    printf("  right without the picture:");
    for (int i = 0; i < synth_channels(choice); i++) {
        int answers, pictures;
        const char *name = synth_channel(choice, i, &answers, &pictures);
        if (pictures) printf(" %s 1/%d ", name, answers);
    }
    putchar('\n');
}

static Status run(int argc, char **argv)
{
    SynthConf conf = { 0 };
    const char *train = "40000", *eval = "900", *seed = "1", *without = NULL, *about = NULL;
    const Option options[] = {
        { "--out", &conf.dir, NULL }, { "--train", &train, NULL }, { "--eval", &eval, NULL },
        { "--seed", &seed, NULL }, { "--without", &without, NULL }, { "--about", &about, NULL }, { 0 },
    };
    int64_t s;
    bool drawn;
    TRY(options_parse(argc, argv, options, NULL, 0));
    if (!conf.dir) return fail(E_CONFIG, "data synth: --out DIR says where to");
    TRY(option_int("--train", train, 0, 10000000, &conf.items[SYNTH_TRAIN]));
    TRY(option_int("--eval", eval, 0, 10000000, &conf.items[SYNTH_EVAL]));
    TRY(option_int("--seed", seed, 0, 9000000000000000, &s));
    conf.set.seed = (uint64_t)s;
    if (without) TRY(colours_parse(&conf.set.choice.without, "--without", without));
    if (about) TRY(colours_parse(&conf.set.choice.about, "--about", about));
    double start = clock_now();
    TRY(synth_write(&conf, &drawn));
    if (drawn) report(&conf, clock_now() - start);
    else       printf("%s: drawn already, nothing to do\n", conf.dir);
    return OK;
}

int main(int argc, char **argv)
{
    program_start(argv);
    return program_finish(run(argc, argv));
}
