/* The same training on any layout of ranks: losses of every step and final weights against one rank.
 *
 * Layouts are drawn at random from all that the rules allow, up to 16 ranks, as threads of this process, or on
 * as many processes as mpirun started. TREB_LAYOUTS says how many, TREB_LAYOUT_STEPS how long, TREB_SEED which;
 * the seed is printed.
 *
 * A token whose experts tie to the last bits may go another way where sums run in another order, and the curves
 * part by what one token weighs. So a case that differs is drawn again with other weights and data, twice at
 * most: what is wrong with a layout is wrong each time. */
#include "commlab.h"
#include "small.h"
#include "parallel/rules.h"
#include "train/accumulate.h"

#include <omp.h>
#include <stdarg.h>
#include <time.h>

static const char model_text[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 90, \"video_token_id\": 91, \"dtype\": \"float32\","
    " \"text_config\": {\"vocab_size\": 97, \"hidden_size\": 32, \"num_hidden_layers\": 4,"
    "  \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 12, \"intermediate_size\": 32,"
    "  \"moe_intermediate_size\": 16, \"num_experts\": 8, \"num_experts_per_tok\": 2,"
    "  \"mlp_only_layers\": [2], \"rope_theta\": 10000.0, \"attention_bias\": true, \"initializer_range\": 0.2,"
    "  \"tie_word_embeddings\": %s,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 2, 2]}},"
    " \"vision_config\": {\"depth\": 3, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 32,"
    "  \"deepstack_visual_indexes\": [0, 2]}, \"tie_word_embeddings\": %s}";

enum { STEPS = 20, MOST_STEPS = 2000, MICROS = 8, MOST = 16, BATCHES = 4 };   /* BATCHES: steps of data, in turn */

typedef struct Case {
    ModelShape shape;
    RuleInput  rule;
    bool       pictures;
    AuxForm    aux;
    int        steps;
    uint64_t   weights;                  /* seed */
    Stream     stream[BATCHES][MICROS];
} Case;

/* What a rank had, in turn and woven (RuleInput.overlap). */
typedef struct Told { double loss[MOST_STEPS], norm[MOST_STEPS]; uint64_t weights; } Told;

static Case   the_case;
static Told   told[2][4 * MOST];
static struct { double loss[MOST_STEPS], norm[MOST_STEPS]; Engine e; } want;     /* of one rank */
static struct { pthread_mutex_t lock; bool any; char text[400]; } trouble = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The first that a rank finds wrong; what follows is of the same cause. */
static void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&trouble.lock);
    if (!trouble.any) vsnprintf(trouble.text, sizeof trouble.text, fmt, ap);
    trouble.any = true;
    pthread_mutex_unlock(&trouble.lock);
    va_end(ap);
}

static const Budget budget = { .tokens = 192, .patches = 96, .docs = 16, .supervised = 160 };

/* Some micro-batches are empty, have no picture or nothing to learn. */
static void fill(Case *c, uint64_t seed)
{
    static SmallDoc doc;
    StreamShape ss = shape_stream(&c->shape);
    for (int b = 0; b < BATCHES; b++)
        for (int m = 0; m < MICROS; m++) {
            Stream *s = &c->stream[b][m];
            uint64_t key = (uint64_t)(b * MICROS + m);
            int docs = (int)rng_below(seed, 1, key, 5);
            EXPECT_OK(stream_open(s, &ss, &budget));
            for (int d = 0; d < docs; d++) {
                bool picture = c->pictures && rng_below(seed, 2, key * 8 + (uint64_t)d, 2);
                Document x = small_doc(&doc, (int)rng_below(seed, 3, key * 8 + (uint64_t)d, 5), picture,
                                       seed + key * 8 + (uint64_t)d);
                if (rng_below(seed, 4, key, 6) == 0)
                    for (int64_t i = 0; i < doc.n; i++) doc.targets[i] = -1;
                Status st = stream_add(s, &x);
                if (st && st != E_FIT) EXPECT_OK(st);
            }
        }
}

static void empty(Case *c)
{
    for (int b = 0; b < BATCHES; b++)
        for (int m = 0; m < MICROS; m++) stream_close(&c->stream[b][m]);
}

static int name_row(const Model *m, const char *name)
{
    for (int i = 0; i < m->params.n; i++)
        if (!strcmp(m->params.p[i]->piece[0].name, name)) return i;
    return -1;
}

/* How far this rank's part of a parameter is from the whole one of the rank that was alone, over its largest
 * value. */
