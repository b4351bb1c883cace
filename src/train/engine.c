/* train/engine.c -- see engine.h. */
#include "train/engine.h"

#include "train/decode.h"

#include <math.h>

static const char *const arena_names[ARENA_N] = { "param", "grad", "optim", "batch", "act", "scratch" };

static const size_t BOUNDLESS = (size_t)1 << 42;         /* address space of a plan's arena */

static Status open_arenas(Engine *e, const size_t bytes[ARENA_N])
{
    for (int i = 0; i < ARENA_N; i++)
        TRY(backend_arena_open(&e->be, &e->arena[i], arena_names[i], bytes[i]));
    return OK;
}

/* Touch every page before the first step, which would otherwise pay for them. */
static void warm_arenas(Engine *e)
{
    for (int i = 0; i < ARENA_N; i++) {
        int64_t words = (int64_t)(e->arena[i].cap / sizeof(float));
        op_fill(&e->be, t_wrap(e->arena[i].base, F32, 1, &words), 0.0f);
    }
}

/* Everything that is laid out once: parameters, the batch, constants. */
static void lay_out(Engine *e)
{
    StreamShape ss = shape_stream(&e->model.shape);
    ss.bytes = e->bytes;
    model_bind(&e->model, e->conf.dtype, &e->arena[A_PARAM], &e->arena[A_GRAD], &e->arena[A_OPTIM]);
    model_constants(&e->model, &e->be);
    e->sumsq = t1(&e->arena[A_OPTIM], "norm", F64, 1);
    int64_t sparse = shape_sparse_layers(&e->model.shape.text);
    if (e->conf.aux_over_step && sparse)
        e->so_far = t3(&e->arena[A_OPTIM], "router", F32, sparse, 1, e->model.shape.text.E);
    Traits traits = backend_traits(e->conf.backend);
    e->model.head.chunk = head_chunk_rows(e->model.head.V, traits.logits);
    batch_layout(&e->batch, &e->arena[A_BATCH], &ss, &e->conf.budget);
    if (traits.ahead && e->conf.train) batch_layout(&e->spare, &e->arena[A_BATCH], &ss, &e->conf.budget);
    e->ctx = (Ctx){ .be = &e->be, .batch = &e->batch, .act = &e->arena[A_ACT],
                    .scratch = &e->arena[A_SCRATCH], .policy = e->conf.policy, .dtype = e->conf.dtype,
                    .logits = traits.narrow_logits ? e->conf.dtype : F32 };
    if (e->conf.each) e->ctx.each = t2(&e->arena[A_BATCH], "labels", F32, e->conf.budget.supervised, 1);
}

static Status open_on(Engine *e, const ModelShape *s, const EngineConf *conf, const char *backend,
                      bool levels, const size_t *bytes)
{
    bool all_frozen[GROUP_N] = { true, true, true };
    e->conf = *conf, e->bytes = levels;
    TRY(backend_open(&e->be, backend));
    e->be.repeat = conf->repeat;
    TRY(model_open(&e->model, s, conf->train ? conf->frozen : all_frozen));
    TRY(model_act_open(&e->act, &e->model));
    TRY(open_arenas(e, bytes));
    warm_arenas(e);
    lay_out(e);
    return backend_sync(&e->be);
}

static void step_for_plan(Engine *e, const Stream *stream)
{
    engine_upload(e, stream);
    engine_forward(e, 1.0f);
    if (e->conf.logits) engine_logits(e, (Tensor){ 0 }, 0);
    if (e->conf.train) engine_backward(e);
}

