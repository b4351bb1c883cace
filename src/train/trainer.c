/* train/trainer.c -- opening a run; see trainer.h. */
#include "train/trainer.h"

#include "train/batching.h"
#include "train/checkpoint.h"
#include "train/refuse.h"

#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* One source without a name has nothing to be told apart from. */
static bool many_channels(const SourceList *s) { return s->n > 1 || *s->item[0].channel; }

static Status engine_conf(EngineConf *e, const Trainer *t)
{
    const Config *c = t->recipe;
    const char *aux = c->moe.aux_loss_type;
    *e = (EngineConf){ .backend = backend_pick(c->device.backend), .dtype = t->source.dtype,
                       .budget = t->data.budget, .train = true, .evaluate = trainer_has_eval(t),
                       .aux_coeff = (float)c->moe.aux_loss_coeff, .z_coeff = (float)c->moe.z_loss_coeff };
    e->aux = !strcmp(aux, "none") ? AUX_NONE : !strcmp(aux, "sequence") ? AUX_DOCUMENT : AUX_LAYER;
    e->aux_over_step = !strcmp(aux, "global");
    if (e->aux == AUX_NONE) e->aux_coeff = 0;
    e->frozen[G_VIT] = c->model.freeze_vit, e->frozen[G_ALIGNER] = c->model.freeze_aligner;
    e->frozen[G_LLM] = c->model.freeze_llm;
    if (t->conf.answers.run && e->evaluate)
        e->decode.docs = t->conf.answers.docs, e->decode.tokens = t->conf.answers.tokens;
    e->repeat = c->train.deterministic;
    e->each = many_channels(&c->data.train);
    policy_default(e->policy);
    for (int i = 0; i < c->memory.recompute.n; i++) TRY(policy_drop(e->policy, c->memory.recompute.item[i]));
    if (!t->source.shape.vision.depth && c->model.freeze_llm)
        return fail(E_CONFIG, "model.freeze_llm: the model is a language model only; nothing is left to "
                    "train");
    return OK;
}

/* Memory is promised freely and taken later, so a run that does not fit would be killed on the way. */
static Status refuse_unfit(const ModelShape *s, const EngineConf *conf, const Stream *full)
{
    static const char *const names[ARENA_N] = { "weights", "gradients", "optimizer", "batch", "activations",
                                                "scratch" };
    EnginePlan plan;
    double sum = 0, room, all, gib = 1 << 30;
    char parts[256] = "";
    TRY_CTX(engine_plan(&plan, s, conf, full), "plan");
    backend_memory(conf->backend, &room, &all);
    for (int i = 0; i < ARENA_N; i++) {
        size_t at = strlen(parts);
        double bytes = (double)plan.bytes[i];
        snprintf(parts + at, sizeof parts - at, "%s%s %.1f", i ? ", " : "", names[i], bytes / gib);
        sum += bytes;
    }
    if (sum <= room) return OK;
    return fail(E_FIT,
                "does not fit: %.1f GiB are wanted and %.1f free (%s); lower train.micro_tokens or "
                "micro_patches, set memory.recompute, or freeze parts of the model",
                sum / gib, room / gib, parts);
}

static Status open_engine(Trainer *t)
{
    EngineConf conf;
    StreamShape ss = shape_stream(&t->source.shape);
    ss.bytes = true;
    Stream full = stream_full(&ss, &t->data.budget);
    TRY(engine_conf(&conf, t));
    TRY(refuse_unfit(&t->source.shape, &conf, &full));
    TRY(engine_open(&t->engine, &t->source.shape, &conf, &full));
    if (conf.each) TRY(by_source_open(&t->by, &t->engine, t->loader, t->data.sources->n));
    return routing_open(&t->routing, &t->engine);
}

static Status load_weights(Trainer *t)
{
    if (*t->folder.resume) return checkpoint_load(t->folder.resume, &t->engine.model, &t->engine.be);
    return source_load(&t->source, &t->engine.model, &t->engine.be, (uint64_t)t->recipe->train.seed, &t->log);
}

static bool reports_to(const Config *c, const char *word)
{
    for (int i = 0; i < c->log.report_to.n; i++)
        if (!strcmp(c->log.report_to.item[i], word)) return true;
    return false;
}

static Status open_folder(Trainer *t)
{
    TRY(run_folder_open(&t->folder, &t->recipe->checkpoint));
    TRY(log_open(&t->log, t->folder.log, 0, 1, t->conf.least));
    TRY(run_folder_recipe(&t->folder, t->recipe));
    return t->conf.env ? run_folder_json(&t->folder, "env.json", t->conf.env) : OK;
}

/* The state's step decides which lines of an earlier life stay. */
static Status open_reports(Trainer *t)
{
    TRY(run_folder_rewind(&t->folder, *t->folder.resume ? t->step : -1));
    bool jsonl = reports_to(t->recipe, "jsonl");
    TRY(metrics_open(&t->metrics, jsonl ? t->folder.metrics : NULL, "training-equivalent"));
    if (reports_to(t->recipe, "tensorboard")) TRY(tb_open(&t->board, t->folder.dir));
    return OK;
}

