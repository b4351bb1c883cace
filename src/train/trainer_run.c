/* train/trainer_run.c -- steps, evaluations and checkpoints in their order; see trainer.h. */
#include "train/trainer.h"

#include "checkpoint/checkpoint.h"
#include "comm/hang_file.h"

#include "base/activity.h"
#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- failures that all ranks agree on ---- */

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
    if (!(x[1] > 0)) return OK;
    return trainer_agree_or_end(t, t->deferred ? fail(t->deferred, "%s", t->deferred_text) : OK);
}

/* ---- evaluations and checkpoints ---- */

static Status eval_losses(Trainer *t, Evaluation *e)
{
    LoaderStep in;
    for (;;) {
        TRY(trainer_agree_or_end(t, loader_next(t->eval_loader, &in)));
        if (!in.micro) return loader_rewind(t->eval_loader);
        Losses got;
        const Stream *s = in.micro[0];
        engine_upload(&t->engine, s);
        engine_evaluate(&t->engine, 1.0f);
        TRY(engine_read_losses(&t->engine, &got));
        eval_sources_add(&t->eval_sources, &t->engine, s, in.doc[0]);
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
    eval_sources_clear(&t->eval_sources);
    Status st = eval_losses(t, e);
    if (!st) sum_evaluation(t, e), source_loss_sum_ranks(&t->eval_sources.loss, &t->engine);
    if (!st && !e->supervised)
        st = trainer_agree_or_end(t, fail(E_DATA, "no token of the held-out data is supervised"));
    if (!st) e->loss /= (double)e->supervised;
    if (!st && t->conf.answers.run && trainer_can_generate(t))
        st = trainer_agree_or_end(t, t->conf.answers.run(t->conf.answers.self, t, &e->accuracy));
    e->seconds = clock_now() - from;
    return st ? wrap(st, "evaluation") : OK;
}

static Status put_evaluation(Trainer *t, const Evaluation *e)
{
    int    own = isnan(e->accuracy) ? 1 : 2, by = eval_sources_scalars(&t->eval_sources);
    char (*name)[256] = calloc((size_t)by + 1, sizeof *name);
    Scalar *s = calloc((size_t)(own + by), sizeof *s);
    Status st = s && name ? OK : fail(E_FIT, "no memory for the evaluations of sources");
    if (!st) {
        s[0] = (Scalar){ "eval/loss", e->loss };
        if (own == 2) s[1] = (Scalar){ "eval/accuracy", e->accuracy };
        eval_sources_put(&t->eval_sources, s + own, name);
        st = progress_put(&t->progress, t->step, s, own + by);
    }
    free(s), free(name);
    return st;
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
    eval_sources_log(&t->eval_sources, &t->log);
    t->step_ended = clock_now();
    defer_error(t, put_evaluation(t, &e));
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

static bool exports_model(const struct cfg_checkpoint *c, bool last)
{
    return c->save_only_model || !strcmp(c->hf, "every") || (last && !strcmp(c->hf, "final"));
}

/* Copies the state of this step and begins to write it; x: the model files that every checkpoint has. */
static Status begin_save(Trainer *t, const HfExport *x, bool hf)
{
    Json *state = NULL;
    TRY(trainer_state_save(t, &state));
    Snapshot s  = { .dir        = t->folder.dir,
                    .step       = t->step,
                    .model      = &t->engine.model,
                    .be         = &t->engine.be,
                    .mesh       = &t->engine.mesh,
                    .state      = state,
                    .config     = t->source.hf,
                    .base       = t->base_model,
                    .hf         = hf ? x : NULL,
                    .files      = x,
                    .only_model = t->recipe->checkpoint.save_only_model,
                    .best       = t->best_step == t->step,
                    .keep       = t->recipe->checkpoint.save_total_limit,
                    .patience   = 9 * t->recipe->comm.timeout };
    Status st = checkpoint_async_begin(&t->checkpointer, &s);
    json_decref(state);
    return st;
}

Status trainer_save(Trainer *t, bool last)
{
    const struct cfg_image *i = &t->recipe->image;
    bool        hf   = exports_model(&t->recipe->checkpoint, last);
    HfExport    x    = { .config = t->source.hf, .companions = t->source.folder, .min_pixels = i->min_pixels,
                         .max_pixels = i->max_pixels };
    const char *form = t->engine.model.lora ? " with the adapter in PEFT form" : " with the model in HF form";
    double      from = clock_now();
    activity_phase("saving checkpoint", t->step);
    TRY(poll_save(t, true));
    if (t->evaluated == t->step && (isnan(t->best) || t->eval_loss < t->best))
        t->best = t->eval_loss, t->best_step = t->step;
    Status st = begin_save(t, &x, hf);
    t->step_ended = clock_now();
    if (st) return st;
    t->saved = t->step;
    log_info(&t->log, "%s %s/checkpoint-%lld%s%s; training waited %.1f s",
             t->checkpointer.in_flight ? "saving" : "saved",
             t->folder.dir, (long long)t->step, hf ? form : "",
             t->best_step == t->step ? ", the best so far" : "", t->step_ended - from);
    return OK;
}

static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

static bool eval_due(const Trainer *t, int64_t step)
{
    int64_t every = trainer_has_eval(t) ? t->recipe->eval.eval_steps : 0;
    return due(every, step) || (every && step == t->steps);
}

static bool save_due(const Trainer *t, int64_t step)
{
    const struct cfg_checkpoint *c = &t->recipe->checkpoint;
    return (c->save_at_end && step == t->steps) || due(c->save_steps, step);
}

static Status after_step(Trainer *t)
{
    if (eval_due(t, t->step)) TRY(evaluate(t));
    if (eval_due(t, t->step)) defer_error(t, trainer_keep_folder(t));
    if (save_due(t, t->step)) TRY(trainer_save(t, t->step == t->steps));
    if (t->first && (t->evaluated == t->step || t->saved == t->step))
        defer_error(t, trainer_write_expert_load(t));
    return OK;
}

static Status stop_on_signal(Trainer *t, int signal)
{
    log_info(&t->log, "stopped by signal \"%s\" after step %lld of %lld", strsignal(signal),
             (long long)t->step, (long long)t->steps);
    if (!t->recipe->checkpoint.save_at_end) return poll_save(t, true);
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

/* Shows a step that has ended, taken or skipped; st: how it ended. */
static Status report_step(Trainer *t, const StepReport *r, Status st)
{
    bool first = t->progress.pace == 0;
    char why[1024];
    snprintf(why, sizeof why, "%s", st ? status_text() : "");
    if (progress_due(&t->progress, r->step) || save_due(t, r->step)) defer_error(t, trainer_keep_folder(t));
    defer_error(t, progress_step(&t->progress, r, &t->expert_counts, &t->source_loss));
    if (progress_due(&t->progress, r->step))
        expert_counts_end_line(&t->expert_counts), code_losses_end_line(&t->code_losses),
            source_loss_clear(&t->source_loss);
    if (st) return fail(st, "%s", why);                      /* hides an error of progress_step */
    if (first && t->first) {
        defer_error(t, trainer_write_plan(t, &r->sums.model));
        hang_files_remove(t->folder.dir);
    }
    if (first)
        log_info(&t->log, "first step done %.2f s after the start (%.2f s to open, %.2f s waiting for data)",
                 clock_now() - t->conf.started, t->open_ended - t->conf.started, r->data_wait);
    return OK;
}

/* Ends the oldest step that was begun and shows it. */
static Status end_oldest(Trainer *t)
{
    StepReport r;
    Status st = trainer_end_step(t, &r);
    return t->step == r.step ? report_step(t, &r, st) : st;
}

static Status end_begun(Trainer *t)
{
    while (t->begun) TRY(end_oldest(t));
    return OK;
}

/* A step that could not begin; those before it have ended well. */
static Status end_without(Trainer *t, Status st)
{
    char why[1024];
    snprintf(why, sizeof why, "%s", status_text());
    if (end_begun(t)) log_warn(&t->log, "%s", status_text());
    return fail(st, "%s", why);
}

/* Whether the results of the step begun last are wanted before the next one begins: for what follows it, to
 * know how long the first one takes, because it may not count as an update, or because steps are so long that
 * waiting costs nothing and a line should not come a step late. */
static bool ends_at_once(const Trainer *t)
{
    enum { LONG = 5 };                                       /* seconds */
    int64_t step = t->step + t->begun;
    bool first = t->progress.pace == 0, empty = !t->flight[t->begun - 1].r.sums.supervised;
    bool last = step == t->steps;
    return !t->late || first || empty || last || t->progress.pace > LONG || eval_due(t, step) ||
           save_due(t, step);
}

/* Before a step begins: where its data is not ready, the steps in flight end, and no line waits for data. */
static Status end_before_waiting(Trainer *t)
{
    return t->begun && !loader_peek(t->loader, false) ? end_begun(t) : OK;
}

/* Begins the next step. On a device that computes it meanwhile, what is ended and shown is the step before:
 * the device does not wait for the host. */
static Status one_step(Trainer *t)
{
    TRY(end_before_waiting(t));
    watch_for_stall(t);
    Status st = trainer_begin_step(t);
    if (st) st = end_without(t, st);
    else if (t->begun > 1) st = end_oldest(t);
    if (!st && ends_at_once(t)) st = end_begun(t);
    if (t->conf.world) comm_watch(t->conf.world, 0, NULL, NULL);
    return st;
}

/* A run that took none of its steps has not trained. */
static Status refuse_untrained(const Trainer *t)
{
    if (t->step < t->steps || t->guard.skipped < t->steps) return OK;
    return fail(E_CHECK, "none of the %lld steps was taken, the last because %s; the model is as it was at "
                "the start", (long long)t->steps, guard_verdict_text(t->guard.last));
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
        if (!st && !t->begun) st = after_step(t);
        if (!st) st = poll_save(t, t->step == t->steps);
    }
    if (!st) st = end_begun(t);
    if (!st && t->step == t->steps) st = trainer_agree_status(t, trainer_write_memory(t));
    if (!st) st = refuse_untrained(t);
    if (st == E_CHECK || (st && (t->failure_agreed || !t->conf.world))) st = end_on_failure(t, st);
    if (!st && signal && t->step < t->steps) st = stop_on_signal(t, signal);
    else if (!st)
        log_info(&t->log, "done: %lld steps, %lld tokens", (long long)t->steps, (long long)t->tokens);
    trainer_log_lost_folder(t);
    guard_signals_off();
    t->failed = st != OK;
    if (st) log_failure(&t->log);
    return st;
}
