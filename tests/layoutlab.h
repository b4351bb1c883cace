/* tests/layoutlab.h -- random layouts of ranks that the rules allow, a small model and data
 * for them, and the ranks themselves: threads of this process, or the processes that mpirun started. The seed
 * is printed; TREB_SEED sets it. */
#ifndef TESTS_LAYOUTLAB_H
#define TESTS_LAYOUTLAB_H

#include "commlab.h"
#include "family_texts.h"
#include "small.h"
#include "parallel/rules.h"
#include "engine/pipeline_run.h"

#include <omp.h>
#include <stdarg.h>
#include <time.h>

static const char model_text[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 90, \"video_token_id\": 91,"
    " \"dtype\": \"float32\","
    " \"text_config\": {\"vocab_size\": 97, \"hidden_size\": 32, \"num_hidden_layers\": %d,"
    "  \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 12, \"intermediate_size\": 32,"
    "  \"moe_intermediate_size\": 16, \"num_experts\": 8, \"num_experts_per_tok\": 2,"
    "  \"mlp_only_layers\": [2], \"rope_theta\": 10000.0, \"attention_bias\": true,"
    "  \"initializer_range\": 0.2,"
    "  \"tie_word_embeddings\": %s,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 2, 2]}},"
    " \"vision_config\": {\"depth\": 3, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 32,"
    "  \"deepstack_visual_indexes\": [0, 2]}, \"tie_word_embeddings\": %s}";

/* BATCHES: different steps of data, which repeat in turn. */
enum { STEPS = 8, MOST_STEPS = 2000, MICROS = 8, MOST = 16, BATCHES = 4 };

/* Recompute and offload of activations, as words of memory.recompute and memory.offload; late: lazylab.h;
 * fp8: every product of nn/precision.def runs in 8 bits, weights being quantised once a step, or with `anew`
 * for each product; micro: they run in this format; packed: tokens travel to experts in 8 bits; one: weights
 * are kept in one layout. base: frozen weights of experts, attention, feed-forwards and mergers are in these
 * codes, and decoded a few rows at a time. */
typedef struct Mode {
    const char *recompute, *offload;
    double      resident;
    bool        late, fp8, anew, packed, one, beside;
    Precision   micro;                   /* PREC_BF16: not */
    CodeFormat  base;
} Mode;

typedef struct Case {
    ModelShape shape;
    RuleInput  rule;
    bool       pictures;
    DType      dtype;
    OptimStore store;
    Mode       mode;                     /* in addition to the rule's */
    AuxForm    aux;
    double     rank_capacity;       /* least: expert layers are chunked; 0: the default */
    int        tp_chunks;
    int        steps;
    uint64_t   weights;                  /* seed */
    const LoraConf *lora;             /* NULL: full training */
    Stream     stream[BATCHES][MICROS];
} Case;

static Case the_case;                                      /* of all ranks: read-only while they run */
static struct {
    pthread_mutex_t lock;
    bool            any;
    char            text[400];
} failure = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The first difference that a rank finds; later ones have the same cause. */
static inline void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static inline void note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&failure.lock);
    if (!failure.any) vsnprintf(failure.text, sizeof failure.text, fmt, ap);
    failure.any = true;
    pthread_mutex_unlock(&failure.lock);
    va_end(ap);
}

static const Budget budget = { .tokens = 192, .patches = 96, .docs = 16, .supervised = 160 };

static inline Budget budget_of(const Case *c)
{
    Budget b = budget;
    if (!c->pictures) b.patches = 0;
    return b;
}

