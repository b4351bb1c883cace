/* Decoding on any layout of ranks: the tokens of every document, greedy and sampled ones, equal those of one
 * rank, and so do the losses of its rows. Replicas have uneven numbers of documents and pictures, some none.
 * No arena exceeds its plan.
 *
 * TREB_DECODE_LAYOUTS sets the number of random layouts; TREB_SEED and TREB_CASE are those of layoutlab.h. */
#include "layoutlab.h"

#include "infer/generate.h"

enum { DOCS = 5, GROW = 4, NEW = GROW + 1, STREAMS = MICROS - 1 };

/* Of stream i: tokens of each document by greedy and by sampled decoding, losses of the supervised rows, and
 * their sum by engine_evaluate. */
typedef struct Decoded { Ids out[2][DOCS]; float loss[160]; double ce; } Decoded;

static Decoded want[STREAMS];
static Stream  nothing;                  /* a stream without a document */
static bool    trains, drops;            /* the engines can train too; in training experts have a capacity */

static EngineConf decode_conf(const Case *c)
{
    EngineConf conf = engine_conf(c);
    conf.decode = (DecodeCapacity){ DOCS, GROW };
    conf.train = conf.evaluate = trains, conf.capacity = drops ? 1 : 0;
    return conf;
}

static Status decode_stream(Generator *g, const Stream *s, Decoded *d)
{
    for (int sampled = 0; sampled < 2; sampled++) {
        GenerateConf how = { .max_new = NEW, .vocab = 90, .stop = { 7, 8, 9 }, .stops = 3 };
        if (sampled) how.temperature = 1.5, how.top_p = 0.9, how.seed = 11;
        TRY(decode_prompts(&g->decode, s, NULL));
        if (!sampled) TRY(decode_row_losses(&g->decode, d->loss));
        for (int i = 0; i < DOCS; i++) d->out[sampled][i].n = 0;
        TRY(generate_answers(g, &how, s->docs, NULL, d->out[sampled]));
    }
    return OK;
}

/* In an engine that trains: the loss as its evaluations take it, 0 on ranks that do not have it. */
static Status evaluate_stream(Engine *e, const Stream *s, Decoded *d)
{
    Losses l = { 0 };
    if (!trains) return OK;
    engine_upload(e, s);
    engine_evaluate(e, 1.0f);
    TRY(engine_read_losses(e, &l));
    return d->ce = l.ce, OK;
}

static void decoded_close(Decoded *d)
{
    for (int i = 0; i < 2 * DOCS; i++) ids_close(&d->out[i / DOCS][i % DOCS]);
}

static const Stream *stream_at(const Case *c, int i) { return i < STREAMS ? &c->stream[0][i] : &nothing; }

static void compare(const Engine *e, int stream, const Stream *s, const Decoded *got)
{
    const Decoded *w = &want[stream];
    for (int i = 0; i < 2 * DOCS; i++) {
        const Ids *a = &got->out[i / DOCS][i % DOCS], *b = &w->out[i / DOCS][i % DOCS];
        if (a->n != b->n || (a->n && memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v)))
            note("rank %d, stream %d, document %d: %s tokens differ", e->mesh.rank, stream, i % DOCS,
                 i < DOCS ? "greedy" : "sampled");
    }
    if (trains && !drops && got->ce != 0 && !(fabs(got->ce - w->ce) <= 1e-5 * (1 + fabs(w->ce))))
        note("rank %d, stream %d: evaluated to %.9g, not %.9g", e->mesh.rank, stream, got->ce, w->ce);
    for (int64_t i = 0; i < s->supervised; i++)
        if (!(fabsf(got->loss[i] - w->loss[i]) <= 2e-5f * (1 + fabsf(w->loss[i]))))
            note("rank %d, stream %d: the loss of row %d is %.7g, not %.7g", e->mesh.rank, stream, (int)i,
                 (double)got->loss[i], (double)w->loss[i]);
}

static void check_arenas(const Engine *e)
{
    for (int a = 0; a < ARENA_N; a++)
        if (engine_arena_peak(e, (ArenaId)a) > e->plan.bytes[a])
            note("rank %d: %s takes %zu bytes of %zu", e->mesh.rank, e->arena[a].name,
                 engine_arena_peak(e, (ArenaId)a), e->plan.bytes[a]);
}

