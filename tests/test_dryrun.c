/* tests/test_dryrun.c -- a run takes exactly the planned bytes, for any layout, recompute, offload, adapters
 * and pictures; and makes the planned calls for shards. */
#include "modelab.h"
#include "plan/dryrun.h"

enum { DOCS = 16, DOC = 12, TALL = 4, WIDE = 2 }; /* documents of a stream, tokens of one; patches */

static const char *const words[] = { "norm", "core_attn", "qkv", "moe_act", "moe_dispatch", "moe", "mlp",
                                     "vision_act", "vision", "full" };
enum { WORDS = sizeof words / sizeof *words };

static Budget full_budget(const Case *c)
{
    Budget b = budget;
    b.patches = c->pictures ? DOCS * TALL * WIDE : 0, b.supervised = b.tokens;
    return b;
}

/* Streams that fill their budgets to the last row: every document has a picture, as many as ranks can
 * share, and every token is trained: no rank has less than its share. */
static void fill_full(Case *c, uint64_t seed)
{
    static float pixels[TALL * WIDE * SMALL_PIXELS];
    int32_t     ids[DOC], targets[DOC];
    VisualSlice       slice = { TALL, WIDE, pixels };
    StreamShape ss = shape_stream(&c->shape);
    Budget      b = full_budget(c);
    rng_fill_normal(pixels, TALL * WIDE * SMALL_PIXELS, seed, 1, 0, 0.0f, 1.0f);
    for (int m = 0; m < BATCHES * MICROS; m++) {
        Stream *s = &c->stream[m / MICROS][m % MICROS];
        EXPECT_OK(stream_open(s, &ss, &b));
        for (int d = 0; d < DOCS; d++) {
            for (int i = 0; i < DOC; i++) {
                ids[i] = (int32_t)rng_below(seed, (uint64_t)m, (uint64_t)(d * DOC + i), 90);
                targets[i] = ids[i];
                if (c->pictures && i >= 3 && i < 3 + TALL * WIDE / 4) ids[i] = 90;
            }
            Document x = { DOC, ids, targets, c->pictures, &slice };
            EXPECT_OK(stream_add(s, &x));
        }
        EXPECT(s->tokens == b.tokens && s->patches == b.patches && s->supervised == b.supervised &&
                   s->docs == b.docs,
               "not full: %lld %lld %lld %lld", (long long)s->tokens, (long long)s->patches,
               (long long)s->supervised, (long long)s->docs);
    }
}

/* The router decides whether experts run in chunks: a plan includes the memory of chunks. */
static bool as_planned(const Case *c, int arena, size_t ran, size_t planned)
{
    return arena == A_SCRATCH && c->rank_capacity > 0 ? ran <= planned : ran == planned;
}

static void compare_arenas(const Case *c, const Engine *e, int rank)
{
    for (int i = 0; i < ARENA_N; i++) {
        const char *name = engine_arena_label((ArenaId)i);
        size_t ran = engine_arena_peak(e, (ArenaId)i), plan = e->plan.bytes[i], sum = 0;
        for (int k = 0; k < ARENA_LABELS; k++) sum += e->plan.label[i][k].bytes;
        if (sum != plan) note("rank %d: labels of %s add up to %zu of %zu", rank, name, sum, plan);
        if (!as_planned(c, i, ran, plan)) note("rank %d: %s: run %zu, plan %zu", rank, name, ran, plan);
    }
    for (int i = 0; i < e->pipe.slots; i++) {
        const Arena *a = i ? &e->slot_act[i - 1] : &e->arena[A_ACT];
        if (a->peak != e->plan.slot[i])
            note("rank %d: slot %d of %d: run %zu, plan %zu", rank, i, e->pipe.slots, a->peak,
                 e->plan.slot[i]);
    }
}

static void open_full(Engine *e, Peer *p, Mesh *place)
{
    Case       *c = &the_case;
    EngineConf  conf = engine_conf(c);
    StreamShape ss = shape_stream(&c->shape);
    conf.budget.patches = full_budget(c).patches, conf.budget.supervised = full_budget(c).supervised;
    Stream full = stream_full(&ss, &conf.budget);
    omp_set_num_threads(1);
    conf.ranks = ranks_of(c, p->world, place);
    Status st = engine_open(e, &c->shape, &conf, &full);
    if (!st) st = model_init(&e->model, &e->be, c->weights);
    if (st) printf("rank %d: %s\n", p->rank, status_text()), exit(1);
    engine_publish_weights(e);
    e->dropout_seed = 1;
}

static void rank_main(Peer *p)
{
    Case  *c = &the_case;
    Engine e;
    Mesh   place;
    double loss, norm;
    Status st = OK;
    open_full(&e, p, &place);
    for (int i = 0; i < c->steps && !st; i++) st = step(c, &e, place.at[AX_DP], i, &loss, &norm);
    if (st) note("rank %d: %s", p->rank, status_text());
    compare_arenas(c, &e, p->rank);
    engine_close(&e);
}

