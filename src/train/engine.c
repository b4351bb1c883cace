/* train/engine.c -- see engine.h. */
#include "train/engine.h"

#include "train/decode.h"

#include <math.h>
#include <stdlib.h>

static const char *const arena_names[ARENA_N] = { "param", "grad", "optim", "batch", "act", "scratch" };

static const size_t BOUNDLESS = (size_t)1 << 40;         /* address space of a plan's arena; 16 plans fit a process */

static Arena *act_arena(Engine *e, int slot) { return slot ? &e->more[slot - 1] : &e->arena[A_ACT]; }

static bool weaves(const Engine *e) { return e->pipe.shape.ahead > 0; }

static size_t first_bytes(const EnginePlan *p, int arena)
{
    return arena == A_ACT ? p->slot[0] : p->bytes[arena] - (arena == A_SCRATCH ? p->beside : 0);
}

static Status open_arenas(Engine *e, const EnginePlan *room)
{
    int more = e->pipe.slots - 1;
    for (int i = 0; i < ARENA_N; i++)
        TRY(backend_arena_open(&e->be, &e->arena[i], arena_names[i], first_bytes(room, i)));
    if (weaves(e)) TRY(backend_arena_open(&e->be, &e->beside, arena_names[A_SCRATCH], room->beside));
    e->more = calloc((size_t)more + 1, sizeof *e->more);
    if (!e->more) return fail(E_FIT, "no host memory for %d slots", more);
    for (int i = 0; i < more; i++)
        TRY(backend_arena_open(&e->be, &e->more[i], arena_names[A_ACT], room->slot[i + 1]));
    return OK;
}

/* Touch every page before the first step, which would otherwise pay for them. */
static void warm(Engine *e, const Arena *a)
{
    int64_t words = (int64_t)(a->cap / sizeof(float));
    op_fill(&e->be, t_wrap(a->base, F32, 1, &words), 0.0f);
}

static void warm_arenas(Engine *e)
{
    for (int i = 0; i < ARENA_N; i++) warm(e, &e->arena[i]);
    for (int i = 1; i < e->pipe.slots; i++) warm(e, act_arena(e, i));
    if (weaves(e)) warm(e, &e->beside);
}

/* Micro-batches from the oldest that is still to go back to the newest begun, at most. */
static Status in_flight(const Pipe *p, int *most)
{
    int *back = calloc((size_t)p->shape.micros + 1, sizeof *back), oldest = 0;
    if (!back) return fail(E_FIT, "no host memory for %d micro-batches", p->shape.micros);
    *most = 1;
    for (int i = 0; i < p->actions; i++) {
        const Action *a = &p->action[i];
        if (a->what == PIPE_FORWARD && a->micro - oldest + 1 > *most) *most = a->micro - oldest + 1;
        if (a->what == PIPE_BACKWARD) back[a->micro]++;
        while (oldest < p->shape.micros && back[oldest] == p->shape.chunks) oldest++;
    }
    free(back);
    return OK;
}

/* As many as are in flight, and one to fill meanwhile where the machine can. */
static Status open_batches(Engine *e, bool ahead)
{
    BatchConf conf = { .shape = shape_stream(&e->model.shape), .budget = e->conf.budget,
                       .mesh = &e->mesh, .context = e->conf.ranks.context,
                       .tower = e->model.vision.depth > 0 };
    conf.shape.bytes = e->bytes;
    TRY(in_flight(&e->pipe, &e->batches));
    e->batches += ahead;
    e->batch = calloc((size_t)e->batches, sizeof *e->batch);
    if (!e->batch) return fail(E_FIT, "no host memory for %d batches", e->batches);
    for (int i = 0; i < e->batches; i++) TRY(batch_open(&e->batch[i], &e->arena[A_BATCH], &conf));
    return OK;
}

/* Rows of the widest border of this stage. */
static int64_t border_rows(const Engine *e)
{
    int64_t most = 0;
    for (int i = 0; i < e->model.chunks; i++) {
        const Chunk *k = &e->model.chunk[i];
        int64_t a = model_border(&e->ctx, &e->model, k->from), b = model_border(&e->ctx, &e->model, k->to);
        most = a > most ? a : most, most = b > most ? b : most;
    }
    return most;
}

