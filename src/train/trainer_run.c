/* train/trainer_run.c -- steps, evaluations and checkpoints in their order; see trainer.h. */
#include "train/trainer.h"

#include "checkpoint/checkpoint.h"

#include "base/clock.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- failures that all ranks hear of ---- */

/* What a rank has met at a place that all of them pass: they end together, and not one by the other's
 * absence, which would cost what is being saved. While nothing fails it is a word a step. */
static Status share(Trainer *t, Status mine)
{
    double bad = mine != OK;
    comm_host_max(t->engine.mesh.comm[GR_world], &bad, 1);
    if (!(bad > 0)) return OK;
    Status st = trainer_agree_status(t, mine);
    t->together = st && (!t->conf.world || t->conf.world->agreed);
    return st;
}

/* What one rank writes for all, and cannot: the others learn of it before the next step. */
static void note(Trainer *t, Status st)
{
    if (!st || t->trouble) return;
    t->trouble = st;
    snprintf(t->why, sizeof t->why, "%s", status_text());
}

/* Before each step and after the last. Whoever was asked to leave, all do after the same step. */
static Status ask_all(Trainer *t, int *signal)
{
    double x[2] = { guard_signal(), t->trouble != OK };
    comm_host_max(t->engine.mesh.comm[GR_world], x, 2);
    *signal = (int)x[0];
    return x[1] > 0 ? share(t, t->trouble ? fail(t->trouble, "%s", t->why) : OK) : OK;
}

/* ---- steps ---- */

/* Device-seconds and work of all ranks, and what they found still. */
static void sum_ranks(const Trainer *t, StepReport *r)
{
    enum { N = PART_N + 4 };
    double x[N];
    memcpy(x, r->part_seconds, sizeof r->part_seconds);
    x[PART_N] = r->executed_flops, x[PART_N + 1] = r->exposed_comm;
    x[PART_N + 2] = r->chunked_layers, x[PART_N + 3] = r->zero_grads;
    comm_host_sum(t->engine.mesh.comm[GR_world], x, N);
    memcpy(r->part_seconds, x, sizeof r->part_seconds);
    r->executed_flops = x[PART_N], r->exposed_comm = x[PART_N + 1] / t->place.world;
    r->chunked_layers = x[PART_N + 2] / t->place.world, r->zero_grads = (int)x[PART_N + 3];
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

/* Forward, backward and the norm of one step's micro-batches; the clock of the parts runs. */
static Status gradients(Trainer *t, Stream *const *micro, int n, StepReport *r, const StepStats *w)
{
    Engine *e = &t->engine;
    e->chance = rng_u64((uint64_t)t->recipe->train.seed, rng_stream("dropout"), (uint64_t)t->step) | 1;
    ledger_clear(&e->be.ledger);
    ledger_start(&e->be.ledger);
    TRY(pipeline_run(e, micro, n, &r->sums, w, loader_peek(t->loader, false)));
    engine_compute_grad_norm(e);
    TRY(engine_read_grad_squares(e, t->zero_grad.square));
    r->grad_norm = sqrt(t->zero_grad.square[0]);
    r->verdict = guard_classify(&t->guard, r->sums.total, r->grad_norm, r->sums.supervised);
    return OK;
}

/* A bad step is computed once more: the same result is the model's or the data's doing, another one the
 * machine's, and then the second is as good as any. */
static Status second_look(Trainer *t, Stream *const *micro, int n, StepReport *r)
{
    StepReport first = *r;
    TRY(gradients(t, micro, n, r, NULL));
    bool same = !memcmp(&first.sums.total, &r->sums.total, sizeof r->sums.total) &&
                !memcmp(&first.grad_norm, &r->grad_norm, sizeof r->grad_norm);
    log_warn(&t->log,
             "step %lld: %s (loss %g, gradient norm %g); computed again it is %s (loss %g, norm %g): %s",
             (long long)t->step + 1, guard_verdict_text(first.verdict), first.sums.total, first.grad_norm,
             same ? "the same" : "different", r->sums.total, r->grad_norm,
             r->verdict == STEP_GOOD ? "the machine's fault; the second is used" : "the step is skipped");
    return OK;
}

static void update(Trainer *t, StepReport *r)
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

/* From the micro-batches to changed weights, or to the decision to leave them. */
static Status learn(Trainer *t, const LoaderStep *in, StepReport *r)
{
    Ledger *ledger = &t->engine.be.ledger;
    bool shown = progress_due(&t->progress, t->step + 1);    /* choices are counted where a line follows */
    StepStats w = { .routing = shown ? &t->routing : NULL, .by = &t->by, .doc = in->doc };
    TRY(gradients(t, in->micro, t->data.micro, r, &w));
    bool bad = r->verdict == STEP_NOT_FINITE || r->verdict == STEP_SPIKE;
    if (bad) TRY(second_look(t, in->micro, t->data.micro, r));
    if (r->verdict == STEP_EMPTY)
        log_warn(&t->log, "step %lld: %s; it is skipped", (long long)t->step + 1, guard_verdict_text(r->verdict));
    if (r->verdict == STEP_GOOD) update(t, r);
    ledger_stop(ledger);
    TRY(backend_sync(&t->engine.be));
    memcpy(r->part_seconds, ledger->seconds, sizeof r->part_seconds);
    r->executed_flops = ledger_flops(ledger), r->chunked_layers = (double)ledger->sliced;
    for (int i = 0; i < LEDGER_GROUPS; i++) r->exposed_comm += ledger->comm[i].waited;
    sum_ranks(t, r);
    if (shown) measure_memory(t, r);
    if (shown) step_stats_sum_ranks(&w, &t->engine);
    t->updates += r->verdict == STEP_GOOD;
    return OK;
}

/* A stage of a pipeline may have found what the others cannot know of: all end with its words. */
static Status stop_still(const Trainer *t)
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
    Status st = loader_next(t->loader, &in);
    if (!st && !in.micro) st = fail(E_DATA, "data.train ended before step %lld", (long long)r->step);
    TRY(share(t, st));
    TRY_CTX(learn(t, &in, r), "step %lld", (long long)r->step);
    t->step = r->step, t->epoch = r->epoch = in.epoch, t->tokens += r->sums.tokens;
    double now = clock_now();
    r->data_wait = in.waited, r->bad_samples = in.skipped, r->seconds = now - t->paused;
    t->paused = now;
    if (r->zero_grads) TRY(stop_still(t));
    return guard_record(&t->guard, r->verdict, r->sums.total, r->grad_norm);
}