/* Some micro-batches are empty or have no images or no labels. */
static inline void fill(Case *c, uint64_t seed)
{
    static SmallDoc doc;
    StreamShape ss = shape_stream(&c->shape);
    for (int b = 0; b < BATCHES; b++)
        for (int m = 0; m < MICROS; m++) {
            Stream *s = &c->stream[b][m];
            uint64_t key = (uint64_t)(b * MICROS + m);
            int docs = (int)rng_below(seed, 1, key, 5);
            Budget limits = budget_of(c);
            EXPECT_OK(stream_open(s, &ss, &limits));
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

static inline void empty(Case *c)
{
    for (int b = 0; b < BATCHES; b++)
        for (int m = 0; m < MICROS; m++) stream_close(&c->stream[b][m]);
}

/* Words of all formats, and those of fp8_block alone. */
static const char *const fp8_words[] = { "experts", "attention", "mlp", "tower", "mergers", "head",
                                         "experts_dw" };
enum { FP8_WORDS = sizeof fp8_words / sizeof *fp8_words, CODED_WORDS = FP8_WORDS - 1 };

static const char *const base_words[] = { "experts", "attention", "mlp", "mergers" };
enum { BASE_WORDS = sizeof base_words / sizeof *base_words };

static inline Status mode_apply(EngineConf *conf, Mode m)
{
    conf->resident = m.resident;
    conf->fp8_weight_cache = m.fp8 && !m.anew;
    conf->fp8_dispatch = m.packed, conf->fp8_one_layout = m.one, conf->fp8_keep_wide = m.beside;
    if (m.base) {
        TRY(base_quant_read(&conf->base, base_quant_name(m.base), base_words, BASE_WORDS));
        conf->panel_elems = 700;
    }
    if (m.fp8 || m.micro)
        TRY(precision_set(&conf->precision, m.fp8 ? PREC_FP8 : m.micro, fp8_words,
                          m.fp8 ? FP8_WORDS : CODED_WORDS));
    TRY(recompute_words(conf->policy, &conf->full, m.recompute));
    return offload_words(conf->policy, m.offload);
}

static inline Status recompute_case(EngineConf *conf, const RuleInput *r)
{
    policy_default(conf->policy);
    for (int i = 0; i < r->recomputes; i++) {
        if (strcmp(r->recompute[i], "full")) TRY(policy_drop(conf->policy, r->recompute[i]));
        else TRY(recompute_full(conf->policy, &conf->full, r->recompute_method, r->recompute_layers));
    }
    for (int i = 0; i < r->offloads; i++) TRY(policy_offload(conf->policy, r->offload[i]));
    return OK;
}

static inline EngineConf engine_conf(const Case *c)
{
    EngineConf conf = { .backend = "cpu", .dtype = c->dtype, .store = c->store, .budget = budget_of(c),
                        .aux = c->aux,
                        .aux_coeff = c->aux ? 0.02f : 0, .z_coeff = 0.01f, .mtp_weight = 0.3f,
                        .train = true };
    conf.budget.by_document = c->aux >= AUX_DOCUMENT;
    if (c->shape.text.score_bias && !c->lora) conf.bias_rate = 1e-3f;
    if (c->lora) conf.lora = *c->lora;
    EXPECT_OK(recompute_case(&conf, &c->rule));
    EXPECT_OK(mode_apply(&conf, c->mode));
    return conf;
}

static inline Status step(const Case *c, Engine *e, int dp, int number, double *loss, double *norm)
{
    int       micro = e->pipe.shape.micros;
    Stream   *mine[MICROS];
    StepSums  sums;
    OptimConf o = { .adam = { 1e-3f, 0.9f, 0.95f, 1e-5f, 0.1f, 1.0f, number + 1 } };
    for (int i = 0; i < micro; i++) mine[i] = (Stream *)&c->stream[number % BATCHES][dp * micro + i];
    TRY(pipeline_run(e, &(PipelineStep){ .micro = mine, .n = micro }, &sums));
    engine_compute_grad_norm(e);
    TRY(engine_read_grad_norm(e, norm));
    engine_apply_update(e, &o);
    *loss = sums.total;
    return backend_sync(&e->be);
}

/* This rank of the world: its part of the model and its position in the mesh. */
static inline Ranks ranks_of(const Case *c, Comm *world, Mesh *place)
{
    PipeLayout cut;
    PipeLayoutSpec  ask = rules_pipe_layout(&c->rule);
    Ranks r = { .world = world, .layout = rules_layout(&c->rule), .zero = (int)c->rule.zero,
                .context = context_kind(c->rule.cp_comm), .group = (int)c->rule.group,
                .tp_chunks = c->tp_chunks, .overlap = c->rule.overlap,
                .dispatch = { .name = c->rule.dispatcher, .rank_capacity = c->rank_capacity } };
    mesh_place(place, world->rank, world->size, &r.layout);
    r.micro = MICROS / place->size[AX_DP];
    if (pipe_layout_open(&cut, &ask)) printf("%s\n", status_text()), exit(1);
    r.layout.vpp = cut.chunks;
    for (int v = 0; v < cut.chunks; v++) {
        const PipeLayoutChunk *k = pipe_layout_at(&cut, place->at[AX_PP], v);
        r.chunk[v] = (Chunk){ k->from, k->to, k->embedding, k->loss };
    }
    pipe_layout_close(&cut);
    return r;
}

/* Weights of the case. What starts at 0 is random too: B = 0 would leave A of an adapter without a gradient,
 * and biases of 0 move no further than a few steps of Adam, beside which the rounding of their small
 * gradients is large. */
static inline Status draw_weights(const Case *c, Engine *e)
{
    for (int i = 0; i < e->model.params.n; i++) {
        Param *p = e->model.params.p[i];
        if (p->init == INIT_ZERO) p->init = INIT_NORMAL;
    }
    return model_init(&e->model, &e->be, c->weights);
}

/* Opens this rank's part of the case, with its weights; a rank that fails to open ends the test. */
static inline void open_rank_with(Engine *e, Peer *p, Mesh *place, EngineConf conf)
{
    Case       *c = &the_case;
    StreamShape ss = shape_stream(&c->shape);
    Stream      full = stream_full(&ss, &conf.budget);
    omp_set_num_threads(1);
    conf.ranks = ranks_of(c, p->world, place);
    Status st = engine_open(e, &c->shape, &conf, &full);
    if (!st) st = draw_weights(c, e);
    if (st) {
        printf("rank %d: %s\n", p->rank, status_text());
        comm_abort(p->world, status_text());
        exit(1);
    }
    engine_publish_weights(e);
}

static inline void open_rank(Engine *e, Peer *p, Mesh *place)
{
    open_rank_with(e, p, place, engine_conf(&the_case));
}

/* The case on one rank, which the others are compared with. */
static inline void open_alone(Engine *e, const Case *c, EngineConf conf)
{
    StreamShape ss = shape_stream(&c->shape);
    Stream      full = stream_full(&ss, &conf.budget);
    conf.ranks.micro = MICROS;
    if (engine_open(e, &c->shape, &conf, &full) || draw_weights(c, e)) printf("%s\n", status_text()), exit(1);
    engine_publish_weights(e);
}

/* The same parameter of another model; NULL: it has none. */
static inline const Param *param_in(const Model *m, const Param *p)
{
    for (int i = 0; i < m->params.n; i++)
        if (!strcmp(m->params.p[i]->piece[0].name, p->piece[0].name)) return m->params.p[i];
    return NULL;
}

/* How far a loss or norm is from another, relative to it; both are 0 where a drawn step has no labels. */
static inline double off_by(double got, double want) { return got == want ? 0 : fabs(got / want - 1); }

/* The largest difference between this rank's shard and the whole parameter of one rank, relative to the
 * largest value of the latter or `least`. */
static inline double apart(const Param *p, ShardView h, Tensor whole, double least)
{
    StridedRange range[SHARD_VIEW_RANGES];
    double big = least, diff = 0;
    const float *all = whole.data;
    for (int64_t i = 0; i < t_count(whole); i++) big = fmax(big, fabs(all[i]));
    for (int k = 0, n = shard_view_ranges(range, p, h); k < n; k++)
        for (int64_t j = 0; j < range[k].count; j++)
            for (int64_t i = 0; i < range[k].len; i++) {
                float mine = ((float *)h.t.data)[range[k].local + j * range[k].len + i];
                diff = fmax(diff, fabs((double)mine - all[range[k].at + j * range[k].stride + i]));
            }
    return diff / big;
}

static inline const char *case_text(const Case *c)
{
    static char t[256];
    const RuleInput *r = &c->rule;
    snprintf(t, sizeof t,
             "world %d: tp %d cp %d (%s) pp %d vpp %d ep %d etp %d zero %d replicas %d %s/%d"
             " capacity %g aux %d%s%s%s %s/%d%s%s",
             (int)r->world, (int)r->tp, (int)r->cp, r->cp_comm, (int)r->pp, (int)r->vpp, (int)r->ep,
             (int)r->etp, (int)r->zero, (int)r->replicas, r->dispatcher, (int)r->domain, c->rank_capacity,
             (int)c->aux, c->pictures ? " pictures" : "", c->shape.text.mtp ? " mtp" : "",
             r->overlap ? " overlap" : "",
             r->recomputes ? r->recompute[0] : "keep", (int)r->recompute_layers,
             r->offloads ? " offload " : "", r->offloads ? r->offload[0] : "");
    return t;
}

static inline int64_t pick(uint64_t seed, uint64_t n, int64_t most)            /* a power of two up to most */
{
    int64_t k = 0;
    while ((2LL << k) <= most) k++;
    return 1LL << rng_below(seed, 7, n, (uint64_t)k + 1);
}

static inline ModelShape shape_with(bool tied, int layers)
{
    char text[2048];
    const char *word = tied ? "true" : "false";
    snprintf(text, sizeof text, model_text, layers, word, word);
    return small_shape(text);
}

static inline ModelShape shape_of(bool tied) { return shape_with(tied, 4); }

/* TREB_FAMILY: the number of a text, from 1; 0: vision and language. */
static inline ModelShape draw_shape(uint64_t seed, uint64_t k)
{
    const char *given = getenv("TREB_FAMILY");
    int family = given ? atoi(given) : (int)rng_below(seed, 7, k + 28, 2 * FAMILY_TEXTS);
    if (family < 1 || family > FAMILY_TEXTS) return shape_of(rng_below(seed, 7, k + 14, 2));
    ModelShape s = small_shape(family_text[family - 1]);
    if (s.text.score_bias) s.text.mtp = (int64_t)rng_below(seed, 7, k + 14, 2);
    return s;
}

/* The capacity of an even share, with at least one token of each rank. */
static double least_capacity(const RuleInput *r)
{
    double share = (double)(budget.tokens / (r->tp * r->cp) * r->etp);
    return fmax(1, (double)(r->ep * r->etp) / share);
}

/* Draws layouts until one is legal. */
static inline void draw_case(Case *c, uint64_t seed, int world, int steps)
{
    static const char *const kinds[] = { "p2p", "a2a", "all_gather", "a2a+p2p" };
    static const char *const drops[] = { "norm", "moe_act", "full", "core_attn" };
    static const char *const offload_words[] = { "layer", "attn_norm", "moe", "vision" };
    static const AuxForm forms[] = { AUX_NONE, AUX_LAYER, AUX_DOCUMENT, AUX_DOCUMENT_TOKENS };
    for (uint64_t k = 0;; k += 32) {
        RuleInput *r = &c->rule;
        *c = (Case){ .shape = draw_shape(seed, k), .steps = steps, .dtype = F32 };
        c->pictures = c->shape.vision.depth && rng_below(seed, 7, k + 1, 4) > 0;
        c->aux = forms[rng_below(seed, 7, k + 2, 4)];
        const TextShape *t = &c->shape.text;
        *r = (RuleInput){ .world = pick(seed, k + 3, MOST), .tp = pick(seed, k + 4, 8),
                          .cp = pick(seed, k + 5, 4), .pp = pick(seed, k + 6, 4), .vpp = pick(seed, k + 7, 2),
                          .ep = pick(seed, k + 8, 8), .etp = pick(seed, k + 9, 4),
                          .zero = (int64_t)rng_below(seed, 7, k + 10, 4),
                          .replicas = pick(seed, k + 11, 2), .cp_comm = kinds[rng_below(seed, 7, k + 12, 4)],
                          .layers = t->L, .heads = t->H, .kv_heads = t->G, .experts = t->E,
                          .ffn = shape_sparse_layers(t) < t->L ? t->I : 0,
                          .per_token = t->K, .expert_ffn = t->F, .renorm = t->renorm, .shared = t->shared,
                          .latent = t->mla.kv_rank > 0,
                          .micro_tokens = budget.tokens,
                          .global_tokens = budget.tokens * MICROS,
                          .dispatcher = dispatcher_rows[rng_below(seed, 7, k + 13, DISPATCHER_COUNT)].name,
                          .layout = "",
                          .recompute_method = rng_below(seed, 7, k + 20, 2) ? "uniform" : "block",
                          .recompute_layers = 1 + (int64_t)rng_below(seed, 7, k + 21, 3),
                          .tower = c->shape.vision.depth > 0 };
        rules_family(r, t);
        if (world) r->world = world;
        if (r->world < 2) continue;
        if (r->ep * r->etp == 1) r->dispatcher = "local";
        if (rng_below(seed, 7, k + 18, 2)) r->domain = pick(seed, k + 19, r->ep * r->etp);
        if (!strcmp(r->cp_comm, "a2a+p2p")) r->cp_sizes = 2, r->cp_size[0] = 2, r->cp_size[1] = r->cp / 2;
        if (rng_below(seed, 7, k + 15, 3) == 0)
            r->recompute[r->recomputes++] = drops[rng_below(seed, 7, k + 16, 4)];
        if (!r->recomputes || strcmp(r->recompute[0], "full"))
            r->recompute_method = "uniform", r->recompute_layers = 1;
        for (uint64_t i = 0; i < 2; i++)
            if (rng_below(seed, 7, k + 23 + i, 4) == 0)
                r->offload[r->offloads++] = offload_words[rng_below(seed, 7, k + 25 + i, 4)];
        if (!rules_legal(r)) r->offloads = 0;
        r->overlap = rng_below(seed, 7, k + 17, 2);
        if (r->overlap && !rules_legal(r)) r->overlap = false;
        if (rng_below(seed, 7, k + 22, 2)) c->rank_capacity = least_capacity(r);
        c->tp_chunks = (int)rng_below(seed, 7, k + 27, 5);
        if (rules_legal(r)) return;
    }
}

/* Sets numbers of a layout from " key=value" words. */
static inline void case_words(RuleInput *r, const char *text)
{
    struct { const char *key; long long *value; } row[] = {
        { "world=", &r->world }, { "etp=", &r->etp }, { "tp=", &r->tp }, { "cp=", &r->cp },
        { "vpp=", &r->vpp }, { "pp=", &r->pp }, { "ep=", &r->ep }, { "zero=", &r->zero },
        { "replicas=", &r->replicas }, { "domain=", &r->domain },
    };
    for (size_t i = 0; text && i < sizeof row / sizeof *row; i++) {
        char key[16];
        snprintf(key, sizeof key, " %s", row[i].key);
        const char *at = strstr(text, key);
        if (at) *row[i].value = strtoll(at + strlen(key), NULL, 10);
    }
}

/* TREB_CASE=" tp=2 zero=3": a random case with some numbers changed, to find the cause of a failure. */
static inline void change_case(Case *c)
{
    const char *text = getenv("TREB_CASE");
    RuleInput  *r = &c->rule;
    case_words(r, text);
    if (text && strstr(text, " aux=")) c->aux = (AuxForm)atoi(strstr(text, " aux=") + 5);
    if (text && strstr(text, " overlap=")) r->overlap = atoi(strstr(text, " overlap=") + 9);
    if (text && strstr(text, " capacity=")) c->rank_capacity = atof(strstr(text, " capacity=") + 10);
    if (text && strstr(text, " text")) c->pictures = false;
    if (text && strstr(text, " keep")) r->recomputes = r->offloads = 0;
    if (text && r->ep * r->etp == 1) r->dispatcher = "local";
}

/* Whether any rank, of any process, found a difference. */
static inline bool any_rank_differs(void)
{
    double any = failure.any;
    if (commlab_.mpi) comm_host_max(commlab_.mpi, &any, 1);
    return any > 0;
}

/* A case that differs is repeated with other weights and data, at most twice: see test_layouts.c. */
static inline void expect_layout_agrees(Case *c, uint64_t seed, bool (*differs)(Case *c, uint64_t seed),
                                        const char *how)
{
    bool bad = true;
    for (uint64_t k = 0; bad && k < 3; k++) {
        bad = differs(c, seed + k * 1000003);
        if (bad && failure.any) printf("  %s: %s\n", k < 2 ? "once more" : "and again", failure.text);
    }
    EXPECT(!bad, "%llu%s: %s", (unsigned long long)seed, how, case_text(c));
}

/* The same for every test of a program, so that TREB_SEED with the printed number repeats a failure. */
static inline uint64_t first_seed(void)
{
    static uint64_t seed;
    const char     *given = getenv("TREB_SEED");
    if (!seed) seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    return seed;
}

static inline int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static inline void processes_open(void)
{
    if (!comm_launched()) return;
    if (comm_open(&commlab_.mpi, &(CommConf){ .kind = "mpi", .timeout = 60 }) ||
        backend_open(&commlab_.be, "cpu"))
        printf("%s\n", status_text()), exit(1);
    comm_bind(commlab_.mpi, &commlab_.be);
}

/* Rank 0 prints for all. */
static inline int processes_close(void)
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

#endif
