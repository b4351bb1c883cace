/* engine/engine_plan.c -- a step on the meta backend, which finds the size of each arena, and the same step
 * as a warm-up of the real device; see engine.h. */
#include "engine/decode.h"
#include "engine/engine_private.h"

#include <stdlib.h>
#include <string.h>

/* Address space of each arena of a dry run: with the first size sixteen dry runs fit a process, the second is
 * for a rank that needs terabytes. */
enum { SPACE_BITS = 38, MAX_SPACE_BITS = 43 };

/* Peak bytes of an arena, its labels at the peak, and the bytes offloaded to the host. */
typedef struct Peak { size_t bytes, label[ARENA_LABELS], host; } Peak;

/* For each slot of a schedule: the largest chunk that uses it, or -1, and its most offloaded bytes; the
 * sum. */
typedef struct SlotSizes { int chunk[MAX_SLOTS]; size_t host[MAX_SLOTS], bytes; } SlotSizes;

static Peak get_peak(const Arena *a)
{
    Peak k = { .bytes = a->peak };
    for (int i = 0; i < a->labels; i++) k.label[i] = a->label[i].at_peak;
    return k;
}

static void set_peak(Arena *a, const Peak *k)
{
    a->peak = k->bytes;
    for (int i = 0; i < a->labels; i++) a->label[i].at_peak = k->label[i];
}

static PipeAction backward_of(int chunk) { return (PipeAction){ .what = PIPE_BACKWARD, .chunk = chunk }; }

/* Sends what other stages would receive, over the fake communicator, so that it is counted. */
static void send_to_neighbours(Engine *e, int chunk, int slot)
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
    LossScales  m = { .ce = 1, .mtp = 1, .aux = 1, .z = 1, .weight = 1, .dropout_seed = 1 };
    Tensor in = c->embeds ? (Tensor){ 0 } : engine_recv_buffer(e, 0, 0, c->from);
    bool   fed = e->conf.train && pipe_from(&e->pipe, backward_of(chunk)) >= 0;
    Tensor back = fed ? engine_recv_buffer(e, 1, 0, c->to) : (Tensor){ 0 };
    ledger_phase(&e->be.ledger, COST_FORWARD, chunk, last);
    engine_run_forward(e, e->conf.train ? FORWARD : EVAL, e->at, chunk, slot, &m, in);
    ledger_phase(&e->be.ledger, COST_BACKWARD, chunk, last);
    if (e->conf.train) engine_run_backward(e, e->at, chunk, slot, back);
    send_to_neighbours(e, chunk, slot);
}

/* Forward and backward of every chunk: in a dry run, whose slots are not sized yet, all in slot 0, else in
 * the first slot that the schedule gives the chunk. peak NULL: not wanted. */
static void run_chunks(Engine *e, Peak *peak, bool last)
{
    const Peak none = { 0 };
    for (int chunk = 0; chunk < e->model.chunks; chunk++) {
        int slot = 0;
        for (int i = e->pipe.actions - 1; i >= 0 && e->plan.slots; i--)
            if (e->pipe.action[i].chunk == chunk) slot = e->pipe.action[i].slot;
        if (peak) set_peak(&e->arena[A_ACT], &none);
        if (peak && e->host_act) e->host_act[slot].peak = 0;
        run_chunk(e, chunk, slot, last);
        if (peak) peak[chunk] = get_peak(&e->arena[A_ACT]);
        if (peak && e->host_act) peak[chunk].host = e->host_act[slot].peak;
    }
}

static void run_micro_batch(Engine *e, const Stream *stream, Peak *peak)
{
    engine_upload(e, stream);
    run_chunks(e, peak, false);
    if (e->conf.logits) engine_compute_logits(e, (Tensor){ 0 }, 0);
}

/* The second and last micro-batch of a step, with its results, and the update. The first chunk is in slot
 * 0. */
static void run_step_end(Engine *e)
{
    const OptimConf  o = { .adam = { .beta1 = 0.5f, .beta2 = 0.5f, .eps = 1.0f, .step = 1 } };
    const LossScales m = { .aux = 1, .z = 1 };
    if (!e->conf.train) return;
    e->count_experts = e->measure_codes = true;
    run_chunks(e, NULL, true);
    e->count_experts = e->measure_codes = false;
    ledger_phase(&e->be.ledger, COST_UPDATE, 0, true);
    engine_add_slot_losses(e, 0, &m, true);
    engine_compute_grad_norm(e);
    engine_decide_update(e, 1, true);
    engine_apply_update(e, &o);
    ledger_phase(&e->be.ledger, COST_GATHER, 0, true);
    shard_wait_weights(&e->shard);
}

static size_t total_peak(const Engine *e)
{
    size_t n = 0;
    for (int i = 0; i < A_HOST; i++) n += e->arena[i].peak;
    return n + e->overlap_scratch.peak;
}