static Status eval_losses(Trainer *t, Evaluation *e)
{
    LoaderStep in;
    for (;;) {
        TRY(share(t, loader_next(t->held, &in)));
        if (!in.micro) return loader_rewind(t->held);
        Losses got;
        const Stream *s = in.micro[0];
        engine_upload(&t->engine, s);
        engine_evaluate(&t->engine, 1.0f);
        TRY(engine_read_losses(&t->engine, &got));
        e->loss += got.ce, e->tokens += s->tokens, e->supervised += s->supervised, e->docs += s->docs;
    }
}

/* Losses are where the heads are; documents are counted by one rank of those that share them. */
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
    *e = (Evaluation){ .accuracy = NAN };
    Status st = eval_losses(t, e);
    if (!st) sum_evaluation(t, e);
    if (!st && !e->supervised) st = share(t, fail(E_DATA, "no token of the held-out data is supervised"));
    if (!st) e->loss /= (double)e->supervised;
    if (!st && t->conf.answers.run && trainer_can_generate(t))
        st = share(t, t->first ? t->conf.answers.run(t->conf.answers.self, t, &e->accuracy) : OK);
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
    t->paused = clock_now();
    note(t, progress_put(&t->progress, t->step, s, isnan(e.accuracy) ? 1 : 2));
    return OK;
}

/* What a save beside the run has come to, as soon as it is known. */
static Status look_at_save(Trainer *t, bool wait)
{
    if (!t->saving.in_flight) return OK;
    TRY(wait ? checkpoint_async_wait(&t->saving) : checkpoint_async_poll(&t->saving));
    if (!t->saving.in_flight)
        log_info(&t->log, "saved %s/checkpoint-%lld in %.1f s", t->folder.dir, (long long)t->saved,
                 t->saving.seconds);
    return OK;
}

Status trainer_save(Trainer *t, bool last)
{
    const struct cfg_checkpoint *c = &t->recipe->checkpoint;
    const struct cfg_image *i = &t->recipe->image;
    bool hf = !strcmp(c->hf, "every") || (last && !strcmp(c->hf, "final"));
    HfExport x = { .config = t->source.hf, .companions = t->source.folder, .min_pixels = i->min_pixels,
                 .max_pixels = i->max_pixels };
    const char *form = t->engine.model.lora ? " with the adapter for PEFT" : " with the model in HF form";
    Json *state = NULL;
    double from = clock_now();
    TRY(look_at_save(t, true));
    if (t->evaluated == t->step && (isnan(t->best) || t->eval_loss < t->best))
        t->best = t->eval_loss, t->best_step = t->step;
    TRY(trainer_state_save(t, &state));
    Snapshot s = { .dir = t->folder.dir, .step = t->step, .model = &t->engine.model, .be = &t->engine.be,
                   .mesh = &t->engine.mesh, .state = state, .config = t->source.hf, .base = t->base,
                   .hf = hf ? &x : NULL, .best = t->best_step == t->step, .keep = c->save_total_limit,
                   .patience = 10 * t->recipe->comm.timeout };
    Status st = checkpoint_async_begin(&t->saving, &s);
    json_decref(state);
    t->paused = clock_now();
    if (st) return st;
    t->saved = t->step;
    log_info(&t->log, "%s %s/checkpoint-%lld%s%s; the run waited %.1f s", t->saving.in_flight ? "saving" : "saved",
             t->folder.dir, (long long)t->step, hf ? form : "",
             s.best ? ", the best so far" : "", t->paused - from);
    return OK;
}

