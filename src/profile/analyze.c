/* profile/analyze.c -- see analyze.h. */
#include "profile/analyze.h"

#include <math.h>
#include <stdlib.h>

typedef struct Set { Interval *x; size_t n; } Set;

/* What an analysis works on. Lack of memory makes sets empty and is remembered. */
typedef struct Analysis {
    const SpanList    *spans;
    const Recorder *host;
    Interval        window;
    double          steps;
    bool            failed;
} Analysis;

typedef bool PickSpan(const TraceSpan *s, int key);
typedef bool PickEvent(const HostEvent *e);

/* ---- sets ---- */

static Set set_of_size(Analysis *a, size_t n)
{
    Set s = { malloc((n + 1) * sizeof *s.x), 0 };
    if (!s.x) a->failed = true;
    return s;
}

static Set take_spans(Analysis *a, PickSpan *pick, int key)
{
    const SpanList *all = a->spans;
    Set s = set_of_size(a, all->n);
    for (size_t i = 0; s.x && i < all->n; i++)
        if (pick(&all->span[i], key)) s.x[s.n++] = (Interval){ all->span[i].from, all->span[i].to };
    if (s.x) s.n = intervals_union(s.x, s.n), s.n = intervals_clip(s.x, s.x, s.n, a->window);
    return s;
}

static Set take_events(Analysis *a, PickEvent *pick)
{
    const Recorder *r = a->host;
    Set s = set_of_size(a, r->n);
    for (size_t i = 0; s.x && i < r->n; i++)
        if (pick(&r->event[i])) s.x[s.n++] = (Interval){ r->event[i].from, r->event[i].to };
    if (s.x) s.n = intervals_union(s.x, s.n), s.n = intervals_clip(s.x, s.x, s.n, a->window);
    return s;
}

typedef size_t Combine(Interval *out, const Interval *a, size_t n, const Interval *b, size_t m);

static Set combine(Analysis *a, Combine *how, Set x, Set y)
{
    Set s = set_of_size(a, x.n + y.n);
    if (s.x) s.n = how(s.x, x.x, x.n, y.x, y.n);
    return s;
}

static void drop(Set *s) { free(s->x), *s = (Set){ 0 }; }

static double mean(const Analysis *a, Set s) { return intervals_length(s.x, s.n) / a->steps; }

static double mean_and_drop(const Analysis *a, Set s)
{
    double seconds = mean(a, s);
    drop(&s);
    return seconds;
}

/* ---- which spans ---- */

static bool is_any(const TraceSpan *s, int key)      { return !s->in_flight; }
static bool is_compute(const TraceSpan *s, int key)  { return category_is_compute(s->category); }
static bool is_comm(const TraceSpan *s, int key)     { return s->category == CAT_COMM && !s->in_flight; }
static bool is_not_comm(const TraceSpan *s, int key) { return s->category != CAT_COMM; }
static bool is_copy(const TraceSpan *s, int key)     { return s->category > CAT_COMM; }
static bool is_not_copy(const TraceSpan *s, int key) { return s->category <= CAT_COMM && !s->in_flight; }
static bool is_category(const TraceSpan *s, int key) { return (int)s->category == key; }
static bool is_part(const TraceSpan *s, int key)     { return is_compute(s, 0) && s->place.part == key; }
static bool is_layer(const TraceSpan *s, int key)    { return is_compute(s, 0) && (int)s->layer == key; }
static bool is_flying(const TraceSpan *s, int key)
{
    return s->in_flight && (key < 0 || s->group == key);
}
static bool is_group(const TraceSpan *s, int key)    { return is_comm(s, 0) && s->group == key; }
static bool is_pipeline(const TraceSpan *s, int key)
{
    return is_group(s, GR_pp) || is_group(s, GR_pp_back);
}
static bool is_replay(const TraceSpan *s, int key)   { return is_compute(s, 0) && s->place.replay; }
static bool is_pass(const TraceSpan *s, int key)
{
    return is_compute(s, 0) && !s->place.replay && s->place.pass == key;
}

static bool is_host_work(const HostEvent *e)
{
    return e->kind == HOST_OP || e->kind == HOST_CALL || e->kind == HOST_LAUNCH || e->kind == HOST_COPY ||
           e->kind == HOST_UPLOAD;
}
static bool is_host_wait(const HostEvent *e)
{
    return e->kind == HOST_JOIN || e->kind == HOST_GATHER || e->kind == HOST_FETCH || e->kind == HOST_SYNC;
}
static bool is_host_call(const HostEvent *e) { return is_host_wait(e) || e->kind == HOST_CALL; }
static bool is_data_wait(const HostEvent *e) { return e->kind == HOST_DATA; }

/* ---- gaps of compute ---- */

/* The gaps that begin before the host has launched the next compute: `late` whole, and of each the part up to
 * that launch. After it the launch is on its way to the device. */
