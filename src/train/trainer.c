/* train/trainer.c -- opening a run; see trainer.h. */
#include "train/trainer.h"

#include "checkpoint/base_model.h"
#include "engine/batching.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/picture_limits.h"
#include "engine/fit.h"
#include "train/recipe_check.h"

#include "base/clock.h"
#include "base/version.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool trainer_can_generate(const Trainer *t) { return recipe_can_decode(&t->ranks); }

/* The recipe, with the adapter that was loaded, as an engine wants it. */
static Status make_engine_conf(Trainer *t)
{
    return recipe_engine(&t->engine_conf, t->recipe, &t->source.shape, t->source.dtype, &t->ranks,
                         t->lora.conf.rank ? &t->lora.conf : NULL);
}

static void add_decode_capacity(Trainer *t)
{
    EngineConf *e = &t->engine_conf;
    if (!t->conf.answers.run || !e->evaluate) return;
    if (trainer_can_generate(t))
        e->decode.docs = t->conf.answers.docs, e->decode.tokens = t->conf.answers.tokens;
    else
        log_warn(&t->log, "evaluations generate no answers: parallel.cp = %lld cuts sequences, which "
                 "decoding cannot; use treb eval with parallel.cp=1", (long long)t->recipe->parallel.cp);
}

/* The system grants memory before it has it: a run that does not fit would be killed at some later step. */
static Status check_fit(const Trainer *t, const EngineConf *conf, const Stream *full)
{
    FitCheck check = { .recipe = t->recipe, .shape = &t->source.shape, .conf = conf, .world = t->conf.world,
                       .log = &t->log, .memory = t->conf.memory, .full = full };
    return fit_check(&check);
}

/* Held-out data that eval.split takes from data.train has its sources. */
static Status open_source_losses(Trainer *t)
{
    const struct cfg_data *d = &t->recipe->data;
    const SourceList *held_out = d->eval.n ? &d->eval : &d->train;
    if (recipe_by_source(&d->train)) TRY(source_loss_open(&t->source_loss, t->loader, d->train.n));
    if (!t->eval_loader || !recipe_by_source(held_out)) return OK;
    return eval_sources_open(&t->eval_sources, t->eval_loader, held_out->n,
                             t->engine_conf.budget.supervised);
}

static Status open_engine(Trainer *t)
{
    const EngineConf *conf = &t->engine_conf;
    StreamShape ss = shape_stream(&t->source.shape);
    ss.bytes = true;
    Stream full = stream_full(&ss, &t->data.budget);
    add_decode_capacity(t);
    TRY(check_fit(t, conf, &full));
    TRY(engine_open(&t->engine, &t->source.shape, conf, &full));
    TRY(trainable_open(&t->trainable, &t->source.shape, conf->frozen, &conf->lora));
    TRY(zero_grad_open(&t->zero_grad, &t->engine.model, t->recipe->train.max_zero_steps));
    TRY(open_source_losses(t));
    TRY(code_losses_open(&t->code_losses, &t->engine));
    return expert_counts_open(&t->expert_counts, &t->engine);
}

/* A checkpoint of a run with adapters leaves the base model out: it is loaded as at the start of the run. */
static Status load_weights(Trainer *t)
{
    Engine *e = &t->engine;
    bool resume = *t->folder.resume, adapters = e->model.lora;
    uint64_t seed = (uint64_t)t->recipe->train.seed;
    if (t->first && !resume) TRY(lora_source_warn_base(&t->lora, &t->source, seed, &t->log));
    if (!resume || adapters) TRY(model_source_load(&t->source, &e->model, &e->be, seed, &t->log));
    if (resume) TRY(checkpoint_load(t->folder.resume, &e->model, &e->be));
    if (!resume && t->lora.conf.rank) TRY(lora_source_load(&t->lora, &e->model, &e->be));
    engine_publish_weights(e);
    return backend_sync(&e->be);
}

static bool reports_to(const Config *c, const char *word)
{
    for (int i = 0; i < c->log.report_to.n; i++)
        if (!strcmp(c->log.report_to.item[i], word)) return true;
    return false;
}