static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

static Status after_step(Trainer *t)
{
    bool last = t->step == t->steps;
    int64_t looks = trainer_has_eval(t) ? t->recipe->eval.eval_steps : 0;
    if (due(looks, t->step) || (looks && last)) TRY(evaluate(t));
    if (last || due(t->recipe->checkpoint.save_steps, t->step)) TRY(trainer_save(t, last));
    if (t->first && (t->evaluated == t->step || t->saved == t->step)) note(t, trainer_write_expert_load(t));
    return OK;
}

static Status leave(Trainer *t, int signal)
{
    log_info(&t->log, "asked to leave by %s after step %lld of %lld", strsignal(signal), (long long)t->step,
             (long long)t->steps);
    if (t->saved != t->step) TRY(trainer_save(t, false));
    TRY(look_at_save(t, true));
    log_info(&t->log, "resume with checkpoint.resume_from_checkpoint=auto");
    return OK;
}

/* A failure that ends the run on all ranks at the same place: what is being saved is still written to its
 * end. That they agree is the last they say, so that none is taken for one that broke down. */
static Status end_together(Trainer *t, Status st)
{
    char why[1024];
    snprintf(why, sizeof why, "%s", status_text());
    if (look_at_save(t, true)) log_warn(&t->log, "%s", status_text());
    Status same = trainer_agree_status(t, fail(st, "%s", why));
    return same == st ? fail(st, "%s", why) : same;
}

static void say_line(void *self, const char *line) { log_warn(&((const Trainer *)self)->log, "%s", line); }

/* A step that takes five times as long as they do stands still somewhere: then every rank says where. */
static void watch_step(Trainer *t)
{
    enum { TIMES = 5, LEAST = 2 };                           /* seconds: below that nobody would have asked */
    double seconds = TIMES * t->progress.pace;
    if (t->conf.world && t->progress.pace > 0)
        comm_watch(t->conf.world, seconds > LEAST ? seconds : LEAST, say_line, t);
}

static Status one_step(Trainer *t)
{
    StepReport r;
    bool first = t->progress.pace == 0;
    watch_step(t);
    Status st = trainer_step(t, &r);
    if (t->conf.world) comm_watch(t->conf.world, 0, NULL, NULL);
    if (t->step == r.step) {                                 /* it was taken, or skipped as one too many */
        char why[1024];
        snprintf(why, sizeof why, "%s", st ? status_text() : "");
        note(t, progress_step(&t->progress, &r, &t->routing, &t->by));
        if (st) st = fail(st, "%s", why);                    /* what ended it is worse than a line not shown */
    }
    if (progress_due(&t->progress, r.step)) expert_counts_end_line(&t->routing), source_loss_clear(&t->by);
    if (first && !st && t->first) note(t, trainer_write_plan(t, &r.sums.model));
    if (first && !st)
        log_info(&t->log, "first step done %.2f s after the start (%.2f s to open, %.2f s waiting for data)",
                 clock_now() - t->conf.started, t->opened - t->conf.started, r.data_wait);
    return st;
}

Status trainer_run(Trainer *t)
{
    Status st = OK;
    int signal = 0;
    if (t->step >= t->steps) {
        log_info(&t->log, "nothing is left to do: step %lld of %lld; raise train.max_steps or "
                 "num_train_epochs", (long long)t->step, (long long)t->steps);
        return OK;
    }
    guard_signals_on();
    if (!t->step && t->recipe->eval.eval_on_start) st = evaluate(t);
    while (!st && !(st = ask_all(t, &signal)) && !signal && t->step < t->steps) {
        st = one_step(t);
        if (!st) st = after_step(t);
        if (!st) st = look_at_save(t, t->step == t->steps);
    }
    if (st == E_CHECK || (st && (t->together || !t->conf.world))) st = end_together(t, st);
    if (!st && signal && t->step < t->steps) st = leave(t, signal);
    else if (!st)
        log_info(&t->log, "done: %lld steps, %lld tokens", (long long)t->steps, (long long)t->tokens);
    guard_signals_off();
    return st;
}
