/* train/trainer_run.c -- steps, evaluations and checkpoints in their order; see trainer.h. */
#include "train/trainer.h"

#include "checkpoint/checkpoint.h"
#include "comm/hang_file.h"

#include "base/activity.h"
#include "base/clock.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- failures that all ranks agree on ---- */

/* Called by all ranks at the same place. If one of them failed, all of them end here, rather than by waiting
 * for a rank that is gone, which would lose the checkpoint being saved. Without a failure it costs one small
 * message. */
static Status agree_status(Trainer *t, Status mine)
{
    double bad = mine != OK;
    comm_host_max(t->engine.mesh.comm[GR_world], &bad, 1);
    if (!(bad > 0)) return OK;
    Status st = trainer_agree_status(t, mine);
    t->failure_agreed = st && (!t->conf.world || t->conf.world->failure_agreed);
    return st;
}

/* Keeps an error of a file that one rank writes for all, until poll_stop tells the others. */
static void defer_error(Trainer *t, Status st)
{
    if (!st || t->deferred) return;
    t->deferred = st;
    snprintf(t->deferred_text, sizeof t->deferred_text, "%s", status_text());
}

/* Before each step and after the last: a signal to one rank stops all of them after the same step. */
static Status poll_stop(Trainer *t, int *signal)
{
    double x[2] = { guard_signal(), t->deferred != OK };
    comm_host_max(t->engine.mesh.comm[GR_world], x, 2);
    *signal = (int)x[0];
    return x[1] > 0 ? agree_status(t, t->deferred ? fail(t->deferred, "%s", t->deferred_text) : OK) : OK;
}

/* ---- steps ---- */

/* Sums over ranks: seconds by part, executed FLOPs, tensors without a gradient; means of the rest. */
static void sum_ranks(const Trainer *t, StepReport *r)
{
    enum { N = PART_N + 3 };
    double x[N];
    memcpy(x, r->part_seconds, sizeof r->part_seconds);
    x[PART_N] = r->executed_flops, x[PART_N + 1] = r->chunked_layers, x[PART_N + 2] = r->zero_grads;
    comm_host_sum(t->engine.mesh.comm[GR_world], x, N);
    memcpy(r->part_seconds, x, sizeof r->part_seconds);
    r->executed_flops = x[PART_N], r->chunked_layers = x[PART_N + 1] / t->place.world;
    r->zero_grads = (int)x[PART_N + 2];
}

static void add_comm_time(Trainer *t)
{
    for (int g = 0; g < LEDGER_GROUPS; g++) {
        const LedgerComm *l = &t->engine.be.ledger.comm[g];
        t->comm_time[g].exposed += l->exposed, t->comm_time[g].length += l->length;
    }
}

/* At the end of a line: the mean over ranks of what the ranks have added. */
static void report_comm_time(Trainer *t, StepReport *r)
{
    double *x = &r->comm[0].exposed;
    enum { N = 2 * LEDGER_GROUPS };
    memcpy(r->comm, t->comm_time, sizeof r->comm);
    memset(t->comm_time, 0, sizeof t->comm_time);
    comm_host_sum(t->engine.mesh.comm[GR_world], x, N);
    for (int i = 0; i < N; i++) x[i] /= t->place.world;
}

static double ledger_flops(const Ledger *l)
{
    double sum = 0;
    for (int i = 0; i < PART_N; i++) sum += l->by_part[i].flops + l->by_part[i].extra;
    return sum;
}

static void measure_memory(const Trainer *t, StepReport *r)
{
    r->memory_used = backend_memory_used(t->engine.conf.backend);
    comm_host_max(t->engine.mesh.comm[GR_world], &r->memory_used, 1);
}

