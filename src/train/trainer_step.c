/* train/trainer_step.c -- one optimizer step, from its data to its report; see trainer.h. */
#include "train/trainer.h"

#include "base/activity.h"
#include "base/clock.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

Status trainer_agree_or_end(Trainer *t, Status mine)
{
    double bad = mine != OK;
    comm_host_max(t->engine.mesh.comm[GR_world], &bad, 1);
    if (!(bad > 0)) return OK;
    Status st = trainer_agree_status(t, mine);
    t->failure_agreed = st && (!t->conf.world || t->conf.world->failure_agreed);
    return st;
}

/* ---- what ranks add up ---- */

/* Sums over ranks: seconds by part, executed FLOPs, tensors without a gradient; means of the rest. */
static void sum_ranks(const Trainer *t, StepReport *r)
{
    enum { N = PART_N + 3 };
    double x[N];
    memcpy(x, r->part_seconds, PART_N * sizeof *x);
    x[PART_N] = r->executed_flops, x[PART_N + 1] = r->chunked_layers, x[PART_N + 2] = r->zero_grads;
    comm_host_sum(t->engine.mesh.comm[GR_world], x, N);
    memcpy(r->part_seconds, x, PART_N * sizeof *x);
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

static void measure_memory(const Trainer *t, StepReport *r)
{
    r->memory_used = backend_memory_used(t->engine.conf.backend);
    comm_host_max(t->engine.mesh.comm[GR_world], &r->memory_used, 1);
}

/* ---- begin ---- */

/* The same on all ranks. */
static bool measures_codes(const Trainer *t) { return precision_is_fp8(&t->engine.conf.precision); }

static StepStats stats_of(Trainer *t, const StepInFlight *f)
{
    return (StepStats){ .experts = f->shown ? &t->expert_counts : NULL,
                        .codes = f->shown && measures_codes(t) ? &t->code_losses : NULL,
                        .sources = &t->source_loss, .doc = f->in.doc };
}

static void start_clocks(Trainer *t, const StepInFlight *f)
{
    Engine *e = &t->engine;
    e->dropout_seed =
        rng_u64((uint64_t)t->recipe->train.seed, rng_stream("dropout"), (uint64_t)(f->r.step - 1)) | 1;
    ledger_clear(&e->be.ledger);
    ledger_start(&e->be.ledger);
}

/* The host knows this when all work of the step is queued. On a GPU the seconds by part, and over NCCL those
 * of communication, are those that a sync has read: on several ranks the update of a step counts with the
 * step after it. */
static void stop_clocks(Trainer *t, StepReport *r)
{
    Ledger *l = &t->engine.be.ledger;
    ledger_stop(l);
    memcpy(r->part_seconds, l->seconds, sizeof r->part_seconds);
    r->executed_flops = 0, r->chunked_layers = (double)l->chunked_layers, r->launches = l->launches;
    for (int i = 0; i < PART_N; i++) r->executed_flops += l->by_part[i].flops + l->by_part[i].extra;
    add_comm_time(t);
}

/* number: of the update, from 1. verdict: on the device, or absent. */
static void apply_update(Trainer *t, const StepInFlight *f, int64_t number, Tensor verdict)
{
    const struct cfg_optim *c = &t->recipe->optim;
    OptimConf o = { .adam = { .lr = f->lr[G_LLM], .beta1 = (float)c->adam_beta1,
                              .beta2 = (float)c->adam_beta2, .eps = (float)c->adam_epsilon,
                              .decay = (float)c->weight_decay, .max_norm = (float)c->max_grad_norm,
                              .step = number, .verdict = verdict },
                    .group_lr = f->lr };
    engine_apply_update(&t->engine, &o);
}

/* Queues all of the step. The device decides about the update; the step before counts as an update, unless it
 * turns out bad, and then this one is queued again. */
static void queue_step(Trainer *t, StepInFlight *f)
{
    Engine   *e = &t->engine;
    StepStats stats = stats_of(t, f);
    PipelineStep s = { f->in.micro, t->data.micro, &stats, loader_peek(t->loader, false), true };
    f->slot = (int)(f->r.step % POST_SLOTS);
    f->gap = f == t->flight ? clock_now() - t->step_ended : -1;
    start_clocks(t, f);
    pipeline_queue(e, &s, &f->r.sums);
    engine_decide_update(e, guard_spike_factor(&t->guard, f - t->flight), f->r.sums.supervised > 0);
    apply_update(t, f, t->updates + 1 + (f - t->flight), t_rows(e->results.device.guard, GUARD_VERDICT, 1));
    zero_grad_expect(&t->zero_grad, f->slot);
    stop_clocks(t, &f->r);
    step_results_post(&e->results, &e->be, f->slot);
}

/* Forward, backward and gradient norm of the step, and the host's verdict; the host waits for them once. */
static Status compute_gradients(Trainer *t, StepInFlight *f, const StepStats *stats)
{
    Engine      *e = &t->engine;
    PipelineStep s = { f->in.micro, t->data.micro, stats, loader_peek(t->loader, false), true };
    f->slot = 0;
    start_clocks(t, f);
    TRY(pipeline_run(e, &s, &f->r.sums));
    f->r.grad_norm = sqrt(*(const double *)e->results.slot[0].sumsq.data);
    f->r.verdict = guard_classify(&t->guard, f->r.sums.total, f->r.grad_norm, f->r.sums.supervised);
    return OK;
}

/* Why the step is bad and, for a spike, the key that decides so. */
static void describe_bad_step(const Trainer *t, StepVerdict v, char *out, size_t n)
{
    const Guard *g  = &t->guard;
    int          at = snprintf(out, n, "%s", guard_verdict_text(v));
    if (v == STEP_SPIKE)
        snprintf(out + at, n - (size_t)at,
                 ", more than train.spike_factor = %g times %.4g, the highest of %lld "
                 "steps",
                 g->spike, g->highest, (long long)g->taken);
}

/* Computes a bad step once more. The same result comes from the model or the data; a different one is an
 * error of the hardware, and then the second result counts. */
static Status recheck_bad_step(Trainer *t, StepInFlight *f)
{
    StepReport first = f->r, *r = &f->r;
    char       why[256];
    describe_bad_step(t, first.verdict, why, sizeof why);
    TRY(compute_gradients(t, f, NULL));
    bool same = !memcmp(&first.sums.total, &r->sums.total, sizeof r->sums.total) &&
                !memcmp(&first.grad_norm, &r->grad_norm, sizeof r->grad_norm);
    log_warn(&t->log,
             "step %lld: %s (loss %g, gradient norm %g); recomputed, the result is %s (loss %g, norm %g): %s",
             (long long)r->step, why, first.sums.total, first.grad_norm, same ? "the same" : "different",
             r->sums.total, r->grad_norm,
             r->verdict == STEP_GOOD ? "a hardware error; the second result is used" : "the step is skipped");
    return OK;
}

static bool is_bad(const StepReport *r)
{
    return r->verdict == STEP_NOT_FINITE || r->verdict == STEP_SPIKE;
}

/* The update after compute_gradients, if the verdict is for it. */
static void finish_queueing(Trainer *t, StepInFlight *f)
{
    if (f->r.verdict == STEP_GOOD) apply_update(t, f, t->updates + 1, (Tensor){ 0 });
    zero_grad_expect(&t->zero_grad, f->slot);
    stop_clocks(t, &f->r);
}

/* Where the host decides about the update: on several ranks, whose losses it adds up. */
static Status run_step(Trainer *t, StepInFlight *f)
{
    StepStats stats = stats_of(t, f);
    TRY(compute_gradients(t, f, &stats));
    if (is_bad(&f->r)) TRY(recheck_bad_step(t, f));
    finish_queueing(t, f);
    return OK;
}

/* Counts what ran eagerly since `before`, and says so when graphs were captured: a shape that comes again is
 * captured once. */
static void report_graphs(const Trainer *t, GraphCounts before, StepReport *r)
{
    const GraphCache *g = &t->engine.graphs;
    r->eager_phases = g->counts.eager - before.eager;
    if (g->counts.captured > before.captured)
        log_info(&t->log, "step %lld: captured %lld CUDA graphs, now %lld with %.1f MiB",
                 (long long)r->step, (long long)(g->counts.captured - before.captured),
                 (long long)g->counts.captured, (double)g->bytes / (1 << 20));
}

static Status queue_or_run(Trainer *t, StepInFlight *f)
{
    double from = clock_now(), waited = t->engine.waited;
    GraphCounts graphs = t->engine.graphs.counts;
    if (t->late) queue_step(t, f);
    else TRY_CTX(run_step(t, f), "step %lld", (long long)f->r.step);
    waited = t->engine.waited - waited + t->engine.be.ledger.launch_wait;
    f->r.host_seconds = clock_now() - from - waited;
    report_graphs(t, graphs, &f->r);
    return OK;
}

/* A run whose number of steps is an estimate ends with its data: with this step, or not before the next. */
static void follow_data(Trainer *t, int64_t step, double epoch)
{
    if (!t->counted.estimated) return;
    if (epoch >= t->recipe->train.num_train_epochs) t->steps = step;
    else if (step >= t->steps) t->steps = step + 1;
    t->progress.steps = t->steps;
}

Status trainer_begin_step(Trainer *t)
{
    StepInFlight *f = &t->flight[t->begun];
    int64_t step = t->step + t->begun + 1;
    REQUIRE(t->begun < 2, "%d steps are in flight", t->begun);
    *f = (StepInFlight){ .r = { .step = step, .lr = lr_at(&t->lr, G_LLM, step) } };
    for (int g = 0; g < GROUP_N; g++) f->lr[g] = (float)lr_at(&t->lr, (Group)g, step);
    activity_phase("loading the data of step", step);
    Status st = loader_next(t->loader, &f->in);
    activity_phase("step", step);
    if (!st && !f->in.micro) st = fail(E_DATA, "data.train ended before step %lld", (long long)step);
    TRY(trainer_agree_or_end(t, st));
    follow_data(t, step, f->in.epoch);
    f->shown   = progress_due(&t->progress, step);
    f->r.epoch = f->in.epoch, f->r.data_wait = f->in.waited, f->r.bad_samples = f->in.skipped;
    TRY(queue_or_run(t, f));
    t->begun++;
    return OK;
}

/* ---- end ---- */

static Status read_results(Trainer *t, StepInFlight *f)
{
    Engine *e = &t->engine;
    const ResultBlock *b = &e->results.slot[f->slot];
    StepStats stats = stats_of(t, f);
    TRY(step_results_wait(&e->results, &e->be, f->slot, f->r.part_seconds));
    pipeline_sums(e, f->slot, &f->r.sums);
    f->r.grad_norm = sqrt(*(const double *)b->sumsq.data);
    f->r.verdict = (StepVerdict)((const double *)b->guard.data)[GUARD_VERDICT];
    step_stats_add(&stats, e, f->slot, f->in.micro, t->data.micro);
    return OK;
}

/* The device has found the step bad, and has held the update of the step begun after it: both are computed
 * again. */
static Status recover(Trainer *t, StepInFlight *f)
{
    TRY(backend_sync(&t->engine.be));
    TRY(recheck_bad_step(t, f));
    finish_queueing(t, f);
    TRY(backend_sync(&t->engine.be));
    memcpy(f->r.part_seconds, t->engine.be.ledger.seconds, sizeof f->r.part_seconds);
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

/* Only the stage that has a tensor knows its name: all ranks agree on the message, the first one logs it. */
static void warn_of_code_losses(Trainer *t)
{
    if (measures_codes(t) && trainer_agree_status(t, code_losses_check(&t->code_losses)))
        log_warn(&t->log, "%s", status_text());
}

static void complete_report(Trainer *t, StepInFlight *f)
{
    Engine   *e = &t->engine;
    StepStats stats = stats_of(t, f);
    if (f->r.verdict == STEP_EMPTY)
        log_warn(&t->log, "step %lld: %s; the step is skipped", (long long)f->r.step,
                 guard_verdict_text(f->r.verdict));
    if (f->r.verdict == STEP_GOOD)
        f->r.zero_grads = zero_grad_count_step(&t->zero_grad, &e->mesh, f->slot,
                                               e->results.slot[f->slot].sumsq.data, f->lr);
    sum_ranks(t, &f->r);
    if (f->shown) measure_memory(t, &f->r), report_comm_time(t, &f->r), step_stats_sum_ranks(&stats, e);
    if (f->shown) warn_of_code_losses(t);
}

/* Seconds on the clock of the device: the host may read results long after the device has them. */
static double device_seconds(const StepInFlight *f)
{
    double sum = f->gap < 0 ? f->r.part_seconds[PART_IDLE] : f->gap;
    for (int i = 0; i < PART_N; i++) sum += f->r.part_seconds[i];
    return sum;
}

/* The step has ended: the state of the run is the one after it. measured: on the clock of the device. */
static void advance(Trainer *t, StepReport *r, bool measured)
{
    double now = clock_now();
    t->updates += r->verdict == STEP_GOOD;
    t->step = r->step, t->epoch = r->epoch, t->tokens += r->sums.tokens;
    r->seconds = measured ? device_seconds(&t->flight[0]) : now - t->step_ended, t->step_ended = now;
    t->begun--, t->flight[0] = t->flight[1];
}

/* Queues the step after a bad one again. */
static Status queue_again(Trainer *t)
{
    Engine *e = &t->engine;
    step_results_set_guard(&e->results, &e->be, t->guard.highest);
    return t->begun ? queue_or_run(t, &t->flight[0]) : OK;
}

Status trainer_end_step(Trainer *t, StepReport *r)
{
    StepInFlight *f = &t->flight[0];
    REQUIRE(t->begun > 0, "no step has begun");
    *r = f->r;
    if (t->late) TRY_CTX(read_results(t, f), "step %lld", (long long)f->r.step);
    bool bad = t->late && is_bad(&f->r);
    if (bad) TRY_CTX(recover(t, f), "step %lld", (long long)f->r.step);
    complete_report(t, f);
    *r = f->r;
    advance(t, r, t->late && !bad);
    if (r->zero_grads) TRY(stop_for_zero_grads(t));
    TRY(guard_record(&t->guard, r->verdict, r->sums.total, r->grad_norm));
    return bad ? queue_again(t) : OK;
}

Status trainer_step(Trainer *t, StepReport *r)
{
    *r = (StepReport){ .step = t->step + 1 };
    TRY(trainer_begin_step(t));
    return trainer_end_step(t, r);
}