static size_t total_peak(const Engine *e)
{
    size_t n = 0;
    for (int i = 0; i < ARENA_N; i++) n += e->arena[i].peak;
    return n;
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

Status engine_plan(EnginePlan *p, const ModelShape *s, const EngineConf *conf, const Stream *stream)
{
    Engine e = { 0 };
    size_t bytes[ARENA_N];
    *p = (EnginePlan){ 0 };
    for (int i = 0; i < ARENA_N; i++) bytes[i] = BOUNDLESS;
    Status st = open_on(&e, s, conf, "meta", stream->shape.bytes, bytes);
    if (!st) model_zero_grad(&e.model, &e.be);
    ledger_clear(&e.be.ledger);                          /* the step alone, not the start */
    if (!st) step_for_plan(&e, stream);
    p->ledger = e.be.ledger;
    if (!st && (conf->evaluate || conf->decode.docs)) evaluate_for_plan(&e);
    if (!st) st = backend_sync(&e.be);
    for (int i = 0; i < ARENA_N; i++) p->bytes[i] = e.arena[i].peak;
    p->eval_scratch = e.plan.eval_scratch;
    engine_close(&e);
    return st;
}

/* A step, an evaluation and a decode with nothing behind them, so that the first real ones find algorithms,
 * plans and workspace ready. */
Status engine_ready(Engine *e, const Stream *stream)
{
    const OptimConf o = { .adam = { .beta1 = 0.5f, .beta2 = 0.5f, .eps = 1.0f, .step = 1 } };
    if (!backend_prepares(&e->be)) return OK;
    TRY(backend_prepare(&e->be, true));
    if (e->conf.train) model_zero_grad(&e->model, &e->be);
    step_for_plan(e, stream);
    if (e->conf.train) engine_update(e, &o);
    if (e->conf.evaluate || e->conf.decode.docs) evaluate_in(e, e->plan.eval_scratch);
    arena_clear(&e->arena[A_ACT]);
    arena_clear(&e->arena[A_SCRATCH]);
    ledger_clear(&e->be.ledger);
    return backend_prepare(&e->be, false);
}

Status engine_open(Engine *e, const ModelShape *s, const EngineConf *conf, const Stream *stream)
{
    EnginePlan plan;
    *e = (Engine){ 0 };
    TRY_CTX(engine_plan(&plan, s, conf, stream), "plan");
    Status st = open_on(e, s, conf, conf->backend, stream->shape.bytes, plan.bytes);
    e->plan = plan;
    if (!st) st = engine_ready(e, stream);
    if (st) engine_close(e);
    return st;
}

void engine_close(Engine *e)
{
    for (int i = 0; i < ARENA_N; i++)
        if (e->be.machine) backend_arena_close(&e->be, &e->arena[i]);
    model_act_close(&e->act);
    model_close(&e->model);
    backend_close(&e->be);
    *e = (Engine){ 0 };
}

void engine_upload(Engine *e, const Stream *s)
{
    if (e->ahead != s || e->ahead_fill != s->fills) {
        batch_upload(&e->batch, &e->be, s);
        return;
    }
    Batch was = e->batch;
    e->batch = e->spare, e->spare = was, e->ahead = NULL;
    e->be.machine->join(&e->be);
}

void engine_prefetch(Engine *e, const Stream *s)
{
    if (!s || !e->spare.T || !e->be.machine->ahead || e->be.sticky) return;
    e->be.machine->ahead(&e->be, true);
    batch_upload(&e->spare, &e->be, s);
    e->be.machine->ahead(&e->be, false);
    e->ahead = s, e->ahead_fill = s->fills;
}

static void forward(Engine *e, Pass pass, ArenaId scratch, const Micro *m)
{
    arena_clear(&e->arena[A_ACT]);
    arena_clear(&e->arena[A_SCRATCH]);
    e->ctx.pass = pass, e->ctx.scratch = &e->arena[scratch];
    e->act.aux = (Aux){ .form = e->conf.aux, .coeff = m->aux * e->conf.aux_coeff,
                        .z_coeff = m->z * e->conf.z_coeff, .keep = m->keep, .add = m->add };
    if (pass == FORWARD) e->act.aux.so_far = e->so_far;
    model_forward(&e->ctx, &e->model, &e->act, m->ce);
}

void engine_forward_micro(Engine *e, const Micro *m)
{
    forward(e, e->conf.train ? FORWARD : EVAL, A_SCRATCH, m);
}

void engine_forward(Engine *e, float scale)
{
    engine_forward_micro(e, &(Micro){ .ce = scale, .aux = 1, .z = 1, .add = 1 });
}

void engine_evaluate(Engine *e, float scale)
{
    forward(e, EVAL, e->plan.eval_scratch, &(Micro){ .ce = scale, .aux = 1, .z = 1, .add = 1 });
}

void engine_backward(Engine *e) { model_backward(&e->ctx, &e->model, &e->act); }

void engine_norm(Engine *e) { optim_norm(&e->model, &e->be, e->sumsq); }

void engine_apply(Engine *e, const OptimConf *conf) { optim_step(&e->model, &e->be, e->sumsq, conf); }

void engine_update(Engine *e, const OptimConf *conf)
{
    engine_norm(e);
    engine_apply(e, conf);
}

/* y absent: only the room it takes is charged, for a plan. Rows come a chunk at a time. */
void engine_logits(Engine *e, Tensor y, int64_t from)
{
    ArenaMark mark = arena_mark(&e->arena[A_SCRATCH]);
    int64_t rows = t_has(y) ? y.n[0] : e->model.head.chunk < e->batch.T ? e->model.head.chunk : e->batch.T;
    Tensor z = t2(&e->arena[A_SCRATCH], "scratch", F32, rows, e->model.head.V);
    model_logits(&e->ctx, &e->model, &e->act, z, from);
    if (t_has(y)) backend_fetch(&e->be, y.data, z);
    arena_reset(&e->arena[A_SCRATCH], mark);
}

Status engine_losses(Engine *e, Losses *l)
{
    double ce = 0;
    float out[3] = { 0 };
    backend_fetch(&e->be, &ce, e->act.loss);
    if (t_has(e->act.aux.out)) backend_fetch(&e->be, out, e->act.aux.out);
    TRY(backend_sync(&e->be));
    *l = (Losses){ .ce = ce, .aux = out[0], .z = out[1] };
    l->total = ce + (double)e->conf.aux_coeff * out[0] + (double)e->conf.z_coeff * out[1];
    return OK;
}

Status engine_grad_norm(Engine *e, double *norm)
{
    double s = 0;
    backend_fetch(&e->be, &s, e->sumsq);
    *norm = sqrt(s);
    return backend_sync(&e->be);
}