/* Forward, backward and gradient norm of one step's micro-batches; the ledger counts its seconds by part. */
static Status compute_gradients(Trainer *t, Stream *const *micro, int n, StepReport *r,
                                const StepStats *stats)
{
    Engine *e = &t->engine;
    e->dropout_seed = rng_u64((uint64_t)t->recipe->train.seed, rng_stream("dropout"), (uint64_t)t->step) | 1;
    ledger_clear(&e->be.ledger);
    ledger_start(&e->be.ledger);
    TRY(pipeline_run(e, micro, n, &r->sums, stats, loader_peek(t->loader, false)));
    engine_compute_grad_norm(e);
    TRY(engine_read_grad_squares(e, t->zero_grad.square));
    r->grad_norm = sqrt(t->zero_grad.square[0]);
    r->verdict = guard_classify(&t->guard, r->sums.total, r->grad_norm, r->sums.supervised);
    return OK;
}

/* Computes a bad step once more. The same result comes from the model or the data; a different one is an
 * error of the hardware, and then the second result counts. */
static Status recheck_bad_step(Trainer *t, Stream *const *micro, int n, StepReport *r)
{
    StepReport first = *r;
    TRY(compute_gradients(t, micro, n, r, NULL));
    bool same = !memcmp(&first.sums.total, &r->sums.total, sizeof r->sums.total) &&
                !memcmp(&first.grad_norm, &r->grad_norm, sizeof r->grad_norm);
    log_warn(&t->log,
             "step %lld: %s (loss %g, gradient norm %g); recomputed, the result is %s (loss %g, norm %g): %s",
             (long long)t->step + 1, guard_verdict_text(first.verdict), first.sums.total, first.grad_norm,
             same ? "the same" : "different", r->sums.total, r->grad_norm,
             r->verdict == STEP_GOOD ? "a hardware error; the second result is used" : "the step is skipped");
    return OK;
}

static void apply_update(Trainer *t, StepReport *r)
{
    const struct cfg_optim *c = &t->recipe->optim;
    float lr[GROUP_N];
    for (int g = 0; g < GROUP_N; g++) lr[g] = (float)lr_at(&t->lr, (Group)g, t->step + 1);
    OptimConf o = { .adam = { .lr = lr[G_LLM], .beta1 = (float)c->adam_beta1, .beta2 = (float)c->adam_beta2,
                              .eps = (float)c->adam_epsilon, .decay = (float)c->weight_decay,
                              .max_norm = (float)c->max_grad_norm, .step = t->updates + 1 },
                    .group_lr = lr };
    engine_apply_update(&t->engine, &o);
    r->zero_grads = zero_grad_count_step(&t->zero_grad, &t->engine.mesh, lr);
}

/* Counts what ran eagerly since `before`, and says so when graphs were captured: a shape that comes again is
 * captured once. */
static void report_graphs(const Trainer *t, GraphCounts before, StepReport *r)
{
    const GraphCache *g = &t->engine.graphs;
    r->launches = t->engine.be.ledger.launches;
    r->eager_phases = g->counts.eager - before.eager;
    if (g->counts.captured > before.captured)
        log_info(&t->log, "step %lld: captured %lld CUDA graphs, now %lld with %.1f MiB",
                 (long long)r->step, (long long)(g->counts.captured - before.captured),
                 (long long)g->counts.captured, (double)g->bytes / (1 << 20));
}

