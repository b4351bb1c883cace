/* tests/graphsteps.h -- steps of different batches, learning rates and seeds, with evaluations between them:
 * run eagerly and as graphs they must agree to the bit. */
#ifndef TESTS_GRAPHSTEPS_H
#define TESTS_GRAPHSTEPS_H

#include "small.h"
#include "statelab.h"

enum { GRAPH_STEPS = 16, GRAPH_STREAMS = 3, GRAPH_MICROS = 3 };

typedef struct GraphCase {
    const char *name;
    unsigned    pictures[GRAPH_STREAMS];     /* of the documents of each stream, see small_stream */
    int         micros;
    bool        lora, full, over_step, frozen_tower;
    DType       dtype;
    bool        fp8;                         /* the update makes codes of the weights, from split masters */
} GraphCase;

static const GraphCase graph_cases[] = {
    { "text",                 { 0, 0, 0 }, 1, false, false, false, false, F32,  false },
    { "text in bf16",         { 0, 0, 0 }, 1, false, false, false, false, BF16, false },
    { "pictures now and then", { 7, 0, 2 }, 1, false, false, false, false, BF16, false },
    { "three micro-batches",  { 7, 0, 5 }, 3, false, false, true,  false, F32,  false },
    { "recomputed layers",    { 1, 1, 3 }, 2, false, true,  false, true,  BF16, false },
    { "adapters with dropout", { 7, 0, 1 }, 2, true,  false, false, false, BF16, false },
    { "text in fp8",          { 0, 0, 0 }, 1, false, false, false, false, BF16, true },
};
enum { GRAPH_CASES = sizeof graph_cases / sizeof *graph_cases };

/* Every stream comes again, in another place of the ring. */
static const char graph_order[] = "000102012011202200112021012";

typedef struct GraphResult {
    double   loss[GRAPH_STEPS][GRAPH_MICROS], norm[GRAPH_STEPS], eval[GRAPH_STEPS];
    uint64_t state;
    GraphCounts counts;
} GraphResult;

typedef struct GraphRig {
    const GraphCase *of;
    ModelShape shape;
    Stream     s[GRAPH_STREAMS];
    Engine     e;
    WordList   words;
    const char *word[1];
} GraphRig;

static inline void graph_fp8(EngineConf *c)
{
    static const char *const words[] = { "experts", "experts_dw", "attention", "mlp" };
    EXPECT_OK(precision_set(&c->precision, PREC_FP8, words, 4));
    c->fp8_weight_cache = c->fp8_keep_wide = true;
    c->store = (OptimStore){ .moments = BF16, .split = true };
}

static inline EngineConf graph_conf(GraphRig *r, const char *backend)
{
    const Budget b = { .tokens = 96, .patches = 64, .docs = 8, .supervised = 96 };
    EngineConf c = small_conf(b);
    c.backend = backend, c.dtype = r->of->dtype, c.deterministic = c.evaluate = true;
    c.aux = AUX_LAYER, c.z_coeff = 0.01f, c.aux_over_step = r->of->over_step;
    c.ranks.micro = r->of->micros, c.frozen[G_VIT] = r->of->frozen_tower;
    if (r->of->full) c.full = (FullRecompute){ FULL_UNIFORM, 2 };
    if (r->of->fp8) graph_fp8(&c);
    r->word[0] = "all-linear", r->words = (WordList){ .n = 1, .item = r->word };
    if (r->of->lora)
        c.lora = (LoraConf){ .rank = 8, .alpha = 16, .dropout = 0.25, .target = &r->words };
    return c;
}

static inline void graph_rig_open(GraphRig *r, const GraphCase *of, const char *text)
{
    *r = (GraphRig){ .of = of, .shape = small_shape(text) };
    EngineConf c = graph_conf(r, "cpu");
    for (int i = 0; i < GRAPH_STREAMS; i++)
        small_stream(&r->s[i], &r->shape, c.budget, 0, 3 - i % 2, of->pictures[i]);
}

static inline void graph_rig_close(GraphRig *r)
{
    for (int i = 0; i < GRAPH_STREAMS; i++) stream_close(&r->s[i]);
}

