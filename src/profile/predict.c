/* profile/predict.c -- see predict.h. */
#include "profile/predict.h"

#include "base/folder.h"
#include "plan/view.h"
#include "profile/classify.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- time ---- */

static double exposed_sum(const DryStep *s)
{
    double sum = 0;
    for (int g = 0; g < GR_N; g++) sum += s->exposed[g];
    return sum;
}

/* On a CPU the host computes: what a call costs it is no wait. Waits in calls between stages are bubble, as
 * in a measured step. */
static void fill_step(StepProfile *s, const DryStep *d, bool cpu)
{
    double launch = cpu ? 0 : d->launch, stages = d->exposed[GR_pp] + d->exposed[GR_pp_back];
    s->step = d->step, s->compute = d->compute + d->optimizer + d->launch - launch;
    s->optimizer = d->optimizer, s->launch_starved = s->idle = launch, s->busy = d->step - launch;
    s->copies = d->copies, s->bubble = d->bubble + stages, s->exposed = exposed_sum(d) + d->bubble;
    s->blocking = s->exposed + d->copies, s->dependency = 0, s->data_wait = 0;
    s->residual = d->step - s->compute - s->launch_starved - s->blocking;
}

static void fill_categories(StepProfile *s, const StageTime *t, int micros)
{
    memset(s->category, 0, sizeof s->category);
    for (int op = 0; op < LEDGER_OPS; op++)
        if (t->op[op] > 0) s->category[classify_op(op, PART_DECODER)] += micros * t->op[op];
    s->category[CAT_OPTIMIZER] += t->part[PART_OPTIM];
}

static void fill_passes(StepProfile *s, const StageTime *t, int micros)
{
    double forward = t->last.work, backward = 0;
    for (int v = 0; v < t->chunks; v++)
        forward += micros * t->run[v][PIPE_FORWARD].work, backward += micros * t->run[v][PIPE_BACKWARD].work;
    s->recompute = micros * t->replay, s->forward = forward, s->backward = backward - s->recompute;
    s->host = micros * t->launch;
    for (int p = 0; p < PART_N; p++) s->part[p] = (p == PART_OPTIM ? 1 : micros) * t->part[p];
}

/* Without times: the calls of a step and what they send, on one stage. */
static void fill_links(StepProfile *s, const DryRun *d, int stage)
{
    for (int g = 0; g < GR_N; g++) {
        LedgerComm c = view_comm(d, stage, g);
        s->group[g] = (GroupProfile){ (double)c.calls, NAN, NAN, NAN, NAN, NAN, (double)c.intra_node,
                                      (double)c.inter_node };
    }
}

/* Calls of a group last as long as their bytes take; what is not exposed is hidden. */
static void fill_groups(StepProfile *s, const DryRun *d)
{
    const StageTime *t = &d->stage[d->step.stage].time;
    s->hidden = 0;
    for (int g = 0; g < GR_N; g++) {
        LedgerComm c = view_comm(d, d->step.stage, g);
        double length = d->micros * t->comm[g] + t->once_comm[g], exposed = d->step.exposed[g];
        s->group[g] = (GroupProfile){ .calls = (double)c.calls, .length = fmax(length, exposed),
                                      .exposed = exposed, .blocking = exposed, .transfer = length,
                                      .intra_node = (double)c.intra_node,
                                      .inter_node = (double)c.inter_node };
        s->hidden += fmax(0, length - exposed);
    }
    s->comm = s->exposed + s->hidden;
}

/* ---- size ---- */

static double rows_per_expert(const DryRun *d)
{
    const struct cfg_parallel *p = &d->recipe.parallel;
    const TextShape *t = &d->shape.text;
    double tokens = (double)d->recipe.train.micro_tokens / (double)(p->tp * p->cp);
    return t->E ? tokens * (double)t->K * (double)(p->ep * p->etp) / (double)t->E : NAN;
}