static Status open_wires(Engine *e)
{
    int64_t rows = border_rows(e), D = e->model.shape.text.D;
    if (e->mesh.size[AX_PP] == 1) return OK;
    for (int way = 0; way < 2; way++) {
        e->wire[way] = calloc((size_t)e->pipe.window, sizeof *e->wire[way]);
        if (!e->wire[way]) return fail(E_FIT, "no host memory for %d messages", e->pipe.window);
        for (int i = 0; i < e->pipe.window; i++)
            e->wire[way][i] = t2(&e->arena[A_BATCH], "wire", e->conf.dtype, rows, D);
    }
    e->back = t2(&e->arena[A_BATCH], "wire", e->conf.dtype, rows, D);
    return OK;
}

/* Everything that is laid out once: parameters, batches, constants. */
static Status lay_out(Engine *e)
{
    Traits  traits = backend_traits(e->conf.backend);
    int64_t sparse = shape_sparse_layers(&e->model.shape.text);
    shard_bind(&e->shard, &e->be, &e->arena[A_PARAM], &e->arena[A_GRAD], &e->arena[A_OPTIM]);
    model_tables(&e->model, &e->arena[A_PARAM]);
    model_constants(&e->model, &e->be);
    e->sumsq = t1(&e->arena[A_OPTIM], "norm", F64, 1);
    if (e->conf.aux_over_step && sparse)
        e->so_far = t3(&e->arena[A_OPTIM], "router", F32, sparse, 1, e->model.shape.text.E);
    e->model.head.chunk = head_chunk_rows(e->model.head.V, traits.logits);
    TRY(open_batches(e, traits.ahead && e->conf.train));
    e->ctx = (Ctx){ .be = &e->be, .mesh = &e->mesh, .units = shard_hooks(&e->shard), .dispatch = e->dispatch.ops ? &e->dispatch : NULL,
                    .batch = &e->batch[0], .act = &e->arena[A_ACT], .scratch = &e->arena[A_SCRATCH],
                    .policy = e->conf.policy, .dtype = e->conf.dtype,
                    .logits = traits.narrow_logits ? e->conf.dtype : F32 };
    e->pause = (Pause){ weave_yield, &e->weave };
    if (weaves(e)) e->ctx.pause = &e->pause;
    TRY(open_wires(e));
    if (e->conf.each) e->ctx.each = t2(&e->arena[A_BATCH], "labels", F32, e->conf.budget.supervised, 1);
    return OK;
}

static int node_size(const Comm *world)                      /* ranks that share the first one's node */
{
    int n = 0;
    for (int i = 0; world && i < world->size; i++) n += world->node[i] == world->node[0];
    return n;
}

/* A plan has nobody at the other ends. */
static Status open_mesh(Engine *e, bool plan)
{
    const Ranks *r = &e->conf.ranks;
    Layout  lone  = { .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = 1, .etp = 1, .replicas = 1, .cp_near = 1 };
    Comm   *world = r->world;
    if (plan || !world) {
        CommConf conf = { .kind = "fake", .rank = world ? world->rank : 0, .size = world ? world->size : 1,
                          .per_node = node_size(world) };
        TRY(comm_open(&e->fake, &conf));
        world = e->fake;
    }
    TRY(mesh_open(&e->mesh, world, r->world ? &r->layout : &lone));
    mesh_bind(&e->mesh, &e->be);
    return OK;
}

static void tell_experts(Engine *e)
{
    for (int64_t l = 0; l < e->model.shape.text.L; l++) {
        Moe *m = &e->model.layer[l].moe;
        m->capacity = e->conf.capacity, m->pad = e->conf.pad, m->balance = e->conf.balance;
    }
}

static Status open_dispatch(Engine *e)
{
    const TextShape *t = &e->model.shape.text;
    DispatchConf conf = e->conf.ranks.dispatch;
    if (!t->E || e->mesh.size[AX_EP] * e->mesh.size[AX_ETP] == 1) return OK;
    conf.shape.E = t->E, conf.shape.K = t->K;
    conf.shape.capacity = e->conf.capacity, conf.shape.pad = e->conf.pad;
    conf.shape.T = e->conf.budget.tokens / (e->mesh.size[AX_TP] * e->mesh.size[AX_CP]);
    return dispatch_open(&e->dispatch, &e->mesh, &conf);
}