static inline void graph_micro(GraphRig *r, GraphResult *t, int step, int m)
{
    Losses     l = { 0 };
    LossScales scale = { .ce = 0.01f + 0.001f * (float)step, .aux = 1.0f / (float)(1 + step), .z = 0.5f,
                         .carry = m > 0, .weight = 1.0f / (float)(m + 1),
                         .dropout_seed = (uint64_t)(10 * step + m + 1) };
    engine_upload(&r->e, &r->s[graph_order[(step + 5 * m) % 27] - '0']);
    engine_forward_micro(&r->e, &scale);
    engine_backward(&r->e);
    EXPECT_OK(engine_read_losses(&r->e, &l));
    t->loss[step][m] = l.total;
}

static inline void graph_step(GraphRig *r, GraphResult *t, int step)
{
    const float lr[GROUP_N] = { 1e-3f * (float)(step + 1), 2e-3f, 1e-2f / (float)(step + 1) };
    OptimConf o = { .adam = { .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .max_norm = 1.0f,
                              .step = step + 1 },
                    .group_lr = lr };
    Losses l = { 0 };
    engine_begin_step(&r->e, r->of->micros);
    for (int m = 0; m < r->of->micros; m++) graph_micro(r, t, step, m);
    engine_compute_grad_norm(&r->e);
    EXPECT_OK(engine_read_grad_norm(&r->e, &t->norm[step]));
    engine_apply_update(&r->e, &o);
    if (step % 4 != 3) return;
    engine_upload(&r->e, &r->s[step % GRAPH_STREAMS]);
    engine_evaluate(&r->e, 1.0f);
    EXPECT_OK(engine_read_losses(&r->e, &l));
    t->eval[step] = l.total;
}

/* All steps of an open engine with fresh weights. */
static inline GraphResult graph_run(GraphRig *r)
{
    GraphResult t = { .state = 0 };
    for (int i = 0; i < GRAPH_STEPS; i++) graph_step(r, &t, i);
    EXPECT_OK(backend_sync(&r->e.be));
    t.state = state_hash(&r->e.be, &r->e.model.params);
    t.counts = r->e.graphs.counts;
    for (int i = 0; i < ARENA_N; i++)
        EXPECT(r->e.arena[i].peak <= r->e.plan.bytes[i], "%s: arena %s above its plan", r->of->name,
               r->e.arena[i].name);
    return t;
}

/* attach: lets the open engine use graphs; NULL: it does not. */
static inline GraphResult graph_train(GraphRig *r, const EngineConf *conf, void (*attach)(Engine *e))
{
    small_engine(&r->e, &r->shape, conf, &r->s[0]);
    if (attach) attach(&r->e);
    GraphResult t = graph_run(r);
    engine_close(&r->e);
    return t;
}

static inline void graph_compare(const GraphCase *of, const GraphResult *want, const GraphResult *got)
{
    for (int i = 0; i < GRAPH_STEPS; i++)
        for (int m = 0; m < of->micros; m++)
            EXPECT(!memcmp(&want->loss[i][m], &got->loss[i][m], sizeof(double)),
                   "%s: loss of step %d, micro-batch %d: %.17g, eagerly %.17g", of->name, i, m,
                   got->loss[i][m], want->loss[i][m]);
    for (int i = 0; i < GRAPH_STEPS; i++)
        EXPECT(!memcmp(&want->norm[i], &got->norm[i], sizeof(double)) &&
                   !memcmp(&want->eval[i], &got->eval[i], sizeof(double)),
               "%s: step %d: norm %.17g, eagerly %.17g; evaluation %.17g, eagerly %.17g", of->name, i,
               got->norm[i], want->norm[i], got->eval[i], want->eval[i]);
    EXPECT(want->state == got->state, "%s: weights or moments differ", of->name);
    EXPECT(got->counts.captured > 0 && got->counts.launched > 2 * got->counts.captured,
           "%s: %d captured, %d launched, %d eagerly", of->name, (int)got->counts.captured,
           (int)got->counts.launched, (int)got->counts.eager);
}

#endif
