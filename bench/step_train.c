/* bench/step_train.c -- the same steps as `treb train` runs them: work is queued without a wait, batches are
 * uploaded beside it, experts are counted, the device decides about the update, and the host reads the
 * results of a step while the next one runs. Documents come from the benchmark, not from a loader. */
#include "bench/step.h"

#include "base/clock.h"
#include "bench/bench.h"
#include "engine/pipeline_run.h"

enum { MOST_MICRO = 1024, MOST_STEPS = 101 };

typedef struct TrainSteps { StepBench *b; Stream *micro[MOST_MICRO]; ExpertCounts counts; } TrainSteps;

static void queue(TrainSteps *t, int64_t number)
{
    Engine      *e = &t->b->e;
    OptimConf    o = step_optim(number);
    StepStats    stats = { .experts = &t->counts };
    PipelineStep s = { t->micro, (int)t->b->micro, &stats, &t->b->stream, true };
    StepSums     sums;
    e->dropout_seed = (uint64_t)number;
    pipeline_queue(e, &s, &sums);
    engine_decide_update(e, 0, true);
    o.adam.verdict = t_rows(e->results.device.guard, GUARD_VERDICT, 1);
    engine_apply_update(e, &o);
    step_results_post(&e->results, &e->be, (int)(number % POST_SLOTS));
}

static Status finish(TrainSteps *t, int64_t number)
{
    Engine *e = &t->b->e;
    int     slot = (int)(number % POST_SLOTS);
    double  seconds[PART_TIMES] = { 0 };
    TRY(step_results_wait(&e->results, &e->be, slot, seconds));
    expert_counts_add(&t->counts, &e->results.slot[slot]);
    if (((const double *)e->results.slot[slot].guard.data)[GUARD_VERDICT] == STEP_GOOD) return OK;
    return fail(E_CHECK, "step %lld has a loss or a gradient that is not finite", (long long)number);
}

/* The first two steps are not counted: the second is the first that follows another. */
static Status run_steps(TrainSteps *t, StepTimes *out)
{
    double  took[MOST_STEPS], ended = 0;
    int64_t n = t->b->repeats, first = t->b->steps + 1, last = first + n + 1;
    step_results_set_guard(&t->b->e.results, &t->b->e.be, 0);
    queue(t, first);
    for (int64_t i = first + 1; i <= last; i++) {
        queue(t, i);
        TRY(finish(t, i - 1));
        double now = clock_now();
        if (i > first + 1) took[i - first - 2] = now - ended;
        ended = now;
    }
    t->b->steps = last;
    out->train = bench_middle(took, n);
    return finish(t, last);
}

/* Energy is that of all steps, of the first two as well. */
static Status measure_steps(TrainSteps *t, StepTimes *out)
{
    EnergyMeter meter;
    double      steps = (double)(t->b->repeats + 2);
    energy_start(&meter, &t->b->e.be);
    Status st = run_steps(t, out);
    if (!st) st = backend_sync(&t->b->e.be);
    out->train_energy = energy_stop(&meter);
    out->train_energy.joules /= steps, out->train_energy.seconds /= steps;
    return st;
}

Status step_train(StepBench *b, StepTimes *out)
{
    TrainSteps t = { .b = b };
    for (int64_t i = 0; i < b->micro; i++) t.micro[i] = &b->stream;
    TRY(expert_counts_open(&t.counts, &b->e));
    Status st = measure_steps(&t, out);
    expert_counts_close(&t.counts);
    engine_drop_prefetched(&b->e);
    return st ? st : backend_sync(&b->e.be);
}