static Status open_parts(Engine *e, const ModelShape *s, bool split)
{
    const Ranks *r = &e->conf.ranks;
    bool  all_frozen[GROUP_N] = { true, true, true };
    Chunk whole = { 0, s->text.L, true, true };
    const bool *frozen = e->conf.train ? e->conf.frozen : all_frozen;
    int   vpp = e->mesh.layout.vpp, *order;
    PipeShape pipe = { .stages = e->mesh.size[AX_PP], .chunks = vpp, .micros = r->micro > 0 ? r->micro : 1,
                       .group = r->group, .ahead = r->overlap && e->conf.train };
    TRY(model_open_part(&e->model, s, frozen, &e->mesh, r->world ? r->chunk : &whole, vpp));
    TRY(pipe_open(&e->pipe, &pipe, e->mesh.at[AX_PP]));
    if (split) pipe_split_slots(&e->pipe);
    if (e->pipe.slots > MAX_SLOTS)
        return fail(E_CONFIG, "%d micro-batches in flight are more than %d; lower parallel.pp or vpp",
                    e->pipe.slots, MAX_SLOTS);
    ShardConf shard = { .frozen = frozen, .zero = r->zero, .dtype = e->conf.dtype, .overlap = true };
    if (!(order = calloc((size_t)e->model.params.units + 1, sizeof *order)))
        return fail(E_FIT, "no host memory for the order of units");
    shard_describe(&shard, &e->model, order);
    Status st = shard_open(&e->shard, &shard);
    free(order);
    tell_experts(e);
    if (!st) st = open_dispatch(e);
    size_t counts = MICRO_COUNTS * (size_t)pipe.micros * (size_t)(e->mesh.size[AX_DP] + 1);
    e->act    = calloc((size_t)e->pipe.slots, sizeof *e->act);
    e->counts = calloc(counts, sizeof *e->counts);
    if (!st && (!e->act || !e->counts)) st = fail(E_FIT, "no host memory for %d slots", e->pipe.slots);
    for (int i = 0; !st && i < e->pipe.slots; i++) st = model_act_open(&e->act[i], &e->model);
    return st;
}

/* room: what a plan found, or without bounds. */
static Status open_on(Engine *e, const ModelShape *s, const EngineConf *conf, const char *backend,
                      bool levels, const EnginePlan *room)
{
    e->conf = *conf, e->bytes = levels;
    TRY(backend_open(&e->be, backend));
    e->be.repeat = conf->repeat;
    TRY(open_mesh(e, !room->slots));
    TRY(open_parts(e, s, room->split));
    if (weaves(e)) TRY(weave_open(&e->weave));
    TRY(open_arenas(e, room));
    warm_arenas(e);
    TRY(lay_out(e));
    return backend_sync(&e->be);
}

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
    for (int i = 0; i < ARENA_N; i++) n += e->arena[i].peak;
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
    for (int i = 0; i < p->slots; i++) p->bytes[A_ACT] += p->slot[i] = act_arena(e, i)->peak;
}

static Status plan_with(EnginePlan *p, const ModelShape *s, const EngineConf *conf, const Stream *stream,
                        bool split)
{
    Engine e = { 0 };
    EnginePlan room = { .split = split, .beside = BOUNDLESS >> 3 };
    *p = (EnginePlan){ .split = split };
    for (int i = 0; i < ARENA_N; i++) room.bytes[i] = BOUNDLESS;
    for (int i = 0; i < MAX_SLOTS; i++) room.slot[i] = BOUNDLESS >> (i > 1 ? 3 : i);     /* 2 of whole models */
    Status st = open_on(&e, s, conf, "meta", stream->shape.bytes, &room);
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
    for (int i = 0; i < e->pipe.slots; i++) arena_clear(act_arena(e, i));
    arena_clear(&e->arena[A_SCRATCH]);
    if (weaves(e)) arena_clear(&e->beside);
    ledger_clear(&e->be.ledger);
    return backend_prepare(&e->be, false);
}

Status engine_open(Engine *e, const ModelShape *s, const EngineConf *conf, const Stream *stream)
{
    EnginePlan plan;
    *e = (Engine){ 0 };
    TRY_CTX(engine_plan(&plan, s, conf, stream), "plan");
    Status st = open_on(e, s, conf, conf->backend, stream->shape.bytes, &plan);
    e->plan = plan;
    if (!st) st = engine_ready(e, stream);
    if (st) engine_close(e);
    return st;
}

/* What is still on its way would be written to memory that is about to go; after a failure nobody answers. */
static void settle(Engine *e)
{
    const Comm *world = e->mesh.comm[GR_world];
    if (world && !world->root->sticky && !world->root->told) shard_weights(&e->shard);
}

