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

/* Attention pairs of `all` rows in documents of `each`, the last one shorter. */
static double pairs_of(int64_t all, int64_t each, bool causal)
{
    double n = (double)(all / each), len = (double)each, rest = (double)(all % each);
    return causal ? (n * len * (len + 1) + rest * (rest + 1)) / 2 : n * len * len + rest * rest;
}

Stream timeline_stream(Stream full, int64_t doc, int64_t picture)
{
    full.pairs  = pairs_of(full.tokens, doc > 0 ? doc : USUAL_PICTURE, true);
    if (picture <= 0 || picture > USUAL_PICTURE) picture = USUAL_PICTURE;
    full.vpairs = pairs_of(full.patches, picture, false);
    return full;
}

/* The all-gather of a stage overlaps with its first forward, layer by layer. */
static double exposed_gather(const StageTime *s) { return fmax(0, s->gather - s->forward); }

static double sum(const double *v, int n)
{
    double x = 0;
    for (int i = 0; i < n; i++) x += v[i];
    return x;
}

/* The stage that is busy longest, its end of a step included. */
static int slowest(const StageTime *stage, int stages, const Schedule *t)
{
    int most = 0;
    for (int i = 1; i < stages; i++)
        if (t->busy[i] + stage[i].update > t->busy[most] + stage[most].update) most = i;
    return most;
}

static void fill_stage(DryStep *out, const StageTime *s, int micros, double hidden)
{
    double micro = (double)micros, dispatch = 0;
    static const int groups[] = { GR_etp_ep, GR_ep_intra_node, GR_ep_inter_node };
    for (int v = 0; v < s->chunks; v++)
        for (int way = 0; way < 2; way++) {
            out->compute += micro * s->run[v][way].work;
            out->launch  += micro * s->run[v][way].starved;
            out->copies  += micro * s->run[v][way].copies;
        }
    double left = s->gather > 0 ? exposed_gather(s) / s->gather : 0;
    for (int g = 0; g < LEDGER_GROUPS; g++)
        out->exposed[g] = micro * s->exposed[g] + s->once[g] + left * s->gathers[g];
    for (int i = 0; i < 3; i++) dispatch += out->exposed[groups[i]];
    for (int i = 0; i < 3 && dispatch > 0; i++) out->exposed[groups[i]] *= 1 - fmin(1, hidden / dispatch);
    out->optimizer = s->update_work, out->copies += s->update_copies;
}

static const char *bottleneck_of(const DryStep *d, const StageTime *s, int micros)
{
    double comm = (sum(d->exposed, LEDGER_GROUPS) + d->bubble) / d->step / COMMUNICATION;
    double host = d->launch / d->step / LAUNCHES;
    double memory = ((double)micros * s->replay + d->copies) / d->step / MEMORY;
    double most = fmax(comm, fmax(host, memory));
    if (most < 1) return "compute";
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
    double   end = 0, last = 0, update = 0, gather = 0;
    *out = (DryStep){ 0 };
    REQUIRE(stages == ask->pipe.stages, "%d stages of %d", stages, ask->pipe.stages);
    TRY(schedule_open(&t, stage, &ask->pipe, ask->hw));
    for (int i = 0; i < stages; i++) {
        last   = fmax(last, stage[i].last);
        update = fmax(update, stage[i].update);
        gather = fmax(gather, exposed_gather(&stage[i]));
    }
    int s = slowest(stage, stages, &t);
    end = t.end + last + update + gather;
    fill_stage(out, &stage[s], ask->pipe.micros, t.hidden[s]);
    out->bubble = t.end - t.busy[s];
    out->step   = end;
    out->wall   = bottleneck_of(out, &stage[s], ask->pipe.micros);
    fill_rates(out, ask, stage, stages);
    if (kept) *kept = t;
    else      schedule_close(&t);
    return OK;
}
