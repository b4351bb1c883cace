/* cli/cmd_generate.c -- `treb generate`: one prompt with its pictures, the answer as it comes. */
#include "base/clock.h"
#include "cli/ask_model.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "infer/detokenize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Ask {
    AskModel      m;
    const char   *prompt, *system;
    OptionList    image;
    char         *text; /* the conversation as a dataset would have it */
    Prompt        read;
    StreamPrinter out;
    Status        said; /* of printing */
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
    Json *line = json_pack("{so so}", "messages", messages, "images", images);
    a->text    = line ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    free(marked);
    return a->text ? OK : fail(E_CONFIG, "--prompt, --system and --image must be UTF-8 text");
}

/* Budgets are exactly what the prompt takes; any tp cuts the tokens in equal parts. */
static Budget budget_of(const Ask *a)
{
    const Sample *s = &a->read.sample;
    int64_t       n = s->ids.n, ranks = a->m.world->size;
    return (Budget){
        .tokens = (n + ranks - 1) / ranks * ranks, .patches = s->size.patches, .docs = 1, .supervised = 1
    };
}

static void say(void *self, int64_t doc, int32_t id)
{
    Ask *a = self;
    if (a->m.world->rank == 0 && !a->said) a->said = stream_printer_put(&a->out, id);
}

/* Rank 0 prints. */
static Status answer(Ask *a)
{
    Ids    out = { 0 };
    double start = clock_now();
    bool   first      = a->m.world->rank == 0;
    a->out            = (StreamPrinter){ .tokenizer = a->m.model.source.tokenizer, .out = stdout };
    a->m.how.on_token = say, a->m.how.self = a;
    Status st = ask_model_answer(&a->m, &out), end = stream_printer_end(&a->out);
    if (first) putchar('\n');
    if (first && !st && isatty(STDERR_FILENO) && isatty(STDOUT_FILENO))
        fprintf(stderr, "%lld tokens in, %lld out, %.2f s; cache of %.2f MiB%s\n",
                (long long)a->m.stream.tokens, (long long)out.n, clock_now() - start,
                (double)decode_cache_bytes(&a->m.gen.decode) / (1 << 20),
                a->m.world->size > 1 ? " a rank" : "");
    ids_close(&out);
    return st ? st : a->said ? a->said : end;
}

static Status prepare(Ask *a, Comm *world)
{
    TRY(conversation(a));
    TRY(ask_model_open(&a->m, "generate", world));
    return prompt_read(&a->read, &a->m.reader, a->text, "prompt");
}

static Status run(void *self, Comm *world)
{
    Ask *a = self;
    TRY(comm_agree(world, prepare(a, world)));
    Budget b = budget_of(a);
    TRY(ask_model_load(&a->m, &b, 1));
    bool mine = ask_model_has_documents(&a->m);
    TRY(comm_agree(world, mine ? prompt_add(&a->m.stream, &a->read, &a->m.reader) : OK));
    return comm_agree(world, answer(a));
}

static void close_model(void *self)
{
    Ask *a = self;
    prompt_close(&a->read);
    ask_model_unload(&a->m);
}

static const Option options[] = { OPTION_TEXT(Ask, m.dir, "--model", "DIR", "the model (required)"),
                                  OPTION_TEXT(Ask, prompt, "--prompt", "TEXT", "what to answer (required)"),
                                  OPTION_LIST(Ask, image, "--image", "FILE",
                                              "a picture; may be given more than once"),
                                  OPTION_TEXT(Ask, system, "--system", "TEXT", "the system message"),
                                  ASK_MODEL_OPTIONS(Ask),
                                  OPTION_END };

static Status answer_prompt(Ask *a, int argc, char **argv)
{
    TRY(options_parse(argc, argv, options, a, &a->m.plain));
    if (!a->m.dir || !a->prompt)
        return fail(E_CONFIG, "generate: --model and --prompt are wanted; see treb help generate");
    TRY(ask_model_set(&a->m, "generate"));
    return ranks_run(&a->m.recipe, (RankVerb){ run, close_model }, a);
}

static Status cmd_generate(int argc, char **argv)
{
    Ask *a = calloc(1, sizeof *a);
    if (!a) return fail(E_FIT, "no memory for a prompt");
    ask_model_default(&a->m);
    Status st = answer_prompt(a, argc, argv);
    ask_model_close(&a->m);
    free(a->text);
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
    .help     = "write text from a prompt and pictures",
    .run      = cmd_generate,
    .usage    = USAGE(&usage),
};
