/* engine/engine.c -- running an engine: batches in, chunks forward and backward, the update; see engine.h. */
#include "engine/engine_private.h"

#include <math.h>

void engine_publish_weights(Engine *e) { shard_refresh_weights(&e->shard); }

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
    if (went)               e->ahead = NULL, e->be.device->join(&e->be);
    else if (ids_fit(e, s)) batch_upload(engine_batch(e), &e->be, s);
}

void engine_prefetch(Engine *e, const Stream *s)
{
    if (!s || e->batches < 2 || !e->be.device->ahead || e->be.sticky || !ids_fit(e, s)) return;
    if (e->ahead == s && e->ahead_fill == s->fills) return;
    e->be.device->ahead(&e->be, true);
    batch_upload(&e->batch[(e->at + 1) % e->batches], &e->be, s);
    e->be.device->ahead(&e->be, false);
    e->ahead = s, e->ahead_fill = s->fills;
}

Tensor engine_recv_buffer(const Engine *e, int way, int buffer, int64_t layer)
{
    return t_rows(e->wire[way][buffer], 0, model_boundary_rows(&e->batch[e->at], &e->model, layer));
}

Pass engine_pass(Engine *e, PassMode mode, int batch, int slot, Arena *scratch)
{
    return (Pass){ .env = &e->env, .be = &e->be, .batch = &e->batch[batch], .mode = mode,
                   .act = engine_act(e, slot), .scratch = scratch, .policy = e->conf.policy,
                   .full = &e->conf.full, .host = e->parked ? &e->parked[slot] : NULL, .row_loss = e->row_loss,
                   .yielder = engine_overlaps(e) ? &e->yielder : NULL };
}

/* Scratch that lies in the activation arena keeps what is below it. */
static Pass begin_pass(Engine *e, PassMode mode, int batch, int slot, Arena *scratch)
{
    if (scratch != &e->arena[A_ACT]) arena_clear(scratch);
    return engine_pass(e, mode, batch, slot, scratch);
}

static void run_forward(Engine *e, int chunk, int slot, const LossScales *m, Tensor in)
{
    ModelAct *a = &e->act[slot];
    bool      train = e->forward.mode == FORWARD;
    arena_clear(e->forward.act);
    if (e->forward.host && train) arena_clear(e->forward.host);
    a->aux = (Aux){ .form = e->conf.aux, .coeff = m->aux * e->conf.aux_coeff,
                    .z_coeff = m->z * e->conf.z_coeff, .keep = m->keep, .part = m->part };
    if (train) a->aux.so_far = e->so_far;
    a->dropout_seed = m->chance;
    model_forward(&e->forward, &e->model, chunk, a, m->ce, in);
}

void engine_run_forward(Engine *e, PassMode mode, int batch, int chunk, int slot, const LossScales *m, Tensor in)
{
    e->forward = begin_pass(e, mode, batch, slot, &e->arena[A_SCRATCH]);
    run_forward(e, chunk, slot, m, in);
}

Tensor engine_output(Engine *e, int chunk, int slot)
{
    return model_output(&e->forward, &e->model, chunk, &e->act[slot]);
}

/* A backward that overlaps with a forward has scratch of its own. */
void engine_run_backward(Engine *e, int batch, int chunk, int slot, Tensor gradient)
{
    Arena *scratch = engine_overlaps(e) ? &e->beside : &e->arena[A_SCRATCH];
    e->backward = begin_pass(e, FORWARD, batch, slot, scratch);
    model_backward(&e->backward, &e->model, chunk, &e->act[slot], gradient);
}

Tensor engine_gradient(Engine *e, int chunk, int slot)
{
    Tensor out = t_rows(e->back, 0, model_boundary_rows(engine_batch(e), &e->model, e->model.chunk[chunk].from));
    model_input_grad(&e->backward, &e->model, chunk, &e->act[slot], out);
    return out;
}

void engine_forward_micro(Engine *e, const LossScales *m)
{
    REQUIRE(e->model.chunks == 1 && e->mesh.size[AX_PP] == 1, "a stage of a pipeline is no whole model");
    engine_run_forward(e, e->conf.train ? FORWARD : EVAL, e->at, 0, 0, m, (Tensor){ 0 });
}

void engine_forward(Engine *e, float scale)
{
    engine_forward_micro(e, &(LossScales){ .ce = scale, .aux = 1, .z = 1, .part = 1, .chance = e->chance });
}

void engine_backward(Engine *e) { engine_run_backward(e, e->at, 0, 0, (Tensor){ 0 }); }

/* What a stage does of one micro-batch: chunk after chunk, each when its input has come. The loss is where
 * the head is. */
void engine_evaluate(Engine *e, float scale)
{
    Comm *pp = e->mesh.comm[GR_pp];
    int   n = e->mesh.size[AX_PP], at = e->mesh.at[AX_PP];
    LossScales m = { .ce = scale, .aux = 1, .z = 1, .part = 1 };
    REQUIRE(e->conf.evaluate || e->conf.decode.docs, "an engine without room to evaluate");
    for (int k = 0; k < e->model.chunks; k++) {
        const Chunk *c = &e->model.chunk[k];
        e->forward = begin_pass(e, EVAL, e->at, 0, &e->arena[e->plan.eval_scratch]);
        Tensor in = c->embeds ? (Tensor){ 0 } : engine_recv_buffer(e, 0, 0, c->from);
        if (!c->embeds) comm_recv(pp, in, (at + n - 1) % n);
        run_forward(e, k, 0, &m, in);
        if (!c->heads) comm_send(pp, engine_output(e, k, 0), (at + 1) % n);
    }
}

void engine_begin_step(Engine *e, int micro) { shard_begin_step(&e->shard, micro); }

void engine_compute_grad_norm(Engine *e)
{
    shard_finish_grads(&e->shard);
    optim_grad_norm(&e->model, &e->be, e->sumsq, e->each);
}

void engine_apply_update(Engine *e, const OptimConf *conf)
{
    optim_step(&e->be, e->sumsq, conf, &e->shard);
}

void engine_update(Engine *e, const OptimConf *conf)
{
    engine_compute_grad_norm(e);
    engine_apply_update(e, conf);
}

/* y absent: only the room it takes is charged, for a plan. Rows come a chunk at a time. */
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

Status engine_read_slot_losses(Engine *e, int slot, Losses *l)
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

Status engine_read_losses(Engine *e, Losses *l) { return engine_read_slot_losses(e, 0, l); }

Status engine_read_grad_norm(Engine *e, double *norm)
{
    double s = 0;
    backend_fetch(&e->be, &s, e->sumsq);
    *norm = sqrt(s);
    return backend_sync(&e->be);
}

Status engine_read_grad_squares(Engine *e, double *squares)
{
    int64_t n = 1 + t_count(e->each);
    backend_fetch(&e->be, squares, t_wrap(e->sumsq.data, F64, 1, &n));
    return backend_sync(&e->be);
}
