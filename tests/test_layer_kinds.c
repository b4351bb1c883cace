/* tests/test_layer_kinds.c -- the description of a layer kind is what its code does: for random shapes,
 * adapters and degrees of tensor parallelism, a step on the meta backend has the parameters, the FLOPs and
 * the kept bytes that the descriptions say. TREB_SEED asks for a seed, TREB_SHAPES for a number of shapes. */
#include "small.h"
#include "engine/engine_private.h"
#include "model/walk.h"

#include <time.h>

static uint64_t seed;

static int64_t below(uint64_t i, int64_t n) { return (int64_t)rng_below(seed, 5, i, (uint64_t)n); }

/* T: tokens of a cp rank. */
typedef struct Case { ModelShape shape; int tp, cp; int64_t T; LoraConf lora; char text[240]; } Case;

static const char *const targets[] = { "all-linear", "o_proj", "[qv]_proj", "experts",
                                       "layers.1.self_attn.q_proj" };

static const char *const latent_targets[] = { "all-linear", "o_proj", "kv_b_proj", "experts",
                                              "kv_a_proj_with_mqa" };

static const char *const delta_targets[] = { "all-linear", "out_proj", "in_proj_*", "experts",
                                             "layers.0.linear_attn.in_proj_*" };

static void draw_lora(LoraConf *c, const TextShape *t)
{
    const char *const *from = t->gdn.every ? delta_targets : t->mla.kv_rank ? latent_targets : targets;
    static const char *word;
    static WordList    target;
    word = from[below(17, 5)], target = (WordList){ &word, 1 };
    *c = (LoraConf){ .rank = 2 + below(18, 6), .alpha = 8, .target = &target };
}

static void draw_latent(TextShape *t)
{
    t->mla = (MlaShape){ .q_rank = below(35, 2) * 12, .kv_rank = 8 + below(36, 9), .nope = 4 + below(37, 5),
                         .rope = 2 + 2 * below(38, 3), .v = 3 + below(39, 4), .pairs = below(40, 2) };
    t->C = t->mla.v, t->G = t->H, t->rotary = t->window = 0;
    t->gated = t->qk_norm = t->qk_norm_wide = t->sinks = false, t->no_o_bias = false;
}

/* Heads that tp divides. */
static void draw_delta(TextShape *t, int tp)
{
    t->gdn = (GdnShape){ .every = 2 + below(44, 3), .key_heads = tp * (1 + below(45, 2)),
                         .key_dim = 3 + below(46, 6), .value_dim = 3 + below(47, 6), .conv = 2 + below(48, 3),
                         .grouped = below(49, 2) };
    t->gdn.value_heads = t->gdn.key_heads * (1 + below(50, 3));
}

/* What families other than Qwen3 have. */
static void draw_options(Case *x)
{
    static const ModelNames gated = { .router = "mlp.gate", .shared = "mlp.shared_expert",
                                      .shared_gate = "mlp.shared_expert_gate" };
    TextShape *t = &x->shape.text;
    t->no_o_bias = below(20, 2), t->sinks = below(21, 3) == 0, t->qk_norm = below(22, 3) > 0;
    t->qk_norm_wide = t->qk_norm && x->tp == 1 && below(23, 3) == 0;
    t->rotary = below(24, 2) ? 4 : 0, t->zero_centred = below(25, 3) == 0;
    t->shared = below(26, 2) ? x->tp * 8 * (1 + below(27, 2)) : 0;
    t->router = below(28, 2) ? ROUTER_SIGMOID : ROUTER_SOFTMAX, t->router_bias = below(29, 3) == 0;
    t->score_bias = t->router == ROUTER_SIGMOID && below(30, 2);
    t->gated = below(31, 3) == 0;
    if (below(32, 4) == 0) t->window = 16 << below(33, 3);
    if (below(34, 3) == 0) draw_latent(t);
    else if (!t->window && below(43, 2) == 0) draw_delta(t, x->tp);
    if (t->gated) x->shape.names = &gated;
    t->expert_bias = below(41, 3) == 0;
    if (below(42, 3) == 0) t->act = ACTIVATION_CLAMPED_GLU;
}