static double apart(const Param *p, const Param *whole)
{
    Comb   comb[HELD_COMBS];
    Held   h = param_weights(p);
    double big = 1e-6, diff = 0;
    const float *all = whole->w.data;
    for (int64_t i = 0; i < param_count(whole); i++) big = fmax(big, fabs(all[i]));
    for (int k = 0, n = held_combs(comb, p, h); k < n; k++)
        for (int64_t j = 0; j < comb[k].count; j++)
            for (int64_t i = 0; i < comb[k].len; i++) {
                float mine = ((float *)h.t.data)[comb[k].local + j * comb[k].len + i];
                diff = fmax(diff, fabs((double)mine - all[comb[k].at + j * comb[k].stride + i]));
            }
    return diff / big;
}

static void compare_weights(const Engine *e)
{
    double worst = 0;
    const Param *at = NULL;
    for (int i = 0; i < e->model.params.n; i++) {
        const Param *p = e->model.params.p[i];
        int row = name_row(&want.e.model, p->piece[0].name);
        if (row < 0) { note("%s is not of the model", p->piece[0].name); continue; }
        double d = apart(p, want.e.model.params.p[row]);
        if (d > worst) worst = d, at = p;
    }
    if (worst > 1e-4) note("rank %d: weights differ by %.3g in %s", e->mesh.rank, worst, at->piece[0].name);
}

static EngineConf engine_conf(const Case *c)
{
    EngineConf conf = { .backend = "cpu", .dtype = F32, .budget = budget, .aux = c->aux,
                        .aux_coeff = c->aux ? 0.02f : 0, .z_coeff = 0.01f, .train = true };
    conf.budget.by_document = c->aux == AUX_DOCUMENT;
    policy_default(conf.policy);
    for (int i = 0; i < c->rule.recomputes; i++) EXPECT_OK(policy_drop(conf.policy, c->rule.recompute[i]));
    return conf;
}

static Status step(const Case *c, Engine *e, int dp, int number, double *loss, double *norm)
{
    int       micro = e->pipe.shape.micros;
    Stream   *mine[MICROS];
    StepSums  sums;
    OptimConf o = { .adam = { 1e-3f, 0.9f, 0.95f, 1e-5f, 0.1f, 1.0f, number + 1 } };
    for (int i = 0; i < micro; i++) mine[i] = (Stream *)&c->stream[number % BATCHES][dp * micro + i];
    TRY(engine_accumulate(e, mine, micro, &sums, NULL, NULL));
    engine_norm(e);
    TRY(engine_grad_norm(e, norm));
    engine_apply(e, &o);
    *loss = sums.total;
    return backend_sync(&e->be);
}

/* Steps of one rank of many, each against what the rank alone had. */
static bool train(const Case *c, Engine *e, int dp)
{
    for (int i = 0; i < c->steps; i++) {
        double loss = 0, norm = 0;
        Status st = step(c, e, dp, i, &loss, &norm);
        told[c->rule.overlap][e->mesh.rank].loss[i] = loss, told[c->rule.overlap][e->mesh.rank].norm[i] = norm;
        bool   good = !st && fabs(loss - want.loss[i]) <= 1e-5 * fabs(want.loss[i]);
        if (getenv("TREB_VERBOSE") && e->mesh.rank == 0)
            printf("    step %d: loss %.9g, apart by %.1e, norm by %.1e\n", i, loss, loss / want.loss[i] - 1,
                   norm / want.norm[i] - 1);
        if (good) continue;
        if (st) note("rank %d, step %d: %s", e->mesh.rank, i, status_text());
        else    note("rank %d, step %d: loss %.9g, one rank %.9g (norm %.9g, %.9g)", e->mesh.rank, i, loss,
                     want.loss[i], norm, want.norm[i]);
        return false;                                        /* what follows differs anyway */
    }
    return true;
}

/* This rank of the world: its part of the model and its place. */
static Ranks ranks_of(const Case *c, Comm *world, Mesh *place)
{
    PipeLayout cut;
    LayoutAsk  ask = rules_cut(&c->rule);
    Ranks r = { .world = world, .layout = rules_layout(&c->rule), .zero = (int)c->rule.zero,
                .context = context_kind(c->rule.cp_comm), .group = (int)c->rule.group,
                .overlap = c->rule.overlap, .dispatch = { .name = c->rule.dispatcher } };
    mesh_place(place, world->rank, world->size, &r.layout);
    r.micro = MICROS / place->size[AX_DP];
    if (layout_open(&cut, &ask)) printf("%s\n", status_text()), exit(1);
    r.layout.vpp = cut.chunks;
    for (int v = 0; v < cut.chunks; v++) {
        const LayoutPiece *k = layout_at(&cut, place->at[AX_PP], v);
        r.chunk[v] = (Chunk){ k->from, k->to, k->embedding, k->loss };
    }
    layout_close(&cut);
    return r;
}