/* From micro-batches to updated weights, unless the guard skips the step. */
static Status run_step(Trainer *t, const LoaderStep *in, StepReport *r)
{
    Ledger *ledger = &t->engine.be.ledger;
    GraphCounts graphs = t->engine.graphs.counts;
    bool shown = progress_due(&t->progress, t->step + 1);    /* experts are counted in such steps only */
    StepStats stats = { .experts = shown ? &t->expert_counts : NULL, .sources = &t->source_loss,
                        .doc = in->doc };
    TRY(compute_gradients(t, in->micro, t->data.micro, r, &stats));
    bool bad = r->verdict == STEP_NOT_FINITE || r->verdict == STEP_SPIKE;
    if (bad) TRY(recheck_bad_step(t, in->micro, t->data.micro, r));
    if (r->verdict == STEP_EMPTY)
        log_warn(&t->log, "step %lld: %s; the step is skipped", (long long)t->step + 1,
                 guard_verdict_text(r->verdict));
    if (r->verdict == STEP_GOOD) apply_update(t, r);
    ledger_stop(ledger);
    TRY(backend_sync(&t->engine.be));
    memcpy(r->part_seconds, ledger->seconds, sizeof r->part_seconds);
    r->executed_flops = ledger_flops(ledger), r->chunked_layers = (double)ledger->chunked_layers;
    report_graphs(t, graphs, r);
    add_comm_time(t);
    sum_ranks(t, r);
    if (shown) measure_memory(t, r), report_comm_time(t, r), step_stats_sum_ranks(&stats, &t->engine);
    t->updates += r->verdict == STEP_GOOD;
    return OK;
}

/* Only the pipeline stage that has the tensor knows its name: all ranks end with the message of that
 * stage. */
static Status stop_for_zero_grads(const Trainer *t)
{
    char why[512];
    if (!trainer_agree_status(t, zero_grad_error(&t->zero_grad))) return OK;
    snprintf(why, sizeof why, "%s", status_text());
    return fail(E_CHECK, "%s", why);
}

Status trainer_step(Trainer *t, StepReport *r)
{
    LoaderStep in;
    *r = (StepReport){ .step = t->step + 1, .lr = lr_at(&t->lr, G_LLM, t->step + 1) };
    activity_phase("loading the data of step", r->step);
    Status st = loader_next(t->loader, &in);
    activity_phase("step", r->step);
    if (!st && !in.micro) st = fail(E_DATA, "data.train ended before step %lld", (long long)r->step);
    TRY(agree_status(t, st));
    TRY_CTX(run_step(t, &in, r), "step %lld", (long long)r->step);
    t->step = r->step, t->epoch = r->epoch = in.epoch, t->tokens += r->sums.tokens;
    double now = clock_now();
    r->data_wait = in.waited, r->bad_samples = in.skipped, r->seconds = now - t->step_ended;
    t->step_ended = now;
    if (r->zero_grads) TRY(stop_for_zero_grads(t));
    return guard_record(&t->guard, r->verdict, r->sums.total, r->grad_norm);
}

static Status eval_losses(Trainer *t, Evaluation *e)
{
    LoaderStep in;
    for (;;) {
        TRY(agree_status(t, loader_next(t->eval_loader, &in)));
        if (!in.micro) return loader_rewind(t->eval_loader);
        Losses got;
        const Stream *s = in.micro[0];
        engine_upload(&t->engine, s);
        engine_evaluate(&t->engine, 1.0f);
        TRY(engine_read_losses(&t->engine, &got));
        e->loss += got.ce, e->tokens += s->tokens, e->supervised += s->supervised, e->docs += s->docs;
    }
}

/* Each loss is on one rank, the last stage; of the ranks that share documents one counts them. */
static void sum_evaluation(const Trainer *t, Evaluation *e)
{
    const int *at = t->engine.mesh.at;
    double  one = at[AX_TP] + at[AX_CP] + at[AX_PP] == 0;
    double  x[4] = { e->loss, one * (double)e->tokens, one * (double)e->supervised, one * (double)e->docs };
    comm_host_sum(t->engine.mesh.comm[GR_world], x, 4);
    e->loss = x[0], e->tokens = (int64_t)x[1], e->supervised = (int64_t)x[2], e->docs = (int64_t)x[3];
}

Status trainer_evaluate(Trainer *t, Evaluation *e)
{
    double from = clock_now();
    activity_phase("evaluation after step", t->step);
    *e = (Evaluation){ .accuracy = NAN };
    Status st = eval_losses(t, e);
    if (!st) sum_evaluation(t, e);
    if (!st && !e->supervised)
        st = agree_status(t, fail(E_DATA, "no token of the held-out data is supervised"));
    if (!st) e->loss /= (double)e->supervised;
    if (!st && t->conf.answers.run && trainer_can_generate(t))
        st = agree_status(t, t->conf.answers.run(t->conf.answers.self, t, &e->accuracy));
    e->seconds = clock_now() - from;
    return st ? wrap(st, "evaluation") : OK;
}