void engine_close(Engine *e)
{
    settle(e);
    for (int i = 0; e->be.machine && i < ARENA_N; i++) backend_arena_close(&e->be, &e->arena[i]);
    for (int i = 0; e->more && i < e->pipe.slots - 1; i++) backend_arena_close(&e->be, &e->more[i]);
    if (e->beside.base) backend_arena_close(&e->be, &e->beside);
    for (int i = 0; e->act && i < e->pipe.slots; i++) model_act_close(&e->act[i]);
    for (int i = 0; e->batch && i < e->batches; i++) batch_close(&e->batch[i]);
    free(e->more), free(e->act), free(e->counts), free(e->batch), free(e->wire[0]), free(e->wire[1]);
    weave_close(&e->weave);
    dispatch_close(&e->dispatch);
    shard_close(&e->shard);
    pipe_close(&e->pipe);
    model_close(&e->model);
    mesh_close(&e->mesh);
    comm_close(e->fake);
    backend_close(&e->be);
    *e = (Engine){ 0 };
}

void engine_loaded(Engine *e) { shard_publish(&e->shard); }

/* A tokenizer may know more than the model: then this is said here, before a table is read past its end. */
static bool ids_fit(Engine *e, const Stream *s)
{
    int64_t V = e->model.shape.text.V;
    for (int64_t i = 0; s->ids && i < s->tokens; i++) {          /* a plan's stream has sizes alone */
        if (s->ids[i] >= -1 && s->ids[i] < V) continue;
        if (!e->be.sticky)
            e->be.sticky = fail(E_DATA, "token %lld of a batch is id %d, the model has %lld; is the "
                                "tokenizer this model's?", (long long)i, s->ids[i], (long long)V);
        return false;
    }
    return true;
}

void engine_upload(Engine *e, const Stream *s)
{
    bool went = e->ahead == s && e->ahead_fill == s->fills;
    e->at = (e->at + 1) % e->batches;
    if (went)               e->ahead = NULL, e->be.machine->join(&e->be);
    else if (ids_fit(e, s)) batch_upload(engine_batch(e), &e->be, s);
    e->ctx.batch = engine_batch(e);
}

void engine_prefetch(Engine *e, const Stream *s)
{
    if (!s || e->batches < 2 || !e->be.machine->ahead || e->be.sticky || !ids_fit(e, s)) return;
    if (e->ahead == s && e->ahead_fill == s->fills) return;
    e->be.machine->ahead(&e->be, true);
    batch_upload(&e->batch[(e->at + 1) % e->batches], &e->be, s);
    e->be.machine->ahead(&e->be, false);
    e->ahead = s, e->ahead_fill = s->fills;
}

Tensor engine_wire(const Engine *e, int way, int buffer, int64_t layer)
{
    return t_rows(e->wire[way][buffer], 0, model_border(&e->ctx, &e->model, layer));
}

static void set_scene(Engine *e, Ctx *c, Pass pass, int batch, int slot, Arena *scratch)
{
    c->pass = pass, c->batch = &e->batch[batch];
    c->act = act_arena(e, slot), c->scratch = scratch;
    if (scratch != &e->arena[A_ACT]) arena_clear(scratch);
}

/* A forward beside a backward has e->ctx and the scratch that is always there. */
static Ctx *back_ctx(Engine *e) { return weaves(e) ? &e->back_ctx : &e->ctx; }

static void run_forward(Engine *e, int chunk, int slot, const Micro *m, Tensor in)
{
    ModelAct *a = &e->act[slot];
    arena_clear(e->ctx.act);
    a->aux = (Aux){ .form = e->conf.aux, .coeff = m->aux * e->conf.aux_coeff,
                    .z_coeff = m->z * e->conf.z_coeff, .keep = m->keep, .part = m->part };
    if (e->ctx.pass == FORWARD) a->aux.so_far = e->so_far;
    model_forward(&e->ctx, &e->model, chunk, a, m->ce, in);
}

void engine_run_forward(Engine *e, Pass pass, int batch, int chunk, int slot, const Micro *m, Tensor in)
{
    set_scene(e, &e->ctx, pass, batch, slot, &e->arena[A_SCRATCH]);
    run_forward(e, chunk, slot, m, in);
}

Tensor engine_output(Engine *e, int chunk, int slot)
{
    return model_output(&e->ctx, &e->model, chunk, &e->act[slot]);
}

