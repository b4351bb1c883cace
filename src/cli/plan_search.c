/* cli/plan_search.c -- see plan_search.h. Prints the ranking and writes the first as a recipe. */
#include "cli/plan_search.h"

#include "base/folder.h"
#include "base/str.h"
#include "cli/options.h"
#include "plan/search.h"
#include "train/recipe_check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct SearchOptions {
    const char *hardware, *model, *precision, *objective, *fix, *out, *targets, *engine, *graphs;
    int64_t     gpus, seq, gbs, images, picture, per_node, top, lora;        /* 0: not given */
    int64_t     mtp;                                                         /* -1: as the model has */
    double      imbalance, network;
    ModelRow    loaded; /* of --model PATH */
    bool        json, no_dry, frozen;
    PlainArgs   plain;                   /* section.key=value */
} SearchOptions;

bool search_asked(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--gpus") || !strncmp(argv[i], "--gpus=", 7)) return true;
    return false;
}

static const Option options[] = {
    OPTION_INT(SearchOptions, gpus, "--gpus", "N", 1, 1 << 20, "GPUs to use (required)"),
    OPTION_TEXT(SearchOptions, model, "--model", "NAME",
                "such as qwen3-30b-a3b, or a folder with config.json (required)"),
    OPTION_TEXT(SearchOptions, hardware, "--hardware", "ID", "a GPU by name, or `this` (default h100)"),
    OPTION_INT(SearchOptions, seq, "--seq", "N", 16, 10000000, "tokens of a sequence (default 4096)"),
    OPTION_INT(SearchOptions, gbs, "--gbs", "N", 1, 1 << 24,
               "sequences of a step over all GPUs (default: 16 a GPU)"),
    OPTION_INT(SearchOptions, images, "--images", "PATCHES", 0, 100000000,
               "patches of the pictures in a sequence"),
    OPTION_INT(SearchOptions, picture, "--picture", "PATCHES", 0, 100000000, "patches of one picture"),
    OPTION_FLAG(SearchOptions, frozen, "--frozen-vision", "the vision tower does not train"),
    OPTION_INT(SearchOptions, per_node, "--per-node", "N", 1, 1 << 20,
               "GPUs of a node (default: the hardware's)"),
    OPTION_TEXT(SearchOptions, objective, "--objective", "throughput|fit",
                "what is ranked first (default throughput)"),
    OPTION_TEXT(SearchOptions, fix, "--fix", "tp=2,ep=8,...",
                "what not to search: tp, cp, pp, vpp, ep, etp, zero, mbs, recompute, states, offload, "
                "dispatch, overlap, replicas"),
    OPTION_TEXT(SearchOptions, precision, "--precision", PRECISION_PLANS, "of the products (default bf16)"),
    OPTION_REAL(SearchOptions, imbalance, "--imbalance", "X", 1, 1000,
                "rows of the busiest rank over the mean (default 1.15)"),
    OPTION_INT(SearchOptions, top, "--top", "N", 1, 100, "layouts to list (default 5)"),
    OPTION_TEXT(SearchOptions, engine, "--engine", engine_choices + 1,
                "the trainer whose step is predicted (default treb)"),
    OPTION_TEXT(SearchOptions, graphs, "--graphs", "none|partial|full",
                "what is in CUDA graphs (default none)"),
    OPTION_REAL(SearchOptions, network, "--network", "GBITS", 0.1, 100000,
                "Gb/s of the network for each GPU (default: the hardware's)"),
    OPTION_INT(SearchOptions, mtp, "--mtp", "N", 0, 8,
               "layers that predict further tokens (default: the model's)"),
    OPTION_FLAG(SearchOptions, no_dry, "--no-dry-run", "rank by the analytic model alone"),
    OPTION_INT(SearchOptions, lora, "--lora", "R", 1, 65536, "adapters of this rank: lora.rank=R"),
    OPTION_TEXT(SearchOptions, targets, "--targets", "WORDS", "with --lora: lora.target_modules=[WORDS]"),
    OPTION_TEXT(SearchOptions, out, "--out", "recipe.yaml", "write the first layout as a recipe"),
    OPTION_FLAG(SearchOptions, json, "--json", "print the ranking as JSON"),
    OPTION_END
};

const Usage usage_plan_search = {
    .args    = "--gpus N --model NAME [lora.rank=R [lora.KEY=VALUE ...] [model.freeze_PART=true ...]]",
    .options = options,
    .notes   = "Searches every legal layout, ranks those that fit and says why others do not.",
};

