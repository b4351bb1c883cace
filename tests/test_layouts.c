/* The same training on any layout of ranks: losses of every step and final weights equal those on one
 * rank; no step hangs, however uneven images, labels and experts are; moe.overlap changes no bit.
 *
 * TREB_LAYOUTS sets the number of layouts, TREB_LAYOUT_STEPS of steps, TREB_UNEVEN of steps of uneven data.
 *
 * If two experts of a token tie to the last bits, another order of summation may select the other expert, and
 * the losses differ by the weight of one token. So a case that differs is repeated with other weights and
 * data, at most twice: an error in a layout shows each time. */
#include "layoutlab.h"

/* The results of a rank in the two runs whose bits are compared. */
typedef struct RankResult { double loss[MOST_STEPS], norm[MOST_STEPS]; uint64_t weights; } RankResult;

static RankResult   result[2][4 * MOST];
static int          current;                               /* the run at work: an index of `result` */
static struct { double loss[MOST_STEPS], norm[MOST_STEPS]; Engine e; } want;     /* of one rank */

static void compare_weights(const Engine *e)
{
    double worst = 0;
    const Param *at = NULL;
    for (int i = 0; i < e->model.params.n; i++) {
        const Param *p = e->model.params.p[i], *q = param_in(&want.e.model, p);
        if (!q) { note("%s is not of the model", p->piece[0].name); continue; }
        double d = apart(p, param_weight_view(p), q->shard.w, 1e-6);
        if (d > worst) worst = d, at = p;
    }
    if (worst > 1e-4) note("rank %d: weights differ by %.3g in %s", e->mesh.rank, worst, at->piece[0].name);
}

/* Steps of one rank of many, each compared with a single rank. */
static bool train(const Case *c, Engine *e, int dp)
{
    for (int i = 0; i < c->steps; i++) {
        double loss = 0, norm = 0;
        Status st = step(c, e, dp, i, &loss, &norm);
        result[current][e->mesh.rank].loss[i] = loss;
        result[current][e->mesh.rank].norm[i] = norm;
        bool   good = !st && fabs(loss - want.loss[i]) <= 1e-5 * fabs(want.loss[i]);
        if (getenv("TREB_VERBOSE") && e->mesh.rank == 0)
            printf("    step %d: loss %.9g, off by %.1e, norm by %.1e; %lld chunked expert layers so far\n",
                   i, loss, loss / want.loss[i] - 1, norm / want.norm[i] - 1,
                   (long long)e->be.ledger.chunked_layers);
        if (good) continue;
        if (st) note("rank %d, step %d: %s", e->mesh.rank, i, status_text());
        else    note("rank %d, step %d: loss %.9g, one rank %.9g (norm %.9g, %.9g)", e->mesh.rank, i, loss,
                     want.loss[i], norm, want.norm[i]);
        return false;                                        /* later steps differ anyway */
    }
    return true;
}

static uint64_t sum_bits(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i + 4 <= bytes; i += 4) h = mix(h ^ *(const uint32_t *)((const char *)data + i));
    return h;
}

/* Of what this rank updates, and of its optimizer state. */
static uint64_t weight_bits(const Engine *e)
{
    uint64_t h = sum_bits(0, e->arena[A_OPTIM].base, e->arena[A_OPTIM].used);
    for (int i = 0; i < e->model.params.n; i++) {
        const Param *p = e->model.params.p[i];
        Tensor own = shard_slice(p, p->shard.w);
        if (t_count(own)) h = sum_bits(h, own.data, (size_t)t_bytes(own));
    }
    return h;
}

static void rank_main(Peer *p)
{
    Case  *c = &the_case;
    Engine e;
    Mesh   place;
    open_rank(&e, p, &place);
    bool lives = train(c, &e, place.at[AX_DP]);
    shard_wait_weights(&e.shard);
    if (lives) compare_weights(&e);
    result[current][p->rank].weights = weight_bits(&e);
    engine_close(&e);
}

/* The engine stays open: the others are compared with its weights. */
static void alone(const Case *c)
{
    open_alone(&want.e, c, engine_conf(c));
    for (int i = 0; i < c->steps; i++) EXPECT_OK(step(c, &want.e, 0, i, &want.loss[i], &want.norm[i]));
}