static Status make_files(Trainer *t)
{
    TRY(run_folder_make(&t->folder));
    return run_folder_write_recipe(&t->folder, t->recipe, t->conf.notes, TRAINER_NOTES);
}

/* The facts of the model and its weights that are known before the first step; those of pictures are not. */
static LabelFacts label_facts(const Trainer *t)
{
    return (LabelFacts){ .forced_balance = t->recipe->moe.force_balance,
                         .random_weights = !t->source.weights && !*t->folder.resume };
}

static Json *run_json(const Trainer *t)
{
    const Comm *world = t->conf.world;
    LabelFacts  facts = label_facts(t);
    return json_pack("{s:i, s:i, s:s, s:b}", "ranks", t->place.world, "ranks_per_node",
                     world ? comm_ranks_on_node(world) : 1, "weights",
                     facts.random_weights ? "random" : "loaded", "vision", t->source.shape.vision.depth > 0);
}

/* What the run is made by and from: the machine, the build, the ranks, the files of its data. */
static Status write_env(const Trainer *t)
{
    Json *o = t->conf.env ? json_copy((Json *)t->conf.env) : NULL;
    if (!o) return OK;
    json_object_set_new(o, "run", run_json(t));
    json_object_set_new(o, "build", version_json());
    json_object_set_new(o, "data_train", loader_fingerprint(t->loader));
    if (t->eval_loader) json_object_set_new(o, "data_eval", loader_fingerprint(t->eval_loader));
    Status st = run_folder_write_json(&t->folder, "env.json", o);
    json_decref(o);
    return st;
}

/* Each data-parallel rank lists the bad samples that it reads in a file of its own. */
static void name_quarantine(Trainer *t)
{
    char *dot = strrchr(t->folder.quarantine, '.');
    size_t left = sizeof t->folder.quarantine - (size_t)(dot - t->folder.quarantine);
    snprintf(dot, left, "-%d.jsonl", t->place.at[AX_DP]);
}

/* Rank 0 opens and locks the folder; the others get its paths. */
static Status open_folder(Trainer *t)
{
    const struct cfg_lora *c = &t->recipe->lora;
    Comm *world = t->conf.world;
    int   lock;
    Status st = t->first ? run_folder_open(&t->folder, &t->recipe->checkpoint, *c->path || c->rank) : OK;
    TRY(trainer_agree_status(t, st));
    lock = t->folder.lock;
    if (world) TRY(comm_host_broadcast(world, &t->folder, sizeof t->folder));
    t->folder.lock = lock;
    if (!t->first && t->data_leader) name_quarantine(t);
    return OK;
}

static Status make_folder(Trainer *t)
{
    TRY(trainer_agree_status(t, t->first ? make_files(t) : OK));
    return log_open(&t->log, t->first ? t->folder.log : NULL, t->place.rank, t->place.world,
                    t->data_leader ? t->conf.least : LOG_ERROR);
}

Status trainer_agree_status(const Trainer *t, Status mine)
{
    return t->conf.world ? comm_agree(t->conf.world, mine) : mine;
}

/* A resumed run cuts its metrics back to the step of the checkpoint. */
static Status open_reports(Trainer *t)
{
    LabelFacts  facts = label_facts(t);
    const char *label = label_word(&facts);
    if (!t->first) return metrics_open(&t->metrics, NULL, label);
    TRY(run_folder_rewind_metrics(&t->folder, *t->folder.resume ? t->step : -1));
    bool jsonl = reports_to(t->recipe, "jsonl");
    TRY(metrics_open(&t->metrics, jsonl ? t->folder.metrics : NULL, label));
    if (reports_to(t->recipe, "tensorboard")) TRY(tensorboard_open(&t->board, t->folder.dir));
    return reports_to(t->recipe, "mlflow") ? mlflow_open(&t->mlflow, t->recipe, t->folder.dir, &t->log) : OK;
}

