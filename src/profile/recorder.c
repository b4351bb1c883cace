/* profile/recorder.c -- see recorder.h. */
#include "profile/recorder.h"

#include "base/activity.h"
#include "base/grow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a step does before its first pass, such as clearing gradients, counts as the optimizer's. */
static Part part_of(const Ledger *l, const ActivityPlace *at)
{
    return !at->pass && l->part == PART_VISION ? PART_OPTIM : l->part;
}

static PassKind pass_of(const Ledger *l, const ActivityPlace *at)
{
    if (part_of(l, at) == PART_OPTIM) return PASS_UPDATE;
    if (!at->pass) return PASS_NONE;
    return !strcmp(at->pass, "backward") ? PASS_BACKWARD : PASS_FORWARD;
}

/* "backward of micro-batch 2, decoder layer 7" */
static void host_place_text(char *out, size_t n, const HostPlace *p)
{
    static const char *const passes[PASS_N] = { "between passes", "forward", "backward", "update" };
    static const char *const parts[PART_N + 1] = { "vision", "merger", "decoder", "head", "optimizer", "" };
    int at = snprintf(out, n, "%s", passes[p->pass]);
    if (p->micro) at += snprintf(out + at, n - (size_t)at, " of micro-batch %d", p->micro - 1);
    at += snprintf(out + at, n - (size_t)at, ", %s%s", p->replay ? "recomputed " : "", parts[p->part]);
    if (p->layer) snprintf(out + at, n - (size_t)at, " layer %d", p->layer - 1);
}

/* A bit that is set, op, part, scope, pass, replay, layer. */
uint32_t host_tag(int op, const HostPlace *p)
{
    uint32_t place = (uint32_t)(p->part & 7) << 21 | (uint32_t)(p->scope & 7) << 18 |
                     (uint32_t)(p->pass & 3) << 16 | (uint32_t)p->replay << 15 |
                     (uint32_t)(p->layer & 0x7fff);
    return 1u << 31 | (uint32_t)(op & 127) << 24 | place;
}

int host_untag(uint32_t tag, HostPlace *p)
{
    p->part = tag >> 21 & 7, p->scope = tag >> 18 & 7, p->pass = tag >> 16 & 3;
    p->replay = tag >> 15 & 1, p->layer = (int16_t)(tag & 0x7fff);
    return (int)(tag >> 24 & 127);
}

static HostPlace place_of(const Recorder *r)
{
    const ActivityPlace *at = &activity_self()->place;
    const Ledger        *l = &r->be->ledger;
    return (HostPlace){ .part = (uint8_t)part_of(l, at), .scope = (uint8_t)l->scope,
                        .pass = (uint8_t)pass_of(l, at), .replay = l->replay, .layer = (int16_t)at->layer,
                        .micro = (int16_t)at->micro_batch };
}

/* The NVTX range of the host follows the place. */
static void enter_range(Recorder *r, HostPlace at)
{
    const DeviceTrace *t = r->be->device->trace;
    char name[96];
    if (!t || !t->range || !memcmp(&at, &r->range, sizeof at)) return;
    r->range = at;
    host_place_text(name, sizeof name, &at);
    t->range(name);
}

static HostEvent *add(Recorder *r, HostKind kind, int id)
{
    if (r->full || !GROW(r->event, r->cap, r->n + 1)) return r->full = true, NULL;
    HostEvent *e = &r->event[r->n++];
    *e = (HostEvent){ .kind = kind, .id = id, .place = place_of(r), .from = clock_now() };
    e->to = e->from;
    enter_range(r, e->place);
    return e;
}

/* The event lasts until `done`. */
static HostEvent *begin(Recorder *r, HostKind kind, int id)
{
    HostEvent *e = add(r, kind, id);
    r->open = e ? r->n : 0;
    return e;
}

static void on_op(CostListener *m, const Ledger *l, int op, double flops, int64_t bytes, double rows)
{
    Recorder *r = (Recorder *)m;
    HostEvent *e = begin(r, HOST_OP, op);
    if (e && r->be->capturing && r->be->device->trace) r->be->device->trace->tag(host_tag(op, &e->place));
    if (r->trace) r->trace->op(r->be, true);
}

static void on_start(CostListener *m, const CostCall *c)
{
    Recorder  *r = (Recorder *)m;
    bool       over = c->slot < 0;                           /* a gather of the host */
    HostEvent *e = over ? add(r, HOST_GATHER, c->group) : begin(r, HOST_CALL, c->group);
    if (!e) return;
    e->slot = c->slot, e->intra_node = c->intra_node, e->inter_node = c->inter_node;
    e->calls = r->calls[c->group]++;
    if (over) e->from -= c->waited;
}

static void on_join(CostListener *m, int group, int slot)
{
    HostEvent *e = begin((Recorder *)m, HOST_JOIN, group);
    if (e) e->slot = slot;
}

static void on_fetch(CostListener *m) { begin((Recorder *)m, HOST_FETCH, 0); }

static void on_side(CostListener *m, CostSide what, int lane, int mark, int64_t bytes)
{
    HostEvent *e = what == COST_COPY ? begin((Recorder *)m, HOST_COPY, lane) : NULL;
    if (e) e->intra_node = bytes;
}

static void on_phase(CostListener *m, CostPhase what, int chunk, bool last) { }

static void on_host(CostListener *m, CostHost what)
{
    static const HostKind kind[] = { [COST_LAUNCH] = HOST_LAUNCH, [COST_UPLOAD] = HOST_UPLOAD,
                                     [COST_SYNC] = HOST_SYNC };
    Recorder *r = (Recorder *)m;
    begin(r, kind[what], 0);
    if (what == COST_LAUNCH && r->trace) r->trace->op(r->be, true);
}

static void on_done(CostListener *m)
{
    Recorder  *r = (Recorder *)m;
    HostEvent *e = r->open ? &r->event[r->open - 1] : NULL;
    if (e && (e->kind == HOST_OP || e->kind == HOST_LAUNCH) && r->trace) r->trace->op(r->be, false);
    if (e) e->to = clock_now();
    r->open = 0;
}

void recorder_start(Recorder *r, Backend *be, const DeviceTrace *trace)
{
    *r = (Recorder){ .be = be, .trace = trace, .listener = { on_op, on_start, on_join, on_fetch, on_side,
                                                             on_phase, on_host, on_done } };
    be->ledger.meter = &r->listener;
}

static int by_start(const void *a, const void *b)
{
    const HostEvent *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

void recorder_stop(Recorder *r)
{
    if (r->be && r->be->device->trace && r->be->device->trace->range) r->be->device->trace->range(NULL);
    if (r->be) r->be->ledger.meter = NULL;
    if (r->n) qsort(r->event, r->n, sizeof *r->event, by_start);
    r->open = 0, r->be = NULL;
}

void recorder_close(Recorder *r)
{
    recorder_stop(r);
    free(r->event);
    *r = (Recorder){ 0 };
}


void recorder_add(Recorder *r, HostKind kind, int id, double from, double to)
{
    HostEvent *e = add(r, kind, id);
    if (e) e->from = from, e->to = to;
}