/* Whether any rank found a difference. */
static bool differs(Case *c, uint64_t seed)
{
    failure.any = false;
    c->weights = seed;
    fill(c, seed);
    alone(c);
    on_ranks((int)c->rule.world, 0, rank_main);
    engine_close(&want.e);
    empty(c);
    return any_rank_differs();
}

static void random_layouts(void)
{
    uint64_t seed = first_seed();
    int      steps = number("TREB_LAYOUT_STEPS", STEPS);
    int      world = commlab_.mpi ? commlab_.mpi->size : number("TREB_WORLD", 0);
    bool     prints = !commlab_.mpi || commlab_.mpi->rank == 0;
    if (commlab_.mpi) EXPECT_OK(comm_host_broadcast(commlab_.mpi, &seed, sizeof seed));
    if (prints) printf("  layouts from seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < number("TREB_LAYOUTS", 6); i++, seed++) {
        draw_case(&the_case, seed, world, steps < MOST_STEPS ? steps : MOST_STEPS);
        change_case(&the_case);
        if (prints && getenv("TREB_VERBOSE"))
            printf("  %llu: %s\n", (unsigned long long)seed, case_text(&the_case));
        expect_layout_agrees(&the_case, seed, differs, "");
    }
}

/* Draws cases until one is as wanted. false: the family that TREB_FAMILY gives has none. */
static bool draw_wanted(Case *c, uint64_t seed, int world, int steps, bool (*wanted)(const Case *c))
{
    for (int i = 0; i < 300; i++, seed += 1000) {
        draw_case(c, seed, world, steps);
        if (wanted(c)) return true;
    }
    return false;
}

static bool has_delta_nets(const Case *c) { return c->shape.text.gdn.every > 0; }
static bool has_tp(const Case *c)         { return c->rule.tp > 1; }
static bool overlaps(const Case *c)       { return c->rule.overlap; }
static bool overlaps_alone(const Case *c) { return c->rule.overlap && c->rule.pp == 1; }
static bool overlaps_ep(const Case *c)    { return c->rule.overlap && c->rule.ep > 1; }

/* One step of one rank of many, from equal weights: loss and norm of the gradients. */
static void first_step_main(Peer *p)
{
    const Case *c = &the_case;
    Engine e;
    Mesh   place;
    double loss = 0, norm = 0;
    open_rank(&e, p, &place);
    if (step(c, &e, place.at[AX_DP], 0, &loss, &norm)) note("rank %d: %s", p->rank, status_text());
    if (!(off_by(loss, want.loss[0]) <= 1e-6 && off_by(norm, want.norm[0]) <= 3e-3))
        note("rank %d: loss %.9g, one rank %.9g; norm %.9g, one rank %.9g", p->rank, loss, want.loss[0], norm,
             want.norm[0]);
    engine_close(&e);
}

/* With the eps of real models the norm after a delta rule multiplies the rounding of small outputs by up to
 * 1000: gradients of one step differ by 1e-3 from those in f64, here and in PyTorch, and later steps are not
 * comparable. The loss of the first step is. */
static void delta_nets_with_a_small_eps(void)
{
    uint64_t seed = first_seed() + 9000;
    if (commlab_.mpi) SKIP("a layout has its own number of ranks");
    for (int i = 0; i < number("TREB_LAYOUTS", 2) && i < 20; i++) {
        if (!draw_wanted(&the_case, ++seed, 0, 1, has_delta_nets)) SKIP("a family without delta nets");
        the_case.shape.text.eps = 1e-6, the_case.weights = seed, failure.any = false;
        fill(&the_case, seed);
        alone(&the_case);
        on_ranks((int)the_case.rule.world, 0, first_step_main);
        engine_close(&want.e);
        empty(&the_case);
        EXPECT(!failure.any, "%llu: %s: %s", (unsigned long long)seed, case_text(&the_case), failure.text);
    }
}

/* In turn, ranks lack images, labels or tokens: every step ends, with the same finite loss on all ranks. */
static void uneven_main(Peer *p)
{
    Engine e;
    Mesh   place;
    open_rank(&e, p, &place);
    for (int i = 0; i < the_case.steps; i++) {
        double loss = 0, norm = 0, most;
        Status st = step(&the_case, &e, place.at[AX_DP], i, &loss, &norm);
        most = loss;
        comm_host_max(e.mesh.comm[GR_world], &most, 1);
        if (!st && isfinite(loss) && most == loss) continue;
        note("rank %d, step %d: loss %.9g of at most %.9g, %s", p->rank, i, loss, most,
             st ? status_text() : "");
        break;
    }
    engine_close(&e);
}

