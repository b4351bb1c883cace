/* tests/test_lora_layouts.c -- adapters on any layout of ranks: losses, every gradient and every weight after
 * two steps against one rank. As in test_layouts.c a case that differs is repeated with other data, twice at
 * most: a token whose router logits tie may be routed differently. */
#include "modelab.h"

enum { LORA_STEPS = 2, CHANCE = 77 };

/* Results of one rank, whose engine stays open while other layouts are compared with it. */
static struct {
    double   loss[LORA_STEPS], norm[LORA_STEPS];
    Engine   e;
    const LoraConf *lora;
    uint64_t seed;
} want;

/* ---- adapted modules ---- */

static const char *const every[] = { "all-linear", "gate", "lm_head" };
static const char *const some[]  = { "q_proj", "v_proj", "down_proj", "linear_fc2",
                                     "layers.[03].mlp.experts.*" };
static const char *const saved[] = { "q_norm", "input_layernorm", "visual.merger", "layers.1.mlp",
                                     "embed_tokens", "layers.3.mlp.experts", "lm_head" };
static const WordList target_every = { every, 3 }, target_some = { some, 5 }, save_some = { saved, 7 };

/* Backward stops early: above the first pipeline stage, or inside the vision tower. */
static const char *const upper[] = { "*.layers.5.self_attn.o_proj", "*.layers.6.mlp.down_proj",
                                     "*.layers.7.mlp.experts.gate_up_proj" };
static const char *const tower[] = { "*.blocks.1.mlp.linear_fc1", "*.deepstack_merger_list.0.linear_fc2",
                                     "*.layers.4.mlp.experts.down_proj" };
static const WordList target_upper = { upper, 3 }, target_tower = { tower, 3 },
                      target_head = { every + 2, 1 };

typedef struct Kind { const char *text; LoraConf conf; } Kind;

static const Kind kinds[] = {
    { "all, each its A", { .rank = 3, .alpha = 6, .target = &target_every } },
    { "all, one A",      { .rank = 3, .alpha = 6, .target = &target_every, .shared_a = true } },
    { "some, and saved", { .rank = 4, .alpha = 4, .rslora = true, .gaussian = true, .target = &target_some,
                           .save = &save_some } },
    { "upper layers",    { .rank = 3, .alpha = 6, .target = &target_upper } },
    { "within the tower", { .rank = 3, .alpha = 6, .target = &target_tower, .shared_a = true } },
};
enum { KINDS = sizeof kinds / sizeof *kinds, DRAWN = 3 };        /* kinds that fit any number of layers */

/* Modules whose dropout mask does not depend on the layout. For experts this holds if only etp cuts them. */
static const char *const dense[] = { "self_attn.*_proj", "layers.[16].mlp.*", "gate", "lm_head" };
static const char *const sparse[] = { "experts" };
static const WordList target_dense = { dense, 4 }, target_sparse = { sparse, 1 };
static const Kind dropping[2] = {
    { "with dropout", { .rank = 3, .alpha = 6, .dropout = 0.2, .target = &target_dense } },
    { "with dropout of experts", { .rank = 3, .alpha = 6, .dropout = 0.2, .target = &target_sparse } },
};

/* A tied head. */
static const WordList target_most = { every, 2 }, save_table = { saved + 4, 1 };
static const Kind tied_kind = { "a tied table saved", { .rank = 2, .alpha = 4, .target = &target_most,
                                                       .save = &save_table } };

/* ---- against one rank ---- */

/* Gradients are of the last step, at the weights after the earlier steps. Weights that were zero initially
 * have only moved by steps of 1e-3, which amplify the rounding of small gradients. */
static void compare(const Engine *e)
{
    for (int i = 0; i < e->model.params.n; i++) {
        const Param *p = e->model.params.p[i], *q = param_in(&want.e.model, p);
        if (!q || q->frozen != p->frozen) { note("%s: one rank has no such", p->piece[0].name); continue; }
        double w = apart(p, param_weight_view(p), q->shard.w, 0.02), g = 0;
        if (!p->frozen) {
            ShardView own = { .t = shard_slice(p, p->shard.g), .at = p->shard.offset, .n = p->shard.len };
            g = apart(p, own, q->shard.g, 1e-30);
        }
        if (g > 5e-5) note("rank %d: gradients of %s differ by %.3g", e->mesh.rank, p->piece[0].name, g);
        if (w > 1e-4) note("rank %d: %s differs by %.3g", e->mesh.rank, p->piece[0].name, w);
        if (p->frozen && t_has(p->shard.g)) note("%s is frozen and has a gradient", p->piece[0].name);
    }
}

