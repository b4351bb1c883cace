/* cli/cmd_init.c -- `treb init MODEL DATA...`: a commented recipe for a model, a dataset and the GPUs at
 * hand. */
#define _GNU_SOURCE /* cpu_set_t of topology.h */
#include "base/folder.h"
#include "cli/commands.h"
#include "cli/init.h"
#include "launch/topology.h"
#include "ops/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int gpus_here(void)
{
    Topology *t = calloc(1, sizeof *t);
    if (!t) return 1;
    topology_read_host(t);
    int n = t->gpus;
    free(t);
    return n > 1 ? n : 1;
}

/* The machine that the recipe is for: this one, or GPUs by name. */
static Status find_machine(InitRun *x)
{
    double      left, all, limit = x->setup.recipe.device.memory_limit * (1 << 30);
    const char *backend = backend_pick(x->setup.recipe.device.backend);
    bool        cpu     = !strcmp(backend, "cpu");
    x->elsewhere        = x->hardware;
    x->ranks            = x->gpus ? (int)x->gpus : x->elsewhere || cpu ? 1 : gpus_here();
    if (x->elsewhere) TRY(hardware_find(&x->hw, x->hardware));
    else TRY(hardware_here(&x->hw, backend, x->ranks));
    backend_memory(backend, &left, &all);
    x->available = x->elsewhere ? x->hw.capacity - x->hw.fixed : cpu ? left / x->ranks : left;
    if (limit > 0) x->available = fmin(x->available, limit);
    return OK;
}

/* MODEL becomes the override that the data verbs know. */
static Status open_setup(InitRun *x)
{
    PlainArgs   *p     = &x->plain;
    char        *model = NULL;
    const char **plain = calloc((size_t)p->n + 1, sizeof *plain);
    if (!plain || asprintf(&model, "model.path=%s", p->value[0]) < 0)
        return free(plain), fail(E_FIT, "no memory for the arguments");
    memcpy(plain, p->value + 1, (size_t)(p->n - 1) * sizeof *plain);
    plain[p->n - 1] = model;
    Status st       = data_setup_open(&x->setup, "init", plain, p->n);
    free(plain), free(model);
    return st;
}

static Status choose_names(InitRun *x, char **run)
{
    const char *data = x->setup.recipe.data.train.item[0].path, *slash = strrchr(data, '/');
    const char *name = slash && slash[1] ? slash + 1 : data;
    if (!x->out) x->out = "recipe.yaml";
    if (file_is(x->out)) return fail(E_CONFIG, "%s exists; name another file with --out", x->out);
    if (x->run) return OK;
    int n = (int)strcspn(name, ".");
    if (asprintf(run, "runs/%.*s", n ? n : 3, n ? name : "run") < 0)
        return fail(E_FIT, "no memory for a name");
    return x->run = *run, OK;
}

static void print_next(const InitRun *x)
{
    bool many = x->ranks > 1;
    printf("wrote %s: %s of %.1f M parameters, %lld samples, about %lld steps%s\n", x->out,
           x->setup.recipe.lora.rank ? "adapters on a model" : "all weights", (double)x->params / 1e6,
           (long long)x->data.samples, (long long)x->steps, x->elsewhere ? ", planned for other GPUs" : "");
    for (int i = 0; i < x->choice.lines.n; i++) printf("  %s\n", x->choice.lines.at[i]);
    if (x->data.bad)
        printf("%lld of %lld samples cannot be used, the first: %s\n", (long long)x->data.bad,
               (long long)(x->data.bad + x->data.looked), x->data.error);
    printf("next:\n  treb data check %s\n  treb %s", x->out, many ? "launch " : "");
    if (many) printf("-n %d ", x->ranks);
    printf("train %s\n  treb chat %s/last\n", x->out, x->run);
}

static Status make_recipe(InitRun *x)
{
    char *run = NULL, *text = NULL;
    TRY(open_setup(x));
    Status st = choose_names(x, &run);
    if (!st) st = find_machine(x);
    if (!st) st = init_measure(x);
    if (!st) st = init_choose(x);
    if (!st) st = init_write(&text, x);
    if (!st) st = file_write(x->out, text, strlen(text));
    if (!st) print_next(x);
    data_setup_close(&x->setup);
    free(text), free(run);
    return st;
}

static const Option options[] = {
    OPTION_TEXT(InitRun, out, "--out", "FILE", "the recipe (default recipe.yaml)"),
    OPTION_TEXT(InitRun, run, "--output-dir", "DIR",
                "folder of the run (default: runs/ and the name of the data)"),
    OPTION_LIST(InitRun, eval, "--eval", "FILE", "held-out data; a share of DATA unless given"),
    OPTION_INT(InitRun, rank, "--lora", "RANK", 0, 65536,
               "adapters of this rank, 0: train all weights; unless given, adapters where these do not fit"),
    OPTION_INT(InitRun, gpus, "--gpus", "N", 1, 65536,
               "ranks that the recipe is for (default: the GPUs of this machine)"),
    OPTION_TEXT(InitRun, hardware, "--hardware", "ID",
                "plan for these GPUs in place of this machine: h100, h200, ..."),
    OPTION_END
};

static Status cmd_init(int argc, char **argv)
{
    InitRun *x = calloc(1, sizeof *x);
    if (!x) return fail(E_FIT, "no memory");
    x->rank = -1, x->plain.least = 2, x->plain.most = PLAIN_ANY, x->plain.what = "a model and data files";
    Status st = options_parse(argc, argv, options, x, &x->plain);
    if (!st) st = make_recipe(x);
    plain_args_close(&x->plain);
    free(x);
    return st;
}

static const Usage usage = {
    .args    = "MODEL DATA... [section.key=value ...]",
    .options = options,
    .notes   = "Opens the model, looks at a few hundred samples, and writes a recipe with comments: lengths, "
               "picture sizes and budgets by the data; adapters, layout and recompute by the planner, for "
               "the GPUs of this machine.",
};

const Command command_init = {
    .name  = "init",
    .help  = "write a recipe for a model, a dataset and the GPUs at hand",
    .run   = cmd_init,
    .usage = USAGE(&usage),
};
