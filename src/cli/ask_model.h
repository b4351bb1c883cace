/* cli/ask_model.h -- what verbs that let a model answer share: its options, its recipe, its sampling. */
#ifndef CLI_ASK_MODEL_H
#define CLI_ASK_MODEL_H

#include "cli/options.h"
#include "infer/predict.h"
#include "infer/prompt.h"

typedef struct AskModel {
    const char  *dir, *lora, *dtype, *backend;
    int64_t      seed;
    PlainArgs    plain; /* section.key=value, after the verb's own */
    int          own;   /* plain arguments of the verb itself */
    GenerateConf how;
    Config       recipe;
    Predictor    model;
    PromptReader reader;
    Generator    gen;
    Stream       stream;
    Comm        *world;
} AskModel;

/* Rows of the options of a verb whose arguments have an AskModel `m`. */
#define ASK_MODEL_OPTIONS(type)                                                                              \
    OPTION_TEXT(type, m.lora, "--lora", "DIR", "an adapter beside the model"),                               \
        OPTION_INT(type, m.how.max_new, "--max-new", "N", 1, 1 << 20,                                        \
                   "tokens of an answer at most (default 512)"),                                             \
        OPTION_REAL(type, m.how.temperature, "--temperature", "T", 0, 100,                                   \
                    "of the draws; 0: the likeliest token each time (default 0)"),                           \
        OPTION_REAL(type, m.how.top_p, "--top-p", "P", 1e-6, 1,                                              \
                    "draw among the likeliest tokens that make up P (default 1)"),                           \
        OPTION_INT(type, m.seed, "--seed", "S", 0, INT64_MAX, "of the draws (default 0)"),                   \
        OPTION_TEXT(type, m.dtype, "--dtype", "f32|bf16", "of weights and activations"),                     \
        OPTION_TEXT(type, m.backend, "--backend", "NAME", "cpu, cuda or auto")

void        ask_model_default(AskModel *m);
/* After options_parse: the recipe by options and overrides. */
MUST Status ask_model_set(AskModel *m, const char *verb);
/* On every rank: config, tokenizer, adapter. */
MUST Status ask_model_open(AskModel *m, const char *verb, Comm *world);
/* Collective: engine and weights for prompts within the budget, docs of them at once. */
MUST Status ask_model_load(AskModel *m, const Budget *b, int64_t docs);
void        ask_model_unload(AskModel *m); /* before the world closes; twice is fine */
void        ask_model_close(AskModel *m);

/* The answers to the stream's documents, appended to out; on_token may be NULL. Collective. */
MUST Status ask_model_answer(AskModel *m, Ids *out);
/* Whether this rank's replica gets the documents. */
bool        ask_model_has_documents(const AskModel *m);

#endif
