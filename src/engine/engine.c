/* engine/engine.c -- running an engine: batches in, chunks forward and backward, the update; see engine.h. */
#include "engine/engine_private.h"
#include "engine/router_bias.h"

#include <math.h>

void engine_publish_weights(Engine *e) { shard_refresh_weights(&e->shard); }

/* A tokenizer may have more ids than the model: an error here prevents a read past the end of the table. */
static bool ids_fit(Engine *e, const Stream *s)
{
    int64_t V = e->model.shape.text.V;
    for (int64_t i = 0; s->ids && i < s->tokens; i++) {          /* a dry run's stream has no ids */
        if (s->ids[i] >= -1 && s->ids[i] < V) continue;
        if (!e->be.sticky)
            e->be.sticky = fail(E_DATA,
                                "token %lld of a batch is id %d, the vocabulary of the model has %lld; "
                                "is tokenizer.json of another model?",
                                (long long)i, s->ids[i], (long long)V);
        return false;
    }
    return true;
}

/* A stream other than the prefetched one takes its place in the ring, as that of an evaluation between two
 * steps does: the prefetched stream is uploaded again when its turn comes. The join is for the next prefetch
 * too, which overwrites the batch before this one: it waits for the work queued up to here, and no host waits
 * in between. */
void engine_upload(Engine *e, const Stream *s)
{
    bool done = e->prefetched == s && e->prefetched_fill == s->fills;
    e->at = (e->at + 1) % e->batches, e->prefetched = NULL;
    backend_join(&e->be);
    if (!done && ids_fit(e, s)) batch_upload(engine_batch(e), &e->be, s);
}

void engine_prefetch(Engine *e, const Stream *s)
{
    if (!s || e->batches < 2 || !e->be.device->ahead || e->be.sticky || !ids_fit(e, s)) return;
    if (e->prefetched == s && e->prefetched_fill == s->fills) return;
    e->be.device->ahead(&e->be, true);
    batch_upload(&e->batch[(e->at + 1) % e->batches], &e->be, s);
    e->be.device->ahead(&e->be, false);
    e->prefetched = s, e->prefetched_fill = s->fills;
}

void engine_drop_prefetched(Engine *e)
{
    if (e->prefetched) backend_join(&e->be);
    e->prefetched = NULL;
}

Tensor engine_recv_buffer(const Engine *e, int way, int buffer, int64_t layer)
{
    return t_rows(e->recv[way][buffer], 0, model_boundary_rows(&e->batch[e->at], &e->model, layer));
}

/* A pass other than that of a training step leaves something else in the slot's structs. */
Pass engine_pass(Engine *e, PassMode mode, int batch, int slot, Arena *scratch)
{
    if (mode == EVAL) e->view[slot].layout = VIEW_NONE;
    return (Pass){ .env      = &e->env,
                   .be       = &e->be,
                   .batch    = &e->batch[batch],
                   .mode     = mode,
                   .evaluates = mode == EVAL,
                   .act      = engine_act(e, slot),
                   .scratch  = scratch,
                   .policy   = e->conf.policy,
                   .full     = &e->conf.full,
                   .host     = e->host_act ? &e->host_act[slot] : NULL,
                   .row_loss = e->row_loss,
                   .code_stats = e->measure_codes ? e->results.device.codes : (Tensor){ 0 },
                   .yielder  = engine_overlaps(e) ? &e->yielder : NULL };
}

/* Scratch inside the activation arena is not cleared: activations lie below it. */
static Pass begin_pass(Engine *e, PassMode mode, int batch, int slot, Arena *scratch)
{
    if (scratch != &e->arena[A_ACT]) arena_clear(scratch);
    return engine_pass(e, mode, batch, slot, scratch);
}

/* The values of a micro-batch go where its ops read them. */
static void put_scalars(Engine *e, const LossScales *m)
{
    const Batch *b = e->forward.batch;
    float z = m->z * e->conf.z_coeff;
    batch_put_scalars(b, &e->be, &(MicroScalars){ .ce = m->ce, .mtp = m->mtp,
                                                  .aux = m->aux * e->conf.aux_coeff,
                                                  .z = b->real ? z / (float)b->real : 0.0f,
                                                  .part = m->weight, .dropout_seed = m->dropout_seed });
}

/* Lets a slot's structs name the scalars of the batch. z: a constant where the run has no z-loss, so that no
 * op reads its factor. */