static void evaluate_in(Engine *e, ArenaId scratch)
{
    e->plan.eval_scratch = scratch;
    if (e->conf.evaluate)    engine_evaluate(e, 1.0f);
    if (e->conf.decode.docs) decode_plan(e);
}

typedef struct EvalPeaks { Peak act, scratch; } EvalPeaks;

static size_t peak_with_eval(Engine *e, ArenaId scratch, const EvalPeaks *before)
{
    set_peak(&e->arena[A_ACT], &before->act), set_peak(&e->arena[A_SCRATCH], &before->scratch);
    evaluate_in(e, scratch);
    return total_peak(e);
}

/* Evaluation runs between steps and keeps next to nothing, so its scratch may lie where a step has its
 * activations. Which arena then grows less depends on what is recomputed: both are tried. */
static void place_eval_scratch(Engine *e)
{
    EvalPeaks before = { get_peak(&e->arena[A_ACT]), get_peak(&e->arena[A_SCRATCH]) };
    size_t shared = peak_with_eval(e, A_ACT, &before);
    if (peak_with_eval(e, A_SCRATCH, &before) > shared) peak_with_eval(e, A_ACT, &before);
}

static SlotSizes size_slots(const Pipe *pipe, const Peak *chunk)
{
    SlotSizes d = { 0 };
    for (int i = 0; i < pipe->slots; i++) d.chunk[i] = -1;
    for (int i = 0; i < pipe->actions; i++) {
        const PipeAction *a = &pipe->action[i];
        const Peak   *k = &chunk[a->chunk];
        int          *of = &d.chunk[a->slot];
        if (*of < 0 || chunk[*of].bytes < k->bytes) *of = a->chunk;
        if (d.host[a->slot] < k->host) d.host[a->slot] = k->host;
    }
    for (int i = 0; i < pipe->slots; i++) d.bytes += d.chunk[i] < 0 ? 0 : chunk[d.chunk[i]].bytes;
    return d;
}

