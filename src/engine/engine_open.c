/* engine/engine_open.c -- opens and closes the memory and the parts of an engine; see engine.h. */
#include "comm/peer_memory.h"
#include "engine/engine_private.h"
#include "engine/router_bias.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *name, *label; } arenas[ARENA_N] = {
    [A_PARAM] = { "param", "weights" },  [A_GRAD] = { "grad", "gradients" },
    [A_OPTIM] = { "optim", "optimizer" }, [A_BATCH] = { "batch", "batch" },
    [A_ACT]   = { "act", "activations" }, [A_SCRATCH] = { "scratch", "scratch" },
    [A_HOST]  = { "host", "host" },
};

const char *engine_arena_label(ArenaId a) { return arenas[a].label; }

size_t engine_device_bytes(const EnginePlan *p, const char *backend)
{
    size_t n = strcmp(backend, "cpu") ? p->graphs + p->workspace : p->bytes[A_HOST];
    for (int i = 0; i < A_HOST; i++) n += p->bytes[i];
    return n;
}

/* Bytes of e->arena[arena] without the arenas that are counted with it. */
static size_t own_bytes(const EnginePlan *p, int arena)
{
    if (arena == A_ACT) return p->slot[0];
    size_t others = arena == A_SCRATCH ? p->overlap_scratch : arena == A_HOST ? p->offloaded_bytes : 0;
    return p->bytes[arena] - others;
}

static Status open_arenas(Engine *e, const EnginePlan *plan)
{
    int more = e->pipe.slots - 1;
    for (int i = 0; i < A_HOST; i++)
        TRY(backend_arena_open(&e->be, &e->arena[i], arenas[i].name, own_bytes(plan, i)));
    TRY(backend_host_arena_open(&e->be, &e->arena[A_HOST], arenas[A_HOST].name, own_bytes(plan, A_HOST)));
    if (engine_overlaps(e))
        TRY(backend_arena_open(&e->be, &e->overlap_scratch, arenas[A_SCRATCH].name, plan->overlap_scratch));
    e->slot_act = calloc((size_t)more + 1, sizeof *e->slot_act);
    if (!e->slot_act) return fail(E_FIT, "no host memory for %d slots", more);
    for (int i = 0; i < more; i++)
        TRY(backend_arena_open(&e->be, &e->slot_act[i], arenas[A_ACT].name, plan->slot[i + 1]));
    return engine_offload_open(e, plan);
}

/* Touches every page, so that the first step takes no page faults. */
static void touch(Engine *e, const Arena *a)
{
    int64_t words = (int64_t)(a->cap / sizeof(float));
    op_fill(&e->be, t_wrap(a->base, F32, 1, &words), 0.0f);
}

static void touch_arenas(Engine *e)
{
    for (int i = 0; i < ARENA_N; i++)
        if (i != A_HOST || e->be.device->host_memory) touch(e, &e->arena[i]);
    for (int i = 1; i < e->pipe.slots; i++) touch(e, engine_act(e, i));
    if (engine_overlaps(e)) touch(e, &e->overlap_scratch);
}

/* The most micro-batches between the oldest whose backward is not complete and the newest begun. */
static Status count_in_flight(const Pipe *p, int *most)
{
    int *back = calloc((size_t)p->shape.micros + 1, sizeof *back), oldest = 0;
    if (!back) return fail(E_FIT, "no host memory for %d micro-batches", p->shape.micros);
    *most = 1;
    for (int i = 0; i < p->actions; i++) {
        const PipeAction *a = &p->action[i];
        if (a->what == PIPE_FORWARD && a->micro - oldest + 1 > *most) *most = a->micro - oldest + 1;
        if (a->what == PIPE_BACKWARD) back[a->micro]++;
        while (oldest < p->shape.micros && back[oldest] == p->shape.chunks) oldest++;
    }
    free(back);
    return OK;
}

