/* engine/engine_plan.c -- a step with nothing behind it: how large each arena must be, and a machine made
 * ready for what is to come; see engine.h. */
#include "engine/decode.h"
#include "engine/engine_private.h"

#include <stdlib.h>
#include <string.h>

/* Address space of a plan's arena: sixteen plans fit a process, or one of a rank that wants terabytes. */
enum { ROOM_BITS = 38, MOST_BITS = 43 };

/* The highest that an arena was, and what its labels had then; beside it what waits on the host. */
typedef struct Peak { size_t bytes, label[ARENA_LABELS], host; } Peak;

/* Slots as a schedule deals them out: the largest chunk that will be in each, and the most that will wait. */
typedef struct Deal { int of[MAX_SLOTS]; size_t host[MAX_SLOTS], bytes; } Deal;

static Peak peak_of(const Arena *a)
{
    Peak k = { .bytes = a->peak };
    for (int i = 0; i < a->labels; i++) k.label[i] = a->label[i].at_peak;
    return k;
}

static void peak_set(Arena *a, const Peak *k)
{
    a->peak = k->bytes;
    for (int i = 0; i < a->labels; i++) a->label[i].at_peak = k->label[i];
}

static PipeAction backward_of(int chunk) { return (PipeAction){ .what = PIPE_BACKWARD, .chunk = chunk }; }

/* What a run leaves for other stages; a plan's way to them is fake. */
static void tell_neighbours(Engine *e, int chunk, int slot)
{
    int n = e->mesh.size[AX_PP], at = e->mesh.at[AX_PP];
    const Chunk *c = &e->model.chunk[chunk];
    Tensor out = { 0 }, back = { 0 };
    if (!c->heads) out = engine_output(e, chunk, slot);
    if (e->conf.train && pipe_to(&e->pipe, backward_of(chunk)) >= 0) back = engine_gradient(e, chunk, slot);
    if (!e->fake || n == 1) return;
    if (t_has(out))  comm_send(e->mesh.comm[GR_pp], out, (at + 1) % n);
    if (t_has(back)) comm_send(e->mesh.comm[GR_pp_back], back, (at + n - 1) % n);
}

static void run_chunk(Engine *e, int chunk, int slot, bool last)
{
    const Chunk *c = &e->model.chunk[chunk];
    LossScales  m = { .ce = 1, .aux = 1, .z = 1, .part = 1, .chance = 1 };
    Tensor in = c->embeds ? (Tensor){ 0 } : engine_recv_buffer(e, 0, 0, c->from);
    bool   fed = pipe_from(&e->pipe, backward_of(chunk)) >= 0;
    Tensor back = fed ? engine_recv_buffer(e, 1, 0, c->to) : (Tensor){ 0 };
    ledger_phase(&e->be.ledger, COST_FORWARD, chunk, last);
    engine_run_forward(e, e->conf.train ? FORWARD : EVAL, e->at, chunk, slot, &m, in);
    ledger_phase(&e->be.ledger, COST_BACKWARD, chunk, last);
    if (e->conf.train) engine_run_backward(e, e->at, chunk, slot, back);
    tell_neighbours(e, chunk, slot);
}

/* Every chunk there and back, in a slot that has room for it: any in a plan, where slots are not cut yet, and
 * the first that the schedule gives it later. peak NULL: of no interest. */
static void run_chunks(Engine *e, Peak *peak, bool last)
{
    const Peak none = { 0 };
    for (int chunk = 0; chunk < e->model.chunks; chunk++) {
        int slot = 0;
        for (int i = e->pipe.actions - 1; i >= 0 && e->plan.slots; i--)
            if (e->pipe.action[i].chunk == chunk) slot = e->pipe.action[i].slot;
        if (peak) peak_set(&e->arena[A_ACT], &none);
        if (peak && e->parked) e->parked[slot].peak = 0;
        run_chunk(e, chunk, slot, last);
        if (peak) peak[chunk] = peak_of(&e->arena[A_ACT]);
        if (peak && e->parked) peak[chunk].host = e->parked[slot].peak;
    }
}

static void step_for_plan(Engine *e, const Stream *stream, Peak *peak)
{
    engine_upload(e, stream);
    run_chunks(e, peak, false);
    if (e->conf.logits) engine_compute_logits(e, (Tensor){ 0 }, 0);
}

/* The second and last micro-batch of a step and the update. */
static void end_for_plan(Engine *e)
{
    const OptimConf o = { .adam = { .beta1 = 0.5f, .beta2 = 0.5f, .eps = 1.0f, .step = 1 } };
    if (!e->conf.train) return;
    run_chunks(e, NULL, true);
    ledger_phase(&e->be.ledger, COST_UPDATE, 0, true);
    engine_update(e, &o);
    ledger_phase(&e->be.ledger, COST_GATHER, 0, true);
    shard_wait_weights(&e->shard);
}