static Status read_options(SearchOptions *w, int argc, char **argv)
{
    *w = (SearchOptions){ .hardware  = "h100",
                          .seq       = 4096,
                          .precision = "bf16",
                          .objective = "throughput",
                          .fix       = "",
                          .top       = 5,
                          .imbalance = 1.15,
                          .engine    = "treb",
                          .graphs    = "none",
                          .mtp       = -1,
                          .plain     = { .most = PLAIN_ANY } };
    return options_parse(argc, argv, options, w, &w->plain);
}

/* Keys of a recipe that a search accepts: adapters, frozen parts of the model and their codes. */
static Status read_plain(Config *recipe, const SearchOptions *w)
{
    for (int i = 0; i < w->plain.n; i++) {
        const char *word = w->plain.value[i];
        if (strncmp(word, "lora.", 5) && strncmp(word, "model.freeze_", 13) &&
            strncmp(word, "model.base_quant", 16))
            return fail(
                E_CONFIG,
                "plan --gpus: %s: only lora.*, model.freeze_* and model.base_quant are accepted here; "
                "--fix sets parts of the layout, and a recipe is planned without --gpus",
                word);
        TRY(config_set(recipe, word));
    }
    return OK;
}

/* A list as in a recipe; quotes keep globs from being YAML. */
static void quote_words(char *text, size_t n, const char *key, const char *words)
{
    size_t at = (size_t)snprintf(text, n, "%s[", key), len;
    for (const char *word, *comma = ""; at < n && (word = str_item(&words, ',', &len)); comma = ", ")
        at += (size_t)snprintf(text + at, n - at, "%s\"%.*s\"", comma, (int)len, word);
    if (at < n) snprintf(text + at, n - at, "]");
}

/* --lora RANK --targets WORDS is short for lora.rank and lora.target_modules. */
static Status read_adapters(Config *recipe, const SearchOptions *w)
{
    const struct cfg_model *m = &recipe->model;
    char text[1024];
    if (w->targets && !w->lora) return fail(E_CONFIG, "--targets: needs --lora RANK");
    if (w->lora) {
        snprintf(text, sizeof text, "lora.rank=%lld", (long long)w->lora);
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
        return fail(E_CONFIG, "model.freeze_*: needs lora.rank; without adapters use --frozen-vision");
    return OK;
}

static Status find_model(Task *t, const char *name, ModelRow *loaded)
{
    char known[1536] = "";
    if (!name) return fail(E_CONFIG, "plan: --model is missing; for example --model qwen3-30b-a3b");
    if (file_is(name)) return t->model = loaded, model_row_load(loaded, name);
    if ((t->model = model_row(name))) return OK;
    for (int i = 0; model_row_at(i); i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", model_row_at(i)->name);
    }
    return fail(E_CONFIG, "--model %s: neither a folder with config.json nor known; known are %s", name,
                known);
}

static Status pick(const char *option, const char *word, const char *const *list, int n, int *at)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(list[i], word)) return *at = i, OK;
    return fail(E_CONFIG, "%s %s: expected %s, %s%s%s", option, word, list[0], list[1], n > 2 ? ", " : "",
                n > 2 ? list[2] : "");
}

/* Whose steps, with which graphs. */
static Status read_engine(Task *t, const SearchOptions *w)
{
    static const char *const graphs[] = { "none", "partial", "full" }; /* as Graphs */
    const EngineRow         *e        = engine_row(w->engine);
    int                      at       = 0;
    if (!e) return fail(E_CONFIG, "--engine %s: expected %s", w->engine, engine_choices + 1);
    task_set_engine(t, e);
    TRY(pick("--graphs", w->graphs, graphs, 3, &at));
    return t->graphs = (Graphs)at, OK;
}

/* A copy of the model's row with as many MTP layers as asked. */
static void set_mtp(Task *t, SearchOptions *w)
{
    if (w->mtp < 0 || w->mtp == t->model->text.mtp) return;
    if (t->model != &w->loaded) w->loaded = *t->model;
    w->loaded.text.mtp = w->mtp, w->loaded.mtp_asked = true, t->model = &w->loaded;
}

static Status read_task(Task *t, SearchOptions *w)
{
    Precision precision = precision_find_plan(w->precision);
    TRY(find_model(t, w->model, &w->loaded));
    set_mtp(t, w);
    TRY(hardware_find(&t->hw, w->hardware));
    TRY(read_engine(t, w));
    if (w->network > 0) t->hw.inter_bw = w->network / 8 * 1e9;
    t->gpus = (int)w->gpus, t->seq = w->seq, t->gbs = w->gbs ? w->gbs : 16 * w->gpus;
    t->patches = w->images, t->picture = w->picture, t->frozen_vision = w->frozen,
    t->imbalance = w->imbalance;
    if (w->per_node) t->hw.domain = (int)w->per_node;
    else if (w->gpus > t->hw.domain) t->hw.domain = hardware_node(&t->hw, w->gpus);
    if (precision == PRECISION_N)
        return fail(E_CONFIG, "--precision %s: expected %s", w->precision, PRECISION_PLANS);
    t->precision = precision, t->fp8_stash = t->foreign && precision != PREC_BF16;
    return OK;
}