static uint64_t sum_bits(const Arena *a)
{
    uint64_t h = 0;
    for (size_t i = 0; i + 4 <= a->used; i += 4) h = mix(h ^ *(const uint32_t *)((const char *)a->base + i));
    return h;
}

static void rank_main(Peer *p)
{
    Case      *c = &the_case;
    EngineConf conf = engine_conf(c);
    Engine     e;
    StreamShape ss = shape_stream(&c->shape);
    Stream     full = stream_full(&ss, &conf.budget);
    Mesh       place;
    omp_set_num_threads(1);
    conf.ranks = ranks_of(c, p->world, &place);
    Status st = engine_open(&e, &c->shape, &conf, &full);
    if (!st) st = model_init(&e.model, &e.be, c->weights);
    if (st) {
        printf("rank %d: %s\n", p->rank, status_text());
        comm_abort(p->world, status_text());
        exit(1);
    }
    engine_loaded(&e);
    bool lives = train(c, &e, place.at[AX_DP]);
    shard_weights(&e.shard);
    if (lives) compare_weights(&e);
    told[c->rule.overlap][p->rank].weights = sum_bits(&e.arena[A_PARAM]) ^ sum_bits(&e.arena[A_OPTIM]);
    engine_close(&e);
}

/* The engine stays open: its weights are what others are held to. */
static void alone(const Case *c)
{
    EngineConf conf = engine_conf(c);
    StreamShape ss = shape_stream(&c->shape);
    Stream full = stream_full(&ss, &conf.budget);
    conf.ranks.micro = MICROS;
    EXPECT_OK(engine_open(&want.e, &c->shape, &conf, &full));
    EXPECT_OK(model_init(&want.e.model, &want.e.be, c->weights));
    engine_loaded(&want.e);
    for (int i = 0; i < c->steps; i++) EXPECT_OK(step(c, &want.e, 0, i, &want.loss[i], &want.norm[i]));
}

static const char *case_text(const Case *c)
{
    static char t[256];
    const RuleInput *r = &c->rule;
    snprintf(t, sizeof t, "world %d: tp %d cp %d (%s) pp %d vpp %d ep %d etp %d zero %d replicas %d %s/%d aux %d%s%s",
             (int)r->world, (int)r->tp, (int)r->cp, r->cp_comm, (int)r->pp, (int)r->vpp, (int)r->ep, (int)r->etp,
             (int)r->zero, (int)r->replicas, r->dispatcher, (int)r->domain, (int)c->aux,
             c->pictures ? " pictures" : "", r->overlap ? " overlap" : "");
    return t;
}

/* Whether any rank found something. */
static bool once(Case *c, uint64_t seed)
{
    trouble.any = false;
    c->weights = seed;
    fill(c, seed);
    alone(c);
    on_ranks((int)c->rule.world, 0, rank_main);
    engine_close(&want.e);
    empty(c);
    double any = trouble.any;
    if (commlab_.mpi) comm_host_max(commlab_.mpi, &any, 1);
    return any > 0;
}

static void compare_layout(Case *c, uint64_t seed)
{
    bool bad = true;
    for (uint64_t k = 0; bad && k < 3; k++) {
        bad = once(c, seed + k * 1000003);
        if (bad && trouble.any) printf("  %s: %s\n", k < 2 ? "once more" : "and again", trouble.text);
    }
    EXPECT(!bad, "%llu: %s", (unsigned long long)seed, case_text(c));
}

static int64_t pick(uint64_t seed, uint64_t n, int64_t most)             /* a power of two up to most */
{
    int64_t k = 0;
    while ((2LL << k) <= most) k++;
    return 1LL << rng_below(seed, 7, n, (uint64_t)k + 1);
}

static ModelShape shape_of(bool tied)
{
    char text[2048];
    const char *word = tied ? "true" : "false";
    snprintf(text, sizeof text, model_text, word, word);
    return small_shape(text);
}

