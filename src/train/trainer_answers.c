/* train/trainer_answers.c -- see trainer_answers.h. */
#include "train/trainer_answers.h"

#include "infer/evaluate.h"

#include <math.h>
#include <stdio.h>

static Status samples_path(Path out, const Trainer *t)
{
    Path folder;
    char name[64];
    snprintf(name, sizeof name, "step-%lld.jsonl", (long long)t->step);
    TRY(path_join(folder, t->folder.dir, "samples"));
    if (t->first) TRY(folder_make(folder));
    return path_join(out, folder, name);
}

/* A signal ends the run, and with it an evaluation under way. */
static bool stop_requested(void *self) { return guard_signal() != 0; }

static Status answer_eval_set(void *self, Trainer *t, double *accuracy)
{
    const Config *c = t->recipe;
    bool own = c->data.eval.n > 0;
    Path path;
    EvalResult r;
    TRY(trainer_agree_status(t, samples_path(path, t)));
    EvalConf conf = { .recipe = c, .tokenizer = t->source.tokenizer, .patch = t->data.patch,
                      .sources = own ? &c->data.eval : &c->data.train,
                      .key = own ? "data.eval" : "data.train", .split = own ? 0 : c->eval.split,
                      .max_new = c->eval.max_new_tokens, .samples = c->eval.samples ? path : NULL,
                      .sample_lines = c->eval.samples, .log = &t->log, .stop = stop_requested };
    TRY(evaluate_model(&t->engine, &conf, &r));
    *accuracy = r.total.asked && !r.stopped ? eval_accuracy(&r.total) : NAN;
    if (!r.stopped) eval_sources_answers(&t->eval_sources, &r);
    eval_result_close(&r);
    return OK;
}

Answers trainer_answers(const Config *recipe)
{
    int64_t T = recipe->train.micro_tokens, tokens = recipe->eval.max_new_tokens;
    DecodeCapacity c = eval_decode_capacity(tokens, &(Budget){ .tokens = T, .docs = T });
    return tokens ? (Answers){ .run = answer_eval_set, .docs = c.docs, .tokens = c.tokens } : (Answers){ 0 };
}