static Status read_ask(SearchAsk *a, SearchOptions *w)
{
    static const char *const objectives[] = { "throughput", "fit" };         /* as Objective */
    int objective = 0;
    search_default(a);
    TRY(read_task(&a->task, w));
    TRY(pick("--objective", w->objective, objectives, 2, &objective));
    a->objective = (Objective)objective, a->top = (int)w->top, a->dry = !w->no_dry;
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
    if (!s->places) return fail(E_FIT, "--out %s: nothing fits, so no recipe is written", path);
    if (!search_can_build(&s->ask))
        return fail(E_CONFIG, "--out %s: this trainer cannot build %s; only the analytic model plans it",
                    path, s->ask.task.model->name);
    join(command, sizeof command, argc, argv);
    FILE *f = fopen(path, "w");
    if (!f) return fail(E_IO, "%s: %s", path, strerror(errno));
    Status st = search_recipe(f, s, s->found, command);
    if (fclose(f) && !st) st = fail(E_IO, "%s: %s", path, strerror(errno));
    return st;
}

/* Whether LoRA adapters of rank 16 would fit instead. */
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

/* The rule that refused most of the layouts. */
static Status nothing_legal(const Search *s)
{
    const Refused *most = s->refused;
    for (int i = 1; i < s->refusals; i++)
        if (s->refused[i].n > most->n) most = &s->refused[i];
    return fail(E_CONFIG, "plan: no layout satisfies the rules: %s (rule %d)", most->why, most->rule);
}

/* The error if nothing fits: adapters are tried before they are suggested. */
static Status nothing_fits(const Search *s, const SearchAsk *a, int argc, char **argv)
{
    const TrainableSummary *trains = a->adapters ? &a->task.lora->trains : NULL;
    char command[1024];
    bool fit = false;
    join(command, sizeof command, argc, argv);
    if (s->refusals && !search_any_legal(s)) return nothing_legal(s);
    if (a->adapters)
        return fail(E_FIT, "plan: nothing fits with these adapters beside %.0f GB of frozen weights; "
                    "smaller adapters take less: lora.target_modules=all-attention, lora.expert_a=shared, a "
                    "smaller lora.rank", 2e-9 * (double)(trains->base - trains->whole));
    if (search_can_build(a)) TRY(adapters_fit(&fit, a));
    if (fit)
        return fail(E_FIT, "plan: nothing fits that trains the whole model; adapters do: %s lora.rank=16",
                    command);
    return fail(E_FIT, "plan: nothing fits that trains the whole model%s",
                search_can_build(a) ? ", nor do adapters of rank 16" : "");
}

static Status search_and_print(Search *s, const SearchAsk *a, const SearchOptions *w, int argc, char **argv)
{
    TRY(search_open(s, a));
    Status st = search_places(s);
    if (!st) st = w->json ? search_json(stdout, s) : search_print(stdout, s);
    if (!st && w->out) st = write_recipe(s, w->out, argc, argv);
    if (!st && !w->json && w->out)
        printf("%s: the first as a recipe; set data.train before training\n", w->out);
    if (!st && !s->places) st = nothing_fits(s, a, argc, argv);
    search_close(s);
    return st;
}

static Status search(SearchOptions *w, int argc, char **argv)
{
    SearchAsk a;
    Config    recipe;
    TRY(read_ask(&a, w));
    config_default(&recipe);
    LoraCost *x = calloc(1, sizeof *x);
    Search  *s = malloc(sizeof *s);
    Status  st = x && s ? read_adapters(&recipe, w) : fail(E_FIT, "no memory for a search");
    if (!st && (recipe.lora.rank || *recipe.lora.path)) st = search_adapt(&a, x, &recipe);
    if (!st) st = search_and_print(s, &a, w, argc, argv);
    if (x) lora_cost_close(x);
    config_close(&recipe);
    free(s), free(x);
    return st;
}

Status search_command(int argc, char **argv)
{
    SearchOptions w;
    TRY(read_options(&w, argc, argv));
    Status st = search(&w, argc, argv);
    plain_args_close(&w.plain);
    return st;
}
