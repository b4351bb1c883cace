/* profile/spans.c -- see spans.h. */
#include "profile/spans.h"

#include "ops/ops.h"

#include <math.h>
#include <stdlib.h>

const char *span_name(const TraceSpan *s)
{
    if (s->op >= 0) return op_name(s->op);
    if (s->group >= 0) return group_name((GroupId)s->group);
    return s->name ? s->name : category_names[s->category];
}

/* ---- where the host is the device ---- */

static TraceSpan span_of_event(const HostEvent *e)
{
    return (TraceSpan){ .from     = e->from,
                        .to       = e->to,
                        .launched = e->from,
                        .op       = -1,
                        .group    = -1,
                        .call     = -1,
                        .place    = e->place,
                        .layer    = classify_layer(-1, &e->place) };
}

static TraceSpan span_of_op(const HostEvent *e)
{
    TraceSpan s = span_of_event(e);
    s.op = e->id, s.category = classify_op(e->id, (Part)e->place.part),
    s.layer = classify_layer(e->id, &e->place);
    if (s.category == CAT_COMM) s.group = GR_etp_ep; /* kernels that push rows to their experts */
    return s;
}

static TraceSpan span_of_call(const HostEvent *e, int call)
{
    TraceSpan s = span_of_event(e);
    s.category = CAT_COMM, s.group = e->id, s.call = call, s.stream = 1;
    return s;
}

/* The join of the call at `at`; NULL: none in the recording. */
static const HostEvent *join_of(const Recorder *r, size_t at)
{
    const HostEvent *e = &r->event[at];
    for (size_t i = at + 1; e->kind == HOST_CALL && i < r->n; i++) {
        const HostEvent *j = &r->event[i];
        if (j->id != e->id || j->slot != e->slot) continue;
        if (j->kind == HOST_CALL) break;
        if (j->kind == HOST_JOIN) return j;
    }
    return NULL;
}

/* The host is in the call while it starts and while it joins it; between the two the call is in flight. */
static void add_call(SpanList *s, const Recorder *r, size_t at)
{
    const HostEvent *e = &r->event[at], *join = join_of(r, at);
    s->span[s->n++] = span_of_call(e, e->calls);
    if (!join) return;
    s->span[s->n++] = span_of_call(join, e->calls);
    TraceSpan between = span_of_call(e, e->calls);
    between.from = between.launched = e->to, between.to = join->from;
    between.in_flight = true, between.stream = 3;
    if (between.to > between.from) s->span[s->n++] = between;
}

static TraceSpan span_of_copy(const HostEvent *e)
{
    TraceSpan s = span_of_event(e);
    s.category = e->id == COPY_H2D ? CAT_COPY_H2D : CAT_COPY_D2H, s.bytes = e->intra_node, s.stream = 2;
    return s;
}

static void add_host_spans(SpanList *s, const Recorder *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const HostEvent *e = &r->event[i];
        if (e->kind == HOST_OP) s->span[s->n++] = span_of_op(e);
        if (e->kind == HOST_CALL || e->kind == HOST_GATHER) add_call(s, r, i);
        if (e->kind == HOST_COPY) s->span[s->n++] = span_of_copy(e);
    }
}

/* ---- what a device recorded ---- */

static bool launches(const HostEvent *e)
{
    return e->kind == HOST_OP || e->kind == HOST_CALL || e->kind == HOST_COPY || e->kind == HOST_UPLOAD ||
           e->kind == HOST_LAUNCH || e->kind == HOST_FETCH || e->kind == HOST_SYNC || e->kind == HOST_JOIN;
}

/* The last event that launches and began before t; NULL: none. Events are in the order of the host. */
static const HostEvent *event_at(const Recorder *r, double t)
{
    size_t low = 0, high = r->n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (r->event[mid].from <= t) low = mid + 1;
        else high = mid;
    }
    while (low > 0 && !launches(&r->event[low - 1])) low--;
    return low > 0 ? &r->event[low - 1] : NULL;
}

static void name_by_event(TraceSpan *s, const HostEvent *e, const DeviceSpan *d)
{
    bool kernel = d->kind == SPAN_KERNEL;
    s->place = e->place, s->layer = classify_layer(-1, &e->place);
    if (e->kind == HOST_CALL && s->launched <= e->to) {
        s->category = CAT_COMM, s->group = e->id, s->call = e->calls;
    } else if (kernel && d->tag) {
        s->op = host_untag(d->tag, &s->place), s->category = classify_op(s->op, (Part)s->place.part);
        s->layer = classify_layer(s->op, &s->place);
    } else if (e->kind == HOST_OP && kernel && s->launched <= e->to) {
        s->op = e->id, s->category = classify_op(e->id, (Part)e->place.part);
        s->layer = classify_layer(e->id, &e->place);
    }
}

/* launched NAN: the device's recorder does not know the launch. */
static TraceSpan span_of_device(SpanList *all, const Recorder *r, const DeviceSpan *d)
{
    const HostEvent *e = isnan(d->launched) ? NULL : event_at(r, d->launched);
    TraceSpan s = { .from = d->from, .to = d->to, .launched = d->launched, .op = -1, .group = -1, .call = -1,
                    .stream = d->stream, .name = d->name, .bytes = d->bytes, .layer = LAYER_OTHER };
    Part part = e ? (Part)e->place.part : PART_DECODER;
    s.category = d->kind == SPAN_KERNEL ? classify_kernel(d->name, part) : classify_span(d->kind);
    if (e) name_by_event(&s, e, d);
    else   all->unmatched += d->to - d->from;
    if (s.category == CAT_COMM && s.group < 0) s.group = GR_etp_ep;
    return s;
}

/* ---- steps ---- */

/* The device's last compute that the host launched before the next step began. */
static void end_steps(SpanList *s, bool host)
{
    for (int i = 0; i < s->steps; i++) {
        s->step[i].ended = s->step[i].host_ended;
        if (host) continue;
        double next = i + 1 < s->steps ? s->step[i + 1].begins : INFINITY, ended = -INFINITY;
        for (size_t k = 0; k < s->n; k++)
            if (s->span[k].launched < next && s->span[k].category <= CAT_COMM)
                ended = fmax(ended, s->span[k].to);
        if (ended > -INFINITY) s->step[i].ended = ended;
    }
}

static int by_start(const void *a, const void *b)
{
    const TraceSpan *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

Status spans_open(SpanList *s, const Recorder *r, const DeviceSpan *device, size_t n, StepMark *step,
                  int steps)
{
    size_t most = device ? n : 2 * r->n;
    *s = (SpanList){ .step = step, .steps = steps, .host = !device,
                     .span = malloc((most + 1) * sizeof *s->span) };
    if (!s->span || r->full) return spans_close(s), fail(E_FIT, "no host memory for the events of a profile");
    if (!device) add_host_spans(s, r);
    for (size_t i = 0; device && i < n; i++) s->span[s->n++] = span_of_device(s, r, &device[i]);
    qsort(s->span, s->n, sizeof *s->span, by_start);
    end_steps(s, !device);
    return OK;
}

void spans_close(SpanList *s)
{
    free(s->span);
    *s = (SpanList){ 0 };
}
