/* diagnose/transfer.c -- hardware fitted to a measured step, and a step after a change; see diagnose.h. */
#include "diagnose/diagnose.h"

#include <math.h>

/* ---- fitting ---- */

/* Seconds that a step waits for calls over each link, as measured and as planned: intra-node, network. Calls
 * of a group that stays inside nodes take the first. Lengths overlap, so waits are what is compared. */
typedef struct LinkWait { double measured, planned; } LinkWait;

/* Waits for other stages are bubble and are fitted by it. */
static void add_waits(LinkWait wait[2], const StepProfile *measured, const StepProfile *plan)
{
    for (int g = 0; g < GR_N; g++) {
        const GroupProfile *m = &measured->group[g], *p = &plan->group[g];
        LinkWait *w = &wait[p->inter_node > 0];
        if (joins_stages(g)) continue;
        w->measured += fmax(0, known(m->exposed) - known(m->jitter)), w->planned += known(p->exposed);
    }
}

/* Waits fall with the rate of the link, faster where compute hides more: a step towards the rate that
 * explains them. Waits below `least` say nothing of it. */
static void fit_link(double *rate, LinkWait w, double least)
{
    if (fmax(w.measured, w.planned) <= least) return;
    if (w.measured > 0 && w.planned > 0) *rate *= fmin(8, fmax(0.125, w.planned / w.measured));
    else if (w.measured > 0)             *rate /= 8;
}

/* A bubble is what stages wait for compute of others, as over links that take no time, and for messages: the
 * second part falls with the rate of a link that carries nothing else. */
static void fit_pipeline(LinkWait wait[2], const StepProfile *measured, const StepProfile *plan,
                         const StepProfile *free_links)
{
    bool     inter = plan->group[GR_pp].inter_node > 0;
    double   compute = plan->compute > 0 ? known(measured->compute) / plan->compute : 1;
    LinkWait w = { known(measured->bubble) - compute * free_links->bubble,
                   plan->bubble - free_links->bubble };
    bool     alone = fmax(wait[inter].measured, wait[inter].planned) <= 0.01 * measured->step;
    if (alone && (w.measured > 0.05 * measured->step || w.planned > 0.05 * plan->step))
        wait[inter] = (LinkWait){ fmax(w.measured, 1e-3 * measured->step), fmax(w.planned, 0) };
}

void fit_hardware(Hardware *hw, const StepProfile *measured, const StepProfile *plan,
                  const StepProfile *free_links)
{
    LinkWait wait[2] = { { 0, 0 }, { 0, 0 } };
    add_waits(wait, measured, plan);
    if (free_links) fit_pipeline(wait, measured, plan, free_links);
    fit_link(&hw->intra_bw, wait[0], 0.01 * measured->step);
    fit_link(&hw->inter_bw, wait[1], 0.01 * measured->step);
    if (known(measured->compute) > 0 && plan->compute > 0) hw->together *= measured->compute / plan->compute;
}

/* ---- after a change ---- */

/* A part of the step after a change. A part that the plan before the change does not have is taken from the
 * plan after it. */
static double scaled(double at, double before, double after, double step)
{
    at = known(at), before = known(before), after = known(after);
    return before > 1e-3 * step ? at * after / before : at + after - before;
}

/* A loader that the step always waits for delivers at its own rate: the step waits for it longer by what the
 * rest saves. */
static double data_after(const StepProfile *at, double saved)
{
    double wait = known(at->data_wait);
    return wait > 0.15 * at->step ? fmax(0, wait + saved) : wait;
}

static double compute_after(StepProfile *s, const StepProfile *before, const StepProfile *after)
{
    double old = 0, new = 0;
    for (int p = 0; p < PART_N; p++) {
        old += known(s->part[p]);
        s->part[p] = fmax(0, scaled(s->part[p], before->part[p], after->part[p], before->step));
        new += s->part[p];
    }
    s->recompute = fmax(0, scaled(s->recompute, before->recompute, after->recompute, before->step));
    if (old <= 0) return known(s->compute) * after->compute / before->compute;
    return known(s->compute) * new / old;
}

/* Without waits for other stages: those are the bubble. */
static double exposed_of(const StepProfile *s)
{
    double sum = 0;
    for (int g = 0; g < GR_N; g++)
        if (!joins_stages(g)) sum += known(s->group[g].exposed);
    return sum;
}

static double jitter_of(const StepProfile *s)
{
    double sum = 0;
    for (int g = 0; g < GR_N; g++) sum += known(s->group[g].jitter);
    return sum;
}

/* Groups share the links, and a call that waits behind one of another group is charged for it: all groups are
 * scaled together, and are then those of the plan. */
static double exposed_after(StepProfile *s, const StepProfile *before, const StepProfile *after)
{
    double now = exposed_of(s), planned = exposed_of(before), next = exposed_of(after);
    double sum = fmax(0, scaled(now, planned, next, before->step)), share = next > 0 ? sum / next : 0;
    double late = now > 0 ? jitter_of(s) / now : 0;
    for (int g = 0; g < GR_N; g++) {
        GroupProfile *p = &s->group[g];
        *p = after->group[g];
        p->exposed *= share, p->length = fmax(p->length, p->exposed), p->jitter = late * p->exposed;
    }
    return sum;
}

/* The device pauses between kernels, and a plan does not have that: fewer kernels, fewer pauses. */
static double pauses_after(double at, const StepProfile *before, const StepProfile *after)
{
    double old = known(before->launches), new = known(after->launches);
    return old > 0 && new > 0 ? known(at) * fmin(1, new / old) : known(at);
}

/* The parts of a step add up to it: it changes by what they change. */
StepProfile step_after(const StepProfile *at, const StepProfile *before, const StepProfile *after)
{
    StepProfile s = *at;
    double      T = before->step;
    s.compute = compute_after(&s, before, after);
    s.bubble  = fmax(0, scaled(at->bubble, before->bubble, after->bubble, T));
    s.exposed = exposed_after(&s, before, after) + s.bubble;
    s.launch_starved = fmax(0, scaled(at->launch_starved, before->launch_starved, after->launch_starved, T));
    s.copies  = fmax(0, scaled(at->copies, before->copies, after->copies, T));
    s.dependency = pauses_after(at->dependency, before, after);
    double saved = known(at->compute) - s.compute + known(at->exposed) - s.exposed +
                   known(at->launch_starved) - s.launch_starved + known(at->copies) - s.copies +
                   known(at->dependency) - s.dependency;
    s.data_wait = data_after(at, saved);
    s.step = fmax(0.01 * at->step, at->step - saved + s.data_wait - known(at->data_wait));
    s.idle = fmax(0, known(at->idle) + s.launch_starved - known(at->launch_starved) + s.dependency -
                         known(at->dependency));
    s.memory_peak = after->memory_peak, s.expert_rows = after->expert_rows;
    return s;
}