/* A text model whose heads and widths tp divides; some layers are dense. */
static void draw(Case *x)
{
    static const int degrees[] = { 1, 1, 2, 4 };
    TextShape *t = &x->shape.text;
    *x = (Case){ .tp = degrees[below(1, 4)], .cp = degrees[below(51, 4)], .T = 64 * (1 + below(2, 4)) };
    x->shape = small_shape("{\"model_type\": \"qwen3_moe\", \"vocab_size\": 96, \"rope_theta\": 10000.0,"
                           " \"num_experts\": 16, \"dtype\": \"bfloat16\"}");
    t->L = 1 + below(3, 4), t->D = 32 * (1 + below(4, 3)), t->C = 8 * (1 + below(5, 3));
    t->G = 1 << below(6, 3), t->H = t->G * (1 << below(7, 2));
    while (t->H % x->tp) t->H *= 2;
    t->I = x->tp * 8 * (1 + below(8, 4)), t->F = 8 * (1 + below(9, 4));
    t->E = 2 + below(10, 6), t->K = 1 + below(11, 2), t->bias = below(12, 2), t->tied = below(13, 3) == 0;
    t->sparse_step = 1 + below(14, 2), t->dense_first = below(15, 3);
    draw_options(x);
    if (below(16, 2) && t->L > 1 && shape_sparse_layers(t)) draw_lora(&x->lora, t);
    snprintf(x->text, sizeof x->text, "seed %llu: tp %d, cp %d, T %d, L %d, D %d, H %d, G %d, C %d, I %d, "
             "E %d, K %d, F %d%s%s", (unsigned long long)seed, x->tp, x->cp, (int)x->T, (int)t->L, (int)t->D,
             (int)t->H, (int)t->G, (int)t->C, (int)t->I, (int)t->E, (int)t->K, (int)t->F,
             x->lora.rank ? ", LoRA on " : "", x->lora.rank ? x->lora.target->item[0] : "");
}

/* ---- parameters ---- */

static void check_params(const Case *x)
{
    const TextShape *t = &x->shape.text;
    Model m;
    EXPECT_OK(model_open(&m, &x->shape, NULL));
    for (int64_t l = 0; l < t->L; l++) {
        Description d;
        double said = 0;
        int64_t has = 0;
        decoder_describe(&d, t, layer_kinds(t, l));
        for (int i = 0; i < d.steps; i++) said += step_params(&d.step[i]);
        for (int i = 0; i < m.params.n; i++)
            if (m.params.p[i]->unit == m.layer[l].norm->unit) has += param_count(m.params.p[i]);
        EXPECT(said == (double)has, "%s: layer %d has %lld parameters, described are %.0f", x->text, (int)l,
               (long long)has, said);
    }
    model_close(&m);
}

/* ---- a step on the meta backend ---- */

static void plan(EnginePlan *p, const Case *x)
{
    StreamShape ss = shape_stream(&x->shape);
    int64_t     all = x->T * x->cp;
    Budget      b = { .tokens = all, .docs = 1, .supervised = all };
    EngineConf  conf = small_conf(b);
    CommConf    who = { .kind = "fake", .size = x->tp * x->cp, .per_node = x->tp };
    Stream      full = stream_full(&ss, &b);
    conf.backend = "meta", conf.dtype = BF16, conf.aux = AUX_NONE;
    conf.lora = x->lora;
    conf.ranks.layout = (MeshLayout){ .tp = x->tp, .cp = x->cp, .pp = 1, .vpp = 1, .ep = 1, .etp = 1,
                                      .replicas = 1, .cp_inner = 1, .kv_heads = (int)x->shape.text.G };
    conf.ranks.chunk[0] = (Chunk){ 0, x->shape.text.L, true, true };
    conf.ranks.micro = 1;
    if (x->tp * x->cp > 1) EXPECT_OK(comm_open(&conf.ranks.world, &who));
    EXPECT_OK(engine_plan(p, &x->shape, &conf, &full));
    if (x->tp * x->cp > 1) comm_close(conf.ranks.world);
}

static size_t planned(const EnginePlan *p, Label l)
{
    for (int i = 0; i < ARENA_LABELS && p->label[A_ACT][i].name; i++)
        if (!strcmp(p->label[A_ACT][i].name, label_name(l))) return p->label[A_ACT][i].bytes;
    return 0;
}

typedef struct RankRows { double tp, kv, rows[ROWS_N]; } RankRows;

static RankRows rank_rows(const Case *x)
{
    const TextShape *t = &x->shape.text;
    RankRows r = { .tp = x->tp, .kv = x->tp < t->G ? x->tp : (double)t->G };
    r.rows[ROWS_GATHERED] = (double)x->T, r.rows[ROWS_TOKENS] = (double)x->T / x->tp;
    r.rows[ROWS_EXPERTS] = r.rows[ROWS_TOKENS] * (double)t->K, r.rows[ROWS_CHUNKS] = x->cp > 1 ? 2 : 0;
    return r;
}

static double value_bytes(const KeptValue *v, const RankRows *r)
{
    double cols = v->cols / (v->cut == CUT_TP ? r->tp : 1) + v->kv_cols / r->kv;
    return r->rows[v->rows] * cols * (v->bytes ? v->bytes : 2);
}

/* Of every layer: whether it keeps values, and which of its weights train. */
typedef struct Trains { bool kept[8], weight[8][MAX_STEPS]; } Trains;

static void note_weight(void *self, WalkPlace at, const LayerStep *s, Param *w, bool before)
{
    Trains *t = self;
    if (at.part == WALK_LAYER) t->weight[at.index][s->index] = is_trainable(w);
}

static void note_layer(void *self, WalkPlace at, bool before, bool after)
{
    Trains *t = self;
    if (at.part == WALK_LAYER) t->kept[at.index] = after;
}

static Trains trains_of(const Case *x)
{
    Trains t = { 0 };
    Model  m;
    EXPECT_OK(model_open_whole(&m, &x->shape, NULL, &x->lora));
    model_walk(&m, false, &(Walker){ note_weight, note_layer, &t });
    model_close(&m);
    return t;
}