static Status evaluate(Trainer *t)
{
    Evaluation e;
    TRY(trainer_evaluate(t, &e));
    t->evaluated = t->step, t->eval_loss = e.loss;
    char text[64] = "";
    if (!isnan(e.accuracy)) snprintf(text, sizeof text, "  accuracy %.1f%%", 100 * e.accuracy);
    log_info(&t->log, "eval %lld/%lld  loss %.4f%s  %lld documents, %lld supervised tokens  %.1f s",
             (long long)t->step, (long long)t->steps, e.loss, text, (long long)e.docs,
             (long long)e.supervised, e.seconds);
    Scalar s[2] = { { "eval/loss", e.loss }, { "eval/accuracy", e.accuracy } };
    t->step_ended = clock_now();
    defer_error(t, progress_put(&t->progress, t->step, s, isnan(e.accuracy) ? 1 : 2));
    return OK;
}

/* Reports a save that runs beside the steps once it has ended. */
static Status poll_save(Trainer *t, bool wait)
{
    if (!t->checkpointer.in_flight) return OK;
    TRY(wait ? checkpoint_async_wait(&t->checkpointer) : checkpoint_async_poll(&t->checkpointer));
    if (!t->checkpointer.in_flight)
        log_info(&t->log, "saved %s/checkpoint-%lld in %.1f s", t->folder.dir, (long long)t->saved,
                 t->checkpointer.seconds);
    return OK;
}

Status trainer_save(Trainer *t, bool last)
{
    const struct cfg_checkpoint *c = &t->recipe->checkpoint;
    const struct cfg_image *i = &t->recipe->image;
    bool hf = !strcmp(c->hf, "every") || (last && !strcmp(c->hf, "final"));
    HfExport x = { .config = t->source.hf, .companions = t->source.folder, .min_pixels = i->min_pixels,
                 .max_pixels = i->max_pixels };
    const char *form = t->engine.model.lora ? " with the adapter in PEFT form" : " with the model in HF form";
    Json *state = NULL;
    double from = clock_now();
    activity_phase("saving checkpoint", t->step);
    TRY(poll_save(t, true));
    if (t->evaluated == t->step && (isnan(t->best) || t->eval_loss < t->best))
        t->best = t->eval_loss, t->best_step = t->step;
    TRY(trainer_state_save(t, &state));
    Snapshot s = { .dir = t->folder.dir, .step = t->step, .model = &t->engine.model, .be = &t->engine.be,
                   .mesh = &t->engine.mesh, .state = state, .config = t->source.hf, .base = t->base_model,
                   .hf = hf ? &x : NULL, .best = t->best_step == t->step, .keep = c->save_total_limit,
                   .patience = 9 * t->recipe->comm.timeout };
    Status st = checkpoint_async_begin(&t->checkpointer, &s);
    json_decref(state);
    t->step_ended = clock_now();
    if (st) return st;
    t->saved = t->step;
    log_info(&t->log, "%s %s/checkpoint-%lld%s%s; training waited %.1f s",
             t->checkpointer.in_flight ? "saving" : "saved",
             t->folder.dir, (long long)t->step, hf ? form : "",
             s.best ? ", the best so far" : "", t->step_ended - from);
    return OK;
}

static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

static Status after_step(Trainer *t)
{
    bool last = t->step == t->steps;
    int64_t every = trainer_has_eval(t) ? t->recipe->eval.eval_steps : 0;
    if (due(every, t->step) || (every && last)) TRY(evaluate(t));
    if (last || due(t->recipe->checkpoint.save_steps, t->step)) TRY(trainer_save(t, last));
    if (t->first && (t->evaluated == t->step || t->saved == t->step))
        defer_error(t, trainer_write_expert_load(t));
    return OK;
}

