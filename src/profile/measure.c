/* profile/measure.c -- see measure.h. */
#include "profile/measure.h"

#include "base/clock.h"
#include "base/version.h"
#include "ops/energy.h"
#include "plan/content.h"
#include "profile/analyze.h"
#include "profile/lanes.h"
#include "profile/trace_file.h"
#include "profile/window.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Measurement {
    const MeasureConf *conf;
    Trainer     trainer;
    int         n;                       /* steps of a window: the first is not counted */
    WindowStep *plain[2], *profiled;     /* windows before and after the profiled one */
    StepMark   *mark;
    Energy      energy;                  /* of the first plain window */
    double      driver;                  /* bytes that the driver had given out after it */
    Recorder    recorder;
    DeviceSpan *device;
    size_t      device_n;
    const char *source;
    SpanList    spans;
    double      zero;                    /* clock_now() at a moment that is the same on all ranks */
    StepProfile step;
} Measurement;

Config measure_recipe(const Config *recipe, const char *folder, int steps, int warmup)
{
    Config c = *recipe;
    c.keep = (MemPool){ 0 };                                 /* the strings stay the caller's */
    c.checkpoint.output_dir = folder;
    c.train.max_steps = warmup + 3 * (steps + 1) + 1;
    return c;
}

/* ---- windows ---- */

static Status open_windows(Measurement *m)
{
    size_t n = (size_t)m->n;
    for (int i = 0; i < 2; i++) m->plain[i] = calloc(n, sizeof **m->plain);
    m->profiled = calloc(n, sizeof *m->profiled), m->mark = calloc(n, sizeof *m->mark);
    if (m->plain[0] && m->plain[1] && m->profiled && m->mark) return OK;
    return fail(E_FIT, "no host memory for the steps of a profile");
}

static Status warm_up(Measurement *m)
{
    int n = m->conf->warmup;
    WindowStep *step = calloc((size_t)n + 1, sizeof *step);
    if (!step) return fail(E_FIT, "no host memory for the steps of a profile");
    recorder_start(&m->recorder, &m->trainer.engine.be, NULL);           /* tags what graphs capture */
    Status st = n ? window_run(&m->trainer, step, n) : OK;
    recorder_close(&m->recorder);
    free(step);
    return st;
}

static Status run_plain(Measurement *m)
{
    EnergyMeter meter;
    energy_start(&meter, &m->trainer.engine.be);
    Status st = window_run(&m->trainer, m->plain[0], m->n);
    m->energy = energy_stop(&meter);
    m->energy.joules /= m->n, m->energy.seconds /= m->n;
    m->driver = backend_memory_used(m->trainer.engine.conf.backend);
    return st;
}

static void add_data_waits(Measurement *m)
{
    for (int i = 0; i < m->n; i++) {
        const WindowStep *s = &m->profiled[i];
        m->mark[i] = (StepMark){ .begins = s->begins, .host_ended = s->ended };
        if (s->report.data_wait > 0)
            recorder_add(&m->recorder, HOST_DATA, 0, s->begins, s->begins + s->report.data_wait);
    }
}

static Status run_profiled(Measurement *m)
{
    Backend *be = &m->trainer.engine.be;
    const DeviceTrace *trace = be->device->trace;
    m->source = "host";
    if (!be->device->host_memory) m->source = trace ? trace->start(be) : NULL;
    if (!m->source) return fail(E_DEVICE, "the GPU's work cannot be recorded");
    if (!strcmp(m->source, "events"))
        log_warn(&m->trainer.log, "intervals come from CUDA events, without copies and communication: %s",
                 status_text());
    recorder_start(&m->recorder, be, trace && !strcmp(m->source, "events") ? trace : NULL);
    Status st = window_run(&m->trainer, m->profiled, m->n);
    add_data_waits(m);
    recorder_stop(&m->recorder);
    if (trace) m->device_n = trace->stop(be, &m->device);
    return st;
}

static Status run_windows(Measurement *m)
{
    TRY(open_windows(m));
    TRY(warm_up(m));
    TRY(run_plain(m));
    if (m->conf->world) comm_barrier(m->conf->world);
    m->zero = clock_now();
    TRY(run_profiled(m));
    return window_run(&m->trainer, m->plain[1], m->n);
}

/* ---- what the trainer and its engine know ---- */

static void fill_memory(StepProfile *s, const Engine *e)
{
    double left;
    bool   cpu = e->be.device->host_memory;
    s->memory_peak = cpu ? 0 : (double)e->be.ledger.workspace + (double)e->graphs.bytes;
    for (int i = 0; i < ARENA_N; i++) {
        s->arena[i] = (double)engine_arena_peak(e, (ArenaId)i);
        if (i != A_HOST || cpu) s->memory_peak += s->arena[i];
    }
    s->memory_host = s->arena[A_HOST];
    backend_memory(e->conf.backend, &left, &s->memory_capacity);
}

