/* tests/modelab.h -- recompute and offload must not change what a step computes: training with and without
 * them gives the same bits, on one rank and on layouts of threads, and uses as much memory as was planned. */
#ifndef TESTS_MODELAB_H
#define TESTS_MODELAB_H

#include "layoutlab.h"
#include "lazylab.h"
#include "engine/engine_private.h"

/* Eight layers, so that groups do not divide chunks; one of them dense, features that join after two. */
static const char deep_text[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 90, \"video_token_id\": 91,"
    " \"dtype\": \"float32\","
    " \"text_config\": {\"vocab_size\": 97, \"hidden_size\": 32, \"num_hidden_layers\": 8,"
    "  \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 12, \"intermediate_size\": 32,"
    "  \"moe_intermediate_size\": 16, \"num_experts\": 4, \"num_experts_per_tok\": 2,"
    "  \"mlp_only_layers\": [1, 6], \"rope_theta\": 10000.0, \"attention_bias\": true,"
    "  \"initializer_range\": 0.2,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 2, 2]}},"
    " \"vision_config\": {\"depth\": 3, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 32,"
    "  \"deepstack_visual_indexes\": [0, 2]}}";

enum { MODE_STEPS = 2 };

static inline const char *mode_text(Mode m)
{
    static __thread char text[160];
    snprintf(text, sizeof text, "%s%s%s%s", m.recompute ? m.recompute : "",
             m.recompute && m.offload ? ", " : "", m.offload ? "offload " : "", m.offload ? m.offload : "");
    return *text ? text : "nothing";
}

/* ---- one rank ---- */

/* Budgets that these documents fill to the last row. */
static inline Budget mode_budget(const ModelShape *shape, unsigned pictures)
{
    static const Budget roomy = { .tokens = 120, .patches = 64, .docs = 6, .supervised = 100 };
    Stream s;
    small_stream(&s, shape, roomy, 0, 3, pictures);
    Budget b = { .tokens = s.tokens, .patches = s.patches, .docs = s.docs, .supervised = s.supervised };
    stream_close(&s);
    return b;
}

/* What one forward and backward left. */
typedef struct Left { double loss; char *grads; size_t bytes, act, scratch, host; LedgerHost moved; } Left;

static inline void left_close(Left *l) { free(l->grads); }

static inline void expect_planned(const Engine *e, const char *what)
{
    for (int i = 0; i < ARENA_N; i++)
        EXPECT(engine_arena_peak(e, i) == e->plan.bytes[i], "%s: %s: run %zu, plan %zu", what,
               e->arena[i].name, engine_arena_peak(e, i), e->plan.bytes[i]);
    EXPECT(!memcmp(e->be.ledger.op, e->plan.ledger.op, sizeof e->plan.ledger.op),
           "%s: calls, FLOPs or bytes differ by op", what);
    EXPECT(!memcmp(e->be.ledger.by_part, e->plan.ledger.by_part, sizeof e->plan.ledger.by_part),
           "%s: or by part", what);
    EXPECT(e->be.ledger.host.in == e->plan.ledger.host.in && e->be.ledger.host.out == e->plan.ledger.host.out,
           "%s: bytes to and from the host differ", what);
}

/* An engine, some parts of which may be frozen, runs one micro-batch twice: the second run starts from the
 * state that the first left. */
static inline Left mode_alone(Mode m, DType dtype, unsigned pictures, const bool *frozen)
{
    ModelShape shape = small_shape(deep_text);
    EngineConf conf = small_conf(mode_budget(&shape, pictures));
    Stream s;
    Engine e;
    Left   l = { 0 };
    omp_set_num_threads(1); /* the model is too small for more threads */
    conf.dtype = dtype;
    for (int i = 0; frozen && i < GROUP_N; i++) conf.frozen[i] = frozen[i];
    EXPECT_OK(mode_apply(&conf, m));
    small_stream(&s, &shape, conf.budget, 0, 3, pictures);
    small_engine(&e, &shape, &conf, &s);
    l.loss = small_step(&e, 0.1f).total;
    engine_begin_step(&e, 1);
    ledger_clear(&e.be.ledger);
    engine_forward(&e, 0.1f);
    engine_backward(&e);
    EXPECT_OK(backend_sync(&e.be));
    expect_planned(&e, mode_text(m));
    shard_finish_grads(&e.shard);
    l.bytes = e.arena[A_GRAD].used;
    l.act = engine_arena_peak(&e, A_ACT), l.scratch = engine_arena_peak(&e, A_SCRATCH);
    l.host = engine_arena_peak(&e, A_HOST), l.moved = e.be.ledger.host;
    l.grads = malloc(l.bytes + 1);
    memcpy(l.grads, e.arena[A_GRAD].base, l.bytes);
    engine_close(&e);
    stream_close(&s);
    return l;
}

static inline void expect_same(const Left *got, const Left *want, const char *what)
{
    EXPECT(got->loss == want->loss, "%s: loss %.9g, not %.9g", what, got->loss, want->loss);
    EXPECT(got->bytes == want->bytes && !memcmp(got->grads, want->grads, want->bytes),
           "%s: gradients differ", what);
}

/* ---- ranks ---- */

typedef struct ModeSeen { double loss[MODE_STEPS], norm[MODE_STEPS]; uint64_t weights; } ModeSeen;

static ModeSeen mode_seen[MOST];
static int64_t  mode_said[MOST];                       /* calls to other ranks */
static int64_t  mode_chunked[MOST];                     /* MoE layers that ran in chunks */

static inline uint64_t mode_bits(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i + 4 <= bytes; i += 4) h = mix(h ^ *(const uint32_t *)((const char *)data + i));
    return h;
}