/* Opens as many batches as are in flight, and one more where the device can prefetch. */
static Status open_batches(Engine *e, bool prefetch)
{
    BatchConf conf = { .shape = shape_stream(&e->model.shape), .budget = e->conf.budget,
                       .mesh = &e->mesh, .context = e->conf.ranks.context,
                       .tower = e->model.vision.depth > 0, .further = e->model.mtp.w != NULL,
                       .buckets = e->conf.graphs || e->conf.deterministic };
    conf.shape.bytes = e->byte_pixels;
    TRY(count_in_flight(&e->pipe, &e->batches));
    e->batches += prefetch;
    e->batch = calloc((size_t)e->batches, sizeof *e->batch);
    if (!e->batch) return fail(E_FIT, "no host memory for %d batches", e->batches);
    for (int i = 0; i < e->batches; i++) TRY(batch_open(&e->batch[i], &e->arena[A_BATCH], &conf));
    return OK;
}

/* Rows of the largest activation that enters or leaves this stage. */
static int64_t boundary_rows(const Engine *e)
{
    int64_t most = 0;
    for (int i = 0; i < e->model.chunks; i++) {
        const Chunk *k = &e->model.chunk[i];
        int64_t a = model_boundary_rows(&e->batch[0], &e->model, k->from);
        int64_t b = model_boundary_rows(&e->batch[0], &e->model, k->to);
        most = a > most ? a : most, most = b > most ? b : most;
    }
    return most;
}

static bool exchanges(const Pipe *p, PipeOp what, int way)
{
    for (int i = 0; i < p->steps; i++)
        if (p->step[i].what == what && p->step[i].way == way) return true;
    return false;
}

/* Evaluation uses the forward buffers too; gradients have buffers only where they are received or sent. */
static Status open_link_buffers(Engine *e)
{
    int64_t rows = boundary_rows(e), D = e->model.shape.text.D;
    if (e->mesh.size[AX_PP] == 1) return OK;
    for (int way = 0; way < 2; way++) {
        if (way == PIPE_BACKWARD && !(e->conf.train && exchanges(&e->pipe, PIPE_RECV, way))) continue;
        e->recv[way] = calloc((size_t)e->pipe.window, sizeof *e->recv[way]);
        if (!e->recv[way]) return fail(E_FIT, "no host memory for %d messages", e->pipe.window);
        for (int i = 0; i < e->pipe.window; i++)
            e->recv[way][i] = t2(&e->arena[A_BATCH], "pipeline", e->conf.dtype, rows, D);
    }
    if (e->conf.train && exchanges(&e->pipe, PIPE_SEND, PIPE_BACKWARD))
        e->send_grad = t2(&e->arena[A_BATCH], "pipeline", e->conf.dtype, rows, D);
    return OK;
}

/* The arenas that rows of experts may be in, and that of the dispatcher's own buffers. */
static Status bind_dispatch(Engine *e)
{
    enum { OTHERS = 4 + 2 * OFFLOAD_BUFFERS };
    Arena *list[MAX_SLOTS + OTHERS] = { &e->arena[A_ACT], &e->arena[A_SCRATCH], &e->arena[A_BATCH] };
    int    n = 3;
    if (engine_overlaps(e)) list[n++] = &e->overlap_scratch;
    for (int i = 1; i < e->pipe.slots; i++) list[n++] = engine_act(e, i);
    for (int i = 0; i < engine_staging_buffers(e); i++)
        list[n++] = &e->offload.buffer[i / e->offload.buffers][i % e->offload.buffers].arena;
    return dispatch_bind(&e->dispatch, &e->be,
                         &(DispatchArenas){ &e->arena[A_BATCH], &e->arena[A_HOST], list, n });
}

static int micros_of(const Ranks *r) { return r->micro > 0 ? r->micro : 1; }

static Status open_results(Engine *e)
{
    const TextShape *t = &e->model.shape.text;
    bool fp8 = e->conf.train && precision_is_fp8(&e->conf.precision);
    StepResultsConf conf = { .tensors = params_tensors(&e->model.params),
                             .coded   = fp8 ? 2 * e->model.params.n : 0,
                             .layers  = e->conf.train ? shape_routers(t) : 0, .experts = t->E,
                             .micros  = micros_of(&e->conf.ranks),
                             .rows    = e->conf.per_row_loss ? e->conf.budget.supervised : 0 };
    TRY(step_results_open(&e->results, &e->be, &e->arena[A_OPTIM], &conf));
    if (conf.rows) e->row_loss = step_results_row_loss(&e->results, &e->results.device, 0);
    return OK;
}

