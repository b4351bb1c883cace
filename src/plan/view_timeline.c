/* plan/view_timeline.c -- the beginning of a step's schedule, for a drawing. */
#include "plan/view.h"

#include <stdlib.h>

/* The number of micro-batches shown: whole groups of an interleaved schedule. */
static int shown(const DryRun *d, int most)
{
    int group = d->chunks == 1 ? 1 : (int)d->recipe.parallel.microbatch_group;
    if (!group) group = d->stages;
    if (d->micros <= most) return d->micros;
    int n = most / group * group;
    return n ? n : group;
}

/* Without times a backward pass is twice as long as a forward pass. */
static void unit_times(StageTime *t, int chunks, PipeBackwardStop floor)
{
    t->chunks = chunks, t->floor = floor;
    for (int i = 0; i < chunks; i++)
        t->run[i][PIPE_FORWARD].seconds  = 1,
        t->run[i][PIPE_BACKWARD].seconds = i < floor.skipped_chunks ? 0 : 2;
}

Status view_timeline_open(Schedule *t, const DryRun *d, int most)
{
    PipeShape  shape = { .stages       = d->stages,
                         .chunks       = d->chunks,
                         .micros       = shown(d, most),
                         .group        = (int)d->recipe.parallel.microbatch_group,
                         .extra_warmup = d->recipe.moe.overlap };
    StageTime *stage = calloc((size_t)d->stages, sizeof *stage);
    if (!stage) return fail(E_FIT, "no host memory for a timeline of %d stages", d->stages);
    for (int i = 0; i < d->stages; i++)
        if (d->timed) stage[i] = d->stage[i].time;
        else          unit_times(&stage[i], d->chunks, d->stage[i].plan.backward_stop);
    Status st = schedule_open(t, stage, &shape, &d->hw);
    free(stage);
    return st;
}