static Set starved_of(Analysis *a, Set gaps, Set *late)
{
    const SpanList *all = a->spans;
    Set    s = set_of_size(a, gaps.n);
    size_t k = 0;
    *late = set_of_size(a, gaps.n);
    for (size_t i = 0; s.x && late->x && i < gaps.n; i++) {
        Interval g = gaps.x[i];
        while (k < all->n && (all->span[k].from < g.to || !is_compute(&all->span[k], 0))) k++;
        double launched = k < all->n ? all->span[k].launched : g.to;
        if (!(launched > g.from)) continue;                  /* NAN: not known */
        s.x[s.n++] = (Interval){ g.from, fmin(launched, g.to) };
        late->x[late->n++] = g;
    }
    return s;
}

/* Communication and copies that the next compute may wait for: those on the device while it is launched, and
 * those that the host itself waits for, or executes where it is the device. */
static Set blocking_of(Analysis *a, Set gaps, Set starved)
{
    Set comm = take_spans(a, is_comm, 0), copies = take_spans(a, is_copy, 0);
    Set waits = take_events(a, a->spans->host ? is_host_call : is_host_wait);
    Set both = combine(a, intervals_merge, comm, copies);
    Set launched = combine(a, intervals_subtract, gaps, starved);
    Set on_device = combine(a, intervals_intersect, launched, both);
    Set waiting = combine(a, intervals_intersect, starved, waits);
    Set on_host = combine(a, intervals_intersect, waiting, both);
    Set out = combine(a, intervals_merge, on_device, on_host);
    Set used[] = { comm, copies, waits, both, launched, on_device, waiting, on_host };
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) drop(&used[i]);
    return out;
}

static void fill_group_blocking(Analysis *a, StepProfile *out, Set blocking)
{
    for (int g = 0; g < GR_N; g++) {
        if (out->group[g].length <= 0) continue;
        Set calls = take_spans(a, is_group, g);
        out->group[g].blocking = mean_and_drop(a, combine(a, intervals_intersect, calls, blocking));
        drop(&calls);
    }
}

/* What an op may take to begin after the one before it has ended. */
static const double DRAIN_MOST = 20e-6;

/* Gaps with the next op launched and nothing that it could wait for: short ones are the drain of the op
 * before, longer ones are not explained. */
static void split_rest(const Analysis *a, StepProfile *out, Set rest)
{
    out->dependency = out->residual = 0;
    for (size_t i = 0; i < rest.n; i++) {
        double seconds = (rest.x[i].to - rest.x[i].from) / a->steps;
        if (rest.x[i].to - rest.x[i].from <= DRAIN_MOST) out->dependency += seconds;
        else                                             out->residual += seconds;
    }
}

/* step = compute + launch_starved + blocking + dependency + residual, by construction. */
static void fill_gaps(Analysis *a, StepProfile *out, Set compute)
{
    Set gaps = set_of_size(a, compute.n + 1), late;
    if (gaps.x) gaps.n = intervals_gaps(gaps.x, compute.x, compute.n, a->window);
    Set starved = starved_of(a, gaps, &late), blocking = blocking_of(a, gaps, starved);
    Set host = combine(a, intervals_subtract, late, blocking);
    Set launched = combine(a, intervals_subtract, gaps, late);
    Set rest = combine(a, intervals_subtract, launched, blocking);
    out->launch_starved = mean(a, host), out->blocking = mean(a, blocking);
    split_rest(a, out, rest);
    fill_group_blocking(a, out, blocking);
    Set used[] = { gaps, late, starved, blocking, host, launched, rest };
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) drop(&used[i]);
}

/* ---- the rest ---- */

/* Calls with what compute hides of those in flight. key: a group, or -1. */
static Set calls_of(Analysis *a, PickSpan *pick, int key, Set compute)
{
    Set in_call = take_spans(a, pick, key), flying = take_spans(a, is_flying, key);
    Set hidden = combine(a, intervals_intersect, flying, compute);
    Set out = combine(a, intervals_merge, in_call, hidden);
    drop(&in_call), drop(&flying), drop(&hidden);
    return out;
}

static double exposed_of(Analysis *a, Set calls, Set others)
{
    return mean_and_drop(a, combine(a, intervals_subtract, calls, others));
}

static void fill_comm(Analysis *a, StepProfile *out, Set compute)
{
    Set comm = calls_of(a, is_comm, -1, compute), others = take_spans(a, is_not_comm, 0);
    Set stages = take_spans(a, is_pipeline, 0);
    out->comm = mean(a, comm), out->exposed = exposed_of(a, comm, others);
    out->hidden = out->comm - out->exposed, out->bubble = exposed_of(a, stages, others);
    for (int g = 0; g < GR_N; g++) {
        Set calls = calls_of(a, is_group, g, compute);
        out->group[g].length = mean(a, calls), out->group[g].exposed = exposed_of(a, calls, others);
        drop(&calls);
    }
    drop(&comm), drop(&others), drop(&stages);
}