static Status open_loader(Trainer *t, const Json *state)
{
    const Config *c = t->recipe;
    const ModelShape *s = &t->source.shape;
    t->data = (LoaderConf){ .sources = &c->data.train, .recipe = c, .tokenizer = t->source.tokenizer,
                            .shape = shape_stream(s), .patch = batching_patches(c, &s->vision),
                            .budget = batching_budget(c, s), .micro = t->ranks.micro,
                            .rank = t->place.at[AX_DP], .ranks = t->place.size[AX_DP],
                            .part = t->place.at[AX_TP] + t->place.size[AX_TP] * t->place.at[AX_CP],
                            .parts = t->place.size[AX_TP] * t->place.size[AX_CP],
                            .quarantine = t->data_leader ? t->folder.quarantine : NULL, .log = &t->log,
                            .pin = backend_pin(backend_pick(c->device.backend)) };
    if (t->place.at[AX_PP]) t->data.part = t->data.parts;    /* the vision tower is on the first stage */
    return loader_open(&t->loader, &t->data, json_object_get(state, "loader"));
}

/* Opened before the first step, so that an error in the held-out data ends the run early. */
static Status open_eval_loader(Trainer *t)
{
    LoaderConf conf = t->data;
    bool named = t->recipe->data.eval.n > 0;
    conf.sources = named ? &t->recipe->data.eval : &t->recipe->data.train;
    conf.once = true, conf.held_out = !named, conf.micro = 1;
    return loader_open(&t->eval_loader, &conf, NULL);
}

static Status count_steps(Trainer *t)
{
    const struct cfg_train *c = &t->recipe->train;
    t->steps = c->max_steps;
    if (t->steps) return OK;
    TRY(loader_steps(t->loader, c->num_train_epochs, &t->counted));
    t->steps = t->counted.steps;
    if (t->counted.estimated && t->epoch >= c->num_train_epochs) t->steps = t->step;
    else if (t->counted.estimated && t->step >= t->steps) t->steps = t->step + 1;
    return t->steps > 0 ? OK : fail(E_DATA, "data.train: an epoch has no step: there is nothing to train on");
}

static double count_saves(const Trainer *t)
{
    const struct cfg_checkpoint *c = &t->recipe->checkpoint;
    double left = (double)(t->steps - t->step), n = c->save_steps ? left / (double)c->save_steps : 0;
    return (double)(int64_t)n + (c->save_at_end && (!c->save_steps || t->steps % c->save_steps));
}

/* Finds that a checkpoint does not fit on the disk before the first step rather than after the last. */
static Status check_space(Trainer *t)
{
    const TrainableSummary      *n = &t->trainable;
    const struct cfg_checkpoint *c = &t->recipe->checkpoint;
    LocalShards                  list;
    TRY(shards_list_local(&list, &t->engine.model, c->save_only_model));
    t->save_space.state = (double)list.bytes;
    shards_free_local(&list);
    comm_host_sum(t->engine.mesh.comm[GR_world], &t->save_space.state, 1);
    t->save_space.hf = n->lora ? 4.0 * (double)(n->adapters + n->whole)
                               : (double)n->base * (double)dtype_size(t->source.dtype);
    save_space_count(&t->save_space, c, count_saves(t), trainer_has_eval(t));
    if (t->first) save_space_find_left(&t->save_space, t->folder.dir);
    return t->first ? save_space_check(&t->save_space, c) : OK;
}

static void open_progress(Trainer *t)
{
    const Engine *e = &t->engine;
    double left;
    t->progress.log = &t->log, t->progress.metrics = &t->metrics, t->progress.board = &t->board;
    t->progress.mlflow = t->mlflow;
    t->progress.steps = t->steps, t->progress.every = t->recipe->log.logging_steps;
    t->progress.codes = &t->code_losses;
    t->progress.aux_coeff = t->expert_counts.layers ? (double)e->conf.aux_coeff : 0;
    t->progress.graphs = e->graphs.be ? &e->graphs : NULL;
    t->progress.skipped = t->guard.skipped, t->progress.ranks = t->place.world;
    backend_memory(e->conf.backend, &left, &t->progress.device_memory);
    t->progress.planned = (double)engine_device_bytes(&e->plan, e->conf.backend);
    comm_host_max(e->mesh.comm[GR_world], &t->progress.planned, 1);
}

/* Where the device prepares for shapes (cuBLASLt, cuDNN), the first batch lets it do so before the first
 * step. Only on one rank: ranks have different first batches and would disagree in their collectives. */
