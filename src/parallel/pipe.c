/* parallel/pipe.c -- see pipe.h. */
#include "parallel/pipe.h"

#include "base/num.h"

#include <stdlib.h>

static PipeShape normal(const PipeShape *s)
{
    PipeShape n = *s;
    if (n.group < 1 || n.chunks == 1) n.group = n.stages;
    return n;
}

/* Entry i of the order that all stages share: groups of micro-batches, within a group chunk by chunk.
 * Backward takes the chunks from the last to the first. */
static PipeAction entry(const PipeShape *s, int i, PipeDirection way)
{
    if (s->chunks == 1) return (PipeAction){ .what = way, .micro = i };
    int full = s->group * s->chunks, lo = i / full * s->group, n = min_int(s->group, s->micros - lo);
    int chunk = i % full / n, micro = lo + i % full % n;
    if (way == PIPE_BACKWARD) chunk = s->chunks - 1 - chunk;
    return (PipeAction){ .what = way, .micro = micro, .chunk = chunk };
}

static int warmup(const PipeShape *s, int stage)
{
    int later = s->stages - 1 - stage;
    int w = s->chunks == 1 ? later : 2 * later + (s->chunks - 1) * s->group;
    return min_int(w + s->extra_warmup, s->micros * s->chunks);
}

/* The stage before this one in the ring, which sends a chunk its input, and the one after; -1: none. */
static int before(const Pipe *p, PipeAction a)
{
    return p->stage > 0 ? p->stage - 1 : a.chunk > 0 ? p->shape.stages - 1 : -1;
}

static int after(const Pipe *p, PipeAction a)
{
    const PipeShape *s = &p->shape;
    return p->stage < s->stages - 1 ? p->stage + 1 : a.chunk < s->chunks - 1 ? 0 : -1;
}

bool pipe_skips_backward(const Pipe *p, PipeAction a)
{
    return a.what == PIPE_BACKWARD && a.chunk < p->floor.skipped_chunks;
}

int pipe_from(const Pipe *p, PipeAction a)
{
    if (a.what == PIPE_FORWARD) return before(p, a);
    return pipe_skips_backward(p, a) ? -1 : after(p, a);
}

int pipe_to(const Pipe *p, PipeAction a)
{
    if (a.what == PIPE_FORWARD) return after(p, a);
    return a.chunk < p->floor.skipped_chunks + p->floor.stops_grad ? -1 : before(p, a);
}

/* Warm-up, then forward and backward in turn, then the remaining backwards. */
static void order_actions(Pipe *p)
{
    const PipeShape *s = &p->shape;
    int runs = s->micros * s->chunks, f = 0, b = 0;
    p->warmup = warmup(s, p->stage);
    while (f < p->warmup) p->action[p->actions++] = entry(s, f++, PIPE_FORWARD);
    while (b < runs) {
        if (f < runs) p->action[p->actions++] = entry(s, f++, PIPE_FORWARD);
        p->action[p->actions++] = entry(s, b++, PIPE_BACKWARD);
    }
}

/* A forward takes the lowest free slot, its backward releases it. slot_of: slot of each (micro, chunk);
 * taken: by slot. */
static void assign_slots(Pipe *p, int *slot_of, bool *taken)
{
    for (int i = 0; i < p->actions; i++) {
        PipeAction *a = &p->action[i];
        int *at = &slot_of[a->micro * p->shape.chunks + a->chunk];
        if (a->what == PIPE_FORWARD) {
            for (*at = 0; taken[*at];) ++*at;
            p->slots = max_int(p->slots, *at + 1);
        }
        taken[*at] = a->what == PIPE_FORWARD;
        a->slot = *at;
    }
}

/* The first action at or after `from` whose input is a message of this direction; p->actions: none. */
static int next_receiver(const Pipe *p, PipeDirection way, int from)
{
    while (from < p->actions &&
           (p->action[from].what != way || pipe_from(p, p->action[from]) < 0)) from++;
    return from;
}

static void add_step(Pipe *p, PipeOp what, int action, int peer, int message)
{
    p->step[p->steps++] = (PipeStep){ what, p->action[action].what, action, peer, message,
                                      message % p->window };
}

static void add_recv(Pipe *p, int i, int *received)
{
    int from = pipe_from(p, p->action[i]);
    if (from >= 0) add_step(p, PIPE_RECV, i, from, received[p->action[i].what]++);
}

static void add_send(Pipe *p, int i, int *sent)
{
    int to = pipe_to(p, p->action[i]), way = p->action[i].what;
    if (to >= 0 && sent[way]) add_step(p, PIPE_FLUSH, i, to, sent[way] - 1);
    if (to >= 0) add_step(p, PIPE_SEND, i, to, sent[way]++);
}

int pipe_overlapped(const Pipe *p, int i)
{
    bool overlaps = p->shape.extra_warmup && i >= p->warmup && p->action[i].what == PIPE_FORWARD;
    return overlaps && !pipe_skips_backward(p, p->action[i + 1]) ? 2 : 1;
}

