/* plan/schedule.c -- the pipeline schedule in time: an action begins when its stage has finished the action
 * before it and its input has arrived. The lists of actions are the engine's (parallel/pipe.h). */
#include "plan/engines.h"
#include "plan/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct ScheduleWalk {
    const StageTime *stage;
    const PipeShape *shape;
    const Hardware  *hw;
    Schedule *t;
    Pipe     *pipe;                      /* (stages) */
    int      *next;                      /* (stages): index of the next action */
    double   *arrives;                   /* (stages, 2, micros * chunks): of the input; -1: unknown */
} ScheduleWalk;

static double *arrival(const ScheduleWalk *w, int stage, int way, int micro, int chunk)
{
    const PipeShape *s = w->shape;
    return &w->arrives[((size_t)stage * 2 + (size_t)way) * (size_t)(s->micros * s->chunks) +
                       (size_t)(micro * s->chunks + chunk)];
}

static const RunTime *run_of(const ScheduleWalk *w, int stage, const PipeAction *a)
{
    return &w->stage[stage].run[a->chunk][a->what];
}

/* Waits for token dispatch, without those for calls of other groups before it. */
static double dispatch_wait(const RunTime *r)
{
    double waits = r->exposed[GR_etp_ep] + r->exposed[GR_ep_intra_node] + r->exposed[GR_ep_inter_node];
    return fmin(waits, r->dispatch);
}

/* Seconds that overlapping two passes saves: together they take no less than the even share of their calls,
 * since the rank that sends most is another one from call to call. */
static double saved(const ScheduleWalk *w, const RunTime *f, const RunTime *b)
{
    EngineOverlap e = engine_overlap(w->hw->backend);
    double calls = fmax(f->even[0] + b->even[0], f->even[1] + b->even[1]);
    double most = fmax(0, f->seconds + b->seconds - calls);
    return fmin(e.hides * (dispatch_wait(f) + dispatch_wait(b)), most) * (1 - e.held);
}

static ScheduleSpan *span_of(const ScheduleWalk *w, int stage, int i)
{
    return &w->t->span[(size_t)stage * (size_t)w->t->actions + (size_t)i];
}

/* After the last stage the next chunk begins on the first. */
static void finish(ScheduleWalk *w, int stage, int i, double from, double to)
{
    const PipeAction *a = &w->pipe[stage].action[i];
    int peer = pipe_to(&w->pipe[stage], *a), chunk = a->chunk;
    *span_of(w, stage, i) = (ScheduleSpan){ a->micro, chunk, a->what, from, to };
    w->t->end = fmax(w->t->end, to);
    if (peer < 0) return;
    if (a->what == PIPE_FORWARD && stage == w->shape->stages - 1) chunk++;
    if (a->what == PIPE_BACKWARD && stage == 0) chunk--;
    *arrival(w, peer, a->what, a->micro, chunk) = to + run_of(w, stage, a)->send;
}

/* When the input of an action arrives; 0 for the first of a micro-batch. */
static double input_time(const ScheduleWalk *w, int stage, const PipeAction *a)
{
    return pipe_from(&w->pipe[stage], *a) < 0 ? 0 : *arrival(w, stage, a->what, a->micro, a->chunk);
}

/* Schedules the actions of a stage up to one whose input time is unknown; true: there were some. */
static bool advance(ScheduleWalk *w, int stage)
{
    const Pipe *p = &w->pipe[stage];
    int  from = w->next[stage];
    for (int *i = &w->next[stage]; *i < p->actions;) {
        const PipeAction *a = &p->action[*i];
        bool   pair = pipe_overlapped(p, *i) == 2;
        double free_at = *i ? span_of(w, stage, *i - 1)->to : 0;
        double in = input_time(w, stage, a), other = pair ? input_time(w, stage, a + 1) : 0;
        if (in < 0 || other < 0) break;
        double begin = fmax(free_at, fmax(in, other)), took = run_of(w, stage, a)->seconds;
        if (pair) {
            const RunTime *f = run_of(w, stage, a), *b = run_of(w, stage, a + 1);
            w->t->hidden[stage] += saved(w, f, b);
            took += b->seconds - saved(w, f, b);
        }
        w->t->busy[stage] += took;
        for (int k = 0; k <= pair; k++) finish(w, stage, (*i)++, begin, begin + took);
    }
    return w->next[stage] > from;
}

static Status walk(ScheduleWalk *w)
{
    const PipeShape *s = w->shape;
    for (int i = 0; i < s->stages; i++) TRY(pipe_open(&w->pipe[i], s, i, &w->stage[i].floor));
    w->t->actions = w->pipe[0].actions;
    w->t->span = calloc((size_t)s->stages * (size_t)w->t->actions, sizeof *w->t->span);
    if (!w->t->span) return fail(E_FIT, "no host memory for a schedule of %d stages", s->stages);
    for (size_t i = 0; i < (size_t)s->stages * 2 * (size_t)(s->micros * s->chunks); i++) w->arrives[i] = -1;
    for (bool on = true; on;) {
        on = false;
        for (int i = 0; i < s->stages; i++) on |= advance(w, i);
    }
    for (int i = 0; i < s->stages; i++)
        REQUIRE(w->next[i] == w->t->actions, "stage %d of the pipeline stops at action %d", i, w->next[i]);
    return OK;
}

Status schedule_open(Schedule *t, const StageTime *stage, const PipeShape *shape, const Hardware *hw)
{
    size_t n = (size_t)shape->stages;
    *t = (Schedule){ .stages = shape->stages, .busy = calloc(n, sizeof(double)),
                     .hidden = calloc(n, sizeof(double)) };
    ScheduleWalk w = { stage, shape, hw, t, calloc(n, sizeof(Pipe)), calloc(n, sizeof(int)),
               calloc(n * 2 * (size_t)(shape->micros * shape->chunks), sizeof(double)) };
    bool ok = t->busy && t->hidden && w.pipe && w.next && w.arrives;
    Status st = ok ? walk(&w) : fail(E_FIT, "no host memory for a schedule of %d stages", shape->stages);
    for (size_t i = 0; w.pipe && i < n; i++) pipe_close(&w.pipe[i]);
    free(w.pipe), free(w.next), free(w.arrives);
    if (st) schedule_close(t);
    return st;
}

void schedule_close(Schedule *t)
{
    free(t->span), free(t->busy), free(t->hidden);
    *t = (Schedule){ 0 };
}
