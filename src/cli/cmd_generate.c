/* cli/cmd_generate.c -- `treb generate`: one prompt with its pictures, the answer as it comes. */
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "data/sample.h"
#include "infer/predict.h"
#include "infer/detokenize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_TOKENS = 1 << 24 };

typedef struct Ask {
    const char  *prompt, *system;
    const char  *dir, *lora, *dtype, *backend;
    OptionList   image;
    PlainArgs    overrides;              /* section.key=value */
    Comm        *world;
    int64_t      seed;
    GenerateConf how;
    Config       recipe;
    Predictor      model;
    Json        *line;                   /* the conversation as a dataset would have it */
    char        *text;
    DataFile     file;
    Dataset      data;                   /* of that one line */
    SampleConf   sc;
    SampleScratch scratch;
    Sample       sample;
    Stream       stream;
    Generator    gen;
    StreamPrinter      out;
    Status       said;                   /* of printing */
} Ask;

/* Pictures stand where the prompt has <image>, or before it when it has none. */
static Status conversation(Ask *a)
{
    Json *messages = json_array(), *images = json_array();
    char *marked = malloc(strlen(a->prompt) + (size_t)a->image.n * 7 + 1), *at = marked;
    if (!marked) return fail(E_FIT, "no memory for the prompt");
    for (int i = 0; i < a->image.n && !strstr(a->prompt, "<image>"); i++) at = stpcpy(at, "<image>");
    strcpy(at, a->prompt);
    if (a->system)
        json_array_append_new(messages, json_pack("{ss ss}", "role", "system", "content", a->system));
    json_array_append_new(messages, json_pack("{ss ss}", "role", "user", "content", marked));
    for (int i = 0; i < a->image.n; i++) json_array_append_new(images, json_string(a->image.value[i]));
    a->line = json_pack("{so so}", "messages", messages, "images", images);
    a->text = a->line ? json_dumps(a->line, JSON_COMPACT) : NULL;
    free(marked);
    return a->text ? OK : fail(E_CONFIG, "--prompt, --system and --image must be UTF-8 text");
}

static Status load_sample(Ask *a)
{
    const Budget any = {
        .tokens = MOST_TOKENS, .patches = MOST_TOKENS, .docs = 1, .supervised = MOST_TOKENS
    };
    StreamShape  ss = shape_stream(&a->model.source.shape);
    FormatConf   fc = { a->model.source.tokenizer, MOST_TOKENS };
    TRY(sample_conf(&a->sc, &a->recipe, a->model.source.tokenizer, &a->model.patch, &ss, &any));
    a->sc.chat.prompt_only = true, a->sc.max_length = MOST_TOKENS;
    TRY(format_open_memory(&a->file.file, "jsonl", a->text, strlen(a->text), "prompt", &fc));
    a->data = (Dataset){ .file = &a->file, .files = 1, .samples = 1, .pass = 1 };
    a->sc.data = &a->data;
    TRY(sample_scratch_open(&a->scratch, a->model.source.tokenizer));
    return sample_load(&a->sample, &a->scratch, &a->sc, 0);
}

static Status add_document(Ask *a)
{
    Sample *s = &a->sample;
    VisualSlice  *slice = calloc((size_t)s->slices + 1, sizeof *slice);
    if (!slice) return fail(E_FIT, "no memory for %lld pictures", (long long)s->slices);
    for (int64_t i = 0; i < s->slices; i++) slice[i] = (VisualSlice){ s->slice[i].h, s->slice[i].w, NULL };
    Document d = { s->ids.n, s->ids.v, s->targets.v, s->slices, slice };
    Status st = stream_add(&a->stream, &d);
    free(slice);
    int64_t at = 0;
    for (int64_t i = 0; !st && i < s->slices; i++) {
        st = sample_pixels(stream_patch(&a->stream, at), a->stream.shape.bytes, s, &a->scratch, &a->sc, i);
        at += (int64_t)s->slice[i].h * s->slice[i].w;
    }
    return st;
}