static Status prepare_device(Trainer *t)
{
    bool wanted = backend_prepares(&t->engine.be) && !t->conf.world;
    const Stream *first = wanted ? loader_peek(t->loader, true) : NULL;
    return first ? engine_warm_up(&t->engine, first) : OK;
}

/* The adapter of lora.path is copied into the run's checkpoints: a resumed run reads it there. */
static Status open_adapter(Trainer *t)
{
    const char *path = t->recipe->lora.path, *resume = t->folder.resume;
    if (!*path) return OK;
    if (*resume) TRY(lora_source_open(&t->lora, resume, &t->source.shape));
    else TRY_CTX(lora_source_open(&t->lora, path, &t->source.shape), "lora.path");
    if (!*resume) TRY_CTX(lora_source_check_base(&t->lora, &t->source), "lora.path");
    return make_engine_conf(t);
}

/* Rank 0 describes the base model of adapters and checks by names and shapes that the checkpoint to resume
 * is one of this recipe, before a weight is loaded. */
static Status check_resume(Trainer *t)
{
    const char *resume = t->folder.resume;
    const EngineConf *e = &t->engine_conf;
    if (!t->first) return OK;
    if (e->lora.rank) TRY(base_model_describe(&t->base_model, &t->source, (uint64_t)t->recipe->train.seed));
    if (!*resume) return OK;
    return checkpoint_check_resume(resume, &t->source.shape, e->frozen, &e->lora, t->base_model);
}

/* Files that are saved without the layer say so. */
static Status drop_mtp(Trainer *t)
{
    ModelSource *s = &t->source;
    TRY(recipe_shape(&s->shape, t->recipe));
    bool adapters = t->recipe->lora.rank || *t->recipe->lora.path;
    if (s->shape.text.mtp == s->shape.text.mtp_in_file || adapters) return OK;
    json_object_set_new(s->hf, "num_nextn_predict_layers", json_integer(0));
    json_object_del(s->hf, "num_mtp_layers");
    return OK;
}

/* The first line, before anything is opened that may take long. A recipe that lacks one of the three names
 * has no such line: recipe_check refuses it. */
static void log_header(const Trainer *t, const Log *log)
{
    const Config     *c        = t->recipe;
    const SourceList *d        = &c->data.train;
    const char       *model    = *c->model.path ? c->model.path : c->model.preset;
    char              more[32] = "";
    if (!*model || !d->n || !*c->checkpoint.output_dir) return;
    if (d->n > 1) snprintf(more, sizeof more, " and %d more", d->n - 1);
    log_info(log, "treb %s   %s on %s%s, into %s", TREB_VERSION, model, d->item[0].path, more,
             c->checkpoint.output_dir);
}

/* Needs only the recipe and the model's shape: errors in either are found before a folder is made. */
static Status open_source(Trainer *t)
{
    Comm *world = t->conf.world;
    Log   log = { .rank = world ? world->rank : 0, .world = world ? world->size : 1,
                   .least = t->first ? t->conf.least : LOG_ERROR };
    log_header(t, &log);
    TRY(recipe_check(t->recipe));
    TRY(model_source_open(&t->source, &t->recipe->model));
    TRY(picture_limits_read(&t->resolved, t->source.folder, t->recipe->lora.path, &t->source.shape.vision));
    picture_limits_fit(&t->resolved, &t->source.shape.vision, &log);
    TRY(drop_mtp(t));
    TRY(recipe_ranks(&t->ranks, &t->place, t->recipe, &t->source.shape, world, &log));
    t->data_leader = t->place.at[AX_TP] + t->place.at[AX_CP] + t->place.at[AX_PP] == 0;
    return *t->recipe->lora.path ? OK : make_engine_conf(t);
}