static void point_at_scalars(const Engine *e, ModelAct *a, const LossScales *m)
{
    const MicroScalars *s = e->forward.batch->scalars;
    a->aux.form = e->conf.aux, a->aux.keep = m->carry;
    a->aux.coeff = factor_at(&s->aux), a->aux.part = factor_at(&s->part);
    a->aux.z = e->conf.z_coeff != 0 ? factor_at(&s->z) : factor(0);
    a->mtp_scale = factor_at(&s->mtp);
    a->dropout_seed = m->dropout_seed ? &s->dropout_seed : NULL;
}

static ViewLayout layout_of(const Batch *b) { return b->media ? VIEW_MEDIA : VIEW_TEXT; }

static void run_forward(Engine *e, int chunk, int slot, const LossScales *m, Tensor in)
{
    ModelAct *a = &e->act[slot];
    bool      train = e->forward.mode == FORWARD;
    arena_clear(e->forward.act);
    if (e->forward.host && train) arena_clear(e->forward.host);
    a->aux = (Aux){ 0 };
    point_at_scalars(e, a, m);
    if (train) a->aux.so_far = e->step_counts;
    model_forward(&e->forward, &e->model, chunk, a, factor_at(&e->forward.batch->scalars->ce), in);
    if (train)
        e->view[slot] = (SlotView){ layout_of(e->forward.batch), (int)(e->forward.batch - e->batch),
                                    arena_mark(e->forward.act), *m };
}

/* The host's code of the forward at hand without its ops, so that the structs of the slot describe it. */
static void describe_forward(Engine *e, int chunk, int slot, const LossScales *m, Tensor in)
{
    Ledger     ledger = e->be.ledger;
    const Ops *ops = e->be.ops;
    shard_marks_read(&e->shard, e->graphs.marks);
    e->be.preparing = true, e->be.ops = device_meta.ops;
    run_forward(e, chunk, slot, m, in);
    e->be.preparing = false, e->be.ops = ops;
    e->be.ledger = ledger;
    shard_marks_restore(&e->shard, e->graphs.marks);
}

/* After a forward was launched as a graph. Where its activations lie depends on the layout alone. */
static void view_slot(Engine *e, int chunk, int slot, const LossScales *m, Tensor in)
{
    SlotView *v = &e->view[slot];
    if (v->layout != layout_of(e->forward.batch)) {
        describe_forward(e, chunk, slot, m, in);
        return;
    }
    v->scales = *m;
    arena_reset(e->forward.act, v->end);
}

/* Before the host's code of a backward: its structs may name tensors of the batch of another forward. */
static void view_batch(Engine *e, int batch, int chunk, int slot)
{
    LossScales m = e->view[slot].scales;
    if (e->graphs.phases && e->view[slot].batch != batch) describe_forward(e, chunk, slot, &m, (Tensor){ 0 });
}

static GraphKey forward_key(const Engine *e, const LossScales *m)
{
    return (GraphKey){ .phase = GRAPH_FORWARD, .carry = m->carry > 0, .dropout = m->dropout_seed != 0,
                       .counting = e->count_experts, .measuring = e->measure_codes,
                       .row_loss = (intptr_t)e->row_loss.data };
}

/* Adds the choices of the routers to the results of the step. Tokens behind the last document are in no
 * group. */
static void count_experts(Engine *e, int chunk, int slot)
{
    const Chunk *c = &e->model.chunk[chunk];
    const Batch *b = e->forward.batch;
    int64_t to = c->to + (c->heads ? e->model.shape.text.mtp : 0);
    for (int64_t l = 0, i = 0; l < to; l++) {
        if (!shape_is_sparse(&e->model.shape.text, l)) continue;
        int64_t at = i++;
        if (l < c->from) continue;
        Tensor idx = ((const MoeAct *)e->act[slot].layer[l].ffn)->idx, all = { 0 };
        op_count_experts(&e->be, step_results_counts(&e->results.device, at, COUNT_ALL), idx, b->group, all);
        if (b->media)
            op_count_experts(&e->be, step_results_counts(&e->results.device, at, COUNT_VISUAL), idx, b->group,
                             b->visual_row);
    }
}

void engine_run_forward(Engine *e, PassMode mode, int batch, int chunk, int slot, const LossScales *m,
                        Tensor in)
{
    e->forward = begin_pass(e, mode, batch, slot, &e->arena[A_SCRATCH]);
    put_scalars(e, m);
    if (mode == FORWARD && engine_graph_begin(e, forward_key(e, m))) {
        view_slot(e, chunk, slot, m, in);
        return;
    }
    run_forward(e, chunk, slot, m, in);
    if (mode == FORWARD && e->count_experts) count_experts(e, chunk, slot);
    graph_cache_end(&e->graphs);
}

