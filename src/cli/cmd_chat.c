/* cli/cmd_chat.c -- `treb chat MODEL`: a conversation with a model, or the answers to a file of prompts. */
#include "cli/chat.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "engine/batching.h"
#include "checkpoint/picture_limits.h"

#include <stdlib.h>

/* Any tp cuts the tokens in equal parts. */
static Budget budget_of(ChatArgs *c)
{
    const ModelShape *s     = &c->m.model.source.shape;
    int64_t           ranks = c->m.world->size, tokens = (c->context + ranks - 1) / ranks * ranks;
    c->m.recipe.train.micro_tokens = c->m.recipe.data.max_length = tokens;
    picture_limits_fit(&c->m.recipe, &s->vision, NULL);
    Budget b = batching_budget(&c->m.recipe, s);
    b.docs = c->batch, b.supervised = 1;
    return b;
}

/* Pictures are sized by the budgets: the reader is opened again by what they allow. */
static Status size_pictures(ChatArgs *c)
{
    prompt_reader_close(&c->m.reader);
    c->m.model.patch = batching_patches(&c->m.recipe, &c->m.model.source.shape.vision);
    return prompt_reader_open(&c->m.reader, &c->m.recipe, &c->m.model);
}

static Status run(void *self, Comm *world)
{
    ChatArgs *c = self;
    TRY(comm_agree(world, ask_model_open(&c->m, "chat", world)));
    Budget b = budget_of(c);
    TRY(comm_agree(world, size_pictures(c)));
    TRY(ask_model_load(&c->m, &b, c->batch));
    return c->prompts ? chat_batch(c) : chat_interactive(c);
}

static void close_model(void *self) { ask_model_unload(&((ChatArgs *)self)->m); }

static const Option options[] = {
    OPTION_TEXT(ChatArgs, system, "--system", "TEXT", "the system message"),
    OPTION_LIST(ChatArgs, image, "--image", "FILE",
                "a picture of the first message; may be given more than once"),
    OPTION_TEXT(ChatArgs, prompts, "--prompts", "FILE",
                "answer the conversations of this file, one JSON object a line, and end"),
    OPTION_TEXT(ChatArgs, out, "--out", "FILE",
                "of --prompts: each line with its answer (default: stdout)"),
    OPTION_INT(ChatArgs, context, "--context", "N", 16, 1 << 24,
               "tokens of a conversation at most (default 8192)"),
    OPTION_INT(ChatArgs, batch, "--batch", "N", 1, 4096, "of --prompts: conversations at once (default 8)"),
    ASK_MODEL_OPTIONS(ChatArgs),
    OPTION_END
};

static Status chat(ChatArgs *c, int argc, char **argv)
{
    c->m.plain.least = c->m.own = 1, c->m.plain.what = "a model folder";
    TRY(options_parse(argc, argv, options, c, &c->m.plain));
    c->m.dir = c->m.plain.value[0];
    if (!c->prompts) c->batch = 1;
    if (c->out && !c->prompts) return fail(E_CONFIG, "--out is for the answers of --prompts FILE");
    TRY(ask_model_set(&c->m, "chat"));
    return ranks_run(&c->m.recipe, (RankVerb){ run, close_model }, c);
}

static Status cmd_chat(int argc, char **argv)
{
    ChatArgs *c = calloc(1, sizeof *c);
    if (!c) return fail(E_FIT, "no memory for a conversation");
    c->context = 8192, c->batch = 8;
    ask_model_default(&c->m);
    Status st = chat(c, argc, argv);
    ask_model_close(&c->m);
    free(c->system_own);
    free(c);
    return st;
}

static const Usage usage = {
    .args    = "MODEL [section.key=value ...]",
    .options = options,
    .notes =
        "MODEL is a model folder, a checkpoint or an adapter. A picture is shown to the model by its "
        "path in the message: \"what is in cats.jpg?\"; /clear begins anew, /help lists the rest, Ctrl-C "
        "ends an answer, Ctrl-D the conversation. A line of --prompts has `messages` or `prompt`, and "
        "`images`, as in a dataset; it is written with `answer`, or with `error`.",
};

const Command command_chat = {
    .name  = "chat",
    .help  = "talk with a model, or answer a file of prompts",
    .run   = cmd_chat,
    .usage = USAGE(&usage),
};