/* Dispatch through mapped memory learns on the device that rows do not fit, and the step is run again. */
static bool may_run_again(const Case *c)
{
    int i = dispatcher_find(c->rule.dispatcher);
    return i >= 0 && dispatcher_rows[i].maps && c->rank_capacity > 0;
}

/* Gradients are sent to the previous stage only if something below is trainable, which the whole model
 * decides. A plan counts the messages sent for one micro-batch, a run also those received. */
static void compare_messages(const Engine *e)
{
    const Model *whole = &want.e.model;
    int64_t out = 0, in = 0, lowest = whole->first_trainable, runs = LORA_STEPS * e->pipe.shape.micros;
    int64_t planned = e->plan.ledger.comm[GR_pp_back].calls, got = e->be.ledger.comm[GR_pp_back].calls;
    if (!whole->frozen[G_VIT] || !whole->frozen[G_ALIGNER]) lowest = -1;
    for (int i = 0; i < e->model.chunks; i++) {
        const Chunk *k = &e->model.chunk[i];
        out += !k->embeds && lowest < k->from, in += !k->heads && lowest < k->to;
    }
    bool right = may_run_again(&the_case) ? got >= runs * (out + in) : got == runs * (out + in);
    if (planned != out || !right)
        note("rank %d: %lld gradients planned, not %lld; %lld sent and received, not %lld", e->mesh.rank,
             (long long)planned, (long long)out, (long long)got, (long long)(runs * (out + in)));
}

static void rank_main(Peer *p)
{
    Engine e;
    Mesh   place;
    open_rank(&e, p, &place);
    for (int i = 0; i < LORA_STEPS; i++) {
        double loss = 0, norm = 0;
        e.dropout_seed = CHANCE + (uint64_t)i;
        Status st = step(&the_case, &e, place.at[AX_DP], i, &loss, &norm);
        if (st) note("rank %d, step %d: %s", p->rank, i, status_text());
        else if (fabs(loss - want.loss[i]) > 1e-5 * fabs(want.loss[i]) ||
                 fabs(norm - want.norm[i]) > 1e-4 * want.norm[i])
            note("rank %d, step %d: loss %.9g, one rank %.9g; norm %.9g, %.9g", p->rank, i, loss,
                 want.loss[i], norm, want.norm[i]);
    }
    shard_wait_weights(&e.shard);
    compare(&e);
    compare_messages(&e);
    mode_memory(&e, !the_case.pictures);
    engine_close(&e);
}

/* One rank, without recompute or offload. */
static void alone(const Case *c)
{
    EngineConf conf = engine_conf(c);
    policy_default(conf.policy);
    conf.full = (FullRecompute){ 0 };
    engine_close(&want.e);
    open_alone(&want.e, c, conf);
    for (int i = 0; i < LORA_STEPS; i++) {
        want.e.dropout_seed = CHANCE + (uint64_t)i;
        EXPECT_OK(step(c, &want.e, 0, i, &want.loss[i], &want.norm[i]));
    }
    want.lora = c->lora, want.seed = c->weights;
}

/* Runs the case with the data of this seed. */
static bool once(uint64_t seed)
{
    failure.any = false;
    the_case.weights = seed;
    fill(&the_case, seed);
    if (want.lora != the_case.lora || want.seed != seed) alone(&the_case);
    on_ranks((int)the_case.rule.world, 0, rank_main);
    empty(&the_case);
    return !failure.any;
}

static void compare_case(const Kind *k, uint64_t seed)
{
    bool good = false;
    the_case.lora = &k->conf;
    for (uint64_t i = 0; i < 3 && !good; i++) {
        good = once(seed + i * 1000003);
        if (!good) printf("  %s: %s\n", i < 2 ? "once more" : "and again", failure.text);
    }
    EXPECT(good, "%llu: %s, recompute %s: %s", (unsigned long long)seed, k->text, mode_text(the_case.mode),
           case_text(&the_case));
}

/* ---- layouts ---- */

