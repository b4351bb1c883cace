/* diagnose/diagnose.c -- see diagnose.h. */
#include "diagnose/diagnose.h"

#include <math.h>
#include <stdlib.h>

enum { FITS = 10 };                      /* plans until the hardware explains a measured step */

/* A change to smaller pictures limits theirs; other changes leave the data as it is. */
static BatchContent content_for(const Evidence *e, const Config *recipe)
{
    BatchContent c    = e->content;
    double       side = (double)e->shape.vision.patch, most = (double)recipe->image.max_pixels;
    if (recipe->image.max_pixels >= e->recipe->image.max_pixels || c.picture * side * side <= most) return c;
    c.patches *= most / (c.picture * side * side), c.picture = most / (side * side);
    return c;
}

static Status plan_recipe(DryRun *d, const Evidence *e, const Config *recipe)
{
    BatchContent c    = content_for(e, recipe);
    DryConf      conf = { .recipe = recipe, .ranks = e->ranks, .per_node = e->per_node, .hw = &e->hw,
                          .uneven = USUAL_UNEVEN, .content = e->content_known ? &c : NULL };
    return dryrun_open_conf(d, &conf);
}

Status plan_step(StepProfile *s, const Evidence *e, const Config *recipe)
{
    DryRun d;
    TRY(plan_recipe(&d, e, recipe));
    step_profile_of_plan(s, &d);
    dryrun_close(&d);
    return OK;
}

/* The plan of the recipe on its hardware, which also gives the shape and the micro-batches. */
static Status plan_base(Diagnosis *d, const DiagnoseAsk *ask)
{
    DryRun dry;
    TRY(plan_recipe(&dry, &d->e, ask->recipe));
    step_profile_of_plan(&d->plan, &dry);
    d->e.shape = dry.shape, d->e.content = dry.content, d->e.micros = dry.micros;
    d->e.bytes = (double)dryrun_peak(&dry, NULL);
    dryrun_close(&dry);
    return OK;
}

/* Times that were not measured are taken from the plan. */
static void fill_gaps(StepProfile *s, const StepProfile *plan)
{
    double share = plan->compute > 0 ? known(s->compute) / plan->compute : 0;
    if (isnan(s->recompute)) s->recompute = share * plan->recompute;
    for (int p = 0; p < PART_N; p++)
        if (isnan(s->part[p])) s->part[p] = share * plan->part[p];
    if (isnan(s->expert_rows)) s->expert_rows = plan->expert_rows;
}

/* ---- waits for a late rank ---- */

static double bytes_of(const GroupProfile *p) { return known(p->intra_node) + known(p->inter_node); }

/* Calls that send next to nothing take no time: who waits in them waits for a late rank. */
static void find_late(StepProfile *s, const StepProfile *plan)
{
    double all = 0;
    for (int g = 0; g < GR_N; g++) all += bytes_of(&plan->group[g]);
    for (int g = 0; g < GR_N; g++)
        if (isnan(s->group[g].jitter) && bytes_of(&plan->group[g]) < 1e-3 * all)
            s->group[g].jitter = known(s->group[g].exposed);
}

/* Stages that wait for a slower one at the end of a step do so in calls of any group: that is bubble. Waits
 * for messages of the pipeline are bubble already. */
static void move_late_stages(StepProfile *s)
{
    for (int g = 0; g < GR_N; g++) {
        GroupProfile *p = &s->group[g];
        double        late = fmin(known(p->jitter), known(p->exposed));
        if (!joins_stages(g)) s->bubble = known(s->bubble) + late, p->exposed -= late;
        p->jitter = 0;
    }
}

/* The plan on the fitted hardware with links that take no time. */
static Status plan_free_links(StepProfile *s, const Evidence *e)
{
    Evidence fast = *e;
    fast.hw.intra_bw *= 1e6, fast.hw.inter_bw *= 1e6, fast.hw.intra_delay = fast.hw.inter_delay = 0;
    return plan_step(s, &fast, e->recipe);
}

static Status take_measured(Diagnosis *d, const DiagnoseAsk *ask)
{
    Evidence   *e = &d->e;
    StepProfile free_links;
    bool        stages = ask->recipe->parallel.pp > 1;
    e->at = *ask->measured, e->measured = true;
    find_late(&e->at, &d->plan);
    if (stages) move_late_stages(&e->at);
    for (int i = 0; i < FITS; i++) {
        if (stages) TRY(plan_free_links(&free_links, e));
        fit_hardware(&e->hw, &e->at, &d->plan, stages ? &free_links : NULL);
        TRY(plan_step(&d->plan, e, ask->recipe));
    }
    fill_gaps(&e->at, &d->plan);
    return OK;
}

static Status diagnose(Diagnosis *d, const DiagnoseAsk *ask)
{
    Evidence *e = &d->e;
    *e = (Evidence){ .recipe = ask->recipe, .hw = ask->hw, .ranks = ask->ranks, .per_node = ask->per_node,
                     .limit = ask->limit > 0 ? ask->limit : fit_limit(&ask->hw), .spread = ask->spread,
                     .facts = ask->facts, .content_known = ask->content != NULL };
    if (ask->content) e->content = *ask->content;
    TRY(plan_base(d, ask));
    if (ask->measured) TRY(take_measured(d, ask));
    else e->at = d->plan;
    e->larger = fixes_larger(e, &d->plan);
    fixes_recomputing(e, &d->plan);
    d->first = walls_find(d->wall, e);
    double left = e->at.step - d->wall[d->first].recoverable;
    d->ceiling = d->first && left > 0 ? e->at.step / left - 1 : 0;
    TRY(fixes_find(d));
    traps_find(d);
    return OK;
}

Status diagnose_open(Diagnosis **out, const DiagnoseAsk *ask)
{
    Diagnosis *d = *out = calloc(1, sizeof *d);
    if (!d) return fail(E_FIT, "no host memory for a diagnosis");
    Status st = diagnose(d, ask);
    if (st) diagnose_close(d), *out = NULL;
    return st;
}

void diagnose_close(Diagnosis *d) { free(d); }