static Status stop_on_signal(Trainer *t, int signal)
{
    log_info(&t->log, "stopped by signal \"%s\" after step %lld of %lld", strsignal(signal),
             (long long)t->step, (long long)t->steps);
    if (t->saved != t->step) TRY(trainer_save(t, false));
    TRY(poll_save(t, true));
    log_info(&t->log, "to go on, run the same command with checkpoint.resume_from_checkpoint=auto");
    return OK;
}

/* Ends a run on a failure that all ranks know of: a save under way is completed first. The ranks agree once
 * more at the very end, so that none of them takes another one that has ended for one that crashed. */
static Status end_on_failure(Trainer *t, Status st)
{
    char why[1024];
    snprintf(why, sizeof why, "%s", status_text());
    if (poll_save(t, true)) log_warn(&t->log, "%s", status_text());
    Status same = trainer_agree_status(t, fail(st, "%s", why));
    return same == st ? fail(st, "%s", why) : same;
}

static void log_stall(void *self, const char *line) { log_warn(&((const Trainer *)self)->log, "%s", line); }

/* When a step takes five times as long as usual, every rank logs what it waits for. */
static void watch_for_stall(Trainer *t)
{
    enum { TIMES = 5, LEAST = 2 };                           /* times the usual step; least seconds */
    double seconds = TIMES * t->progress.pace;
    if (t->conf.world && t->progress.pace > 0)
        comm_watch(t->conf.world, seconds > LEAST ? seconds : LEAST, log_stall, t);
}

static Status one_step(Trainer *t)
{
    StepReport r;
    bool first = t->progress.pace == 0;
    watch_for_stall(t);
    Status st = trainer_step(t, &r);
    if (t->conf.world) comm_watch(t->conf.world, 0, NULL, NULL);
    if (t->step == r.step) {                                 /* the step ended, taken or skipped */
        char why[1024];
        snprintf(why, sizeof why, "%s", st ? status_text() : "");
        defer_error(t, progress_step(&t->progress, &r, &t->expert_counts, &t->source_loss));
        if (st) st = fail(st, "%s", why);                    /* hides an error of progress_step */
    }
    if (progress_due(&t->progress, r.step))
        expert_counts_end_line(&t->expert_counts), source_loss_clear(&t->source_loss);
    if (first && !st && t->first) {
        defer_error(t, trainer_write_plan(t, &r.sums.model));
        hang_files_remove(t->folder.dir);
    }
    if (first && !st)
        log_info(&t->log, "first step done %.2f s after the start (%.2f s to open, %.2f s waiting for data)",
                 clock_now() - t->conf.started, t->open_ended - t->conf.started, r.data_wait);
    return st;
}

Status trainer_run(Trainer *t)
{
    Status st = OK;
    int signal = 0;
    if (t->step >= t->steps) {
        log_info(&t->log, "the run is complete: step %lld of %lld; to train on, raise train.max_steps or "
                 "train.num_train_epochs", (long long)t->step, (long long)t->steps);
        return OK;
    }
    guard_signals_on();
    if (!t->step && t->recipe->eval.eval_on_start) st = evaluate(t);
    while (!st && !(st = poll_stop(t, &signal)) && !signal && t->step < t->steps) {
        st = one_step(t);
        if (!st) st = after_step(t);
        if (!st) st = poll_save(t, t->step == t->steps);
    }
    if (st == E_CHECK || (st && (t->failure_agreed || !t->conf.world))) st = end_on_failure(t, st);
    if (!st && signal && t->step < t->steps) st = stop_on_signal(t, signal);
    else if (!st)
        log_info(&t->log, "done: %lld steps, %lld tokens", (long long)t->steps, (long long)t->tokens);
    guard_signals_off();
    return st;
}