/* Lists the steps: for each action receive, run, send; receives are posted up to `window` ahead. */
static void list_steps(Pipe *p)
{
    int next[2], posted[2] = { 0, 0 }, received[2] = { 0, 0 }, sent[2] = { 0, 0 };
    for (int way = 0; way < 2; way++) next[way] = next_receiver(p, (PipeDirection)way, 0);
    for (int i = -1, n = 1; i < p->actions; i += n) {
        if (i >= 0) {
            n = pipe_overlapped(p, i);
            for (int k = i; k < i + n; k++) add_recv(p, k, received);
            add_step(p, n == 2 ? PIPE_OVERLAPPED : PIPE_RUN, i, -1, 0);
            for (int k = i; k < i + n; k++) add_send(p, k, sent);
        }
        for (int way = 0; way < 2; way++)
            while (next[way] < p->actions && posted[way] < received[way] + p->window) {
                add_step(p, PIPE_POST, next[way], pipe_from(p, p->action[next[way]]), posted[way]++);
                next[way] = next_receiver(p, (PipeDirection)way, next[way] + 1);
            }
    }
    for (int i = p->actions - 1, left = (sent[0] > 0) + (sent[1] > 0); left && i >= 0; i--) {
        int to = pipe_to(p, p->action[i]), way = p->action[i].what;
        if (to < 0 || !sent[way]) continue;
        add_step(p, PIPE_FLUSH, i, to, sent[way] - 1);
        sent[way] = 0, left--;
    }
}

Status pipe_open(Pipe *p, const PipeShape *shape, int stage, const PipeBackwardStop *stop)
{
    *p = (Pipe){ .shape = normal(shape), .stage = stage };
    if (stop) p->floor = *stop;
    const PipeShape *s = &p->shape;
    REQUIRE(s->stages > 0 && s->chunks > 0 && s->micros > 0 && stage >= 0 && stage < s->stages,
            "stage %d of %d, %d chunks, %d micro-batches", stage, s->stages, s->chunks, s->micros);
    size_t runs = (size_t)s->micros * (size_t)s->chunks;
    p->window = max_int(1, s->group - s->stages) + 1;
    p->action = malloc(2 * runs * sizeof *p->action);
    p->step   = malloc((2 * runs * 5 + 2) * sizeof *p->step);
    int  *slot_of = malloc(runs * sizeof *slot_of);
    bool *taken   = calloc(runs, sizeof *taken);
    bool ok = p->action && p->step && slot_of && taken;
    if (ok) {
        order_actions(p);
        assign_slots(p, slot_of, taken);
        list_steps(p);
    }
    free(slot_of), free(taken);
    if (ok) return OK;
    pipe_close(p);
    return fail(E_FIT, "no memory for the schedule of %d micro-batches over %d chunks", s->micros, s->chunks);
}

void pipe_close(Pipe *p)
{
    free(p->action), free(p->step);
    *p = (Pipe){ 0 };
}

int pipe_in_flight(const Pipe *p, int chunk)
{
    int now = 0, peak = 0;
    for (int i = 0; i < p->actions; i++)
        if (p->action[i].chunk == chunk)
            peak = max_int(peak, now += p->action[i].what == PIPE_FORWARD ? 1 : -1);
    return peak;
}

void pipe_split_slots(Pipe *p)
{
    p->slots = 0;
    for (int k = 0; k < p->shape.chunks; k++) {
        int alive = pipe_in_flight(p, k);
        for (int i = 0; i < p->actions; i++)
            if (p->action[i].chunk == k) p->action[i].slot = p->slots + p->action[i].micro % alive;
        p->slots += alive;
    }
}

double pipe_bubble(const PipeShape *s)
{
    return (s->stages - 1) / ((double)s->chunks * s->micros + s->stages - 1);
}

Status pipe_print(FILE *out, const PipeShape *shape)
{
    enum { SHOWN = 12 };
    PipeShape s = normal(shape);
    fprintf(out, "%d micro-batches a step, %s; %.1f %% of the step is bubble\n", s.micros,
            s.chunks > 1 ? "interleaved" : "1F1B", 100 * pipe_bubble(&s));
    fprintf(out, "  %5s %8s %6s  %s\n", "stage", "warm-up", "slots", "begins with (micro-batch.chunk)");
    for (int stage = 0; stage < s.stages; stage++) {
        Pipe p;
        TRY(pipe_open(&p, &s, stage, NULL));
        fprintf(out, "  %5d %8d %6d ", stage, p.warmup, p.slots);
        for (int i = 0; i < min_int(p.actions, SHOWN); i++)
            fprintf(out, " %c%d.%d", "FB"[p.action[i].what], p.action[i].micro, p.action[i].chunk);
        fputs(p.actions > SHOWN ? " …\n" : "\n", out);
        pipe_close(&p);
    }
    return OK;
}