/* What the end of a step says and computes beyond another micro-batch: sums of gradients, the update. */
static void take_away(Ledger *all, const Ledger *micro)
{
    LedgerRow *rows[2] = { all->op, all->by_part };
    const LedgerRow *less[2] = { micro->op, micro->by_part };
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < (k ? PART_N : LEDGER_OPS); i++) {
            LedgerRow *r = &rows[k][i];
            const LedgerRow *m = &less[k][i];
            *r = (LedgerRow){ r->calls - m->calls, r->bytes - m->bytes, r->flops - m->flops,
                              r->extra - m->extra, r->other - m->other };
        }
    all->host.in -= micro->host.in, all->host.out -= micro->host.out;
    for (int g = 0; g < LEDGER_GROUPS; g++) {
        LedgerComm *c = &all->comm[g];
        const LedgerComm *m = &micro->comm[g];
        c->calls -= m->calls, c->intra_node -= m->intra_node, c->inter_node -= m->inter_node;
    }
}

static size_t total_peak(const Engine *e)
{
    size_t n = 0;
    for (int i = 0; i < A_HOST; i++) n += e->arena[i].peak;
    return n + e->beside.peak;
}

static void evaluate_in(Engine *e, ArenaId scratch)
{
    e->plan.eval_scratch = scratch;
    if (e->conf.evaluate)    engine_evaluate(e, 1.0f);
    if (e->conf.decode.docs) decode_plan(e);
}

/* Evaluation comes between steps and keeps next to nothing, so its scratch may lie where a step has its
 * activations. Which arena has the room depends on what is recomputed: both are tried. */
static void evaluate_for_plan(Engine *e)
{
    Peak act = peak_of(&e->arena[A_ACT]), scratch = peak_of(&e->arena[A_SCRATCH]);
    evaluate_in(e, A_ACT);
    size_t shared = total_peak(e);
    peak_set(&e->arena[A_ACT], &act), peak_set(&e->arena[A_SCRATCH], &scratch);
    evaluate_in(e, A_SCRATCH);
    if (total_peak(e) <= shared) return;
    peak_set(&e->arena[A_ACT], &act), peak_set(&e->arena[A_SCRATCH], &scratch);
    evaluate_in(e, A_ACT);
}

static Deal deal(const Pipe *pipe, const Peak *chunk)
{
    Deal d = { 0 };
    for (int i = 0; i < pipe->slots; i++) d.of[i] = -1;
    for (int i = 0; i < pipe->actions; i++) {
        const PipeAction *a = &pipe->action[i];
        const Peak   *k = &chunk[a->chunk];
        int          *of = &d.of[a->slot];
        if (*of < 0 || chunk[*of].bytes < k->bytes) *of = a->chunk;
        if (d.host[a->slot] < k->host) d.host[a->slot] = k->host;
    }
    for (int i = 0; i < pipe->slots; i++) d.bytes += d.of[i] < 0 ? 0 : chunk[d.of[i]].bytes;
    return d;
}

/* A stage of several chunks can deal its slots out in two ways: the one that takes less is used. */
static Status deal_slots(EnginePlan *p, const Engine *e, const Peak *chunk, Deal *d)
{
    Pipe split;
    *d = deal(&e->pipe, chunk);
    p->slots = e->pipe.slots, p->floor = e->pipe.floor;
    if (e->model.chunks == 1) return OK;
    TRY(pipe_open(&split, &e->pipe.shape, e->mesh.at[AX_PP], &e->pipe.floor));
    pipe_split_slots(&split);
    if (split.slots <= MAX_SLOTS) {
        Deal other = deal(&split, chunk);
        p->split = other.bytes < d->bytes;
        if (p->split) p->slots = split.slots, *d = other;
    }
    pipe_close(&split);
    return OK;
}

static int larger_first(const void *a, const void *b)
{
    size_t x = ((const PlanLabel *)a)->bytes, y = ((const PlanLabel *)b)->bytes;
    return (x < y) - (x > y);
}

static void add_label(PlanLabel *out, const char *name, size_t bytes)
{
    int at = 0;
    while (at < ARENA_LABELS && out[at].name && strcmp(out[at].name, name)) at++;
    if (at < ARENA_LABELS && bytes) out[at].name = name, out[at].bytes += bytes;
}

static void add_labels(PlanLabel *out, const Arena *names, const Peak *k)
{
    for (int i = 0; i < names->labels; i++) add_label(out, names->label[i].name, k->label[i]);
}

