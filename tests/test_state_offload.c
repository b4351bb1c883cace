/* tests/test_state_offload.c -- optimizer state in fewer bytes and in host memory: f32 and split master
 * weights, on the device or offloaded, give the same losses and the same bits on any layout of ranks; a
 * checkpoint of one form resumes in another; the plan predicts every byte. */
#include "layoutlab.h"
#include "runlab.h"
#include "statelab.h"

enum { SHORT = 4 };

typedef struct RankResult { double loss[SHORT], norm[SHORT]; uint64_t state; } RankResult;
static RankResult results[MOST];
static int64_t chunks;                   /* of rank 0 */

/* A rank takes the planned bytes, a step takes no more, and its copies are as planned. */
static void check_memory(const Engine *e, size_t pushes, const LedgerHost *moved)
{
    size_t now = 0;
    for (int i = 0; i < ARENA_N; i++) {
        now += (size_t)e->arena[i].pushes * (i < A_BATCH || i == A_HOST);
        if ((i < A_BATCH || i == A_HOST) && engine_arena_peak(e, (ArenaId)i) != e->plan.bytes[i])
            note("rank %d, %s: %zu bytes, planned %zu", e->mesh.rank, e->arena[i].name,
                 engine_arena_peak(e, (ArenaId)i), e->plan.bytes[i]);
    }
    if (now != pushes) note("rank %d: a step took memory", e->mesh.rank);
    if (moved->in != e->plan.step_ledger.host.in || moved->out != e->plan.step_ledger.host.out)
        note("rank %d: %lld bytes in, %lld out; planned %lld, %lld", e->mesh.rank, (long long)moved->in,
             (long long)moved->out, (long long)e->plan.step_ledger.host.in,
             (long long)e->plan.step_ledger.host.out);
}

static size_t pushes_of(const Engine *e)
{
    size_t n = 0;
    for (int i = 0; i < ARENA_N; i++) n += (size_t)e->arena[i].pushes * (i < A_BATCH || i == A_HOST);
    return n;
}

static void rank_main(Peer *p)
{
    Case  *c = &the_case;
    Engine e;
    Mesh   place;
    RankResult  *t = &results[p->rank];
    open_rank(&e, p, &place);
    size_t pushes = pushes_of(&e);
    for (int i = 0; i < SHORT; i++) {
        LedgerHost was = e.be.ledger.host;
        if (step(c, &e, place.at[AX_DP], i, &t->loss[i], &t->norm[i])) note("%s", status_text());
        LedgerHost now = { e.be.ledger.host.in - was.in, e.be.ledger.host.out - was.out };
        bool all = true;                                     /* a tower without images is not stepped */
        for (int k = 0; k < e.model.params.n; k++) {
            const Param *q = e.model.params.p[k];
            all &= q->step.has_grad || q->unused;
        }
        if (all || !c->store.offload_fraction) check_memory(&e, pushes, &now);
    }
    shard_wait_weights(&e.shard);
    t->state = state_hash(&e.be, &e.model.params);
    if (!p->rank) chunks = e.shard.chunks;
    engine_close(&e);
}

static bool same_result(const RankResult *a, const RankResult *b)
{
    return !memcmp(a->loss, b->loss, sizeof a->loss) && !memcmp(a->norm, b->norm, sizeof a->norm) &&
           a->state == b->state;
}

static const char *store_text(const OptimStore *o)
{
    static char t[96];
    snprintf(t, sizeof t, "%s moments, %s gradients%s, %g offloaded, chunks of %lld",
             dtype_name(o->moments), dtype_name(o->grads), o->split ? ", split masters" : "",
             o->offload_fraction, (long long)o->offload_chunk);
    return t;
}

/* The case with its state stored in two ways: every rank has the same losses, norms and final state. */
static void compare_stores(Case *c, const OptimStore *other, int others)
{
    RankResult want[MOST];
    c->store = (OptimStore){ .moments = other[0].moments, .grads = other[0].grads };
    on_ranks((int)c->rule.world, 0, rank_main);
    memcpy(want, results, sizeof want);
    EXPECT(!failure.any, "%s: %s", case_text(c), failure.text);
    for (int i = 0; i < others; i++) {
        bool same = true;
        c->store = other[i], failure.any = false;
        memset(results, 0, sizeof results);
        on_ranks((int)c->rule.world, 0, rank_main);
        for (int r = 0; r < c->rule.world; r++) same &= same_result(&results[r], &want[r]);
        EXPECT(same && !failure.any, "%s: %s: %s", case_text(c), store_text(&other[i]),
               failure.any ? failure.text : "another result");
        EXPECT((chunks > 0) == (other[i].offload_fraction > 0), "%lld chunks", (long long)chunks);
    }
}