/* Draws until the rules agree. */
static void draw_case(Case *c, uint64_t seed, int world, int steps)
{
    static const char *const kinds[] = { "p2p", "a2a", "all_gather", "a2a+p2p" };
    static const char *const roads[] = { "alltoall", "deepep", "hybridep" };
    static const char *const drops[] = { "norm", "moe_act", "full", "core_attn" };
    static const AuxForm forms[] = { AUX_NONE, AUX_LAYER, AUX_DOCUMENT };
    for (uint64_t k = 0;; k += 32) {
        RuleInput *r = &c->rule;
        *c = (Case){ .shape = shape_of(rng_below(seed, 7, k + 14, 2)), .steps = steps };
        c->pictures = rng_below(seed, 7, k + 1, 4) > 0;
        c->aux = forms[rng_below(seed, 7, k + 2, 3)];
        const TextShape *t = &c->shape.text;
        *r = (RuleInput){ .world = pick(seed, k + 3, MOST), .tp = pick(seed, k + 4, 8), .cp = pick(seed, k + 5, 4),
                          .pp = pick(seed, k + 6, 4), .vpp = pick(seed, k + 7, 2), .ep = pick(seed, k + 8, 8),
                          .etp = pick(seed, k + 9, 4), .zero = (int64_t)rng_below(seed, 7, k + 10, 4),
                          .replicas = pick(seed, k + 11, 2), .cp_comm = kinds[rng_below(seed, 7, k + 12, 4)],
                          .layers = t->L, .heads = t->H, .kv_heads = t->G, .ffn = t->F, .experts = t->E,
                          .per_token = t->K, .expert_ffn = t->I, .renorm = t->renorm,
                          .micro_tokens = budget.tokens, .global_tokens = budget.tokens * MICROS,
                          .dispatcher = roads[rng_below(seed, 7, k + 13, 3)], .layout = "" };
        if (world) r->world = world;
        if (r->world < 2) continue;
        if (r->ep * r->etp == 1) r->dispatcher = "local";
        if (rng_below(seed, 7, k + 18, 2)) r->domain = pick(seed, k + 19, r->ep * r->etp);
        if (!strcmp(r->cp_comm, "a2a+p2p")) r->cp_sizes = 2, r->cp_size[0] = 2, r->cp_size[1] = r->cp / 2;
        if (rng_below(seed, 7, k + 15, 3) == 0) r->recompute[r->recomputes++] = drops[rng_below(seed, 7, k + 16, 4)];
        r->overlap = rng_below(seed, 7, k + 17, 2);
        if (r->overlap && !rules_legal(r)) r->overlap = false;
        if (rules_legal(r)) return;
    }
}

/* TREB_CASE="tp=2 zero=3": a drawn case with some of its numbers changed, to find out what a failure is of. */
static void change_case(Case *c)
{
    const char *text = getenv("TREB_CASE");
    RuleInput  *r = &c->rule;
    struct { const char *key; int64_t *value; } row[] = {
        { "world=", &r->world }, { "etp=", &r->etp }, { "tp=", &r->tp }, { "cp=", &r->cp }, { "vpp=", &r->vpp },
        { "pp=", &r->pp }, { "ep=", &r->ep }, { "zero=", &r->zero }, { "replicas=", &r->replicas },
    };
    for (size_t i = 0; text && i < sizeof row / sizeof *row; i++) {
        char key[16];
        snprintf(key, sizeof key, " %s", row[i].key);
        const char *at = strstr(text, key);
        if (at) *row[i].value = strtoll(at + strlen(key), NULL, 10);
    }
    if (text && strstr(text, " aux=")) c->aux = (AuxForm)atoi(strstr(text, " aux=") + 5);
    if (text && strstr(text, " overlap=")) r->overlap = atoi(strstr(text, " overlap=") + 9);
    if (text && strstr(text, " text")) c->pictures = false;
    if (text && strstr(text, " keep")) r->recomputes = 0;
    if (text && r->ep * r->etp == 1) r->dispatcher = "local";
}

static uint64_t first_seed(void)
{
    const char *s = getenv("TREB_SEED");
    return s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL);
}

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static void random_layouts(void)
{
    uint64_t seed = first_seed();
    int      steps = number("TREB_LAYOUT_STEPS", STEPS), world = commlab_.mpi ? commlab_.mpi->size : number("TREB_WORLD", 0);
    bool     speaks = !commlab_.mpi || commlab_.mpi->rank == 0;
    if (commlab_.mpi) EXPECT_OK(comm_host_first(commlab_.mpi, &seed, sizeof seed));
    if (speaks) printf("  layouts from seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < number("TREB_LAYOUTS", 6); i++, seed++) {
        draw_case(&the_case, seed, world, steps < MOST_STEPS ? steps : MOST_STEPS);
        change_case(&the_case);
        if (speaks && getenv("TREB_VERBOSE"))
            printf("  %llu: %s\n", (unsigned long long)seed, case_text(&the_case));
        compare_layout(&the_case, seed);
    }
}

static void draw_woven(Case *c, uint64_t seed, int world, int steps)
{
    do draw_case(c, seed, world, steps), seed += 1000; while (!c->rule.overlap);
}

