/* cli/plan_search.c -- see plan_search.h. Prints the ranking, writes the winner as a recipe. */
#include "cli/plan_search.h"

#include "cli/options.h"
#include "plan/search.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct Words {
    const char *gpus, *hardware, *model, *seq, *gbs, *images, *picture, *per_node, *precision, *imbalance;
    const char *objective, *fix, *top, *out;
    bool        json, no_dry, frozen;
} Words;

bool search_asked(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--gpus") || !strncmp(argv[i], "--gpus=", 7)) return true;
    return false;
}

/* The closed forms that layouts are ranked by know of no adapters. */
static Status refuse_lora(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "lora.", 5) || !strncmp(argv[i], "--lora", 6))
            return fail(E_CONFIG, "plan --gpus: %s: layouts are looked for that train the whole model; with "
                        "adapters plan a recipe: treb plan recipe.yaml lora.rank=16 --ranks N --hardware ID",
                        argv[i]);
    return OK;
}

static Status read_words(Words *w, int argc, char **argv)
{
    TRY(refuse_lora(argc, argv));
    *w = (Words){ .hardware = "h100", .seq = "4096", .images = "0", .picture = "0", .precision = "bf16",
                  .objective = "throughput", .fix = "", .top = "5", .imbalance = "1.15" };
    const Option options[] = {
        { "--gpus", &w->gpus, NULL },           { "--hardware", &w->hardware, NULL },
        { "--model", &w->model, NULL },         { "--seq", &w->seq, NULL },
        { "--gbs", &w->gbs, NULL },             { "--images", &w->images, NULL },
        { "--picture", &w->picture, NULL },     { "--per-node", &w->per_node, NULL },
        { "--precision", &w->precision, NULL }, { "--objective", &w->objective, NULL },
        { "--fix", &w->fix, NULL },             { "--top", &w->top, NULL },
        { "--imbalance", &w->imbalance, NULL }, { "--out", &w->out, NULL },
        { "--json", NULL, &w->json },           { "--no-dry-run", NULL, &w->no_dry },
        { "--frozen-vision", NULL, &w->frozen }, { 0 },
    };
    const char *plain[1];
    return options_parse(argc, argv, options, plain, 0);
}

static Status find_model(Task *t, const char *name)
{
    char known[768] = "";
    if (!name) return fail(E_CONFIG, "plan: --model is wanted, such as qwen3-30b-a3b");
    if ((t->model = model_row(name))) return OK;
    for (int i = 0; model_row_at(i); i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", model_row_at(i)->name);
    }
    return fail(E_CONFIG, "--model %s: there is no such row; there are %s", name, known);
}

static Status pick(const char *option, const char *word, const char *const *list, int n, int *at)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(list[i], word)) return *at = i, OK;
    return fail(E_CONFIG, "%s %s: there are %s, %s%s%s", option, word, list[0], list[1], n > 2 ? ", " : "",
                n > 2 ? list[2] : "");
}

static Status read_task(Task *t, const Words *w)
{
    static const char *const precisions[] = { "bf16", "fp8", "mxfp8" };      /* as Precision */
    int64_t gpus, node;
    int precision = 0;
    TRY(option_int("--gpus", w->gpus, 1, 1 << 20, &gpus));
    TRY(find_model(t, w->model));
    TRY(hardware_find(&t->hw, w->hardware));
    TRY(option_int("--seq", w->seq, 16, 10000000, &t->seq));
    t->gpus = (int)gpus, t->gbs = 16 * gpus, t->frozen_vision = w->frozen;
    if (w->gbs) TRY(option_int("--gbs", w->gbs, 1, 1 << 24, &t->gbs));
    TRY(option_int("--images", w->images, 0, 100000000, &t->patches));
    TRY(option_int("--picture", w->picture, 0, 100000000, &t->picture));
    if (w->per_node) TRY(option_int("--per-node", w->per_node, 1, 1 << 20, &node));
    if (w->per_node) t->hw.domain = (int)node;
    else if (gpus > t->hw.domain) t->hw.domain = hardware_node(&t->hw, gpus);
    TRY(pick("--precision", w->precision, precisions, 3, &precision));
    t->precision = (Precision)precision;
    return option_real("--imbalance", w->imbalance, 1, 1000, &t->imbalance);
}

static Status read_ask(SearchAsk *a, const Words *w)
{
    static const char *const objectives[] = { "throughput", "fit" };         /* as Objective */
    int64_t top;
    int objective = 0;
    search_default(a);
    TRY(read_task(&a->task, w));
    TRY(pick("--objective", w->objective, objectives, 2, &objective));
    TRY(option_int("--top", w->top, 1, 100, &top));
    a->objective = (Objective)objective, a->top = (int)top, a->dry = !w->no_dry;
    return search_fix(&a->fix, w->fix);
}

static Status write_recipe(const Search *s, const char *path, int argc, char **argv)
{
    char command[1024] = "treb";
    if (!s->places) return fail(E_FIT, "--out %s: nothing fits, so there is no recipe to write", path);
    if (!search_can_build(&s->ask))
        return fail(E_CONFIG, "--out %s: no family here trains %s so; it is planned by formula alone", path,
                    s->ask.task.model->name);
    for (int i = 0; i < argc; i++) {
        size_t at = strlen(command);
        snprintf(command + at, sizeof command - at, " %s", argv[i]);
    }
    FILE *f = fopen(path, "w");
    if (!f) return fail(E_IO, "%s: %s", path, strerror(errno));
    Status st = search_recipe(f, s, s->found, command);
    if (fclose(f) && !st) st = fail(E_IO, "%s: %s", path, strerror(errno));
    return st;
}

Status search_command(int argc, char **argv)
{
    Words     w;
    SearchAsk a;
    TRY(read_words(&w, argc, argv));
    TRY(read_ask(&a, &w));
    Search *s = malloc(sizeof *s);
    if (!s) return fail(E_FIT, "no memory for a search");
    Status st = search_open(s, &a);
    if (st) return free(s), st;
    st = search_places(s);
    if (!st) st = w.json ? search_json(stdout, s) : search_print(stdout, s);
    if (!st && w.out) st = write_recipe(s, w.out, argc, argv);
    if (!st && !w.json && w.out) printf("%s: the first as a recipe; data.train is yours to name\n", w.out);
    if (!st && !s->places) st = fail(E_FIT, "plan: nothing fits that trains the whole model; adapters may: "
                                            "treb plan recipe.yaml lora.rank=16");
    search_close(s);
    free(s);
    return st;
}