static Case *four_ranks(int zero, bool pictures, uint64_t seed)
{
    Case *c = &the_case;
    *c = (Case){ .shape = shape_of(zero % 2), .pictures = pictures, .aux = AUX_LAYER, .weights = seed };
    const TextShape *t = &c->shape.text;
    c->rule = (RuleInput){ .world = 4, .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = 2, .etp = 1, .zero = zero,
                           .replicas = 1, .cp_comm = "p2p", .layers = t->L, .heads = t->H, .kv_heads = t->G,
                           .ffn = t->I, .experts = t->E, .per_token = t->K, .expert_ffn = t->F,
                           .renorm = t->renorm, .micro_tokens = budget.tokens,
                           .global_tokens = budget.tokens * MICROS, .dispatcher = "alltoall", .layout = "" };
    EXPECT(rules_legal(&c->rule), "%s", case_text(c));
    fill(c, seed);
    return c;
}

static void every_level(void)
{
    uint64_t seed = first_seed();
    printf("  seed %llu\n", (unsigned long long)seed);
    for (int k = 0; k < 8; k++) {                            /* every level with text and with images */
        static const DType types[] = { F32, BF16, U8 };
        DType m = types[(k + k / 4) % 3];
        DType g = k / 2 % 2 ? BF16 : F32;
        OptimStore narrow[] = { { m, true, 0, 0, g }, { m, true, 0.3, 256, g }, { m, false, 1, 700, g } };
        OptimStore wide = { m, false, k % 2 ? 1 : 0.3, k % 2 ? 0 : 300, F32 };
        Case *c = four_ranks(k % 4, k >= 4, seed + (uint64_t)k);
        c->dtype = BF16;
        if (k % 4 == k / 4 || number("TREB_LAYOUTS", 0)) compare_stores(c, narrow, 3);
        else                                             compare_stores(c, &narrow[1 + k % 2], 1);
        c->dtype = F32;
        if (k % 2) compare_stores(c, &wide, 1);
        empty(c);
    }
}

/* Blocks of coded moments are those of whole parameters at every level: losses have the same bits wherever
 * the slices of ranks begin. Levels 2 and 3 sum over ranks in every micro-batch, levels 0 and 1 once a step:
 * a last bit of a gradient may select another code, so that their losses are near each other. */
static void sharding_leaves_blocks_whole(void)
{
    RankResult want[MOST];
    uint64_t   seed = first_seed() + 5;
    Case      *c = four_ranks(0, false, seed);
    c->dtype = BF16, c->store = (OptimStore){ .moments = U8, .split = true };
    for (int zero = 0; zero < 4; zero++) {
        c->rule.zero = zero, failure.any = false;
        memset(results, 0, sizeof results);
        on_ranks((int)c->rule.world, 0, rank_main);
        EXPECT(!failure.any, "zero %d: %s", zero, failure.text);
        for (int r = 0; zero == 2 && r < c->rule.world; r++)
            for (int i = 0; i < SHORT; i++)
                EXPECT(off_by(results[r].loss[i], want[r].loss[i]) < 1e-3,
                       "zero 2, rank %d, step %d: %g, %g", r, i, results[r].loss[i], want[r].loss[i]);
        if (zero % 2 == 0) memcpy(want, results, sizeof want);
        for (int r = 0; r < c->rule.world; r++)
            EXPECT(!memcmp(results[r].loss, want[r].loss, sizeof want[r].loss),
                   "zero %d, rank %d: other losses", zero, r);
    }
    empty(c);
}