/* The host has what each slot parks there, the device the berths. */
static void note_parked(EnginePlan *p, const Engine *e, const Deal *d)
{
    for (int i = 0; i < p->slots; i++) p->waiting += p->parked[i] = d->host[i];
    p->berth = engine_staging_peak(e);
    p->bytes[A_HOST] += p->waiting, p->bytes[A_ACT] += p->berth * (size_t)engine_staging_buffers(e);
    add_label(p->label[A_HOST], "PARKED", p->waiting);
    add_label(p->label[A_ACT], "PARKED", p->berth * (size_t)engine_staging_buffers(e));
}

static void note_peaks(EnginePlan *p, const Engine *e, const Peak *chunk, const Deal *d)
{
    const int *of = d->of;
    for (int i = 0; i < ARENA_N; i++) {
        Peak k = peak_of(&e->arena[i]);
        p->bytes[i] = k.bytes;
        add_labels(p->label[i], &e->arena[i], &k);
    }
    Peak beside = peak_of(&e->beside);
    p->beside = beside.bytes, p->bytes[A_SCRATCH] += p->beside;
    add_labels(p->label[A_SCRATCH], &e->beside, &beside);
    p->slot[0] = p->bytes[A_ACT];
    for (int i = 1; i < p->slots; i++) {
        if (of[i] < 0) continue;
        p->bytes[A_ACT] += p->slot[i] = chunk[of[i]].bytes;
        add_labels(p->label[A_ACT], &e->arena[A_ACT], &chunk[of[i]]);
    }
    note_parked(p, e, d);
    for (int i = 0; i < ARENA_N; i++) qsort(p->label[i], ARENA_LABELS, sizeof(PlanLabel), larger_first);
}

static Status plan_on(EnginePlan *p, Engine *e, const Stream *stream)
{
    Peak chunk[MAX_CHUNKS];
    Deal d;
    e->be.ledger.meter = e->conf.meter;
    ledger_clear(&e->be.ledger);                          /* the step alone, not the start */
    ledger_phase(&e->be.ledger, COST_UPDATE, 0, true);
    if (e->conf.train) engine_begin_step(e, 2);
    p->once = e->be.ledger;
    ledger_clear(&e->be.ledger);
    step_for_plan(e, stream, chunk);
    p->ledger = e->be.ledger;
    e->be.ledger = p->once;
    end_for_plan(e);
    e->be.ledger.meter = NULL;
    p->once = e->be.ledger, p->ledger.meter = NULL;
    if (e->conf.train) take_away(&p->once, &p->ledger);
    TRY(deal_slots(p, e, chunk, &d));
    peak_set(&e->arena[A_ACT], &chunk[d.of[0]]);
    if (e->conf.evaluate || e->conf.decode.docs) evaluate_for_plan(e);
    p->eval_scratch = e->plan.eval_scratch;
    note_peaks(p, e, chunk, &d);
    return backend_sync(&e->be);
}

static Status plan_within(EnginePlan *p, const ModelShape *s, const EngineConf *conf, const Stream *stream,
                          size_t space)
{
    Engine e = { 0 };
    EnginePlan room = { .beside = space >> 3, .berth = space >> 3 };
    *p = (EnginePlan){ 0 };
    for (int i = 0; i < ARENA_N; i++) room.bytes[i] = space;
    for (int i = 0; i < MAX_SLOTS; i++)                                               /* one is run in */
        room.slot[i] = room.parked[i] = i ? ARENA_ALIGN : space;
    Status st = engine_open_on(&e, s, conf, "meta", stream->shape.bytes, &room);
    if (!st) st = plan_on(p, &e, stream);
    engine_close(&e);
    return st;
}

Status engine_plan(EnginePlan *p, const ModelShape *s, const EngineConf *conf, const Stream *stream)
{
    Status st = plan_within(p, s, conf, stream, (size_t)1 << ROOM_BITS);
    if (st == E_FIT) st = plan_within(p, s, conf, stream, (size_t)1 << MOST_BITS);
    if (st != E_FIT) return st;
    return wrap(st, "more than %d TiB for one purpose of a rank; raise parallel.ep, pp, tp or zero",
                1 << (MOST_BITS - 40));
}

/* A step, an evaluation and a decode with nothing behind them, so that the first real ones find algorithms,
 * plans and workspace ready. */
Status engine_warm_up(Engine *e, const Stream *stream)
{
    if (!backend_prepares(&e->be)) return OK;
    TRY(backend_prepare(&e->be, true));
    if (e->conf.train) engine_begin_step(e, 2);
    step_for_plan(e, stream, NULL);
    end_for_plan(e);
    if (e->conf.evaluate || e->conf.decode.docs) evaluate_in(e, e->plan.eval_scratch);
    for (int i = 0; i < e->pipe.slots; i++) arena_clear(engine_act(e, i));
    arena_clear(&e->arena[A_SCRATCH]);
    if (engine_overlaps(e)) arena_clear(&e->beside);
    engine_offload_clear(e);
    ledger_clear(&e->be.ledger);
    return backend_prepare(&e->be, false);
}