/* Places parameters, batches and constants in the arenas. */
static Status lay_out(Engine *e)
{
    BackendTraits  traits = backend_traits(e->conf.backend);
    int64_t sparse = shape_routers(&e->model.shape.text);
    shard_bind(&e->shard, &e->be, &e->arena[A_PARAM], &e->arena[A_GRAD], &e->arena[A_OPTIM],
               &e->arena[A_HOST]);
    shard_keep_fp8(&e->shard, &e->arena[A_PARAM], &e->arena[A_SCRATCH]);
    model_tables(&e->model, &e->arena[A_PARAM]);
    model_constants(&e->model, &e->be);
    TRY(open_results(e));
    e->adam_step = t1(&e->arena[A_OPTIM], "norm", U8, GROUP_N * sizeof *e->adam_step).data;
    if (e->conf.aux_over_step && sparse)
        e->step_counts = t3(&e->arena[A_OPTIM], "router", F32, sparse, 1, e->model.shape.text.E);
    router_bias_open(e);
    e->model.head.chunk = head_chunk_rows(e->model.head.V, traits.logits);
    TRY(open_batches(e, traits.ahead && e->conf.train));
    e->env = (Env){ .be = &e->be, .mesh = &e->mesh, .units = shard_hooks(&e->shard),
                    .dispatcher = e->dispatch.ops ? &e->dispatch : NULL,
                    .tp_chunks = e->conf.ranks.tp_chunks,
                    .offload = e->offload.buffers ? &e->offload : NULL, .dtype = e->conf.dtype,
                    .logits_dtype = traits.logits_in_act_dtype ? e->conf.dtype : F32,
                    .precision = precision_any(&e->conf.precision) ? &e->conf.precision : NULL,
                    .fp8_dispatch = e->conf.fp8_dispatch, .panel_elems = e->conf.panel_elems };
    e->yielder = (Yielder){ coroutine_yield, &e->coroutine };
    TRY(open_link_buffers(e));
    return bind_dispatch(e);
}

/* A dry run has a fake world: its messages go nowhere. */
static Status open_mesh(Engine *e, bool dry_run)
{
    const Ranks *r = &e->conf.ranks;
    MeshLayout one = { .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = 1, .etp = 1, .replicas = 1, .cp_inner = 1 };
    Comm   *world = r->world;
    if (dry_run || !world) {
        CommConf conf = { .kind = "fake", .rank = world ? world->rank : 0, .size = world ? world->size : 1,
                          .per_node = world ? comm_ranks_on_node(world) : 0 };
        TRY(comm_open(&e->fake, &conf));
        world = e->fake;
    }
    TRY(mesh_open(&e->mesh, world, r->world ? &r->layout : &one));
    mesh_bind(&e->mesh, &e->be);
    return OK;
}

static void set_capacity(Engine *e)
{
    for (int64_t l = 0; l < shape_layers(&e->model.shape.text); l++) {
        Moe *m = decoder_moe(&e->model.layer[l]);
        if (m) m->capacity = e->conf.capacity, m->pad = e->conf.pad, m->balance = e->conf.balance;
    }
}

static Status open_dispatch(Engine *e)
{
    const TextShape *t = &e->model.shape.text;
    DispatchConf conf = e->conf.ranks.dispatch;
    if (!t->E || e->mesh.size[AX_EP] * e->mesh.size[AX_ETP] == 1) return OK;
    conf.shape.E = t->E, conf.shape.K = t->K;
    conf.shape.capacity = e->conf.capacity, conf.shape.pad = e->conf.pad;
    conf.shape.row = t->D * (int64_t)dtype_size(e->conf.dtype);
    conf.shape.T = e->conf.budget.tokens / (e->mesh.size[AX_TP] * e->mesh.size[AX_CP]);
    conf.overlap = engine_overlaps(e), conf.on_gpu = !strcmp(e->conf.backend, "cuda");
    return dispatch_open(&e->dispatch, &e->mesh, &conf);
}

/* Chunks have the order of the model, so the ones without a backward come first. */
static PipeBackwardStop backward_stop(const Engine *e)
{
    const Model *m = &e->model;
    PipeBackwardStop f = { 0 };
    if (!e->conf.train) return f;
    while (f.skipped_chunks < m->chunks && !model_chunk_has_backward(m, f.skipped_chunks)) f.skipped_chunks++;
    f.stops_grad = f.skipped_chunks < m->chunks && !model_chunk_sends_grad(m, f.skipped_chunks);
    return f;
}