void engine_run_backward(Engine *e, int batch, int chunk, int slot, Tensor gradient)
{
    Ctx *c = back_ctx(e);
    if (weaves(e)) *c = e->ctx;
    set_scene(e, c, FORWARD, batch, slot, weaves(e) ? &e->beside : &e->arena[A_SCRATCH]);
    model_backward(c, &e->model, chunk, &e->act[slot], gradient);
}

Tensor engine_gradient(Engine *e, int chunk, int slot)
{
    Tensor out = t_rows(e->back, 0, model_border(back_ctx(e), &e->model, e->model.chunk[chunk].from));
    model_gradient(back_ctx(e), &e->model, chunk, &e->act[slot], out);
    return out;
}

void engine_forward_micro(Engine *e, const Micro *m)
{
    REQUIRE(e->model.chunks == 1 && e->mesh.size[AX_PP] == 1, "a stage of a pipeline is no whole model");
    engine_run_forward(e, e->conf.train ? FORWARD : EVAL, e->at, 0, 0, m, (Tensor){ 0 });
}

void engine_forward(Engine *e, float scale)
{
    engine_forward_micro(e, &(Micro){ .ce = scale, .aux = 1, .z = 1, .part = 1 });
}

void engine_backward(Engine *e) { engine_run_backward(e, e->at, 0, 0, (Tensor){ 0 }); }

/* What a stage does of one micro-batch: chunk after chunk, each when its input has come. The loss is where the
 * head is. */
void engine_evaluate(Engine *e, float scale)
{
    Comm *pp = e->mesh.comm[GR_pp];
    int   n = e->mesh.size[AX_PP], at = e->mesh.at[AX_PP];
    Micro m = { .ce = scale, .aux = 1, .z = 1, .part = 1 };
    for (int k = 0; k < e->model.chunks; k++) {
        const Chunk *c = &e->model.chunk[k];
        set_scene(e, &e->ctx, EVAL, e->at, 0, &e->arena[e->plan.eval_scratch]);
        Tensor in = c->embeds ? (Tensor){ 0 } : engine_wire(e, 0, 0, c->from);
        if (!c->embeds) comm_recv(pp, in, (at + n - 1) % n);
        run_forward(e, k, 0, &m, in);
        if (!c->heads) comm_send(pp, engine_output(e, k, 0), (at + 1) % n);
    }
}

void engine_begin(Engine *e, int micro) { shard_begin_step(&e->shard, micro); }

void engine_norm(Engine *e)
{
    shard_finish(&e->shard);
    optim_norm(&e->model, &e->be, e->sumsq);
}

void engine_apply(Engine *e, const OptimConf *conf)
{
    optim_step(&e->model, &e->be, e->sumsq, conf, &e->shard);
}

void engine_update(Engine *e, const OptimConf *conf)
{
    engine_norm(e);
    engine_apply(e, conf);
}

/* y absent: only the room it takes is charged, for a plan. Rows come a chunk at a time. */
void engine_logits(Engine *e, Tensor y, int64_t from)
{
    ArenaMark mark = arena_mark(&e->arena[A_SCRATCH]);
    int64_t T = engine_batch(e)->T;
    int64_t rows = t_has(y) ? y.n[0] : e->model.head.chunk < T ? e->model.head.chunk : T;
    Tensor z = t2(&e->arena[A_SCRATCH], "scratch", F32, rows, e->model.head.V);
    model_logits(&e->ctx, &e->model, &e->act[0], z, from);
    if (t_has(y)) backend_fetch(&e->be, y.data, z);
    arena_reset(&e->arena[A_SCRATCH], mark);
}

Status engine_slot_losses(Engine *e, int slot, Losses *l)
{
    const ModelAct *a = &e->act[slot];
    double ce = 0;
    float out[3] = { 0 };
    backend_fetch(&e->be, &ce, a->loss);
    if (t_has(a->aux.out)) backend_fetch(&e->be, out, a->aux.out);
    TRY(backend_sync(&e->be));
    *l = (Losses){ .ce = ce, .aux = out[0], .z = out[1] };
    l->total = ce + (double)e->conf.aux_coeff * out[0] + (double)e->conf.z_coeff * out[1];
    return OK;
}

Status engine_losses(Engine *e, Losses *l) { return engine_slot_losses(e, 0, l); }

Status engine_grad_norm(Engine *e, double *norm)
{
    double s = 0;
    backend_fetch(&e->be, &s, e->sumsq);
    *norm = sqrt(s);
    return backend_sync(&e->be);
}