/* The slices of this rank, not the buffers of gathered weights: which unit is left in which of them differs
 * between modes. */
static inline uint64_t mode_weights(const Engine *e)
{
    uint64_t h = mode_bits(0, e->arena[A_OPTIM].base, e->arena[A_OPTIM].used);
    for (int i = 0; i < e->shard.buckets; i++) {
        const ShardBucket *b = &e->shard.bucket[i];
        Tensor w = t_has(b->own_w) ? b->own_w : b->w;
        h = mode_bits(h, w.data, (size_t)t_bytes(w));
    }
    return h;
}

/* Micro-batches of text fill every row that was planned, in chunks too; the number of images varies, and that
 * of labels, for which the head takes rows: with overlap a forward has scratch of its own, and the head is
 * its peak. test_dryrun fills these too, and requires equal bytes everywhere. */
static inline void mode_memory(Engine *e, bool exact)
{
    for (int i = 0; i < ARENA_N; i++) {
        size_t run = engine_arena_peak(e, i), plan = e->plan.bytes[i];
        bool   filled = exact && (i != A_SCRATCH || !engine_overlaps(e));
        if (filled ? run != plan : run > plan)
            note("rank %d: %s: run %zu, plan %zu", e->mesh.rank, e->arena[i].name, run, plan);
    }
}

static inline void mode_rank(Peer *p)
{
    Case     *c = &the_case;
    ModeSeen *seen = &mode_seen[p->rank];
    Engine    e;
    Mesh      place;
    open_rank(&e, p, &place);
    if (c->mode.late) lazy_make(&e.be);
    for (int i = 0; i < MODE_STEPS; i++) {
        Status st = step(c, &e, place.at[AX_DP], i, &seen->loss[i], &seen->norm[i]);
        if (st) note("rank %d, step %d: %s", p->rank, i, status_text());
    }
    shard_wait_weights(&e.shard);
    seen->weights = mode_weights(&e);
    mode_memory(&e, !c->pictures);
    mode_said[p->rank] = 0, mode_chunked[p->rank] = e.be.ledger.chunked_layers;
    for (int i = 0; i < LEDGER_GROUPS; i++) mode_said[p->rank] += e.be.ledger.comm[i].calls;
    engine_close(&e);
}

/* A layout by the words that TREB_CASE has too: "tp=2 zero=3". */
static inline RuleInput mode_rule(const TextShape *t, const char *text)
{
    RuleInput r = { .world = 1, .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = 1, .etp = 1, .replicas = 1,
                    .cp_comm = "p2p", .layers = t->L, .heads = t->H, .kv_heads = t->G, .ffn = t->I,
                    .experts = t->E, .per_token = t->K, .expert_ffn = t->F, .renorm = t->renorm,
                    .micro_tokens = budget.tokens, .global_tokens = budget.tokens * MICROS, .layout = "",
                    .recompute_method = "uniform", .recompute_layers = 1, .tower = true };
    case_words(&r, text);
    r.dispatcher = r.ep * r.etp == 1 ? "local" : "alltoall";
    r.overlap = strstr(text, " overlap") != NULL;
    return r;
}

/* The case that open_rank opens, but for its data; the layout must be legal. capacity=1: experts hold an
 * even share of the rows, and their layers run in chunks. */
static inline void mode_layout_case(Case *c, const char *layout, bool pictures, DType dtype)
{
    *c = (Case){ .shape = small_shape(deep_text), .steps = MODE_STEPS, .dtype = dtype, .pictures = pictures,
                 .aux = AUX_LAYER };
    c->rule = mode_rule(&c->shape.text, layout);
    if (strstr(layout, " capacity=")) c->rank_capacity = atof(strstr(layout, " capacity=") + 10);
    EXPECT_OK(rules_check(&c->rule, NULL));
}

static inline void mode_case(const char *layout, bool pictures, DType dtype, uint64_t seed)
{
    mode_layout_case(&the_case, layout, pictures, dtype);
    the_case.weights = seed;
    fill(&the_case, seed);
}

/* One training on the case with a mode; seen: by rank. */
static inline void mode_train(ModeSeen *seen, Mode m)
{
    failure.any = false, the_case.mode = m;
    on_ranks((int)the_case.rule.world, 0, mode_rank);
    memcpy(seen, mode_seen, sizeof mode_seen);
}

static inline void mode_layout(const char *layout, bool pictures, DType dtype, uint64_t seed,
                               const Mode *mode, int n)
{
    static ModeSeen want[MOST], got[MOST];
    mode_case(layout, pictures, dtype, seed);
    mode_train(want, (Mode){ 0 });
    for (int i = 0; i < n; i++) {
        mode_train(got, mode[i]);
        EXPECT(!failure.any, "%s, %s: %s", layout, mode_text(mode[i]), failure.text);
        for (int r = 0; r < (int)the_case.rule.world; r++)
            EXPECT(!memcmp(&got[r], &want[r], sizeof *got), "%s, %s, seed %llu: rank %d trains another model "
                   "(loss %.9g, not %.9g)", layout, mode_text(mode[i]), (unsigned long long)seed, r,
                   got[r].loss[MODE_STEPS - 1], want[r].loss[MODE_STEPS - 1]);
    }
    empty(&the_case);
}

typedef struct ModeLayout { const char *text; bool pictures, bf16; } ModeLayout;

/* Six modes, three of them on every other layout. */
static inline void mode_layouts(const ModeLayout *layout, size_t n, const Mode six[6])
{
    uint64_t seed = first_seed();
    printf("  layouts with seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < n; i++)
        mode_layout(layout[i].text, layout[i].pictures, layout[i].bf16 ? BF16 : F32, seed + i,
                    six + i % 2 * 3, 3);
}

#endif