/* Recompute words that the rules allow together. */
static void draw_words(Case *c, uint64_t seed)
{
    RuleInput *r = &c->rule;
    int        n = (int)rng_below(seed, 8, 0, 4);
    r->recomputes = 0;
    for (int i = 0; i < n; i++) {
        r->recompute[r->recomputes++] = words[rng_below(seed, 8, (uint64_t)i + 1, WORDS)];
        if (!rules_legal(r)) r->recomputes--;
    }
}

/* Labels that are offloaded unless they are recomputed, and types of optimizer state. */
static void draw_offload(Case *c, uint64_t seed)
{
    static const char *const offloads[] = {
        "moe", "layer", "attn_norm", "core_attn", "vision", "mlp", "norm"
    };
    static const double away[] = { 0, 0, 0.5, 1 };
    EngineConf  conf = { 0 };
    const char *offload = offloads[rng_below(seed, 9, 0, 7)];
    EXPECT_OK(recompute_case(&conf, &c->rule));
    if (rng_below(seed, 9, 1, 2) && !offload_words(conf.policy, offload)) c->mode.offload = offload;
    if (c->mode.offload && rng_below(seed, 9, 2, 2)) c->mode.resident = 0.5;
    if (rng_below(seed, 9, 3, 3) == 0) c->dtype = BF16;
    c->store.moments = (DType[]){ F32, BF16, U8 }[rng_below(seed, 9, 4, 3)];
    c->store.split = c->dtype == BF16 && rng_below(seed, 9, 5, 2);
    c->store.offload_fraction = away[rng_below(seed, 9, 6, 4)];
}

/* In some cases the weights are frozen, and adapters train on all, on some or on the last layer only. */
static void draw_adapters(Case *c, uint64_t seed)
{
    static const char *const targets[] = { "all-linear", "experts", "all-attention", "vision", "layers.3.*" };
    static const char *target;
    static WordList    list;
    static LoraConf lora;
    target = targets[rng_below(seed, 10, 0, 5)];
    if (!c->shape.vision.depth && !strcmp(target, "vision")) target = "all-linear";
    list = (WordList){ &target, 1 };
    lora = (LoraConf){ .rank = 1 + (int64_t)rng_below(seed, 10, 1, 8), .alpha = 8, .target = &list,
                          .shared_a = rng_below(seed, 10, 2, 2),
                          .dropout = rng_below(seed, 10, 3, 2) ? 0.1 : 0 };
    if (rng_below(seed, 10, 4, 2)) c->lora = &lora;
}

static void plan_equals_run(void)
{
    uint64_t seed = first_seed();
    printf("  plans from seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < number("TREB_PLANS", 30); i++, seed++) {
        Case *c = &the_case;
        failure.any = false;
        draw_case(c, seed, 0, 1);
        draw_words(c, seed);
        draw_offload(c, seed);
        draw_adapters(c, seed);
        if (getenv("TREB_VERBOSE")) printf("  %llu: %s\n", (unsigned long long)seed, case_text(c));
        fflush(stdout);
        fill_full(c, seed);
        on_ranks((int)c->rule.world, 0, rank_main);
        empty(c);
        EXPECT(!failure.any, "%llu: %s offloads %s away %g adapters %s: %s", (unsigned long long)seed,
               case_text(c), c->mode.offload ? c->mode.offload : "nothing", c->store.offload_fraction,
               c->lora ? c->lora->target->item[0] : "none", failure.text);
    }
}

/* ---- calls of ZeRO ---- */

static bool is_of_shards(int group)
{
    return group == GR_shard_dp_cp || group == GR_shard_tp_dp_cp || group == GR_shard_edp;
}

/* The second step, whose first weights the one before has asked for. */
static void sharded_rank(Peer *p)
{
    Engine e;
    Mesh   place;
    double loss, norm;
    open_full(&e, p, &place);
    Status st = step(&the_case, &e, place.at[AX_DP], 0, &loss, &norm);
    Ledger before = e.be.ledger;
    if (!st) st = step(&the_case, &e, place.at[AX_DP], 1, &loss, &norm);
    if (st) note("rank %d: %s", p->rank, status_text());
    for (int g = 0; g < LEDGER_GROUPS; g++) {
        const LedgerComm *each = &e.plan.ledger.comm[g], *rest = &e.plan.step_ledger.comm[g];
        int64_t micros = e.pipe.shape.micros, planned = micros * each->calls + rest->calls;
        int64_t ran = e.be.ledger.comm[g].calls - before.comm[g].calls;
        if (is_of_shards(g) && ran != planned)
            note("rank %d: %s: %lld calls, planned %lld", p->rank, group_name((GroupId)g), (long long)ran,
                 (long long)planned);
    }
    engine_close(&e);
}

static void calls_of_shards(void)
{
    static const char *const layouts[] = { " world=2 zero=3", " world=4 zero=3 ep=2", " world=4 zero=3 tp=2",
                                           " world=2 zero=2", " world=4 zero=3 replicas=2" };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        mode_layout_case(&the_case, layouts[i], false, F32);
        failure.any = false;
        fill_full(&the_case, 7 + i);
        on_ranks((int)the_case.rule.world, 0, sharded_rank);
        empty(&the_case);
        EXPECT(!failure.any, "%s: %s", layouts[i], failure.text);
    }
}

int main(void)
{
    RUN(plan_equals_run);
    RUN(calls_of_shards);
    return lab_report();
}