/* Budgets are exactly what the prompt takes; any tp cuts the tokens in equal parts. */
static Budget budget_of(const Ask *a)
{
    int64_t n = a->sample.ids.n, ranks = a->world->size;
    return (Budget){ .tokens = (n + ranks - 1) / ranks * ranks, .patches = a->sample.size.patches, .docs = 1,
                     .supervised = 1 };
}

static Status open_stream(Ask *a, const Budget *b)
{
    StreamShape ss = shape_stream(&a->model.source.shape);
    ss.bytes = true;
    return stream_open(&a->stream, &ss, b);
}

/* The document is on the first replica of the model. */
static Status open_generator(Ask *a)
{
    TRY(generator_open(&a->gen, &a->model.e));
    return a->model.e.mesh.at[AX_DP] ? OK : add_document(a);
}

static Status open_engine(Ask *a, const Log *log)
{
    PredictConf conf = { .budget = budget_of(a), .capacity = { 1, a->how.max_new }, .world = a->world,
                         .one_document = true, .log = log };
    a->recipe.train.micro_tokens = conf.budget.tokens;
    TRY(comm_agree(a->world, open_stream(a, &conf.budget)));
    TRY(predict_load(&a->model, &conf));
    return comm_agree(a->world, open_generator(a));
}

static void say(void *self, int64_t doc, int32_t id)
{
    Ask *a = self;
    if (a->world->rank == 0 && !a->said) a->said = stream_printer_put(&a->out, id);
}

static void set_sampling(Ask *a)
{
    a->how.on_token = say, a->how.self = a;
    a->how.vocab = tokenizer_size(a->model.source.tokenizer);
    a->how.stops = a->model.stops;
    memcpy(a->how.stop, a->model.stop, sizeof a->how.stop);
}

/* Rank 0 prints. A replica without the document takes part where the first needs it. */
static Status answer(Ask *a)
{
    Ids    out = { 0 };
    double start = clock_now();
    bool   idle = !a->stream.docs && !decode_in_lockstep(&a->model.e), first = a->world->rank == 0;
    a->out = (StreamPrinter){ .tokenizer = a->model.source.tokenizer, .out = stdout };
    set_sampling(a);
    Status st = idle ? OK : generate(&a->gen, &a->stream, &a->how, &out), end = stream_printer_end(&a->out);
    if (first) putchar('\n');
    if (first && !st && isatty(STDERR_FILENO) && isatty(STDOUT_FILENO))
        fprintf(stderr, "%lld tokens in, %lld out, %.2f s\n", (long long)a->stream.tokens, (long long)out.n,
                clock_now() - start);
    ids_close(&out);
    return st ? st : a->said ? a->said : end;
}

static Status set_overrides(Ask *a)
{
    for (int i = 0; i < a->overrides.n; i++) {
        const char *text = a->overrides.value[i];
        if (!config_is_override(text))
            return fail(E_CONFIG, "generate: %s is neither an option nor section.key=value", text);
        TRY(config_set(&a->recipe, text));
    }
    return OK;
}

static Status prepare(Ask *a)
{
    TRY(lora_source_resolve(&a->recipe));
    TRY(set_overrides(a));
    TRY(conversation(a));
    TRY(predict_open(&a->model, &a->recipe));
    return load_sample(a);
}

static Status run(void *self, Comm *world)
{
    Ask *a = self;
    const Log log = { .rank = world->rank, .world = world->size,
                      .least = world->rank ? LOG_ERROR : world->size > 1 ? LOG_INFO : LOG_WARN };
    a->world = world;
    TRY(comm_agree(world, prepare(a)));
    TRY(open_engine(a, &log));
    return comm_agree(world, answer(a));
}

static void close_model(void *self)
{
    Ask *a = self;
    generator_close(&a->gen);
    predict_close(&a->model);
}