static void rank_main(Peer *p)
{
    Case     *c = &the_case;
    Engine    e;
    Mesh      place;
    Generator g;
    Decoded   got = { 0 };
    open_rank_with(&e, p, &place, decode_conf(c));
    Status st = generator_open(&g, &e);
    int at = place.at[AX_DP], dp = place.size[AX_DP];
    for (int first = 0; !st && first < STREAMS; first += dp) {
        const Stream *s = stream_at(c, first + at);
        st = decode_stream(&g, s, &got);
        if (!st) st = evaluate_stream(&e, s, &got);
        if (!st && first + at < STREAMS) compare(&e, first + at, s, &got);
    }
    if (st) note("rank %d: %s", p->rank, status_text());
    check_arenas(&e);
    decoded_close(&got);
    generator_close(&g);
    engine_close(&e);
}

static void decode_alone(const Case *c)
{
    Engine    e;
    Generator g;
    open_alone(&e, c, decode_conf(c));
    EXPECT_OK(generator_open(&g, &e));
    for (int i = 0; i < STREAMS; i++) {
        EXPECT_OK(decode_stream(&g, stream_at(c, i), &want[i]));
        EXPECT_OK(evaluate_stream(&e, stream_at(c, i), &want[i]));
    }
    check_arenas(&e);
    generator_close(&g);
    engine_close(&e);
}

/* Whether any rank found a difference. */
static bool differs(Case *c, uint64_t seed)
{
    StreamShape ss = shape_stream(&c->shape);
    Budget      limits = budget_of(c);
    limits.by_document = c->aux >= AUX_DOCUMENT;
    failure.any = false;
    c->weights = seed;
    fill(c, seed);
    EXPECT_OK(stream_open(&nothing, &ss, &limits));
    decode_alone(c);
    on_ranks((int)c->rule.world, 0, rank_main);
    for (int i = 0; i < STREAMS; i++) decoded_close(&want[i]);
    stream_close(&nothing);
    empty(c);
    return any_rank_differs();
}

/* cp cuts sequences, which decoding does not. */
static void draw_without_cp(Case *c, uint64_t *seed, int world)
{
    do draw_case(c, ++*seed, world, 1);
    while (c->rule.cp > 1);
}

static void random_layouts(void)
{
    uint64_t seed = first_seed();
    int      world = commlab_.mpi ? commlab_.mpi->size : number("TREB_WORLD", 0);
    if (commlab_.mpi) EXPECT_OK(comm_host_broadcast(commlab_.mpi, &seed, sizeof seed));
    printf("  layouts from seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < number("TREB_DECODE_LAYOUTS", 4); i++) {
        draw_without_cp(&the_case, &seed, world);
        change_case(&the_case);
        trains = i % 2, drops = i % 4 == 3;
        if (getenv("TREB_VERBOSE")) printf("  %llu: %s\n", (unsigned long long)seed, case_text(&the_case));
        expect_layout_agrees(&the_case, seed, differs, trains ? " in training" : "");
    }
}

/* Each way to cut a model with pictures, alone and in pairs. */
static void named_layouts(void)
{
    static const char *const cases[] = {
        " world=2 tp=2",       " world=2 ep=2",       " world=2 pp=2",
        " world=2 zero=3",     " world=2 zero=0",     " world=4 ep=2",
        " world=4 tp=2 pp=2",  " world=8 tp=8",       " world=4 pp=2 vpp=2",
        " world=4 ep=2 etp=2", " world=4 tp=2 ep=4 zero=3", " world=4 pp=2 ep=2 zero=3",
        " world=4 ep=4 peer",  " world=4 ep=4 zero=3 peer", " world=4 ep=4 domain=2 deepep_peer",
    };
    uint64_t seed = first_seed() + 5000;
    if (commlab_.mpi) SKIP("a layout has its own number of ranks");
    if (number("TREB_FAMILY", 0)) SKIP("models of other families have no pictures");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RuleInput *r = &the_case.rule;
        do draw_without_cp(&the_case, &seed, 2);
        while (!r->tower);
        r->tp = r->pp = r->vpp = r->ep = r->etp = r->replicas = 1, r->zero = 1, r->domain = 0;
        r->overlap = false, r->recomputes = r->offloads = 0, r->recompute_method = "uniform";
        r->recompute_layers = 1, the_case.pictures = true, the_case.rank_capacity = 0;
        case_words(r, cases[i]);
        r->dispatcher = strstr(cases[i], "deepep") ? "deepep_peer" : strstr(cases[i], "peer") ? "peer"
                      : r->ep * r->etp > 1 ? "auto" : "local";
        trains = i % 2, drops = i % 4 == 1;
        EXPECT(rules_legal(r), "%s is not legal", cases[i]);
        expect_layout_agrees(&the_case, seed, differs, trains ? " in training" : "");
    }
}

int main(void)
{
    processes_open();
    RUN(named_layouts);
    RUN(random_layouts);
    return processes_close();
}