static double layer_cv(const ExpertCounts *x, int64_t layer, double *total)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < x->experts; i++) {
        double n = x->text[layer * x->experts + i] + x->visual[layer * x->experts + i];
        sum += n, squares += n * n;
    }
    double mean = sum / (double)x->experts, var = squares / (double)x->experts - mean * mean;
    *total += sum;
    return mean > 0 ? sqrt(fmax(0, var)) / mean : 0;
}

static void fill_experts(StepProfile *s, const Trainer *t)
{
    const ExpertCounts *x = &t->expert_counts;
    double total = 0;
    if (!x->layers) return;
    s->expert_max = s->expert_cv = 0;
    for (int64_t l = 0; l < x->layers; l++) {
        s->expert_max = fmax(s->expert_max, expert_counts_imbalance(x, l));
        s->expert_cv += layer_cv(x, l, &total) / (double)x->layers;
    }
    s->expert_rows = total / (double)(x->layers * x->experts) / t->ranks.micro / mesh_size(&t->place, AX_EDP);
}

/* What the micro-batches of the profiled steps held: sums of all of them, as the plan takes them. */
static void fill_content(StepProfile *s, const Measurement *m)
{
    Load   all = { 0 };
    double budget = 0, n = m->n - 1;
    for (int i = 1; i < m->n; i++) {
        const StepSums *r = &m->profiled[i].report.sums;
        all.tokens += r->tokens, all.supervised += r->supervised, all.patches += r->patches;
        all.pairs += r->pairs, all.vpairs += r->vpairs, budget += (double)r->token_budget;
    }
    BatchContent c = content_of(&all, budget, CONTENT_MEASURED);
    s->tokens = (double)all.tokens / n, s->token_budget = budget / n;
    s->supervised = (double)all.supervised / n, s->patches = (double)all.patches / n;
    s->document = c.document, s->picture = c.picture;
}

static void fill_work(StepProfile *s, const Measurement *m, double plain)
{
    const Trainer *t = &m->trainer;
    double flops = 0, executed = 0, launches = 0, n = m->n - 1;
    s->loss = s->skipped = 0;
    fill_content(s, m);
    for (int i = 1; i < m->n; i++) {
        const StepReport *r = &m->profiled[i].report;
        flops += flops_sum(&r->sums.model) / n, executed += r->executed_flops / n;
        launches += (double)r->launches / n;
        s->loss += r->sums.ce / n, s->skipped += r->verdict != STEP_GOOD;
    }
    s->launches = launches, s->tokens_s = s->tokens / plain;
    s->tflops = flops / plain / t->place.world / 1e12;
    s->mfu = s->tflops * 1e12 / t->progress.peak.flops;
    s->hfu = executed / plain / t->place.world / t->progress.peak.flops;
}

static void fill_energy(StepProfile *s, const Energy *e)
{
    if (e->joules <= 0) return;
    s->joules = e->joules, s->watts = e->joules / e->seconds, s->mhz = e->mhz;
}

static double plain_median(const Measurement *m)
{
    return (window_median(m->plain[0], 1, m->n) + window_median(m->plain[1], 1, m->n)) / 2;
}

static Status fill_step(Measurement *m)
{
    step_profile_clear(&m->step);
    TRY(spans_open(&m->spans, &m->recorder, m->device, m->device_n, m->mark, m->n));
    TRY(analyze(&m->step, &m->spans, &m->recorder));
    fill_memory(&m->step, &m->trainer.engine);
    m->step.memory_driver = m->driver;
    fill_experts(&m->step, &m->trainer);
    fill_work(&m->step, m, plain_median(m));
    fill_energy(&m->step, &m->energy);
    return OK;
}

/* ---- ranks ---- */

/* Of a collective the shortest of its members is the transfer, the rest of the others waits for the last one
 * that comes. Members make the same calls in the same order; messages between two are left out. */
