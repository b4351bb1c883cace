/* train/engine_plan.c -- a step with nothing behind it: how large each arena must be, and a machine made ready
 * for what is to come; see engine.h. */
#include "train/decode.h"
#include "train/engine_private.h"

#include <stdlib.h>

/* Address space of a plan's arena: sixteen plans fit a process. */
static const size_t BOUNDLESS = (size_t)1 << 40;

/* One run there and back of each chunk in each slot that the schedule gives it; the ledger hears of every
 * chunk once. */
static Status runs_for_plan(Engine *e)
{
    int   V = e->model.chunks, batch = e->at;
    bool *seen = calloc((size_t)(e->pipe.slots * V + V), sizeof *seen), *priced = seen + e->pipe.slots * V;
    Micro m = { .ce = 1, .aux = 1, .z = 1, .part = 1 };
    if (!seen) return fail(E_FIT, "no host memory for %d slots", e->pipe.slots);
    for (int i = 0; i < e->pipe.actions; i++) {
        const Action *a = &e->pipe.action[i];
        Ledger before = e->be.ledger;
        if (a->what != PIPE_FORWARD || seen[a->slot * V + a->chunk]) continue;
        seen[a->slot * V + a->chunk] = true;
        if (e->conf.train) engine_begin(e, 1);
        e->be.ledger = before;
        const Chunk *c = &e->model.chunk[a->chunk];
        Tensor in = c->embeds ? (Tensor){ 0 } : engine_wire(e, 0, 0, c->from);
        Tensor back = c->heads ? (Tensor){ 0 } : engine_wire(e, 1, 0, c->to);
        engine_run_forward(e, e->conf.train ? FORWARD : EVAL, batch, a->chunk, a->slot, &m, in);
        if (!c->heads) engine_output(e, a->chunk, a->slot);
        if (e->conf.train) engine_run_backward(e, batch, a->chunk, a->slot, back);
        if (e->conf.train && !c->embeds) engine_gradient(e, a->chunk, a->slot);
        if (priced[a->chunk]) e->be.ledger = before;
        priced[a->chunk] = true;
    }
    free(seen);
    return OK;
}

static Status step_for_plan(Engine *e, const Stream *stream)
{
    engine_upload(e, stream);
    TRY(runs_for_plan(e));
    if (e->conf.logits) engine_logits(e, (Tensor){ 0 }, 0);
    return OK;
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
    size_t act = e->arena[A_ACT].peak, scratch = e->arena[A_SCRATCH].peak;
    evaluate_in(e, A_ACT);
    size_t shared = total_peak(e);
    e->arena[A_ACT].peak = act, e->arena[A_SCRATCH].peak = scratch;
    evaluate_in(e, A_SCRATCH);
    if (total_peak(e) <= shared) return;
    e->arena[A_ACT].peak = act, e->arena[A_SCRATCH].peak = scratch;
    evaluate_in(e, A_ACT);
}

static void note_peaks(EnginePlan *p, Engine *e)
{
    for (int i = 0; i < ARENA_N; i++) p->bytes[i] = e->arena[i].peak;
    p->beside = e->beside.peak, p->bytes[A_SCRATCH] += p->beside;
    p->slots = e->pipe.slots, p->bytes[A_ACT] = 0;
    for (int i = 0; i < p->slots; i++) p->bytes[A_ACT] += p->slot[i] = engine_act(e, i)->peak;
}

static Status plan_with(EnginePlan *p, const ModelShape *s, const EngineConf *conf, const Stream *stream,
                        bool split)
{
    Engine e = { 0 };
    EnginePlan room = { .split = split, .beside = BOUNDLESS >> 3 };
    *p = (EnginePlan){ .split = split };
    for (int i = 0; i < ARENA_N; i++) room.bytes[i] = BOUNDLESS;
    for (int i = 0; i < MAX_SLOTS; i++) room.slot[i] = BOUNDLESS >> (i > 1 ? 3 : i); /* 2 of whole models */
    Status st = engine_open_on(&e, s, conf, "meta", stream->shape.bytes, &room);
    ledger_clear(&e.be.ledger);                          /* the step alone, not the start */
    if (!st) st = step_for_plan(&e, stream);
    p->ledger = e.be.ledger;
    if (!st && (conf->evaluate || conf->decode.docs)) evaluate_for_plan(&e);
    if (!st) st = backend_sync(&e.be);
    if (!st) note_peaks(p, &e);
    p->eval_scratch = e.plan.eval_scratch;
    engine_close(&e);
    return st;
}

/* A stage of several chunks can deal its slots out in two ways: the one that takes less is used. */
Status engine_plan(EnginePlan *p, const ModelShape *s, const EngineConf *conf, const Stream *stream)
{
    EnginePlan other;
    TRY(plan_with(p, s, conf, stream, false));
    if (!conf->ranks.world || conf->ranks.layout.vpp <= 1) return OK;
    TRY(plan_with(&other, s, conf, stream, true));
    if (other.bytes[A_ACT] < p->bytes[A_ACT]) *p = other;
    return OK;
}

/* A step, an evaluation and a decode with nothing behind them, so that the first real ones find algorithms,
 * plans and workspace ready. */
Status engine_ready(Engine *e, const Stream *stream)
{
    const OptimConf o = { .adam = { .beta1 = 0.5f, .beta2 = 0.5f, .eps = 1.0f, .step = 1 } };
    if (!backend_prepares(&e->be)) return OK;
    TRY(backend_prepare(&e->be, true));
    TRY(step_for_plan(e, stream));
    if (e->conf.train) engine_update(e, &o);
    if (e->conf.evaluate || e->conf.decode.docs) evaluate_in(e, e->plan.eval_scratch);
    for (int i = 0; i < e->pipe.slots; i++) arena_clear(engine_act(e, i));
    arena_clear(&e->arena[A_SCRATCH]);
    if (engine_weaves(e)) arena_clear(&e->beside);
    ledger_clear(&e->be.ledger);
    return backend_prepare(&e->be, false);
}