static void uneven_ranks_never_hang(void)
{
    enum { EACH = 12 };
    uint64_t seed = first_seed() + 77;
    int      world = commlab_.mpi ? commlab_.mpi->size : number("TREB_WORLD", 0);
    if (commlab_.mpi) EXPECT_OK(comm_host_broadcast(commlab_.mpi, &seed, sizeof seed));
    for (int done = 0; done < number("TREB_UNEVEN", 4 * EACH); done += EACH, seed++) {
        draw_case(&the_case, seed, world, EACH);
        the_case.weights = seed;
        failure.any = false;
        fill(&the_case, seed);
        on_ranks((int)the_case.rule.world, 0, uneven_main);
        empty(&the_case);
        EXPECT(!failure.any, "%llu: %s: %s", (unsigned long long)seed, case_text(&the_case), failure.text);
    }
}

/* Without moe.overlap and chunks over tp the same sums are taken in the same order. */
static void expect_same_bits(Case *c, uint64_t seed)
{
    bool same = true;
    memset(result, 0, sizeof result);
    current = 1, differs(c, seed);
    c->rule.overlap = false, c->tp_chunks = 1;
    current = 0, differs(c, seed);
    for (int r = 0; r < 4 * MOST; r++) {
        same &= !memcmp(result[0][r].loss, result[1][r].loss, (size_t)c->steps * sizeof(double));
        same &= !memcmp(result[0][r].norm, result[1][r].norm, (size_t)c->steps * sizeof(double));
        same &= result[0][r].weights == result[1][r].weights;
    }
    const RankResult *mine = &result[0][commlab_.mpi ? commlab_.mpi->rank : 0];
    bool any = false;                    /* a drawn step may have no labels at all */
    for (int i = 0; i < c->steps; i++) any |= mine->loss[i] > 0;
    EXPECT(same && any, "%llu: %s", (unsigned long long)seed, case_text(c));
}

static void overlap_changes_no_bit(void)
{
    enum { DRAWN = 3, SHORT = 5 };
    uint64_t seed = first_seed();
    int      world = commlab_.mpi ? commlab_.mpi->size : 0;
    if (commlab_.mpi) EXPECT_OK(comm_host_broadcast(commlab_.mpi, &seed, sizeof seed));
    for (int i = 0; i < DRAWN; i++, seed++) {
        if (!draw_wanted(&the_case, seed, world, SHORT, overlaps)) SKIP("no layouts of the family do");
        expect_same_bits(&the_case, seed);
    }
}

static void tp_chunks_change_no_bit(void)
{
    enum { DRAWN = 3, SHORT = 2 };
    uint64_t seed = first_seed();
    int      world = commlab_.mpi ? commlab_.mpi->size : 0;
    if (commlab_.mpi) EXPECT_OK(comm_host_broadcast(commlab_.mpi, &seed, sizeof seed));
    for (int i = 0; i < DRAWN; i++, seed++) {
        if (!draw_wanted(&the_case, seed, world, SHORT, has_tp)) SKIP("a family without tp");
        the_case.tp_chunks = 2 + i;
        expect_same_bits(&the_case, seed);
    }
}

/* The two passes share buffers of gathered weights (zero 3), which are fewer than the layers. */
static void overlap_shares_weight_buffers(void)
{
    enum { LAYERS = 9, SHORT = 2 };
    uint64_t seed = first_seed();
    int      world = commlab_.mpi ? commlab_.mpi->size : 0;
    if (commlab_.mpi) EXPECT_OK(comm_host_broadcast(commlab_.mpi, &seed, sizeof seed));
    for (int zero = 2; zero <= 3; zero++, seed++) {
        if (!draw_wanted(&the_case, seed, world, SHORT, overlaps_alone)) SKIP("no layouts of the family do");
        the_case.shape = shape_with(the_case.shape.text.tied, LAYERS);
        the_case.rule.layers = LAYERS, the_case.rule.zero = zero;
        expect_same_bits(&the_case, seed);
    }
}