/* With moe.overlap the same sums are taken in the same order. */
static void weaving_changes_no_bit(void)
{
    enum { DRAWN = 3, SHORT = 5 };
    uint64_t seed = first_seed();
    int      world = commlab_.mpi ? commlab_.mpi->size : 0;
    if (commlab_.mpi) EXPECT_OK(comm_host_first(commlab_.mpi, &seed, sizeof seed));
    for (int i = 0; i < DRAWN; i++, seed++) {
        Case *c = &the_case;
        bool  same = true;
        draw_woven(c, seed, world, SHORT);
        memset(told, 0, sizeof told);
        once(c, seed);
        c->rule.overlap = false;
        once(c, seed);
        for (int r = 0; r < 4 * MOST; r++) {
            same &= !memcmp(told[0][r].loss, told[1][r].loss, SHORT * sizeof(double));
            same &= !memcmp(told[0][r].norm, told[1][r].norm, SHORT * sizeof(double));
            same &= told[0][r].weights == told[1][r].weights;
        }
        EXPECT(same, "%llu: %s", (unsigned long long)seed, case_text(c));
    }
}

static int turns;                                           /* that a run gave another */
static void count_turn(void *weave) { turns += ((Weave *)weave)->both, weave_yield(weave); }

/* One rank of a world with nobody in it: a step of full micro-batches. */
static void expect_planned(const Case *c, int rank)
{
    Comm       *world;
    Engine      e;
    Mesh        place;
    EngineConf  conf = engine_conf(c);
    StreamShape ss = shape_stream(&c->shape);
    Stream      full = stream_full(&ss, &conf.budget), *micro[MICROS];
    StepSums    sums;
    size_t      act = 0;
    for (int i = 0; i < MICROS; i++) micro[i] = &full;
    EXPECT_OK(comm_open(&world, &(CommConf){ .kind = "fake", .rank = rank, .size = (int)c->rule.world }));
    conf.backend = "meta", conf.ranks = ranks_of(c, world, &place);
    EXPECT_OK(engine_open(&e, &c->shape, &conf, &full));
    e.pause.yield = count_turn, turns = 0;
    EXPECT_OK(engine_accumulate(&e, micro, conf.ranks.micro, &sums, NULL, NULL));
    EXPECT(turns > 0 || e.pipe.warmup == e.pipe.actions / 2, "nothing was woven");
    for (int i = 0; i < e.pipe.slots; i++) {
        const Arena *a = i ? &e.more[i - 1] : &e.arena[A_ACT];
        EXPECT(a->peak == e.plan.slot[i], "slot %d: run %zu, plan %zu", i, a->peak, e.plan.slot[i]);
        act += a->peak;
    }
    EXPECT(act == e.plan.bytes[A_ACT], "slots");
    EXPECT(e.beside.peak == e.plan.beside && e.plan.beside > 0 &&
               e.arena[A_SCRATCH].peak + e.beside.peak == e.plan.bytes[A_SCRATCH],
           "scratch: run %zu and %zu, plan %zu and %zu", e.arena[A_SCRATCH].peak, e.beside.peak,
           e.plan.bytes[A_SCRATCH] - e.plan.beside, e.plan.beside);
    engine_close(&e);
    comm_close(world);
}

static void weaving_is_planned(void)
{
    uint64_t seed = first_seed();
    for (int i = 0; i < 4; i++) {
        draw_woven(&the_case, seed + (uint64_t)i, 0, 1);
        for (int rank = 0; rank < the_case.rule.world; rank += (int)(the_case.rule.world / the_case.rule.pp))
            expect_planned(&the_case, rank);
    }
}

static void processes_open(void)
{
    if (!comm_launched()) return;
    if (comm_open(&commlab_.mpi, &(CommConf){ .kind = "mpi", .timeout = 60 }) ||
        backend_open(&commlab_.be, "cpu"))
        printf("%s\n", status_text()), exit(1);
    comm_bind(commlab_.mpi, &commlab_.be);
}

/* Rank 0 speaks for all. */
static int processes_close(void)
{
    int64_t failed = lab_.failed;
    if (!commlab_.mpi) return lab_report();
    comm_host_sum64(commlab_.mpi, &failed, 1);
    bool first = commlab_.mpi->rank == 0;
    comm_close(commlab_.mpi);
    backend_close(&commlab_.be);
    if (failed && !lab_.failed) lab_.failed = 1, lab_.passed = 0;
    return first ? lab_report() : 0;
}

int main(void)
{
    omp_set_num_threads(1);                                 /* ranks are threads already */
    processes_open();
    RUN(random_layouts);
    RUN(weaving_changes_no_bit);
    RUN(weaving_is_planned);
    return processes_close();
}