static const char *const layouts[] = {
    " world=2 ep=2",   " world=2 tp=2",   " world=4 tp=4",   " world=2 etp=2",  " world=2 pp=2",
    " world=2 cp=2",   " world=2 pp=2 vpp=2",
    " world=2 zero=0", " world=4 zero=1", " world=4 zero=2", " world=4 zero=3", " world=4 zero=3 replicas=2",
    " world=4 tp=2 ep=2 zero=3",          " world=4 ep=2 etp=2 zero=1",  " world=8 tp=2 etp=2 ep=2 zero=2",
    " world=8 tp=4 etp=2 ep=2 zero=3",    " world=8 pp=2 tp=2 ep=2",     " world=8 pp=2 vpp=2 etp=2 zero=1",
    " world=8 cp=2 tp=2 ep=4 zero=3",     " world=8 etp=2 replicas=2 zero=3",
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* Every layout with one kind of the five, in turn, and every other one with recompute; TREB_KINDS=5: all. */
static void layouts_agree(void)
{
    uint64_t seed = first_seed();
    printf("  seed %llu\n", (unsigned long long)seed);
    for (uint64_t k = 0; k < KINDS; k++)
        for (uint64_t i = 0; i < LAYOUTS; i++) {
            if ((seed + i + k) % KINDS >= (uint64_t)number("TREB_KINDS", 1)) continue;
            mode_layout_case(&the_case, layouts[i], true, F32);
            the_case.mode.recompute = (seed / KINDS + i) % 2 ? "full" : NULL;
            compare_case(&kinds[k], seed);
        }
}

/* Stages below the lowest adapter, or below the head, have no backward; overlap, offload and recompute work
 * unchanged. */
static void backward_ends_on_a_stage(void)
{
    static const struct { const char *layout; int kind; Mode mode; } list[] = {
        { " world=4 pp=4",              0, { .recompute = "full" } },
        { " world=2 pp=2 vpp=2",        0, { .recompute = "norm", .offload = "core_attn" } },
        { " world=4 pp=2 vpp=2 ep=2 overlap", 0, { 0 } },
        { " world=4 pp=4 zero=1",       1, { 0 } },
    };
    static const Kind low[2] = {
        { "upper layers", { .rank = 3, .alpha = 6, .target = &target_upper } },
        { "the head",     { .rank = 3, .alpha = 6, .target = &target_head } },
    };
    uint64_t seed = first_seed() + 3;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        mode_layout_case(&the_case, list[i].layout, false, F32);
        the_case.mode = list[i].mode;
        compare_case(&low[list[i].kind], seed);
    }
}

static void ranks_have_the_same_dropout_mask(void)
{
    static const struct { const char *layout; int kind; } list[] = {
        { " world=2 tp=2", 0 },       { " world=4 tp=4", 0 },       { " world=2 pp=2", 0 },
        { " world=4 pp=2 vpp=2 tp=2", 0 },
        { " world=2 tp=2 etp=2", 1 }, { " world=4 tp=4 etp=4", 1 }, { " world=4 tp=2 etp=2 pp=2", 1 },
    };
    uint64_t seed = first_seed() + 2;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        mode_layout_case(&the_case, list[i].layout, true, F32);
        the_case.mode.recompute = i % 2 ? "full:2" : NULL;
        compare_case(&dropping[list[i].kind], seed);
    }
}

/* Models of text have no modules of a tower, and families differ in the name of the router. */
static const Kind *text_kind(const Case *c, uint64_t seed)
{
    static const char *words[3];
    static WordList    target;
    static Kind        kind;
    words[0] = every[0], words[1] = shape_names(&c->shape)->router, words[2] = every[2];
    target = (WordList){ words, 3 }, kind = kinds[seed % 2], kind.conf.target = &target;
    return &kind;
}

static const Kind *drawn_kind(const Case *c, uint64_t seed)
{
    if (!c->shape.vision.depth) return text_kind(c, seed);
    return c->shape.text.tied ? &tied_kind : &kinds[seed % DRAWN];
}

/* Random settings within the rules: dispatchers, expert chunks, overlap, offload. */
static void random_layouts_agree(void)
{
    uint64_t seed = first_seed() + 1;
    for (int i = 0; i < number("TREB_LAYOUTS", 2); i++, seed++) {
        draw_case(&the_case, seed, number("TREB_WORLD", 0), LORA_STEPS);
        change_case(&the_case);
        if (getenv("TREB_VERBOSE")) printf("  %llu: %s\n", (unsigned long long)seed, case_text(&the_case));
        compare_case(drawn_kind(&the_case, seed), seed);
    }
}

int main(void)
{
    RUN(layouts_agree);
    RUN(backward_ends_on_a_stage);
    RUN(ranks_have_the_same_dropout_mask);
    RUN(random_layouts_agree);
    engine_close(&want.e);
    return lab_report();
}