/* While the exchange of one micro-batch is in flight, the other micro-batch makes any number of calls in the
 * same groups, one for each transfer of each chunk of an expert layer. */
static void overlapped_chunks_change_no_bit(void)
{
    enum { DRAWN = 2, SHORT = 2 };
    uint64_t seed = first_seed();
    int      world = commlab_.mpi ? commlab_.mpi->size : 0;
    if (commlab_.mpi) EXPECT_OK(comm_host_broadcast(commlab_.mpi, &seed, sizeof seed));
    for (int i = 0; i < DRAWN; i++, seed++) {
        RuleInput *r = &the_case.rule;
        if (!draw_wanted(&the_case, seed, world, SHORT, overlaps_ep)) SKIP("no layouts of the family do");
        r->dispatcher = i & 1 ? "deepep_peer" : "hybridep";
        if (i & 1) r->domain = r->etp * (r->ep > 2 && r->ep % 2 == 0 ? 2 : 1);
        the_case.rank_capacity = least_capacity(r);
        expect_same_bits(&the_case, seed);
    }
}

static int turns;                                           /* yields from one micro-batch to the other */
static void count_turn(void *coroutine)
{
    turns += ((Coroutine *)coroutine)->both, coroutine_yield(coroutine);
}

/* One rank of a fake world: a step of full micro-batches. */
static void expect_planned(const Case *c, int rank)
{
    Comm       *world;
    Engine      e;
    Mesh        place;
    EngineConf  conf = engine_conf(c);
    StreamShape ss = shape_stream(&c->shape);
    Stream      full = stream_full(&ss, &conf.budget), *micro[MICROS];
    StepSums    sums;
    for (int i = 0; i < MICROS; i++) micro[i] = &full;
    EXPECT_OK(comm_open(&world, &(CommConf){ .kind = "fake", .rank = rank, .size = (int)c->rule.world }));
    conf.backend = "meta", conf.ranks = ranks_of(c, world, &place);
    EXPECT_OK(engine_open(&e, &c->shape, &conf, &full));
    e.yielder.yield = count_turn, turns = 0;
    EXPECT_OK(pipeline_run(&e, &(PipelineStep){ .micro = micro, .n = conf.ranks.micro }, &sums));
    EXPECT(turns > 0 || e.pipe.warmup == e.pipe.actions / 2, "no micro-batches overlapped");
    for (int i = 0; i < e.pipe.slots; i++) {
        const Arena *a = i ? &e.slot_act[i - 1] : &e.arena[A_ACT];
        EXPECT(a->peak == e.plan.slot[i], "slot %d: run %zu, plan %zu", i, a->peak, e.plan.slot[i]);
    }
    for (ArenaId i = A_ACT; i < ARENA_N; i++)
        EXPECT(engine_arena_peak(&e, i) == e.plan.bytes[i], "%s: run %zu, plan %zu", engine_arena_label(i),
               engine_arena_peak(&e, i), e.plan.bytes[i]);
    EXPECT(e.overlap_scratch.peak == e.plan.overlap_scratch && e.plan.overlap_scratch > 0,
           "scratch of overlap: run %zu, plan %zu", e.overlap_scratch.peak, e.plan.overlap_scratch);
    engine_close(&e);
    comm_close(world);
}

static void overlap_is_planned(void)
{
    uint64_t seed = first_seed();
    for (int i = 0; i < 4; i++) {
        if (!draw_wanted(&the_case, seed + (uint64_t)i, 0, 1, overlaps)) SKIP("no layouts of the family do");
        for (int rank = 0; rank < the_case.rule.world; rank += (int)(the_case.rule.world / the_case.rule.pp))
            expect_planned(&the_case, rank);
    }
}

int main(void)
{
    omp_set_num_threads(1);                                 /* ranks are threads already */
    processes_open();
    RUN(random_layouts);
    RUN(delta_nets_with_a_small_eps);
    RUN(uneven_ranks_never_hang);
    RUN(overlap_changes_no_bit);
    RUN(overlap_shares_weight_buffers);
    RUN(tp_chunks_change_no_bit);
    RUN(overlapped_chunks_change_no_bit);
    RUN(overlap_is_planned);
    return processes_close();
}
