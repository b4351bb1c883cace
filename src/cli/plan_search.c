/* cli/plan_search.c -- see plan_search.h. Prints the ranking, writes the winner as a recipe. */
#include "cli/plan_search.h"

#include "base/str.h"
#include "cli/options.h"
#include "plan/search.h"
#include "train/recipe_check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PLAIN = 128 };

typedef struct Words {
    const char *gpus, *hardware, *model, *seq, *gbs, *images, *picture, *per_node, *precision, *imbalance;
    const char *objective, *fix, *top, *out, *lora, *targets;
    bool        json, no_dry, frozen;
    const char *plain[MOST_PLAIN];       /* section.key=value */
    int         plains;
} Words;

bool search_asked(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--gpus") || !strncmp(argv[i], "--gpus=", 7)) return true;
    return false;
}

static Status read_words(Words *w, int argc, char **argv)
{
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
        { "--frozen-vision", NULL, &w->frozen }, { "--lora", &w->lora, NULL },
        { "--targets", &w->targets, NULL },     { 0 },
    };
    if (argc > MOST_PLAIN) return fail(E_CONFIG, "plan --gpus: more than %d words; write less", MOST_PLAIN);
    return options_parse_any(argc, argv, options, w->plain, &w->plains);
}

/* What of a recipe a search takes from the command line: adapters, and parts of the model that get none. */
static Status read_plain(Config *recipe, const Words *w)
{
    for (int i = 0; i < w->plains; i++) {
        const char *word = w->plain[i];
        if (strncmp(word, "lora.", 5) && strncmp(word, "model.freeze_", 13))
            return fail(E_CONFIG, "plan --gpus: %s: beside options there are lora.* and with it "
                        "model.freeze_*; what of a layout is known is --fix, a recipe is planned without "
                        "--gpus", word);
        TRY(config_set(recipe, word));
    }
    return OK;
}

/* A list as the recipe has it; globs would be something else without quotes. */
static void quote_words(char *text, size_t n, const char *key, const char *words)
{
    size_t at = (size_t)snprintf(text, n, "%s[", key), len;
    for (const char *word, *comma = ""; at < n && (word = str_item(&words, ',', &len)); comma = ", ")
        at += (size_t)snprintf(text + at, n - at, "%s\"%.*s\"", comma, (int)len, word);
    if (at < n) snprintf(text + at, n - at, "]");
}

/* --lora RANK --targets WORDS is short for two of the keys, as in `treb bench step`. */
static Status read_adapters(Config *recipe, const Words *w)
{
    const struct cfg_model *m = &recipe->model;
    char    text[1024];
    int64_t rank;
    if (w->targets && !w->lora) return fail(E_CONFIG, "--targets: is of --lora RANK");
    if (w->lora) {
        TRY(option_int("--lora", w->lora, 1, 65536, &rank));
        snprintf(text, sizeof text, "lora.rank=%lld", (long long)rank);
        TRY(config_set(recipe, text));
    }
    if (w->targets) {
        quote_words(text, sizeof text, "lora.target_modules=", w->targets);
        TRY(config_set(recipe, text));
    }
    recipe->model.freeze_vit = w->frozen;
    TRY(read_plain(recipe, w));
    TRY(recipe_check_lora(recipe));
    if (recipe->lora.rank || *recipe->lora.path) return OK;
    if (m->freeze_aligner || m->freeze_llm || m->freeze_vit != w->frozen)
        return fail(E_CONFIG, "model.freeze_*: without lora.rank there is --frozen-vision alone");
    return OK;
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

static void join(char *text, size_t n, int argc, char **argv)
{
    size_t at = (size_t)snprintf(text, n, "treb");
    for (int i = 0; i < argc && at < n; i++) at += (size_t)snprintf(text + at, n - at, " %s", argv[i]);
}

static Status write_recipe(const Search *s, const char *path, int argc, char **argv)
{
    char command[1024];
    if (!s->places) return fail(E_FIT, "--out %s: nothing fits, so there is no recipe to write", path);
    if (!search_can_build(&s->ask))
        return fail(E_CONFIG, "--out %s: no family here trains %s so; it is planned by formula alone", path,
                    s->ask.task.model->name);
    join(command, sizeof command, argc, argv);
    FILE *f = fopen(path, "w");
    if (!f) return fail(E_IO, "%s: %s", path, strerror(errno));
    Status st = search_recipe(f, s, s->found, command);
    if (fclose(f) && !st) st = fail(E_IO, "%s: %s", path, strerror(errno));
    return st;
}

/* Whether adapters would do, of the same task. */
static Status adapters_fit(bool *fit, const SearchAsk *ask)
{
    Config    recipe;
    SearchAsk a = *ask;
    LoraCost  *x = malloc(sizeof *x);
    Search   *s = malloc(sizeof *s);
    Status    st = x && s ? OK : fail(E_FIT, "no memory for a search");
    *fit = false;
    config_default(&recipe);
    recipe.model.freeze_vit = a.task.frozen_vision;
    if (!st) st = config_set(&recipe, "lora.rank=16");
    if (!st) st = search_adapt(&a, x, &recipe);
    if (!st) {
        st = search_open(s, &a);
        *fit = !st && s->n > 0;
        if (!st) search_close(s);
        lora_cost_close(x);
    }
    config_close(&recipe);
    free(s), free(x);
    return st;
}

/* The last word where nothing does: the way out is tried before it is named. */
static Status nothing_fits(const SearchAsk *a, int argc, char **argv)
{
    const TrainableSummary *trains = a->adapters ? &a->task.lora->trains : NULL;
    char command[1024];
    bool fit = false;
    join(command, sizeof command, argc, argv);
    if (a->adapters)
        return fail(E_FIT, "plan: nothing fits with these adapters, beside which %.0f GB of weights are "
                    "frozen; fewer take less: lora.target_modules=all-attention, lora.expert_a=shared, a "
                    "smaller lora.rank", 2e-9 * (double)(trains->base - trains->whole));
    if (search_can_build(a)) TRY(adapters_fit(&fit, a));
    if (fit)
        return fail(E_FIT, "plan: nothing fits that trains the whole model; adapters do: %s lora.rank=16",
                    command);
    return fail(E_FIT, "plan: nothing fits that trains the whole model%s",
                search_can_build(a) ? ", nor do adapters of rank 16" : "");
}

static Status search_and_say(Search *s, const SearchAsk *a, const Words *w, int argc, char **argv)
{
    TRY(search_open(s, a));
    Status st = search_places(s);
    if (!st) st = w->json ? search_json(stdout, s) : search_print(stdout, s);
    if (!st && w->out) st = write_recipe(s, w->out, argc, argv);
    if (!st && !w->json && w->out) printf("%s: the first as a recipe; data.train is yours to name\n", w->out);
    if (!st && !s->places) st = nothing_fits(a, argc, argv);
    search_close(s);
    return st;
}

Status search_command(int argc, char **argv)
{
    Words     w;
    SearchAsk a;
    Config    recipe;
    TRY(read_words(&w, argc, argv));
    TRY(read_ask(&a, &w));
    config_default(&recipe);
    LoraCost *x = calloc(1, sizeof *x);
    Search  *s = malloc(sizeof *s);
    Status  st = x && s ? read_adapters(&recipe, &w) : fail(E_FIT, "no memory for a search");
    if (!st && (recipe.lora.rank || *recipe.lora.path)) st = search_adapt(&a, x, &recipe);
    if (!st) st = search_and_say(s, &a, &w, argc, argv);
    if (x) lora_cost_close(x);
    config_close(&recipe);
    free(s), free(x);
    return st;
}