static Status open_model(Engine *e, const ModelShape *s)
{
    const bool all_frozen[GROUP_N] = { true, true, true };
    const bool *frozen = e->conf.train ? e->conf.frozen : all_frozen;
    const Ranks *r = &e->conf.ranks;
    Chunk whole = { 0, s->text.L, true, true };
    ModelShape own = *s;
    if (!e->conf.train || e->conf.frozen[G_LLM] || e->conf.lora.rank > 0)
        own.text.mtp = 0;                                /* what predicts further tokens trains with all */
    TRY(model_open_part(&e->model, &own, frozen, &e->conf.lora, &e->mesh, r->world ? r->chunk : &whole,
                        e->mesh.layout.vpp));
    return work_open(&e->work, &own, frozen, &e->conf.lora);
}

static Status open_pipe(Engine *e, bool slots_by_chunk)
{
    const Ranks *r = &e->conf.ranks;
    PipeShape pipe = { .stages = e->mesh.size[AX_PP], .chunks = e->mesh.layout.vpp, .micros = micros_of(r),
                       .group = r->group, .extra_warmup = r->overlap && e->conf.train };
    PipeBackwardStop stop = backward_stop(e);
    TRY(pipe_open(&e->pipe, &pipe, e->mesh.at[AX_PP], &stop));
    if (slots_by_chunk) pipe_split_slots(&e->pipe);
    if (e->pipe.slots <= MAX_SLOTS) return OK;
    return fail(E_CONFIG, "%d micro-batches in flight are more than %d; lower parallel.pp or parallel.vpp",
                e->pipe.slots, MAX_SLOTS);
}

static Status open_shard(Engine *e)
{
    const OptimStore *o = &e->conf.store;
    TRY(base_quant_check(&e->conf.base, &e->model.params));
    int *order = calloc((size_t)e->model.params.units + 1, sizeof *order);
    ShardConf shard = { .zero = e->conf.ranks.zero, .dtype = e->conf.dtype, .overlap = true,
                        .two_passes = engine_overlaps(e),
                        .state = o->moments, .grads = o->grads, .split = o->split,
                        .offload_fraction = o->offload_fraction, .offload_chunk = o->offload_chunk,
                        .base_codes = e->conf.lora.rank > 0, .one_layout = e->conf.fp8_one_layout,
                        .keep_wide = e->conf.fp8_keep_wide };
    if (e->conf.base.format) shard.base = &e->conf.base;
    if (e->conf.fp8_weight_cache && precision_is_fp8(&e->conf.precision)) shard.fp8 = &e->conf.precision;
    if (!order) return fail(E_FIT, "no host memory for the order of units");
    shard_conf_from_model(&shard, &e->model, order);
    Status st = shard_open(&e->shard, &shard);
    free(order);
    return st;
}

/* Host arrays of the activations of each micro-batch in flight. */
static Status open_slots(Engine *e)
{
    size_t counts = MICRO_COUNTS * (size_t)micros_of(&e->conf.ranks) * (size_t)(e->mesh.size[AX_DP] + 1);
    e->act    = calloc((size_t)e->pipe.slots, sizeof *e->act);
    e->counts = calloc(counts, sizeof *e->counts);
    if (!e->act || !e->counts) return fail(E_FIT, "no host memory for %d slots", e->pipe.slots);
    for (int i = 0; i < e->pipe.slots; i++) TRY(model_act_open(&e->act[i], &e->model));
    return OK;
}

static Status open_parts(Engine *e, const ModelShape *s, bool slots_by_chunk)
{
    TRY(open_model(e, s));
    TRY(open_pipe(e, slots_by_chunk));
    TRY(open_shard(e));
    set_capacity(e);
    TRY(open_dispatch(e));
    return open_slots(e);
}

/* A failure of one rank fails all ranks: the others would wait for it in the next call. */
static Status agree(const EngineConf *conf, const EnginePlan *plan, Status mine)
{
    Comm *world = conf->ranks.world;
    return plan->slots && world ? comm_agree(world, mine) : mine;
}

static Status open_device(Backend *be, const char *name, const EngineConf *conf)
{
    TRY(backend_open(be, name));
    TRY(backend_kernels(be, conf->kernels ? conf->kernels : "auto"));
    return precision_any(&conf->precision) ? backend_require_precision(be, conf->precision.format) : OK;
}