static Status split_jitter(Measurement *m, int g)
{
    Comm   *c = m->trainer.engine.mesh.comm[g];
    double *mine = NULL, most, count;
    int     n = 0;
    if (c->size == 1 || group_traffic((GroupId)g) == TRAFFIC_LINKS) return OK;
    Status st = analyze_calls(&mine, &n, &m->spans, &m->recorder, g);
    count = most = st ? -1 : n;
    comm_host_max(c, &most, 1);
    double least = -count;
    comm_host_max(c, &least, 1);
    if (st || most != -least || n == 0) return free(mine), st;
    double *all = malloc((size_t)c->size * (size_t)n * sizeof *all), total = 0, transfer = 0;
    if (!all) return free(mine), fail(E_FIT, "no host memory for the calls of a profile");
    comm_host_gather(c, all, mine, (size_t)n * sizeof *all);
    for (int i = 0; i < n; i++) {
        double first = INFINITY;
        for (int k = 0; k < c->size; k++) first = fmin(first, all[k * n + i]);
        transfer += first, total += mine[i];
    }
    free(all), free(mine);
    GroupProfile *p = &m->step.group[g];
    p->transfer = total > 0 ? p->length * transfer / total : 0, p->jitter = p->length - p->transfer;
    return OK;
}

static Status gather_ranks(Profile *p, Measurement *m)
{
    Comm *world = m->trainer.engine.mesh.comm[GR_world];
    int   stage = mesh_at(&m->trainer.place, AX_PP);
    TRY(profile_ranks(p, world->size));
    comm_host_gather(world, p->rank, &m->step, sizeof m->step);
    comm_host_gather(world, p->stage, &stage, sizeof stage);
    return OK;
}

/* Large worlds have no drawing of every rank. */
static Status gather_lanes(Profile *p, Measurement *m)
{
    enum { MOST_RANKS = 64 };
    Comm  *world = m->trainer.engine.mesh.comm[GR_world];
    if (world->size > MOST_RANKS) return OK;
    Lanes *mine = mem_pool_alloc(&p->keep, sizeof *mine);
    p->lanes = mem_pool_alloc(&p->keep, (size_t)world->size * sizeof *p->lanes);
    Status st = mine && p->lanes ? lanes_fill(mine, &m->spans, &m->recorder)
                                 : fail(E_FIT, "no host memory for the drawing of a profile");
    TRY(trainer_agree_status(&m->trainer, st));
    comm_host_gather(world, p->lanes, mine, sizeof *mine);
    return OK;
}

static void fill_head(Profile *p, const Measurement *m)
{
    const Trainer *t = &m->trainer;
    p->stages = mesh_size(&t->place, AX_PP), p->steps = m->n - 1, p->warmup = m->conf->warmup;
    p->per_node = t->conf.world ? comm_ranks_on_node(t->conf.world) : 1;
    p->plain = plain_median(m), p->profiled = window_median(m->profiled, 1, m->n);
    p->predicted_error = NAN, p->has_measured = true;
    snprintf(p->source, sizeof p->source, "%s", m->source);
    snprintf(p->backend, sizeof p->backend, "%s", t->engine.conf.backend);
    snprintf(p->dtype, sizeof p->dtype, "%s", dtype_name(t->engine.conf.dtype));
    snprintf(p->build, sizeof p->build, "%.63s", version_text());
    backend_describe(t->engine.conf.backend, p->device, sizeof p->device);
}

static Status write_trace(Measurement *m)
{
    const Trainer *t = &m->trainer;
    if (!m->conf->folder) return OK;
    TRY(trainer_agree_status(t, trace_file_write_rank(m->conf->folder, t->place.rank, &m->spans, &m->recorder,
                                                      m->zero)));
    return trainer_agree_status(t, t->first ? trace_file_join(m->conf->folder, t->place.world) : OK);
}

static Status measure_all(Profile *p, Measurement *m)
{
    TRY(run_windows(m));
    TRY(trainer_agree_status(&m->trainer, fill_step(m)));
    for (int g = 0; g < GR_N; g++) TRY(split_jitter(m, g));
    fill_head(p, m);
    TRY(gather_ranks(p, m));
    TRY(gather_lanes(p, m));
    profile_summarize(p);
    return write_trace(m);
}

static void close_all(Measurement *m)
{
    trainer_close(&m->trainer);
    spans_close(&m->spans);
    recorder_close(&m->recorder);
    free(m->device);
    free(m->plain[0]), free(m->plain[1]), free(m->profiled), free(m->mark);
}

Status profile_measure(Profile *p, const MeasureConf *conf)
{
    Measurement *m = calloc(1, sizeof *m);
    TrainerConf  run = { .recipe = conf->recipe, .least = LOG_WARN,
                         .world = conf->world && conf->world->size > 1 ? conf->world : NULL };
    *p = (Profile){ 0 };
    if (!m) return fail(E_FIT, "no host memory for a profile");
    m->conf = conf, m->n = conf->steps + 1;
    backend_load_trace(backend_pick(conf->recipe->device.backend));
    Status st = trainer_open(&m->trainer, &run);
    if (!st) st = measure_all(p, m);
    close_all(m);
    free(m);
    if (st) profile_close(p);
    return st;
}