static void ask_close(Ask *a)
{
    stream_close(&a->stream);
    sample_close(&a->sample);
    sample_scratch_close(&a->scratch);
    format_close(&a->file.file);
    json_decref(a->line);
    free(a->text);
    plain_args_close(&a->overrides);
    config_close(&a->recipe);
}

static Status dtype_word(const char *text, const char **word)
{
    DType d;
    if (!text) return OK;
    TRY(dtype_parse(&d, text));
    if (d != F32 && d != BF16) return fail(E_CONFIG, "--dtype %s: f32 or bf16", text);
    return *word = d == F32 ? "float32" : "bfloat16", OK;
}

static const Option options[] = {
    OPTION_TEXT(Ask, dir, "--model", "DIR", "the model; required"),
    OPTION_TEXT(Ask, lora, "--lora", "DIR", "an adapter beside the model"),
    OPTION_TEXT(Ask, prompt, "--prompt", "TEXT", "what to answer; required"),
    OPTION_LIST(Ask, image, "--image", "FILE", "a picture; may be given more than once"),
    OPTION_TEXT(Ask, system, "--system", "TEXT", "the system message"),
    OPTION_INT(Ask, how.max_new, "--max-new", "N", 1, 1 << 20, "tokens at most; 512"),
    OPTION_REAL(Ask, how.temperature, "--temperature", "T", 0, 100,
                "0, the default: the likeliest token each time"),
    OPTION_REAL(Ask, how.top_p, "--top-p", "P", 1e-6, 1, "draw among the likeliest tokens that make up P; 1"),
    OPTION_INT(Ask, seed, "--seed", "S", 0, INT64_MAX, "of the draws; 0"),
    OPTION_TEXT(Ask, dtype, "--dtype", "f32|bf16", "of weights and activations"),
    OPTION_TEXT(Ask, backend, "--backend", "NAME", "cpu, cuda or auto"),
    OPTION_END
};

static Status set_recipe(Ask *a)
{
    Config *c = &a->recipe;
    TRY(dtype_word(a->dtype, &c->model.dtype));
    TRY(option_folder("--lora", a->lora));
    TRY(set_overrides(a));
    if (a->backend) c->device.backend = a->backend;
    c->device.backend = backend_pick(c->device.backend);
    if (a->lora) c->lora.path = a->lora;
    c->model.path = a->dir, a->how.seed = (uint64_t)a->seed;
    return backend_check(c->device.backend);
}

static Status answer_prompt(Ask *a, int argc, char **argv)
{
    a->overrides.most = PLAIN_ANY;
    TRY(options_parse(argc, argv, options, a, &a->overrides));
    if (!a->dir || !a->prompt)
        return fail(E_CONFIG, "generate: --model and --prompt are wanted; see treb help generate");
    TRY(set_recipe(a));
    return ranks_run(&a->recipe, (RankVerb){ run, close_model }, a);
}

static Status cmd_generate(int argc, char **argv)
{
    Ask *a = calloc(1, sizeof *a);
    if (!a) return fail(E_FIT, "no memory for a prompt");
    a->how = (GenerateConf){ .max_new = 512, .top_p = 1 }, a->backend = "auto";
    config_default(&a->recipe);
    Status st = answer_prompt(a, argc, argv);
    ask_close(a);
    free(a);
    return st;
}

static const Usage usage = {
    .args    = "--model DIR --prompt TEXT [section.key=value ...]",
    .options = options,
    .notes   = "Pictures stand where TEXT has <image>, or before it. An adapter that is named as the model "
               "brings the base it was trained on. Under mpirun or srun the ranks share the model as "
               "parallel.* says, or by a layout that is chosen and printed.",
};

const Command command_generate = {
    .name     = "generate",
    .help     = "text from a prompt and pictures",
    .run      = cmd_generate,
    .usage    = USAGE(&usage),
};
