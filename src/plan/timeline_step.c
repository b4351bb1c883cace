/* plan/timeline_step.c -- the time of a step from its stages: pipeline schedule, end of the step,
 * bottleneck; see timeline.h. */
#include "plan/timeline.h"

#include <math.h>
#include <string.h>

/* Shares of a step from which on something is the bottleneck: exposed communication; kernel launches;
 * recomputation and host copies, which more memory would avoid. */
static const double COMMUNICATION = 0.20, LAUNCHES = 0.08, MEMORY = 0.15;

Status timeline_ask(StepAsk *out, const Hardware *hw, const EngineConf *conf, const ModelShape *s,
                 const Load *load, int ranks)
{
    const Ranks  *r = &conf->ranks;
    const MeshLayout *l = &r->layout;
    int    pp = l->pp > 1 ? l->pp : 1, one = pp * (l->tp > 1 ? l->tp : 1) * (l->cp > 1 ? l->cp : 1);
    int    micros = r->micro > 0 ? r->micro : 1;
    double batches = (double)micros * ranks / one;
    ModelWork work;
    TRY(work_open(&work, s, conf->frozen, &conf->lora));
    Flops  f = flops_train(&work, load);
    *out = (StepAsk){ .hw = hw, .dtype = conf->dtype, .ranks = ranks,
                      .tokens = batches * (double)load->tokens, .flops = batches * flops_sum(&f),
                      .pipe = { .stages = pp, .chunks = l->vpp > 1 ? l->vpp : 1, .micros = micros,
                                .group = r->group, .extra_warmup = r->overlap } };
    return OK;
}

/* The all-gather of a stage overlaps with its first forward, layer by layer, and shares the links with it. */
static double exposed_gather(const StageTime *s)
{
    double together = fmax(s->forward, s->gather.seconds);
    for (int k = 0; k < 2; k++) {
        double calls = s->gather.even[k];
        for (int v = 0; v < s->chunks; v++) calls += s->run[v][PIPE_FORWARD].even[k];
        together = fmax(together, calls);
    }
    return s->gather.seconds > 0 ? together - s->forward : 0;
}

static double sum(const double *v, int n)
{
    double x = 0;
    for (int i = 0; i < n; i++) x += v[i];
    return x;
}

double run_parts(const RunTime *r)
{
    return r->work + r->starved + r->copies + sum(r->exposed, LEDGER_GROUPS);
}

/* The stage that is busy longest, its end of a step included. */
static int slowest(const StageTime *stage, int stages, const Schedule *t)
{
    int most = 0;
    for (int i = 1; i < stages; i++)
        if (t->busy[i] + stage[i].update.seconds > t->busy[most] + stage[most].update.seconds) most = i;
    return most;
}

static void add_parts(DryStep *out, double *work, const RunTime *r, double times)
{
    *work += times * r->work;
    out->launch += times * r->starved, out->copies += times * r->copies;
    for (int g = 0; g < LEDGER_GROUPS; g++) out->exposed[g] += times * r->exposed[g];
}

/* What overlapped passes hide is subtracted from expert dispatch. */
static void fill_stage(DryStep *out, const StageTime *s, int micros, double hidden)
{
    static const int groups[] = { GR_etp_ep, GR_ep_intra_node, GR_ep_inter_node };
    double left = s->gather.seconds > 0 ? exposed_gather(s) / s->gather.seconds : 0, dispatch = 0;
    for (int v = 0; v < s->chunks; v++)
        for (int way = 0; way < 2; way++) add_parts(out, &out->compute, &s->run[v][way], micros);
    for (int i = 0; i < 3; i++) dispatch += out->exposed[groups[i]];
    for (int i = 0; i < 3 && dispatch > 0; i++) out->exposed[groups[i]] *= 1 - fmin(1, hidden / dispatch);
    add_parts(out, &out->compute, &s->last, 1);
    add_parts(out, &out->optimizer, &s->update, 1);
    add_parts(out, &out->optimizer, &s->gather, left);
}

/* What a stage waits for the others at the end of a step. */
static double end_wait(const StageTime *stage, int stages, int s)
{
    double last = 0, update = 0, gather = 0;
    for (int i = 0; i < stages; i++) {
        last   = fmax(last, stage[i].last.seconds);
        update = fmax(update, stage[i].update.seconds);
        gather = fmax(gather, exposed_gather(&stage[i]));
    }
    return last - stage[s].last.seconds + update - stage[s].update.seconds + gather -
           exposed_gather(&stage[s]);
}

const char *bottleneck_name(double step, double communication, double host, double memory)
{
    double comm = communication / COMMUNICATION, most;
    host /= LAUNCHES, memory /= MEMORY;
    most = fmax(comm, fmax(host, memory));
    if (most < step) return "compute";
    return most == comm ? "communication" : most == host ? "host" : "memory";
}

/* A row measured on one GPU knows nothing about links; rates of another dtype are little use. */
static double error_of(const StepAsk *ask)
{
    double e = ask->hw->error;
    if (ask->ranks > 1) e = fmax(e, 0.25);
    return strcmp(ask->hw->dtype, dtype_name(ask->dtype)) ? fmax(e, 0.5) : e;
}

static void fill_rates(DryStep *out, const StepAsk *ask, const StageTime *stage, int stages)
{
    double done = 0, peak = ask->hw->bf16;
    for (int i = 0; i < stages; i++) done += stage[i].done * ask->pipe.micros / stages;
    out->tokens_s     = ask->tokens / out->step;
    out->model_tflops = ask->flops / out->step / ask->ranks / 1e12;
    out->mfu          = out->model_tflops * 1e12 / peak;
    out->hfu          = done / out->step / peak;
    out->error        = error_of(ask);
}

Status timeline_step(DryStep *out, const StepAsk *ask, const StageTime *stage, int stages, Schedule *kept)
{
    Schedule t;
    *out = (DryStep){ 0 };
    REQUIRE(stages == ask->pipe.stages, "%d stages of %d", stages, ask->pipe.stages);
    TRY(schedule_open(&t, stage, &ask->pipe, ask->hw));
    int    s = slowest(stage, stages, &t);
    double wait = end_wait(stage, stages, s);
    fill_stage(out, &stage[s], ask->pipe.micros, t.hidden[s]);
    out->stage  = s;
    out->bubble = t.end - t.busy[s] + wait;
    out->step   = t.end + wait + stage[s].last.seconds + stage[s].update.seconds + exposed_gather(&stage[s]);
    out->wall   = bottleneck_name(out->step, sum(out->exposed, LEDGER_GROUPS) + out->bubble, out->launch,
                                 ask->pipe.micros * stage[s].replay + out->copies);
    fill_rates(out, ask, stage, stages);
    if (kept) *kept = t;
    else      schedule_close(&t);
    return OK;
}