static void fill_rates(StepProfile *s, const DryRun *d)
{
    const DryStep      *x = &d->step;
    const BatchContent *c = &d->content;
    s->tokens = d->ask.tokens, s->tokens_s = x->tokens_s, s->token_budget = s->tokens / c->fill;
    s->supervised = c->supervised * s->tokens, s->patches = c->patches * s->tokens;
    s->document = c->document, s->picture = c->picture;
    s->tflops = x->model_tflops, s->mfu = x->mfu, s->hfu = x->hfu, s->expert_rows = rows_per_expert(d);
}

static void fill_memory(StepProfile *s, const DryRun *d)
{
    int stage = 0;
    s->memory_peak = (double)dryrun_peak(d, &stage);
    if (d->timed) s->memory_capacity = d->hw.capacity, s->memory_driver = s->memory_peak + d->hw.fixed;
    const EnginePlan *p = &d->stage[stage].plan;
    s->copy_in  = (double)(d->micros * p->ledger.host.in + p->step_ledger.host.in);
    s->copy_out = (double)(d->micros * p->ledger.host.out + p->step_ledger.host.out);
    s->memory_host = (double)d->stage[stage].plan.bytes[A_HOST];
    for (int i = 0; i < ARENA_N; i++) s->arena[i] = (double)d->stage[stage].plan.bytes[i];
}

void step_profile_of_plan(StepProfile *s, const DryRun *d)
{
    step_profile_clear(s);
    fill_memory(s, d);
    if (!d->timed) {
        fill_links(s, d, 0);
        return;
    }
    fill_step(s, &d->step, !strcmp(d->hw.backend, "cpu"));
    fill_passes(s, &d->stage[d->step.stage].time, d->micros);
    fill_categories(s, &d->stage[d->step.stage].time, d->micros);
    if (d->hw.launch > 0) s->launches = s->host / d->hw.launch;
    fill_groups(s, d);
    fill_rates(s, d);
}

bool content_of_step(BatchContent *c, const StepProfile *s)
{
    *c = (BatchContent){ .source = CONTENT_MEASURED, .fill = s->tokens / s->token_budget,
                         .document = s->document, .supervised = s->supervised / s->tokens,
                         .patches = s->patches / s->tokens, .picture = s->picture };
    return c->fill > 0 && c->document >= 1 && c->supervised >= 0 && c->patches >= 0 && c->picture >= 0;
}

Status profile_predict(Profile *p, const Config *recipe, int ranks, int per_node, const Hardware *hw)
{
    DryRun       d;
    BatchContent content;
    bool         known = p->has_measured && content_of_step(&content, &p->measured);
    TRY(dryrun_open_conf(&d, &(DryConf){ .recipe = recipe, .ranks = ranks, .per_node = per_node, .hw = hw,
                                         .uneven = USUAL_UNEVEN, .content = known ? &content : NULL }));
    step_profile_of_plan(&p->predicted, &d);
    if (!hw && p->has_measured) fill_links(&p->predicted, &d, p->stage[p->slowest]);
    p->has_predicted = true, p->predicted_error = hw ? d.step.error : NAN;
    snprintf(p->hardware, sizeof p->hardware, "%s", hw ? hw->id : "");
    if (!p->has_measured) {
        p->ranks = ranks, p->per_node = per_node, p->stages = d.stages;
        snprintf(p->source, sizeof p->source, "plan");
    }
    dryrun_close(&d);
    return OK;
}

/* ---- hardware ---- */

static bool find_measured(Hardware *hw, const char *backend)
{
    Path path;
    return !hardware_file(path, sizeof path) && file_is(path) && !hardware_load(hw, path) &&
           !strcmp(hw->backend, backend);
}

bool predict_hardware(Hardware *hw, const char *backend)
{
    char device[256];
    if (find_measured(hw, backend)) return true;
    if (strcmp(backend, "cuda")) return false;
    backend_describe(backend, device, sizeof device);
    const char *row = hardware_of_device(device);
    return row && !hardware_find(hw, row);
}