static void fill_copies(Analysis *a, StepProfile *out)
{
    Set copies = take_spans(a, is_copy, 0), others = take_spans(a, is_not_copy, 0);
    out->copies = mean_and_drop(a, combine(a, intervals_subtract, copies, others));
    drop(&copies), drop(&others);
}

static void fill_lists(Analysis *a, StepProfile *out)
{
    for (int i = 0; i < CAT_N; i++)   out->category[i] = mean_and_drop(a, take_spans(a, is_category, i));
    for (int i = 0; i < PART_N; i++)  out->part[i] = mean_and_drop(a, take_spans(a, is_part, i));
    for (int i = 0; i < LAYER_N; i++) out->layer[i] = mean_and_drop(a, take_spans(a, is_layer, i));
    out->category[CAT_COMM] = out->comm;
    out->forward   = mean_and_drop(a, take_spans(a, is_pass, PASS_FORWARD));
    out->backward  = mean_and_drop(a, take_spans(a, is_pass, PASS_BACKWARD));
    out->optimizer = mean_and_drop(a, take_spans(a, is_pass, PASS_UPDATE));
    out->recompute = mean_and_drop(a, take_spans(a, is_replay, 0));
    out->host      = mean_and_drop(a, take_events(a, is_host_work));
    out->data_wait = mean_and_drop(a, take_events(a, is_data_wait));
}

static bool in_window(const Analysis *a, double t) { return t >= a->window.from && t < a->window.to; }

static void count(Analysis *a, StepProfile *out)
{
    double kernels = 0, in = 0, back = 0;
    for (size_t i = 0; i < a->spans->n; i++) {
        const TraceSpan *s = &a->spans->span[i];
        if (!in_window(a, s->from)) continue;
        kernels++;
        in += s->category == CAT_COPY_H2D ? (double)s->bytes : 0;
        back += s->category == CAT_COPY_D2H ? (double)s->bytes : 0;
    }
    out->kernels = kernels / a->steps, out->copy_in = in / a->steps, out->copy_out = back / a->steps;
    for (size_t i = 0; i < a->host->n; i++) {
        const HostEvent *e = &a->host->event[i];
        if ((e->kind != HOST_CALL && e->kind != HOST_GATHER) || !in_window(a, e->from)) continue;
        GroupProfile *g = &out->group[e->id];
        g->calls += 1 / a->steps;
        g->intra_node += (double)e->intra_node / a->steps, g->inter_node += (double)e->inter_node / a->steps;
    }
}

/* The host that waits for the last op of the device goes on when that has ended: what lies between the two is
 * an error of the conversion of the device's clock, and the time that results take to the host. */
static double clock_error(const Analysis *a)
{
    double least = INFINITY;
    for (size_t i = 0; i < a->host->n; i++) {
        const HostEvent *e = &a->host->event[i];
        if (is_host_wait(e)) least = fmin(least, fabs(e->to - a->window.to));
    }
    return least < INFINITY ? least / a->steps : 0;
}

Status analyze(StepProfile *out, const SpanList *s, const Recorder *r)
{
    Analysis a = { .spans = s, .host = r, .steps = s->steps - 1,
                   .window = { s->step[0].ended, s->step[s->steps - 1].ended } };
    REQUIRE(s->steps > 1 && a.window.to > a.window.from, "%d steps", s->steps);
    out->step = (a.window.to - a.window.from) / a.steps;
    Set compute = take_spans(&a, is_compute, 0);
    out->busy = mean_and_drop(&a, take_spans(&a, is_any, 0)), out->idle = out->step - out->busy;
    out->compute = mean(&a, compute);
    fill_comm(&a, out, compute);
    fill_copies(&a, out);
    fill_gaps(&a, out, compute);
    fill_lists(&a, out);
    count(&a, out);
    if (!s->host) out->residual += clock_error(&a) + s->unmatched / s->steps;
    drop(&compute);
    return a.failed ? fail(E_FIT, "no host memory to analyze a profile") : OK;
}

Status analyze_calls(double **seconds, int *n, const SpanList *s, const Recorder *r, int group)
{
    *n = r->calls[group], *seconds = NULL;
    if (!*n) return OK;
    *seconds = calloc((size_t)*n, sizeof **seconds);
    if (!*seconds) return fail(E_FIT, "no host memory for the calls of a profile");
    for (size_t i = 0; i < s->n; i++) {
        const TraceSpan *x = &s->span[i];
        if (x->group == group && x->call >= 0 && !x->in_flight) (*seconds)[x->call] += x->to - x->from;
    }
    return OK;
}