Tensor engine_output(Engine *e, int chunk, int slot)
{
    return model_output(&e->forward, &e->model, chunk, &e->act[slot]);
}

/* A backward that overlaps with a forward has scratch of its own. */
void engine_run_backward(Engine *e, int batch, int chunk, int slot, Tensor gradient)
{
    Arena *scratch = engine_overlaps(e) ? &e->overlap_scratch : &e->arena[A_SCRATCH];
    e->backward = begin_pass(e, FORWARD, batch, slot, scratch);
    e->backward.lane = engine_overlaps(e);
    bool dropout = e->view[slot].scales.dropout_seed != 0;
    bool launched = engine_graph_begin(e, (GraphKey){ .phase = GRAPH_BACKWARD, .dropout = dropout,
                                                      .measuring = e->measure_codes });
    e->backwards++;
    if (launched) return;
    view_batch(e, batch, chunk, slot);
    model_backward(&e->backward, &e->model, chunk, &e->act[slot], gradient);
    graph_cache_end(&e->graphs);
}

Tensor engine_gradient(Engine *e, int chunk, int slot)
{
    Tensor out =
        t_rows(e->send_grad, 0, model_boundary_rows(engine_batch(e), &e->model, e->model.chunk[chunk].from));
    model_input_grad(&e->backward, &e->model, chunk, &e->act[slot], out);
    return out;
}

void engine_forward_micro(Engine *e, const LossScales *m)
{
    REQUIRE(e->model.chunks == 1 && e->mesh.size[AX_PP] == 1, "a pipeline stage cannot run a whole model");
    engine_run_forward(e, e->conf.train ? FORWARD : EVAL, e->at, 0, 0, m, (Tensor){ 0 });
}

void engine_forward(Engine *e, float scale)
{
    int64_t further = engine_batch(e)->next_targets;
    float   mtp = further ? e->conf.mtp_weight / (float)further : 0;
    engine_forward_micro(e, &(LossScales){ .ce = scale, .mtp = mtp, .aux = 1, .z = 1, .weight = 1,
                                           .dropout_seed = e->dropout_seed });
}

void engine_backward(Engine *e) { engine_run_backward(e, e->at, 0, 0, (Tensor){ 0 }); }

/* A rank without pictures gathers the weights of the vision tower with those that have some (ZeRO-3). */
static void share_pictures(Engine *e)
{
    double any = engine_batch(e)->pictures;
    if (e->conf.ranks.zero < 3 || !e->model.shape.vision.depth) return;
    comm_host_max(e->mesh.comm[GR_dp], &any, 1);
    engine_batch(e)->pictures = any > 0;
}

/* Runs the chunks of this stage in order, each after its input has arrived. The last stage has the loss. */
void engine_evaluate(Engine *e, float scale)
{
    Comm *pp = e->mesh.comm[GR_pp];
    int   n = e->mesh.size[AX_PP], at = e->mesh.at[AX_PP];
    LossScales m = { .ce = scale, .aux = 1, .z = 1, .weight = 1 };
    REQUIRE(e->conf.evaluate || e->conf.decode.docs, "the engine was opened without conf.evaluate");
    share_pictures(e);
    for (int k = 0; k < e->model.chunks; k++) {
        const Chunk *c = &e->model.chunk[k];
        e->forward = begin_pass(e, EVAL, e->at, 0, &e->arena[e->plan.eval_scratch]);
        Tensor in = c->embeds ? (Tensor){ 0 } : engine_recv_buffer(e, 0, 0, c->from);
        if (!c->embeds) comm_recv(pp, in, (at + n - 1) % n);
        put_scalars(e, &m);
        run_forward(e, k, 0, &m, in);
        if (!c->heads) comm_send(pp, engine_output(e, k, 0), (at + 1) % n);
    }
}

/* The marks are cleared first: what the step before has left of them is no part of the graph's key. */
void engine_begin_step(Engine *e, int micro)
{
    if (e->dispatch.host_counts) e->dispatch.host_counts--;
    e->backwards = 0;
    if (e->graphs.phases) shard_marks_clear(&e->shard, micro);
    if (engine_graph_begin(e, (GraphKey){ .phase = GRAPH_BEGIN, .micros = micro })) return;
    shard_begin_step(&e->shard, micro);
    step_results_begin(&e->results, &e->be);
    graph_cache_end(&e->graphs);
}

void engine_compute_grad_norm(Engine *e)
{
    if (engine_graph_begin(e, (GraphKey){ .phase = GRAPH_NORM })) return;
    shard_finish_grads(&e->shard);
    optim_grad_norm(&e->model, &e->be, e->results.device.sumsq, e->results.device.squares);
    graph_cache_end(&e->graphs);
}