/* Opens the parts of a rank that need no communication. */
static Status open_rank_local(Trainer *t, Json **state)
{
    const struct cfg_train *c = &t->recipe->train;
    if (*t->folder.resume) TRY(checkpoint_read_state(t->folder.resume, state));
    if (*state) TRY_CTX(trainer_state_load(t, *state), "%s", t->folder.resume);
    if (t->first && *state) checkpoint_rewind_best(t->folder.dir, t->step, t->best_step);
    TRY(open_reports(t));
    TRY(open_loader(t, *state));
    TRY(count_steps(t));
    if (trainer_has_eval(t)) TRY(open_eval_loader(t));
    if (t->first) TRY(write_env(t));
    TRY(lr_open(&t->lr, &t->recipe->optim, t->counted.estimated ? t->counted.steps : t->steps));
    t->guard.spike = c->spike_factor, t->guard.history = c->spike_history, t->guard.taken = t->updates;
    t->guard.limit = c->max_skipped_steps;
    return OK;
}

/* The order finds errors early: those of the recipe and of an adapter's files come before the folder is
 * made, which the next attempt would find in use. The loader reads ahead while weights are loaded. After
 * each phase the ranks agree on its status, so that all of them end when one fails. */
static Status open_all(Trainer *t, Json **state)
{
    TRY(trainer_agree_status(t, open_source(t)));
    TRY(open_folder(t));
    TRY(trainer_agree_status(t, open_adapter(t)));
    TRY(trainer_agree_status(t, check_resume(t)));
    TRY(make_folder(t));
    TRY(trainer_agree_status(t, open_rank_local(t, state)));
    TRY(trainer_agree_status(t, open_engine(t)));
    TRY(trainer_agree_status(t, check_space(t)));
    TRY(trainer_agree_status(t, load_weights(t)));
    TRY(trainer_agree_status(t, prepare_device(t)));
    TRY(trainer_agree_status(t, checkpoint_async_open(&t->checkpointer, &t->engine.model, &t->engine.be,
                                                      t->recipe->checkpoint.async,
                                                      t->recipe->checkpoint.save_only_model)));
    t->late = t->recipe->train.late_results && t->place.world == 1 && !t->engine.be.device->host_memory;
    step_results_set_guard(&t->engine.results, &t->engine.be, t->guard.highest);
    open_progress(t);
    return peak_flops(&t->engine.be, t->engine.conf.dtype, &t->progress.peak);
}

Status trainer_open(Trainer *t, const TrainerConf *conf)
{
    Json *state = NULL;
    *t = (Trainer){ .conf = *conf, .resolved = *conf->recipe, .recipe = &t->resolved, .saved = -1,
                    .evaluated = -1, .best = NAN, .best_step = -1, .folder_lost = -1,
                    .first = !conf->world || conf->world->rank == 0 };
    if (t->conf.started <= 0) t->conf.started = clock_now();
    Status st = open_all(t, &state);
    json_decref(state);
    t->open_ended = t->step_ended = clock_now();
    if (!st && t->first) trainer_log_setup(t);
    if (st) t->failed = true, log_failure(&t->log), trainer_close(t);
    return st;
}

/* After a failure a step may still be queued, and the next batch on its way: both copy from streams of the
 * loader, which closing it unpins and frees. A failure of the sync comes after the one that ends the run. */
static void wait_for_uploads(Trainer *t)
{
    if (!t->late) return;
    engine_drop_prefetched(&t->engine);
    if (backend_sync(&t->engine.be)) { }
    t->late = false;
}

void trainer_close(Trainer *t)
{
    wait_for_uploads(t);
    checkpoint_async_close(&t->checkpointer);
    loader_close(t->loader), loader_close(t->eval_loader);
    expert_counts_close(&t->expert_counts);
    code_losses_close(&t->code_losses);
    source_loss_close(&t->source_loss);
    eval_sources_close(&t->eval_sources);
    zero_grad_close(&t->zero_grad);
    trainable_close(&t->trainable);
    engine_close(&t->engine);
    model_source_close(&t->source);
    lora_source_close(&t->lora);
    json_decref(t->base_model), t->base_model = NULL;
    tensorboard_close(&t->board);
    mlflow_close(t->mlflow, t->failed), t->mlflow = NULL;
    metrics_close(&t->metrics);
    log_close(&t->log);
    run_folder_close(&t->folder);
    t->loader = t->eval_loader = NULL;
}

bool trainer_has_eval(const Trainer *t) { return recipe_has_eval(t->recipe); }