/* Gradients in bf16: at every level losses are near those with gradients in f32, but not those. */
static void rounded_gradients_stay_near(void)
{
    RankResult want[MOST];
    uint64_t   seed = first_seed() + 6;
    for (int zero = 0; zero < 4; zero++) {
        Case *c = four_ranks(zero, zero % 2, seed);
        c->dtype = BF16;
        for (int rounds = 0; rounds < 2; rounds++) {
            c->store = (OptimStore){ .split = true, .grads = rounds ? BF16 : F32 }, failure.any = false;
            memset(results, 0, sizeof results);
            on_ranks((int)c->rule.world, 0, rank_main);
            EXPECT(!failure.any, "zero %d: %s", zero, failure.text);
            if (!rounds) memcpy(want, results, sizeof want);
        }
        for (int r = 0; r < c->rule.world; r++)
            for (int i = 0; i < SHORT; i++)
                EXPECT(off_by(results[r].loss[i], want[r].loss[i]) < 0.01, "zero %d, step %d: %g, not %g",
                       zero, i, results[r].loss[i], want[r].loss[i]);
        EXPECT(results[0].state != want[0].state, "zero %d: gradients are not rounded", zero);
        empty(c);
    }
}

/* Random layouts of pipeline, tensor and data parallelism with recompute. No activations are offloaded: every
 * byte between host and device is optimizer state, whose size is known. */
static void drawn_layouts(void)
{
    uint64_t seed = first_seed();
    printf("  layouts from seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < number("TREB_LAYOUTS", 4); i++, seed++) {
        Case *c = &the_case;
        static const DType types[] = { F32, BF16, U8 };
        DType m = types[rng_below(seed, 20, 0, 3)];
        draw_case(c, seed, 0, SHORT);
        c->rule.offloads = 0;
        change_case(c);
        c->weights = seed, c->dtype = rng_below(seed, 20, 1, 4) ? BF16 : F32;
        fill(c, seed);
        if (getenv("TREB_VERBOSE"))
            printf("  %llu: %s\n", (unsigned long long)seed, case_text(c)), fflush(stdout);
        double share = (double)(1 + rng_below(seed, 20, 3, 4)) / 4;
        OptimStore other = { m, c->dtype == BF16 && rng_below(seed, 20, 2, 2), share,
                             rng_below(seed, 20, 4, 2) ? 300 : 0,
                             c->dtype == BF16 && rng_below(seed, 20, 5, 2) ? BF16 : F32 };
        compare_stores(c, &other, 1);
        empty(c);
    }
}

/* ---- bytes ---- */

static EnginePlan plan_of(DType dtype, OptimStore store)
{
    EnginePlan p;
    ModelShape s = shape_of(false);
    EngineConf conf = { .backend = "cpu", .dtype = dtype, .budget = budget, .train = true, .store = store };
    StreamShape ss = shape_stream(&s);
    Stream full = stream_full(&ss, &conf.budget);
    policy_default(conf.policy);
    EXPECT_OK(engine_plan(&p, &s, &conf, &full));
    return p;
}

/* Twelve, eight or six bytes of state for a parameter, plus the alignment of the arena. */
static void bytes_of_a_parameter(void)
{
    static const struct { DType dtype; OptimStore store; size_t each; } row[] = {
        { BF16, { F32, false, 0, 0, F32 }, 12 },  { BF16, { BF16, false, 0, 0, F32 }, 8 },
        { BF16, { BF16, true, 0, 0, BF16 }, 6 },  { BF16, { F32, true, 0, 0, F32 }, 10 },
        { F32, { F32, false, 0, 0, F32 }, 8 },    { F32, { BF16, false, 0, 0, F32 }, 4 },
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        EnginePlan p = plan_of(row[i].dtype, row[i].store);
        OptimStore o = row[i].store;
        size_t n = p.bytes[A_PARAM] / dtype_size(row[i].dtype), optim = p.bytes[A_OPTIM] - 2 * ARENA_ALIGN;
        double each = (double)optim / (double)n;
        EXPECT(fabs(each - (double)row[i].each) < 0.02 * (double)row[i].each && !p.bytes[A_HOST],
               "row %zu: %.2f bytes a parameter", i, each);
        o.offload_fraction = 1, o.offload_chunk = 256;
        EnginePlan q = plan_of(row[i].dtype, o);
        size_t ring = 3 * 256 * row[i].each;
        EXPECT(q.bytes[A_HOST] + q.bytes[A_OPTIM] == p.bytes[A_OPTIM] + ring && q.bytes[A_OPTIM] < 3 * ring,
               "row %zu: %zu on the host and %zu, %zu without", i, q.bytes[A_HOST], q.bytes[A_OPTIM],
               p.bytes[A_OPTIM]);
        /* The arena's alignment accounts for the difference. */
        double moved = (double)q.step_ledger.host.in / (double)q.bytes[A_HOST];
        EXPECT(q.step_ledger.host.in == q.step_ledger.host.out && moved <= 1 && moved > 0.98 &&
                   !p.step_ledger.host.in,
               "row %zu: %lld bytes in, %zu in the arena", i, (long long)q.step_ledger.host.in,
               q.bytes[A_HOST]);
        o.offload_fraction = 0.3;
        q = plan_of(row[i].dtype, o);
        double share = (double)q.bytes[A_HOST] / (double)(p.bytes[A_OPTIM]);
        EXPECT(share >= 0.29 && share < 0.6, "row %zu: a fraction of %.2f is offloaded", i, share);
        EXPECT(engine_device_bytes(&q, "cuda") + q.bytes[A_HOST] ==
                   engine_device_bytes(&q, "cpu") + q.workspace, "sums");
    }
}