void engine_decide_update(Engine *e, double spike, bool supervised)
{
    const ResultBlock *r = &e->results.device;
    StepLimits l = { .aux_coeff = (double)e->conf.aux_coeff, .z_coeff = (double)e->conf.z_coeff,
                     .spike = spike, .supervised = supervised };
    op_step_verdict(&e->be, r->guard, r->sums, r->sumsq, l);
}

static GraphKey update_key(const OptimConf *c)
{
    const AdamW *h = &c->adam;
    return (GraphKey){ .phase = GRAPH_UPDATE, .beta1 = (double)h->beta1, .beta2 = (double)h->beta2,
                       .eps = (double)h->eps, .decay = (double)h->decay, .max_norm = (double)h->max_norm,
                       .decay_all = c->decay_all, .verdict = t_has(h->verdict) };
}

void engine_apply_update(Engine *e, const OptimConf *conf)
{
    OptimConf c = *conf;
    AdamStep  now[GROUP_N];
    for (int g = 0; g < GROUP_N; g++) {
        c.adam.lr = conf->group_lr ? conf->group_lr[g] : conf->adam.lr;
        now[g] = adam_step(&c.adam);
    }
    backend_put(&e->be, (void *)e->adam_step, now, sizeof now);
    c.now = e->adam_step;
    if (engine_graph_begin(e, update_key(conf))) return;
    optim_step(&e->be, e->results.device.sumsq, &c, &e->shard);
    router_bias_step(e, c.adam.verdict);
    graph_cache_end(&e->graphs);
}

void engine_update(Engine *e, const OptimConf *conf)
{
    engine_compute_grad_norm(e);
    engine_apply_update(e, conf);
}

/* y absent (in a dry run): only the scratch for one chunk of rows is counted. */
void engine_compute_logits(Engine *e, Tensor y, int64_t from)
{
    ArenaMark mark = arena_mark(&e->arena[A_SCRATCH]);
    int64_t T = engine_batch(e)->T;
    int64_t rows = t_has(y) ? y.n[0] : e->model.head.chunk < T ? e->model.head.chunk : T;
    Tensor z = t2(&e->arena[A_SCRATCH], "scratch", F32, rows, e->model.head.V);
    Pass pass = engine_pass(e, EVAL, e->at, 0, &e->arena[A_SCRATCH]);
    model_logits(&pass, &e->model, &e->act[0], z, from);
    if (t_has(y)) backend_fetch(&e->be, y.data, z);
    arena_reset(&e->arena[A_SCRATCH], mark);
}

void engine_add_slot_losses(Engine *e, int slot, const LossScales *m, bool aux)
{
    const ModelAct *a = &e->act[slot];
    op_add_losses(&e->be, e->results.device.sums, a->loss, aux ? a->aux.out : (Tensor){ 0 },
                  factor(m->aux), factor(m->z));
}

Status engine_read_losses(Engine *e, Losses *l)
{
    const ModelAct *a = &e->act[0];
    double ce[2] = { 0 };
    float out[3] = { 0 };
    TRY(engine_wait_for_peers(e));
    backend_fetch(&e->be, ce, a->loss);
    if (t_has(a->aux.out)) backend_fetch(&e->be, out, a->aux.out);
    TRY(engine_finish_eval(e));
    *l = (Losses){ .ce = ce[0], .mtp = ce[1], .aux = out[0], .z = out[1] };
    l->total = ce[0] + ce[1] + (double)e->conf.aux_coeff * out[0] + (double)e->conf.z_coeff * out[1];
    return OK;
}

Status engine_wait_for_peers(Engine *e)
{
    Comm *c = e->mesh.comm[GR_etp_ep];
    if (!e->dispatch.bound || e->be.device->host_memory) return OK;
    int64_t call = comm_wait_begin(c, false);
    Status  st = backend_sync(&e->be);
    comm_wait_end(c, call, false);
    return st;
}

Status engine_finish_eval(Engine *e)
{
    bool overflow;
    TRY(backend_sync(&e->be));
    TRY(dispatch_overflowed(&e->dispatch, &overflow));
    return overflow ? fail(E_FIT, "an MoE layer has more rows than the buffers of a rank hold; set "
                           "moe.rank_capacity higher than %g", e->conf.ranks.dispatch.rank_capacity) : OK;
}

Status engine_read_grad_norm(Engine *e, double *norm)
{
    double s = 0;
    backend_fetch(&e->be, &s, e->results.device.sumsq);
    *norm = sqrt(s);
    return backend_sync(&e->be);
}