/* Labels that other parts use too, or that dispatchers add to, have at least what is described; adapters of
 * experts keep what their width is. */
static bool is_shared(Label l) { return l == L_INPUT || l == L_STAT || l == L_ROUTE || l == L_LORA; }

static void check_kept(const Case *x, const EnginePlan *p)
{
    enum { PAD = 512 };                  /* of a value in an arena, at most */
    double   said[LABEL_N] = { 0 }, pads[LABEL_N] = { 0 };
    RankRows r = rank_rows(x);
    Trains   t = trains_of(x);
    for (int64_t l = 0; l < x->shape.text.L; l++) {
        Description d;
        decoder_describe(&d, &x->shape.text, layer_kinds(&x->shape.text, l));
        for (int i = 0; t.kept[l] && i < d.values; i++) {
            const KeptValue *v = &d.value[i];
            if (v->only && !t.weight[l][v->read_by]) continue;
            said[v->label] += value_bytes(v, &r), pads[v->label] += 2 * PAD;
        }
    }
    for (int l = 0; l < L_V_STAT; l++) {
        double has = (double)planned(p, (Label)l);
        EXPECT(has >= said[l] && (is_shared((Label)l) || has <= said[l] + pads[l]),
               "%s: %s has %.0f bytes, described are %.0f", x->text, label_name((Label)l), has, said[l]);
    }
}

/* Products of a rank: rows times its inputs and outputs, forward and two gradients. All is trained. */
static double layer_flops(const Description *d, const RankRows *r, double pairs)
{
    double flops = 0;
    for (int i = 0; i < d->steps; i++) {
        const LayerStep *s = &d->step[i];
        double in = s->in / (s->in_cut == CUT_TP ? r->tp : 1);
        double out = s->out / (s->out_cut == CUT_TP ? r->tp : 1) + s->kv_out / r->kv;
        double seen = s->window > 0 ? fmin(pairs, r->rows[ROWS_GATHERED] * s->window) : pairs;
        double core = seen * s->macs_pair + r->rows[ROWS_GATHERED] * s->macs_token;
        if (s->type == STEP_CORE) flops += 3 * 2 * core / r->tp;
        if (s->type == STEP_PRODUCT) flops += 3 * 2 * r->rows[s->rows] * in * out;
    }
    return flops;
}

static void check_flops(const Case *x, const EnginePlan *p)
{
    double   said = 0, has = p->ledger.by_part[PART_DECODER].flops;
    RankRows r = rank_rows(x);
    for (int64_t l = 0; l < x->shape.text.L; l++) {
        Description d;
        decoder_describe(&d, &x->shape.text, layer_kinds(&x->shape.text, l));
        said += layer_flops(&d, &r, (double)x->T * (double)(x->T * x->cp + 1) / 2);
    }
    EXPECT(fabs(has - said) <= 1e-9 * said, "%s: %.0f FLOPs, described are %.0f", x->text, has, said);
}

static void code_does_what_is_described(void)
{
    const char *given = getenv("TREB_SEED"), *many = getenv("TREB_SHAPES");
    uint64_t from = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    int n = many ? atoi(many) : 60;
    for (int i = 0; i < n; i++) {
        EnginePlan *p = calloc(1, sizeof *p);
        Case x;
        seed = from + (uint64_t)i;
        draw(&x);
        check_params(&x);
        plan(p, &x);
        check_kept(&x, p);
        /* The pairs of windows that cp cuts are bounded chunk by chunk. */
        if (!x.lora.rank && !(x.cp > 1 && x.shape.text.window)) check_flops(&x, p);
        free(p);
    }
    printf("  %d shapes from seed %llu\n", n, (unsigned long long)from);
}

/* ---- which kinds a layer has ---- */

static void kinds_share_out_the_layers(void)
{
    TextShape t = { .L = 12, .E = 8, .K = 2, .sparse_step = 2, .dense_first = 3, .dense_only = { 7, 5 },
                    .dense_onlys = 2, .gdn = { .every = 4 } };
    for (int64_t l = 0; l < t.L; l++) {
        LayerKinds k = layer_kinds(&t, l);
        bool moe = l >= 3 && l % 2 == 1 && l != 7 && l != 5;
        EXPECT(k.attention == (l % 4 == 3 ? ATTENTION_GQA : ATTENTION_GDN), "attention of layer %d", (int)l);
        EXPECT(k.ffn == (moe ? FFN_MOE : FFN_DENSE), "feed-forward of layer %d", (int)l);
    }
    t.gdn.every = 0, t.window = 128;
    EXPECT(layer_kinds(&t, 0).attention == ATTENTION_WINDOW && layer_kinds(&t, 1).attention == ATTENTION_GQA,
           "windows");
    t.window = 0, t.mla.kv_rank = 512;
    EXPECT(layer_kinds(&t, 0).attention == ATTENTION_MLA, "latent attention");
}

int main(void)
{
    RUN(code_does_what_is_described);
    RUN(kinds_share_out_the_layers);
    return lab_report();
}