/* ---- a run that is interrupted ---- */

static RunLab lab;

static uint64_t run_of(const char *name, const char *words)
{
    Config  c;
    Trainer t;
    char    text[5000];
    snprintf(text, sizeof text, "model.dtype=bfloat16\ntrain.max_steps=6\n%s", words);
    runlab_recipe(&c, &lab, name, text);
    EXPECT_OK(runlab_train(&c, &t));
    uint64_t h = state_hash(&t.engine.be, &t.engine.model.params);
    trainer_close(&t);
    config_close(&c);
    return h;
}

/* Three steps with one store and three with another equal a run that never stopped. */
static void goes_on_in_another_way(void)
{
    static const char *const way[] = {
        "optim.master=float32\nmemory.optimizer_offload=0\n",
        "optim.master=split\nmemory.optimizer_offload=0\n",
        "optim.master=split\nmemory.optimizer_offload=1\n",
        "optim.master=float32\nmemory.optimizer_offload=0.4\n",
    };
    static const char *const types[] = { "", "optim.state_dtype=bfloat16\noptim.grad_dtype=bfloat16\n",
                                         "optim.state_dtype=int8\n" };
    for (int narrow = 0; narrow < 3; narrow++) {
        const char *type = types[narrow];
        char whole[16];
        snprintf(whole, sizeof whole, "whole%d", narrow);
        uint64_t want = run_of(whole, type);
        for (int i = 0; i < 4; i++) {
            char name[32], first[300], then[5000];
            const char *other = way[(i + 1 + narrow) % 4];
            snprintf(name, sizeof name, "cut%d%d", narrow, i);
            snprintf(first, sizeof first, "%s%scheckpoint.save_steps=3\ncheckpoint.async=%s\n", type, way[i],
                     i % 2 ? "true" : "false");
            uint64_t all = run_of(name, first);
            EXPECT(all == want, "%s another state than with f32 masters on the device", way[i]);
            Path from;
            EXPECT_OK(path_join(from, lab_path(name), "checkpoint-3"));
            EXPECT_OK(checkpoint_verify(from));
            snprintf(then, sizeof then, "%s%scheckpoint.resume_from_checkpoint=%s\n", type, other, from);
            snprintf(name, sizeof name, "on%d%d", narrow, i);
            EXPECT(run_of(name, then) == want, "%sthen %sanother state", way[i], other);
        }
    }
}

/* A checkpoint with moments of one type resumes with the other. */
static void moments_change_their_type(void)
{
    Path from;
    run_of("f", "checkpoint.save_steps=3\n");
    run_of("h", "checkpoint.save_steps=3\noptim.state_dtype=bfloat16\noptim.master=split\n");
    for (int i = 0; i < 2; i++) {
        char words[5000];
        EXPECT_OK(path_join(from, lab_path(i ? "h" : "f"), "checkpoint-3"));
        snprintf(words, sizeof words, "checkpoint.resume_from_checkpoint=%s\n%s", from,
                 i ? "" : "optim.state_dtype=bfloat16\noptim.master=split\nmemory.optimizer_offload=1\n");
        run_of(i ? "h2f" : "f2h", words);
    }
}

int main(void)
{
    omp_set_num_threads(1);
    processes_open();
    RUN(every_level);
    RUN(drawn_layouts);
    RUN(sharding_leaves_blocks_whole);
    RUN(rounded_gradients_stay_near);
    if (!commlab_.mpi) {
        runlab_open(&lab, 40);
        RUN(bytes_of_a_parameter);
        RUN(goes_on_in_another_way);
        RUN(moments_change_their_type);
        runlab_close(&lab);
    }
    return processes_close();
}