Status engine_open_on(Engine *e, const ModelShape *s, const EngineConf *conf, const char *backend,
                      bool byte_pixels, const EnginePlan *plan)
{
    e->conf = *conf, e->byte_pixels = byte_pixels;
    TRY(agree(conf, plan, open_device(&e->be, backend, conf)));
    e->be.repeat = conf->deterministic, e->be.reserved_sms = conf->reserved_sms;
    TRY(open_mesh(e, !plan->slots));
    TRY(open_parts(e, s, plan->slots_by_chunk));
    if (engine_overlaps(e)) TRY(coroutine_open(&e->coroutine));
    e->be.shares = e->dispatch.ops && e->dispatch.row->maps &&
                   peer_memory_shares(e->mesh.comm[GR_ep_intra_node]);
    TRY(agree(conf, plan, open_arenas(e, plan)));
    touch_arenas(e);
    TRY(lay_out(e));
    TRY(engine_graph_open(e));
    return backend_sync(&e->be);
}

static Status plan_and_open(Engine *e, const ModelShape *s, const EngineConf *conf, const Stream *stream)
{
    EnginePlan plan;
    *e = (Engine){ 0 };
    TRY_CTX(engine_plan(&plan, s, conf, stream), "plan");
    Status st = engine_open_on(e, s, conf, conf->backend, stream->shape.bytes, &plan);
    e->plan = plan;
    return st ? st : engine_warm_up(e, stream);
}

/* Whether memory could not be mapped for a dispatcher that auto had chosen; *other: the same without it. */
static bool open_differently(const Engine *e, const EngineConf *conf, EngineConf *other)
{
    if (!e->dispatch.automatic || !e->dispatch.unmapped) return false;
    *other = *conf;
    DispatchConf *d = &other->ranks.dispatch;
    snprintf(d->unmapped, sizeof d->unmapped, "%s", status_text());
    return true;
}

Status engine_open(Engine *e, const ModelShape *s, const EngineConf *conf, const Stream *stream)
{
    EngineConf other;
    Status st = plan_and_open(e, s, conf, stream);
    bool   again = st && open_differently(e, conf, &other);
    if (st) engine_close(e);
    if (again) st = plan_and_open(e, s, &other, stream);
    e->opened = !st;
    if (again && st) engine_close(e);
    return st;
}

/* Waits for transfers into memory that is about to be unmapped; after a failure other ranks do not answer. */
static void wait_for_transfers(Engine *e)
{
    const Comm *world = e->mesh.comm[GR_world];
    bool healthy = world && !world->root->sticky && !world->root->abort_sent;
    if (healthy) shard_wait_weights(&e->shard);
    dispatch_unbind(&e->dispatch, healthy && e->opened && !e->be.sticky);
}

void engine_close(Engine *e)
{
    wait_for_transfers(e);
    scope_cache_close(&e->scopes);
    if (e->graphs.be) graph_cache_close(&e->graphs);
    for (int i = 0; e->be.device && i < A_HOST; i++) backend_arena_close(&e->be, &e->arena[i]);
    if (e->be.device) backend_host_arena_close(&e->be, &e->arena[A_HOST]);
    for (int i = 0; e->slot_act && i < e->pipe.slots - 1; i++) backend_arena_close(&e->be, &e->slot_act[i]);
    if (e->overlap_scratch.base) backend_arena_close(&e->be, &e->overlap_scratch);
    engine_offload_close(e);
    if (e->be.device) step_results_close(&e->results, &e->be);
    for (int i = 0; e->act && i < e->pipe.slots; i++) model_act_close(&e->act[i]);
    for (int i = 0; e->batch && i < e->batches; i++) batch_close(&e->batch[i]);
    free(e->slot_act), free(e->act), free(e->counts), free(e->batch), free(e->recv[0]), free(e->recv[1]);
    coroutine_close(&e->coroutine);
    dispatch_close(&e->dispatch);
    shard_close(&e->shard);
    pipe_close(&e->pipe);
    model_close(&e->model);
    mesh_close(&e->mesh);
    comm_close(e->fake);
    backend_close(&e->be);
    *e = (Engine){ 0 };
}
