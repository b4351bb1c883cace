/* cli/cmd_eval.c -- `treb eval`: a model over held-out data, by channel. */
#include "checkpoint/checkpoint.h"
#include "checkpoint/picture_limits.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "engine/batching.h"
#include "infer/evaluate.h"
#include "infer/predict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct Ask {
    const char *model, *lora, *dtype, *samples;
    Path        checkpoint, file_of_run; /* of a run that is named instead of a recipe */
    OptionList  file;                    /* of --data */
    int64_t     max_new, max_samples, lines;
    bool        blind, json;
    Config      recipe;
    Source     *source;                  /* as a list of sources */
    SourceList  list;
    Predictor     p;
} Ask;

/* Files named outright, else data.eval, else the share of data.train that eval.split keeps apart. */
static Status choose_data(Ask *a, EvalConf *e)
{
    const Config *c = &a->recipe;
    a->source = calloc((size_t)a->file.n + 1, sizeof *a->source);
    if (!a->source) return fail(E_FIT, "no memory for %d data sources", a->file.n);
    for (int i = 0; i < a->file.n; i++)
        a->source[i] = (Source){ .path = a->file.value[i], .weight = 1, .channel = "" };
    a->list = (SourceList){ a->source, a->file.n };
    if (a->file.n)               e->sources = &a->list, e->key = "--data";
    else if (c->data.eval.n)     e->sources = &c->data.eval, e->key = "data.eval";
    else if (c->eval.split > 0)  e->sources = &c->data.train, e->key = "data.train", e->split = c->eval.split;
    if (e->sources) return OK;
    return fail(E_CONFIG, "eval: no data; name files with --data, or a recipe with data.eval or eval.split");
}

static Json *row_json(const EvalRow *r)
{
    return json_pack("{s:s, s:I, s:I, s:f, s:I, s:I, s:f}", "channel", r->channel,
                     "samples", (json_int_t)r->samples, "supervised", (json_int_t)r->supervised,
                     "loss", eval_loss(r), "asked", (json_int_t)r->asked,
                     "correct", (json_int_t)r->correct, "accuracy", eval_accuracy(r));
}

/* "runs/x/last (after step 60)", "random weights of tiny", "org/name with the adapter runs/x/last" */
static void name_model(char *out, size_t cap, const Ask *a)
{
    const struct cfg_model *m = &a->recipe.model;
    const char *lora = a->recipe.lora.path, *own = *lora ? lora : m->path;
    int64_t step = -1;
    Json *state = NULL;
    Path file;
    bool trained = !path_join(file, own, "trainer_state.json") && file_is(file) &&
                   !checkpoint_read_state(own, &state) && !json_int(state, "global_step", -1, &step);
    int n = snprintf(out, cap, "%s%s%s%s", *m->preset ? "random weights of " : "",
                     *m->preset ? m->preset : m->path, *lora ? " with the adapter " : "", lora);
    if (trained && step >= 0 && n > 0 && (size_t)n < cap)
        snprintf(out + n, cap - (size_t)n, " (after step %lld)", (long long)step);
    json_decref(state);
}