/* A stage of several chunks can share its slots among them or not: the way that takes less memory is used. */
static Status choose_slots(EnginePlan *p, const Engine *e, const Peak *chunk, SlotSizes *d)
{
    Pipe split;
    *d = size_slots(&e->pipe, chunk);
    p->slots = e->pipe.slots, p->backward_stop = e->pipe.floor;
    if (e->model.chunks == 1) return OK;
    TRY(pipe_open(&split, &e->pipe.shape, e->mesh.at[AX_PP], &e->pipe.floor));
    pipe_split_slots(&split);
    if (split.slots <= MAX_SLOTS) {
        SlotSizes other = size_slots(&split, chunk);
        p->slots_by_chunk = other.bytes < d->bytes;
        if (p->slots_by_chunk) p->slots = split.slots, *d = other;
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

/* The host holds the offloaded activations of each slot, the device the staging buffers. */
static void add_offloaded(EnginePlan *p, const Engine *e, const SlotSizes *d)
{
    for (int i = 0; i < p->slots; i++) p->offloaded_bytes += p->offloaded[i] = d->host[i];
    p->staging = engine_staging_peak(e);
    p->bytes[A_HOST] += p->offloaded_bytes, p->bytes[A_ACT] += p->staging * (size_t)engine_staging_buffers(e);
    add_label(p->label[A_HOST], "OFFLOADED", p->offloaded_bytes);
    add_label(p->label[A_ACT], "OFFLOADED", p->staging * (size_t)engine_staging_buffers(e));
}

static void fill_plan(EnginePlan *p, const Engine *e, const Peak *chunk, const SlotSizes *d)
{
    const int *of = d->chunk;
    for (int i = 0; i < ARENA_N; i++) {
        Peak k = get_peak(&e->arena[i]);
        p->bytes[i] = k.bytes;
        add_labels(p->label[i], &e->arena[i], &k);
    }
    Peak overlap = get_peak(&e->overlap_scratch);
    p->overlap_scratch = overlap.bytes, p->bytes[A_SCRATCH] += p->overlap_scratch;
    add_labels(p->label[A_SCRATCH], &e->overlap_scratch, &overlap);
    p->slot[0] = p->bytes[A_ACT];
    for (int i = 1; i < p->slots; i++) {
        if (of[i] < 0) continue;
        p->bytes[A_ACT] += p->slot[i] = chunk[of[i]].bytes;
        add_labels(p->label[A_ACT], &e->arena[A_ACT], &chunk[of[i]]);
    }
    add_offloaded(p, e, d);
    for (int i = 0; i < ARENA_N; i++) qsort(p->label[i], ARENA_LABELS, sizeof(PlanLabel), larger_first);
}

/* With ZeRO 3 a micro-batch uses weights that the one before it has gathered; the first of a step cannot, so
 * it is counted by itself, into l. A pipeline's order of micro-batches is another one. */
static bool run_first(Engine *e, const Stream *stream, Ledger *l)
{
    if (!e->conf.train || e->conf.ranks.zero < 3 || e->mesh.size[AX_PP] > 1) return false;
    Ledger before = *l;
    ledger_clear(l);
    l->meter = NULL;
    run_micro_batch(e, stream, NULL);
    ledger_add(&before, l, 1);
    *l = before;
    return true;
}

/* Two or three micro-batches and an update. The ledger of the second to last is p->ledger; the rest of the
 * step, less the other micro-batches as p->ledger counts them, is p->step_ledger. */
static void plan_step(EnginePlan *p, Engine *e, const Stream *stream, Peak *chunk)
{
    Ledger *l = &e->be.ledger;
    if (e->conf.train) shard_prefetch_first(&e->shard);   /* as the step before has done */
    l->meter = e->conf.meter;
    ledger_clear(l);                                      /* leaves out what opening the engine did */
    ledger_phase(l, COST_RESTART, 0, false);              /* after a plan that ran out of space */
    ledger_phase(l, COST_UPDATE, 0, true);
    if (e->conf.train) engine_begin_step(e, 2);
    bool   first = run_first(e, stream, l);
    Ledger begin = *l;
    ledger_clear(l);
    run_micro_batch(e, stream, chunk);
    p->ledger = *l;
    p->workspace = (size_t)l->workspace;
    *l = begin;
    run_step_end(e);
    l->meter = p->ledger.meter = NULL;
    p->step_ledger = *l;
    for (int i = 0; e->conf.train && i < 1 + first; i++) ledger_add(&p->step_ledger, &p->ledger, -1);
}

static Status plan_on(EnginePlan *p, Engine *e, const Stream *stream)
{
    Peak chunk[MAX_CHUNKS];
    SlotSizes d;
    plan_step(p, e, stream, chunk);
    TRY(choose_slots(p, e, chunk, &d));
    set_peak(&e->arena[A_ACT], &chunk[d.chunk[0]]);
    if (e->conf.evaluate || e->conf.decode.docs) place_eval_scratch(e);
    p->eval_scratch = e->plan.eval_scratch;
    fill_plan(p, e, chunk, &d);
    return backend_sync(&e->be);
}

static Status plan_within(EnginePlan *p, const ModelShape *s, const EngineConf *conf, const Stream *stream,
                          size_t space)
{
    Engine e = { 0 };
    EnginePlan limit = { .overlap_scratch = space >> 3, .staging = space >> 3 };
    *p = (EnginePlan){ 0 };
    for (int i = 0; i < ARENA_N; i++) limit.bytes[i] = space;
    for (int i = 0; i < MAX_SLOTS; i++)                   /* a dry run uses slot 0 alone */
        limit.slot[i] = limit.offloaded[i] = i ? ARENA_ALIGN : space;
    Status st = engine_open_on(&e, s, conf, "meta", stream->shape.bytes, &limit);
    if (!st) st = plan_on(p, &e, stream);
    engine_close(&e);
    return st;
}

Status engine_plan(EnginePlan *p, const ModelShape *s, const EngineConf *conf, const Stream *stream)
{
    TRY(engine_graph_check(conf));
    Status st = plan_within(p, s, conf, stream, (size_t)1 << SPACE_BITS);
    if (st == E_FIT) st = plan_within(p, s, conf, stream, (size_t)1 << MAX_SPACE_BITS);
    p->graphs = engine_graph_bytes(conf);
    if (st != E_FIT) return st;
    return wrap(st, "a rank needs more than %d TiB in one arena; raise parallel.ep, pp, tp or zero",
                1 << (MAX_SPACE_BITS - 40));
}

/* A step, an evaluation and a decode in which ops only prepare, so that the first real ones find algorithms,
 * plans and workspace ready. */
static Status prepare_ops(Engine *e, const Stream *stream)
{
    TRY(backend_prepare(&e->be, true));
    if (e->conf.train) engine_begin_step(e, 2);
    run_micro_batch(e, stream, NULL);
    run_step_end(e);
    if (e->conf.evaluate || e->conf.decode.docs) evaluate_in(e, e->plan.eval_scratch);
    for (int i = 0; i < e->pipe.slots; i++) arena_clear(engine_act(e, i));
    arena_clear(&e->arena[A_SCRATCH]);
    if (engine_overlaps(e)) arena_clear(&e->overlap_scratch);
    engine_offload_clear(e);
    ledger_clear(&e->be.ledger);
    return backend_prepare(&e->be, false);
}

Status engine_warm_up(Engine *e, const Stream *stream)
{
    if (!backend_prepares(&e->be)) return OK;
    activity_slow_begin();                                  /* a library may build a plan for long */
    Status st = prepare_ops(e, stream);
    activity_slow_end();
    return st;
}
