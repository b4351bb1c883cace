/* plan/view_timeline.c -- when each stage works on what, walked from the pipeline's own lists: an action begins
 * when the one before it on its stage is done and its input is there. */
#include "plan/view.h"

#include <stdlib.h>
#include <string.h>

typedef struct Walk {
    PipeShape shape;
    Pipe     *pipe;                      /* (stages) */
    int      *at;                        /* next action of each */
    double   *free, *done;               /* when a stage is; when a run was, [way][micro][piece]; below 0: not yet */
} Walk;

static double *done_of(Walk *w, int way, int micro, int piece)
{
    int pieces = w->shape.stages * w->shape.chunks;
    return &w->done[(way * w->shape.micros + micro) * pieces + piece];
}

/* When the input of an action is there; below 0: not yet. */
static double input_of(Walk *w, int stage, const Action *a)
{
    int S = w->shape.stages, piece = a->chunk * S + stage, last = S * w->shape.chunks - 1;
    if (a->what == PIPE_FORWARD) return piece ? *done_of(w, 0, a->micro, piece - 1) : 0;
    return piece < last ? *done_of(w, 1, a->micro, piece + 1) : *done_of(w, 0, a->micro, piece);
}

static double length_of(const DryRun *d, int stage, bool back)
{
    const StageTime *t = &d->stage[stage].time;
    double both = t->forward + t->backward;
    if (both <= 0) return back ? 2 : 1;
    return (back ? t->backward : t->forward) / d->chunks;
}

/* All that stage can do now. */
static bool advance(Timeline *t, Walk *w, const DryRun *d, int stage)
{
    bool moved = false;
    for (Pipe *p = &w->pipe[stage]; w->at[stage] < p->actions; moved = true) {
        const Action *a = &p->action[w->at[stage]];
        double ready = input_of(w, stage, a), from = ready > w->free[stage] ? ready : w->free[stage];
        bool   back = a->what == PIPE_BACKWARD;
        if (ready < 0) break;
        double to = from + length_of(d, stage, back);
        t->bar[t->bars++] = (Bar){ stage, a->chunk, a->micro, back, from, to };
        *done_of(w, back, a->micro, a->chunk * w->shape.stages + stage) = w->free[stage] = to;
        if (to > t->end) t->end = to;
        w->at[stage]++;
    }
    return moved;
}

/* As many micro-batches as are to be seen and the schedule can take. */
static int shown(const DryRun *d, int most)
{
    int group = d->chunks == 1 ? 1 : (int)d->recipe.parallel.microbatch_group;
    if (!group) group = d->stages;
    if (d->micros <= most) return d->micros;
    int n = most / group * group;
    return n ? n : group;
}

static Status walk(Timeline *t, Walk *w, const DryRun *d)
{
    int S = d->stages, pieces = S * d->chunks;
    w->pipe = calloc((size_t)S, sizeof *w->pipe), w->at = calloc((size_t)S, sizeof *w->at);
    w->free = calloc((size_t)S, sizeof *w->free);
    w->done = malloc(2 * (size_t)t->micros * (size_t)pieces * sizeof *w->done);
    t->bar = calloc(2 * (size_t)t->micros * (size_t)pieces, sizeof *t->bar);
    if (!w->pipe || !w->at || !w->free || !w->done || !t->bar) return fail(E_FIT, "no memory for a timeline");
    for (int i = 0; i < 2 * t->micros * pieces; i++) w->done[i] = -1;
    for (int s = 0; s < S; s++) TRY(pipe_open(&w->pipe[s], &w->shape, s));
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < S; s++) moved |= advance(t, w, d, s);
    }
    REQUIRE(t->bars == 2 * t->micros * pieces, "the pipeline stands still after %d runs", t->bars);
    return OK;
}

Status timeline_open(Timeline *t, const DryRun *d, int most)
{
    Walk w = { .shape = { .stages = d->stages, .chunks = d->chunks, .micros = shown(d, most),
                          .group = (int)d->recipe.parallel.microbatch_group, .ahead = d->recipe.moe.overlap } };
    *t = (Timeline){ .micros = w.shape.micros };
    Status st = walk(t, &w, d);
    for (int s = 0; w.pipe && s < d->stages; s++) pipe_close(&w.pipe[s]);
    free(w.pipe), free(w.at), free(w.free), free(w.done);
    if (st) timeline_close(t);
    return st;
}

void timeline_close(Timeline *t)
{
    free(t->bar);
    *t = (Timeline){ 0 };
}