static Status open_loader(Trainer *t, const Json *state)
{
    const Config *c = t->recipe;
    int micro;
    TRY(batching_micro(&micro, &c->train, 1));
    const ModelShape *s = &t->source.shape;
    t->data = (LoaderConf){ .sources = &c->data.train, .recipe = c, .tokenizer = t->source.tokenizer,
                            .shape = shape_stream(s), .patch = batching_patches(c, &s->vision),
                            .budget = batching_budget(c, s), .micro = micro, .ranks = 1,
                            .quarantine = t->folder.quarantine, .log = &t->log,
                            .pin = backend_pin(backend_pick(c->device.backend)) };
    return loader_open(&t->loader, &t->data, json_object_get(state, "loader"));
}

/* Opened with the rest, so that a mistake in it is heard of before the first step. */
static Status open_held(Trainer *t)
{
    LoaderConf conf = t->data;
    bool named = t->recipe->data.eval.n > 0;
    conf.sources = named ? &t->recipe->data.eval : &t->recipe->data.train;
    conf.once = true, conf.held = !named, conf.micro = 1;
    return loader_open(&t->held, &conf, NULL);
}

static Status count_steps(Trainer *t)
{
    const struct cfg_train *c = &t->recipe->train;
    t->steps = c->max_steps;
    if (t->steps) return OK;
    TRY(loader_steps(t->loader, c->num_train_epochs, &t->steps));
    return t->steps > 0 ? OK : fail(E_DATA, "data.train: an epoch has no step: there is nothing to train on");
}

static void open_progress(Trainer *t)
{
    const Engine *e = &t->engine;
    double left;
    t->progress.log = &t->log, t->progress.metrics = &t->metrics, t->progress.board = &t->board;
    t->progress.steps = t->steps, t->progress.every = t->recipe->log.logging_steps;
    t->progress.aux_coeff = t->routing.layers ? (double)e->conf.aux_coeff : 0;
    t->progress.skipped = t->guard.skipped;
    backend_memory(e->conf.backend, &left, &t->progress.memory_all);
    for (int i = 0; i < ARENA_N; i++) t->progress.memory += (double)e->plan.bytes[i];
}

/* The first batch is waited for here where that lets the first step be as fast as the others. */
static Status get_ready(Trainer *t)
{
    const Stream *first = backend_prepares(&t->engine.be) ? loader_peek(t->loader, true) : NULL;
    return first ? engine_ready(&t->engine, first) : OK;
}

/* In the order that lets a mistake be heard of early; the loader reads ahead while weights are loaded. */
static Status open_all(Trainer *t, Json **state)
{
    const struct cfg_train *c = &t->recipe->train;
    TRY(recipe_refuse(t->recipe));
    TRY(source_open(&t->source, &t->recipe->model));
    TRY(open_folder(t));
    if (*t->folder.resume) TRY(checkpoint_state(t->folder.resume, state));
    if (*state) TRY_CTX(trainer_state_load(t, *state), "%s", t->folder.resume);
    TRY(open_reports(t));
    TRY(open_loader(t, *state));
    TRY(count_steps(t));
    if (trainer_has_eval(t)) TRY(open_held(t));
    TRY(lr_open(&t->lr, &t->recipe->optim, t->steps));
    t->guard.spike = c->spike_factor, t->guard.limit = c->max_skipped_steps;
    TRY(open_engine(t));
    TRY(load_weights(t));
    TRY(get_ready(t));
    open_progress(t);
    return peak_measure(&t->engine.be, t->engine.conf.dtype, &t->progress.peak);
}

Status trainer_open(Trainer *t, const TrainerConf *conf)
{
    Json *state = NULL;
    *t = (Trainer){ .conf = *conf, .recipe = conf->recipe, .saved = -1, .evaluated = -1, .best = NAN,
                    .best_step = -1 };
    if (t->conf.started <= 0) t->conf.started = clock_now();
    Status st = open_all(t, &state);
    json_decref(state);
    t->opened = t->paused = clock_now();
    if (!st) trainer_introduce(t);
    if (st) trainer_close(t);
    return st;
}

void trainer_close(Trainer *t)
{
    loader_close(t->loader), loader_close(t->held);
    routing_close(&t->routing);
    by_source_close(&t->by);
    engine_close(&t->engine);
    source_close(&t->source);
    tb_close(&t->board);
    metrics_close(&t->metrics);
    log_close(&t->log);
    run_folder_close(&t->folder);
    t->loader = t->held = NULL;
}

bool trainer_has_eval(const Trainer *t) { return t->recipe->data.eval.n > 0 || t->recipe->eval.split > 0; }