static void print_json(const EvalResult *r, const char *model)
{
    Json *rows = json_array();
    for (int i = 0; i < r->rows; i++) json_array_append_new(rows, row_json(&r->row[i]));
    Json *o = json_pack("{s:s, s:o, s:o, s:I, s:I, s:f}", "model", model, "total", row_json(&r->total),
                        "channels", rows, "skipped", (json_int_t)r->skipped, "generated",
                        (json_int_t)r->generated, "seconds", r->seconds);
    json_dumpf(o, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(o);
}

/* Which model is evaluated, and where the run of the recipe has left another. */
static void log_model(const Ask *a, const Log *log)
{
    const Config *c       = &a->recipe;
    const char   *adapter = c->lora.path, *path = a->p.source.weights;
    Path          last;
    log_info(log, "model        %s%s%s", path ? path : c->model.preset, path ? "" : ", random weights",
             *adapter ? ", with the adapter " : "");
    if (*adapter) log_info(log, "             %s", adapter);
    bool named = a->model || a->lora || *adapter || !*c->checkpoint.output_dir;
    if (!named && !path_join(last, c->checkpoint.output_dir, "last") && file_is(last))
        log_warn(log,
                 "this is the model that the run of the recipe begins with; --model %s is the one that it "
                 "has trained",
                 last);
}

static Status open_model(Ask *a, EvalConf *e)
{
    const Config *c = &a->recipe;
    if (!*c->model.path && !*c->model.preset)
        return fail(E_CONFIG, "eval: no model; name a folder with --model or model.path");
    if (c->lora.rank && !*c->lora.path && !a->model)
        log_warn(e->log, "the recipe trains adapters and none is named: %s is asked without; name a "
                 "checkpoint with --lora", *c->model.path ? c->model.path : c->model.preset);
    TRY(choose_data(a, e));
    TRY(predict_open(&a->p, &a->recipe));
    log_model(a, e->log);
    return picture_limits_fit(&a->recipe, &a->p.source.shape.vision, e->log), OK;
}

static Status run(void *self, Comm *world)
{
    Ask *a = self;
    EvalResult r = { 0 };
    bool first = world->rank == 0;
    const Log log = { .rank = world->rank, .world = world->size, .least = first ? LOG_INFO : LOG_WARN };
    const Log of_rank_0 = { .world = world->size, .least = first ? LOG_INFO : LOG_ERROR };
    EvalConf e = { .recipe = &a->recipe, .max_samples = a->max_samples, .max_new = a->max_new,
                   .samples = a->samples, .sample_lines = a->lines, .blind = a->blind, .log = &of_rank_0 };
    TRY(comm_agree(world, open_model(a, &e)));
    PredictConf p = { .budget = batching_budget(&a->recipe, &a->p.source.shape), .world = world,
                      .log = &of_rank_0 };
    p.capacity = eval_decode_capacity(a->max_new, &p.budget);
    TRY(predict_load(&a->p, &p));
    e.tokenizer = a->p.source.tokenizer, e.patch = a->p.patch, e.log = &log;
    TRY(evaluate_model(&a->p.e, &e, &r));
    char model[3 * sizeof(Path)];
    name_model(model, sizeof model, a);
    if (first && a->json) print_json(&r, model);
    else if (first)       printf("model: %s\n", model), eval_print(stdout, &r);
    eval_result_close(&r);
    return OK;
}

static void close_model(void *self) { predict_close(&((Ask *)self)->p); }

/* --model is of more account than the recipe's; what that trained with adapters may be one of its
 * checkpoints. */
static Status choose_model(Ask *a)
{
    Config *c = &a->recipe;
    if (a->model) c->model.path = a->model, c->model.preset = "", c->lora.path = "";
    TRY(option_folder("--lora", a->lora));
    if (a->lora) c->lora.path = a->lora;
    return lora_source_resolve(c);
}

/* A run's folder stands for its recipe and its last checkpoint, a checkpoint in it for that one. */
static Status find_run(Ask *a, const char *folder)
{
    Path last;
    TRY(path_join(a->file_of_run, folder, "recipe.yaml"));
    TRY(path_join(last, folder, "last"));
    if (!file_is(a->file_of_run)) {
        TRY(path_join(a->file_of_run, folder, "../recipe.yaml"));
        if (!file_is(a->file_of_run))
            return fail(E_CONFIG, "eval: %s has no recipe.yaml: it is not the folder of a run; name a model "
                        "with --model and files with --data", folder);
    }
    if (checkpoint_is(last)) folder = last;
    else if (!checkpoint_is(folder))
        return fail(E_CONFIG, "eval: the run %s has no checkpoint; name a model with --model", folder);
    snprintf(a->checkpoint, sizeof a->checkpoint, "%s", folder);
    if (!a->model) a->model = a->checkpoint;
    return OK;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static Status read_recipe(Ask *a, const char **plain, int n)
{
    int  from = n && !strchr(plain[0], '=');
    Path chosen;
    bool run = from && is_folder(plain[0]);
    if (run) TRY(find_run(a, plain[0]));
    if (from) TRY(config_open(&a->recipe, run ? a->file_of_run : plain[0], 0, NULL));
    else      config_default(&a->recipe);
    TRY(choose_model(a));
    snprintf(chosen, sizeof chosen, "%s", a->recipe.model.path);
    for (int i = from; i < n; i++) TRY(config_set(&a->recipe, plain[i]));
    if (a->model && strcmp(a->recipe.model.path, chosen))
        return fail(E_CONFIG, "--model %s and model.path=%s: two models; name one of them", a->model,
                    a->recipe.model.path);
    TRY(lora_source_resolve(&a->recipe));
    if (!a->dtype) return OK;
    DType d;
    TRY(option_dtype("--dtype", a->dtype, &d));
    return a->recipe.model.dtype = d == F32 ? "float32" : "bfloat16", OK;
}

static const Option options[] = {
    OPTION_TEXT(Ask, model, "--model", "DIR", "the model, in place of the recipe's"),
    OPTION_TEXT(Ask, lora, "--lora", "DIR", "an adapter beside the model"),
    OPTION_LIST(Ask, file, "--data", "FILE", "held-out data; may be given more than once"),
    OPTION_TEXT(Ask, samples, "--samples", "FILE", "write questions and answers, one JSON object a line"),
    OPTION_INT(Ask, lines, "--sample-lines", "N", 0, INT64_MAX, "lines of --samples at most; 0: all"),
    OPTION_INT(Ask, max_samples, "--max-samples", "N", 0, INT64_MAX, "documents at most; 0: all"),
    OPTION_INT(Ask, max_new, "--max-new", "N", 0, 1 << 20,
               "tokens of an answer at most; 0: loss alone (default 64)"),
    OPTION_TEXT(Ask, dtype, "--dtype", "f32|bf16", "of weights and activations"),
    OPTION_FLAG(Ask, blind, "--blind", "show the model blank pictures"),
    OPTION_FLAG(Ask, json, "--json", "print the result as JSON"),
    OPTION_END
};

static Status parse(Ask *a, int argc, char **argv)
{
    PlainArgs plain = { .most = PLAIN_ANY };
    a->max_new = 64;
    TRY(options_parse(argc, argv, options, a, &plain));
    Status st = read_recipe(a, plain.value, plain.n);
    plain_args_close(&plain);
    return st;
}

static Status cmd_eval(int argc, char **argv)
{
    Ask *a = calloc(1, sizeof *a);
    if (!a) return fail(E_FIT, "no memory for an evaluation");
    Status st = parse(a, argc, argv);
    if (!st) st = ranks_run(&a->recipe, (RankVerb){ run, close_model }, a);
    config_close(&a->recipe);
    free(a->source);
    free(a);
    return st;
}

static const Usage usage = {
    .args    = "[recipe.yaml|run] [section.key=value ...]",
    .options = options,
    .notes   = "The folder of a run stands for its recipe and its last checkpoint. Data: the files of "
               "--data, else data.eval of the recipe, else the share that eval.split holds out. The loss "
               "is per supervised token; an answer is right when it equals the expected text. An adapter "
               "that is named as the model brings the base it was trained on. Under mpirun or srun the "
               "ranks share the model as parallel.* says, or by a layout that is chosen and printed, and "
               "replicas share the documents.",
};

const Command command_eval = {
    .name     = "eval",
    .help     = "measure loss and answers of a model on held-out data",
    .run      = cmd_eval,
    .usage    = USAGE(&usage),
};
