/* PEFT files: written and read back bit for bit for every kind of module and in any layout, forms that other
 * programs write, and the errors for wrong files. */
#include "partlab.h"
#include "base/folder.h"
#include "model/peft.h"

#include <math.h>
#include <stdarg.h>

static const char vl_moe[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 90, \"video_token_id\": 91, \"dtype\": "
    "\"float32\","
    " \"text_config\": {\"vocab_size\": 97, \"hidden_size\": 40, \"num_hidden_layers\": 3,"
    "  \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 12, \"intermediate_size\": 56,"
    "  \"moe_intermediate_size\": 24, \"num_experts\": 4, \"num_experts_per_tok\": 2, \"mlp_only_layers\": "
    "[1],"
    "  \"rope_theta\": 10000.0, \"attention_bias\": true, \"initializer_range\": 0.2,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 2, 2]}},"
    " \"vision_config\": {\"depth\": 2, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 40,"
    "  \"deepstack_visual_indexes\": [0]}}";

#define TEXT_MOE(more)                                                                                       \
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 51, \"hidden_size\": 24, \"num_hidden_layers\": 2,"     \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, \"intermediate_size\": 40,"   \
    " \"moe_intermediate_size\": 16, \"num_experts\": 4, \"num_experts_per_tok\": 2, \"rope_theta\": "       \
    "10000.0" more "}"

static const char text_moe[] = TEXT_MOE("");
static const char mixed_moe[] = TEXT_MOE(", \"mlp_only_layers\": [0]");
static const char dense[] =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 51, \"hidden_size\": 24, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, \"intermediate_size\": 40,"
    " \"rope_theta\": 10000.0, \"tie_word_embeddings\": true}";

static const MeshLayout one = {
    .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = 1, .etp = 1, .replicas = 1, .cp_inner = 1
};

/* Every element of a parameter is a function of its name and its position in the whole, so ranks agree. */
static void fill_random(RankPart *r, uint64_t seed)
{
    for (int i = 0; i < r->m.params.n; i++) {
        const Param *p = r->m.params.p[i];
        StridedRange c[SHARD_VIEW_RANGES];
        ShardView h = param_weight_view(p);
        uint64_t stream = rng_stream(p->piece[0].name);
        int n = shard_view_ranges(c, p, h);
        for (int k = 0; k < n; k++)
            for (int64_t run = 0; run < c[k].count; run++)
                rng_fill_normal((float *)h.t.data + c[k].local + run * c[k].len, c[k].len, seed, stream,
                                (uint64_t)(c[k].at + run * c[k].stride), 0.0f, 0.3f);
    }
}

static bool adapted(const Model *m, const Param *p)
{
    if (p->adapter_of) return true;
    return m->lora->save && !p->frozen;
}

/* A ParamFillFn: copies the parameters of a rank that has all of them. */
static Status from_bound(void *self, Model *m, Backend *be, int i)
{
    const RankPart *r = self;
    const Param *p = m->params.p[i], *q = r->m.params.p[i];
    memcpy(p->shard.w.data, q->shard.w.data, (size_t)t_bytes(p->shard.w));
    return OK;
}

static void expect_same(const RankPart *a, const RankPart *b, const char *what)
{
    int adapters = 0;
    for (int i = 0; i < a->m.params.n; i++) {
        const Param *p = a->m.params.p[i], *q = b->m.params.p[i];
        adapters += p->adapter_of != NULL;
        if (!adapted(&a->m, p)) continue;
        EXPECT(!strcmp(p->piece[0].name, q->piece[0].name) && t_count(p->shard.w) == t_count(q->shard.w) &&
                   !memcmp(p->shard.w.data, q->shard.w.data, (size_t)t_bytes(p->shard.w)),
               "%s: %s differs", what, p->piece[0].name);
    }
    EXPECT(adapters && a->m.params.n == b->m.params.n, "%s: %d adapters, %d and %d parameters", what,
           adapters, a->m.params.n, b->m.params.n);
}

static void poison(RankPart *r)
{
    for (int i = 0; i < r->m.params.n; i++)
        memset(r->m.params.p[i]->shard.w.data, 0x7f, (size_t)t_bytes(r->m.params.p[i]->shard.w));
}

static void save(RankPart *r, const ModelShape *s, const LoraConf *c, const char *dir)
{
    Backend be;
    Model whole;
    folder_remove(dir);
    EXPECT_OK(backend_open(&be, "cpu"));
    EXPECT_OK(model_open_whole(&whole, s, NULL, c));
    EXPECT_OK(peft_save(&whole, &be, (ParamSource){ from_bound, r, NULL }, dir, "some/base"));
    model_close(&whole);
    backend_close(&be);
}

typedef struct Case {
    const char          *config, *target, *save;
    bool                 rslora, shared;
    const LoraTarget *exact;
    int                  n;
} Case;

static LoraConf conf_of(const Case *k, Words *target, Words *saved)
{
    return (LoraConf){ .rank = 4, .alpha = 6.5, .rslora = k->rslora, .shared_a = k->shared,
                          .dropout = 0.25, .target = words(target, k->target),
                          .save = words(saved, k->save), .exact = k->exact, .exacts = k->n };
}

/* After saving and reading: the same modules with the same ranks, scales and values. */
static void check_round_trip(const Case *k)
{
    ModelShape s = small_shape(k->config);
    Words target, saved;
    LoraConf c = conf_of(k, &target, &saved);
    RankPart a, b;
    PeftFile f;
    Backend be;
    const char *dir = lab_path("trip");
    char what[200];
    snprintf(what, sizeof what, "%s, %s", s.family, k->target ? k->target : "exact");
    EXPECT_OK(backend_open(&be, "cpu"));
    part_open_adapted(&a, &s, NULL, &c, &one, 0, 1, F32, WHOLE_STATE);
    fill_random(&a, 5);
    save(&a, &s, &c, dir);
    EXPECT_OK(peft_open(&f, dir, &s));
    if (!f.base) exit(lab_report() + 1);
    EXPECT(f.conf.rslora == k->rslora && !strcmp(f.base, "some/base"), "%s: configuration", what);
    f.conf.shared_a = k->shared;
    part_open_adapted(&b, &s, NULL, &f.conf, &one, 0, 1, F32, WHOLE_STATE);
    poison(&b);
    EXPECT_OK(peft_load(&f, &b.m, &be));
    expect_same(&a, &b, what);
    for (int i = 0; i < a.m.params.n; i++) {
        const Lora *x = a.m.params.p[i]->lora, *y = b.m.params.p[i]->lora;
        EXPECT(!x == !y, "%s: %s", what, a.m.params.p[i]->piece[0].name);
        for (int p = 0; x && y && p < x->parts; p++)
            EXPECT(x->part[p].r == y->part[p].r && x->part[p].scale == y->part[p].scale,
                   "%s: %s: rank %lld, scale %g", what, a.m.params.p[i]->piece[0].name,
                   (long long)y->part[p].r, (double)y->part[p].scale);
    }
    part_close(&a), part_close(&b);
    peft_close(&f);
    backend_close(&be);
}

static void round_trip(void)
{
    static const LoraTarget ranks[] = {
        { "model.language_model.layers.0.self_attn.q_proj", 3, 6 },
        { "model.language_model.layers.0.self_attn.v_proj", 5, 6 },
        { "model.language_model.layers.0.mlp.experts.gate_up_proj", 2, 6 },
        { "model.language_model.layers.2.mlp.experts.gate_up_proj", 6, 1.5 },
        { "model.language_model.layers.2.mlp.experts.down_proj", 3, 6 },
        { "model.language_model.layers.2.mlp.gate", 2, 9 },
        { "model.visual.blocks.1.attn.proj", 3, 6 },
        { "lm_head", 3, 6 },
    };
    const Case list[] = {
        { vl_moe, "all-linear", NULL, false, false, NULL, 0 },
        { vl_moe, "all-linear,mlp.gate,lm_head", "model.language_model.norm,embed_tokens", true, false, NULL,
          0 },
        { vl_moe, "experts", NULL, false, true, NULL, 0 },
        { vl_moe, "gate_up_proj", NULL, false, false, NULL, 0 },
        { vl_moe, "experts.down_proj", "visual.merger", false, false, NULL, 0 },
        { vl_moe, "vision", NULL, false, false, NULL, 0 },
        { vl_moe, NULL, NULL, false, false, ranks, sizeof ranks / sizeof *ranks },
        { text_moe, "all-linear", NULL, false, false, NULL, 0 },
        { text_moe, "experts", NULL, true, true, NULL, 0 },
        { text_moe, "gate_up_proj,q_proj", NULL, false, false, NULL, 0 },
        { text_moe, "layers.1.mlp.experts.*", NULL, false, false, NULL, 0 },
        { mixed_moe, "all-linear,mlp.gate", NULL, false, false, NULL, 0 },
        { dense, "all-attention,down_proj", "model.norm", false, false, NULL, 0 },
        { dense, "q_proj", "embed_tokens", false, false, NULL, 0 },
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) check_round_trip(&list[i]);
}

/* ---- any layout ---- */

/* The ranks of a layout load their parts of what one rank wrote. */
static void load_parts(const ModelShape *s, const PeftFile *f, MeshLayout l, int world, DType d, Slicing how,
                       uint64_t seed)
{
    Backend be;
    EXPECT_OK(backend_open(&be, "cpu"));
    for (int rank = 0; rank < world; rank++) {
        static RankPart a, b;
        part_open_adapted(&a, s, NULL, &f->conf, &l, rank, world, F32, how);
        part_open_adapted(&b, s, NULL, &f->conf, &l, rank, world, d, how);
        fill_random(&a, seed);
        poison(&b);
        EXPECT_OK(peft_load(f, &b.m, &be));
        for (int i = 0; i < a.m.params.n; i++) {
            const Param *p = a.m.params.p[i], *q = b.m.params.p[i];
            int64_t n = t_count(p->shard.w), bad = 0;
            if (!adapted(&a.m, p)) continue;
            for (int64_t k = 0; k < n; k++) {
                float want = ((float *)p->shard.w.data)[k];
                bad += d == F32 ? ((float *)q->shard.w.data)[k] != want
                                : ((uint16_t *)q->shard.w.data)[k] != bf16_from_f32(want);
            }
            EXPECT(!bad && t_count(q->shard.w) == n, "tp %d ep %d etp %d pp %d, rank %d: %s: %lld of %lld "
            "differ",
                   l.tp, l.ep, l.etp, l.pp, rank, p->piece[0].name, (long long)bad, (long long)n);
        }
        part_close(&a), part_close(&b);
    }
    backend_close(&be);
}

static void any_layout(void)
{
    ModelShape s = small_shape(vl_moe);
    Case k = { vl_moe, "all-linear,mlp.gate,lm_head", "embed_tokens", false, false, NULL, 0 };
    Words target, saved;
    LoraConf c = conf_of(&k, &target, &saved);
    RankPart a;
    PeftFile f;
    uint64_t seed = 77;
    part_open_adapted(&a, &s, NULL, &c, &one, 0, 1, F32, WHOLE_STATE);
    fill_random(&a, seed);
    save(&a, &s, &c, lab_path("layouts"));
    part_close(&a);
    EXPECT_OK(peft_open(&f, lab_path("layouts"), &s));
    MeshLayout tp = one, ep = one, etp = one, pp = one, all = one;
    tp.tp = 2, ep.ep = 2, etp.etp = 2, pp.pp = 3, all.tp = all.ep = 2, all.pp = 3;
    load_parts(&s, &f, one, 1, BF16, WHOLE_STATE, seed);
    load_parts(&s, &f, tp, 2, F32, WHOLE_STATE, seed);
    load_parts(&s, &f, tp, 4, BF16, SLICED_STATE, seed);
    load_parts(&s, &f, ep, 2, F32, SLICED_WEIGHTS, seed);
    load_parts(&s, &f, etp, 2, F32, WHOLE_STATE, seed);
    load_parts(&s, &f, pp, 3, F32, WHOLE_STATE, seed);
    load_parts(&s, &f, all, 12, BF16, SLICED_WEIGHTS, seed);
    peft_close(&f);
}

/* ---- files of other programs ---- */

enum { MOST = 64 };

/* A file being made: tensors that own their values, and a configuration. */
typedef struct Made { StTensor t[MOST]; int n; Json *config; } Made;

static float *made_tensor(Made *m, int64_t rows, int64_t cols, const char *fmt, ...)
{
    char name[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    REQUIRE(m->n < MOST, "too many tensors");
    StTensor *t = &m->t[m->n++];
    float *x = calloc((size_t)(rows * cols) + 1, sizeof *x);
    *t = (StTensor){ .name = strdup(name), .dtype = F32, .rank = 2, .shape = { rows, cols }, .data = x,
                     .bytes = (size_t)(rows * cols) * sizeof *x };
    return x;
}

static void made_random(Made *m, int64_t rows, int64_t cols, const char *name)
{
    rng_fill_normal(made_tensor(m, rows, cols, "%s", name), rows * cols, 9, rng_stream(name), 0, 0.0f, 1.0f);
}

static void made_close(Made *m)
{
    for (int i = 0; i < m->n; i++) free((char *)m->t[i].name), free((void *)m->t[i].data);
    json_decref(m->config);
    *m = (Made){ 0 };
}

static const char *made_save(const Made *m)
{
    static char dir[300];
    char path[400];
    snprintf(dir, sizeof dir, "%s", lab_path("made"));
    folder_remove(dir);
    EXPECT_OK(folder_make(dir));
    snprintf(path, sizeof path, "%s/" PEFT_WEIGHTS, dir);
    EXPECT_OK(st_save(path, m->t, m->n));
    snprintf(path, sizeof path, "%s/" PEFT_CONFIG, dir);
    EXPECT(!json_dump_file(m->config, path, 0), "%s", path);
    return dir;
}

static Json *config_of(int r, double alpha, const char *version)
{
    return json_pack("{s:s, s:i, s:f, s:s?}", "peft_type", "LORA", "r", r, "lora_alpha", alpha,
                     "peft_version", version);
}

#define EXPERTS "base_model.model.model.language_model.layers.2.mlp.experts."
enum { E = 4, D = 40, I = 24 };

/* Random A and B of one expert parameter: (E, r, in), (E, out, r). */
typedef struct RandomAdapter { int64_t r, out, in; float a[E * 8 * 2 * D], b[E * 8 * 2 * D]; } RandomAdapter;

static void randomize(RandomAdapter *x, int64_t r, int64_t out, int64_t in, uint64_t seed)
{
    *x = (RandomAdapter){ .r = r, .out = out, .in = in };
    rng_fill_normal(x->a, E * r * in, seed, 1, 0, 0.0f, 1.0f);
    rng_fill_normal(x->b, E * r * out, seed, 2, 0, 0.0f, 1.0f);
}

/* put_rows: element j of expert e in row e r + j; put_columns: in column j E + e. */
static void put_rows(Made *m, const RandomAdapter *x, bool b, const char *name)
{
    int64_t n = b ? x->out : x->in;
    float *y = made_tensor(m, E * x->r, n, "%s", name);
    for (int64_t e = 0; e < E; e++)
        for (int64_t j = 0; j < x->r; j++)
            for (int64_t i = 0; i < n; i++)
                y[(e * x->r + j) * n + i] = b ? x->b[(e * n + i) * x->r + j] : x->a[(e * x->r + j) * n + i];
}

static void put_columns(Made *m, const RandomAdapter *x, bool b, const char *name)
{
    int64_t n = b ? x->out : x->in;
    float *y = made_tensor(m, n, E * x->r, "%s", name);
    for (int64_t e = 0; e < E; e++)
        for (int64_t j = 0; j < x->r; j++)
            for (int64_t i = 0; i < n; i++)
                y[i * E * x->r + j * E + e] = b ? x->b[(e * n + i) * x->r + j] : x->a[(e * x->r + j) * n + i];
}

static void put_fused(Made *m, const RandomAdapter *x, const char *below, bool transposed)
{
    char a[200], b[200];
    snprintf(a, sizeof a, EXPERTS "%slora_A.weight", below);
    snprintf(b, sizeof b, EXPERTS "%slora_B.weight", below);
    put_rows(m, x, transposed, a), put_columns(m, x, !transposed, b);
}

/* Experts one by one; up has the A of gate, or its own. */
static void put_per_expert(Made *m, const RandomAdapter *gate_up, const float *own, const RandomAdapter *down)
{
    int64_t r = gate_up->r;
    for (int e = 0; e < E; e++) {
        for (int k = 0; k < 2; k++) {
            const char *part = k ? "up_proj" : "gate_proj";
            float *a = made_tensor(m, r, D, EXPERTS "%d.%s.lora_A.weight", e, part);
            float *b = made_tensor(m, I, r, EXPERTS "%d.%s.lora_B.weight", e, part);
            memcpy(a, (k && own ? own : gate_up->a) + e * r * D, (size_t)(r * D) * sizeof *a);
            memcpy(b, gate_up->b + (e * 2 * I + k * I) * r, (size_t)(I * r) * sizeof *b);
        }
        float *a = made_tensor(m, down->r, I, EXPERTS "%d.down_proj.lora_A.weight", e);
        float *b = made_tensor(m, D, down->r, EXPERTS "%d.down_proj.lora_B.weight", e);
        memcpy(a, down->a + e * down->r * I, (size_t)(down->r * I) * sizeof *a);
        memcpy(b, down->b + e * D * down->r, (size_t)(down->r * D) * sizeof *b);
    }
}

static const Param *expert_param(const RankPart *r, const char *name)
{
    for (int i = 0; i < r->m.params.n; i++)
        if (strstr(r->m.params.p[i]->piece[0].name, name)) return r->m.params.p[i];
    return NULL;
}

static void expect_adapter(const RankPart *r, const char *name, const RandomAdapter *x, float scale,
                           const char *what)
{
    const Param *w = expert_param(r, name);
    EXPECT(w && w->lora && w->lora->part[0].r == x->r && w->lora->part[0].scale == scale, "%s: %s", what,
           name);
    if (!w || !w->lora || w->lora->part[0].r != x->r) return;
    EXPECT(!memcmp(w->lora->a->shard.w.data, x->a, (size_t)(E * x->r * x->in) * sizeof *x->a), "%s: A of %s",
           what, name);
    EXPECT(!memcmp(w->lora->part[0].b->shard.w.data, x->b, (size_t)(E * x->r * x->out) * sizeof *x->b),
           "%s: B of %s", what, name);
}

static void open_made(Made *m, const ModelShape *s, PeftFile *f, RankPart *r, const char *what)
{
    Backend be;
    EXPECT_OK(backend_open(&be, "cpu"));
    Status st = peft_open(f, made_save(m), s);
    REQUIRE(!st, "%s: %s", what, status_text());
    part_open_adapted(r, s, NULL, &f->conf, &one, 0, 1, F32, WHOLE_STATE);
    poison(r);
    EXPECT_OK(peft_load(f, &r->m, &be));
    backend_close(&be);
}

/* The block-diagonal adapter that gate and up with different A are read as. */
static void stack_split(RandomAdapter *out, const RandomAdapter *x, const float *own)
{
    int64_t r = x->r;
    *out = (RandomAdapter){ .r = 2 * r, .out = 2 * I, .in = D };
    for (int64_t e = 0; e < E; e++) {
        memcpy(out->a + e * 2 * r * D, x->a + e * r * D, (size_t)(r * D) * sizeof *x->a);
        memcpy(out->a + (e * 2 + 1) * r * D, own + e * r * D, (size_t)(r * D) * sizeof *x->a);
        for (int64_t o = 0; o < 2 * I; o++)
            memcpy(out->b + (e * 2 * I + o) * 2 * r + (o < I ? 0 : r), x->b + (e * 2 * I + o) * r,
                   (size_t)r * sizeof *x->b);
    }
}

static void reads_forms_of_other_programs(void)
{
    static RandomAdapter gate_up, down, halves, other;
    ModelShape s = small_shape(vl_moe);
    static const char *const what[] = { "fused", "transposed", "one by one", "gate and up apart",
                                        "down alone, transposed" };
    randomize(&gate_up, 3, 2 * I, D, 1), randomize(&down, 3, D, I, 2), randomize(&other, 3, 2 * I, D, 3);
    stack_split(&halves, &gate_up, other.a);
    for (int form = 0; form < 5; form++) {
        Made m = { .config = config_of(3, 6, NULL) };
        PeftFile f;
        RankPart r;
        if (form < 2) put_fused(&m, &gate_up, "base_layer.", form);
        if (form < 2 || form == 4) put_fused(&m, &down, "", form);
        if (form == 2 || form == 3) put_per_expert(&m, &gate_up, form == 3 ? other.a : NULL, &down);
        open_made(&m, &s, &f, &r, what[form]);
        if (form < 4)
            expect_adapter(&r, "layers.2.mlp.experts.gate_up_proj", form == 3 ? &halves : &gate_up, 2,
                        what[form]);
        expect_adapter(&r, "layers.2.mlp.experts.down_proj", &down, 2, what[form]);
        EXPECT(f.conf.exacts == (form == 4 ? 1 : 2), "%s: %d modules", what[form], f.conf.exacts);
        part_close(&r);
        peft_close(&f);
        made_close(&m);
    }
}

/* The shape of a square expert does not tell fused from transposed. */
static void square_experts(void)
{
    char config[2048];
    snprintf(config, sizeof config, "%s", vl_moe);
    memcpy(strstr(config, "\"hidden_size\": 40"), "\"hidden_size\": 48", 17);      /* 2 x 24 */
    memcpy(strstr(config, "\"out_hidden_size\": 40"), "\"out_hidden_size\": 48", 21);
    ModelShape s = small_shape(config);
    static RandomAdapter gate_up, down;
    randomize(&gate_up, 2, 48, 48, 1), randomize(&down, 2, 48, I, 2);
    for (int transposed = 0; transposed < 2; transposed++) {
        Made m = { .config = config_of(2, 2, NULL) };
        PeftFile f;
        RankPart r;
        put_fused(&m, &gate_up, "base_layer.", transposed), put_fused(&m, &down, "", transposed);
        open_made(&m, &s, &f, &r, "square");
        expect_adapter(&r, "layers.2.mlp.experts.gate_up_proj", &gate_up, 1,
                    transposed ? "square, transposed" : "square");
        part_close(&r), peft_close(&f), made_close(&m);
    }
    for (int k = 0; k < 3; k++) {
        static const char *const version[] = { NULL, "0.18.0", "0.21.2" };
        Made m = { .config = config_of(2, 2, version[k]) };
        PeftFile f;
        put_fused(&m, &gate_up, "", false);
        if (k < 2) EXPECT_FAIL(peft_open(&f, made_save(&m), &s), E_DATA, "nothing in the file tells");
        else EXPECT_OK(peft_open(&f, made_save(&m), &s));
        if (k == 2) peft_close(&f);
        made_close(&m);
    }
}

/* Folders written by PEFT. */
static void reads_files_of_peft(void)
{
    static const struct { const char *name, *base; int modules, saved; } rows[] = {
        { "vl-moe-all", "vl-moe-mix", 37, 0 },   { "moe-rslora", "moe-rawtopk", 13, 0 },
        { "moe-down", "moe-rawtopk", 6, 0 },     { "vl-dense-save", "vl-dense-bias", 10, 2 },
        { "dense-all-linear", "dense-tied-left", 21, 0 }, { "dense-tied-save", "dense-tied-left", 3, 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[200];
        ModelShape s;
        PeftFile f;
        SafeTensors base;
        snprintf(path, sizeof path, "tests/gold/%s", rows[i].base);
        EXPECT_OK(shape_load(&s, path));
        EXPECT_OK(st_open(&base, path));
        snprintf(path, sizeof path, "tests/gold_lora/%s/adapter", rows[i].name);
        EXPECT_OK(peft_open(&f, path, &s));
        EXPECT(f.conf.exacts == rows[i].modules && f.save.n == rows[i].saved, "%s: %d modules, %d saved",
               rows[i].name, f.conf.exacts, f.save.n);
        EXPECT_OK(peft_check_base(&f, &base));
        if (!strcmp(rows[i].name, "moe-rslora")) {
            EXPECT(f.copies == 1, "%d copies of the base", f.copies);
            EXPECT_FAIL(peft_check_base(&f, NULL), E_CONFIG, "lm_head");
            ((StTensor *)st_find(&base, "lm_head.weight"))->data =
                st_find(&base, "model.embed_tokens.weight")->data;
            EXPECT_FAIL(peft_check_base(&f, &base), E_DATA, "another one");
        }
        peft_close(&f);
        st_close(&base);
    }
}

/* ---- refusals ---- */

#define Q "base_model.model.model.language_model.layers.0.self_attn.q_proj."

static void expect_refused(Made *m, const ModelShape *s, Status want, const char *word)
{
    PeftFile f;
    EXPECT_FAIL(peft_open(&f, made_save(m), s), want, word);
    EXPECT(!f.st.tensor && !f.adapter, "%s: half open", word);
    made_close(m);
}

static Made plain_adapter(void)
{
    Made m = { .config = config_of(4, 8, NULL) };
    made_random(&m, 4, 40, Q "lora_A.weight");
    made_random(&m, 48, 4, Q "lora_B.weight");
    return m;
}


static void refuses_configs(const ModelShape *s)
{
    static const struct { const char *set, *word; } rows[] = {
        { "{\"peft_type\": \"IA3\"}", "peft_type = IA3" },
        { "{\"use_dora\": true}", "use_dora" },
        { "{\"bias\": \"lora_only\"}", "bias = lora_only" },
        { "{\"lora_bias\": true}", "lora_bias" },
        { "{\"fan_in_fan_out\": true}", "fan_in_fan_out" },
        { "{\"layer_replication\": [[0, 2]]}", "layer_replication" },
        { "{\"init_lora_weights\": \"pissa_niter_4\"}", "pissa" },
        { "{\"r\": 8}", "rank 8 in adapter_config.json, its tensors have rank 4" },
        { "{\"r\": 0}", "rank" },
        { "{\"r\": \"four\"}", "r: a whole number" },
        { "{\"lora_alpha\": -3}", "alpha" },
        { "{\"rank_pattern\": {\"q_proj\": 3}}", "rank 3" },
        { "{\"rank_pattern\": {\"(q_proj\": 4}}", "not a valid regular expression" },
        { "{\"rank_pattern\": {\"([^!]+)+[QR]\": 4}}", "takes too long" },
        { "{\"rank_pattern\": [4]}", "rank_pattern is not an object" },
        { "{\"alpha_pattern\": {\"q_proj\": null}}", "the value of q_proj is not a number" },
        { "{\"lora_dropout\": 1.5}", "lora_dropout" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m = plain_adapter();
        json_object_update_new(m.config, json_loads(rows[i].set, 0, NULL));
        expect_refused(&m, s, E_DATA, rows[i].word);
    }
}

static void refuses_tensors(const ModelShape *s)
{
    Made m = plain_adapter();
    m.n--, free((char *)m.t[1].name), free((void *)m.t[1].data);
    expect_refused(&m, s, E_DATA, "without its lora_B");
    m = plain_adapter(),
    made_random(&m, 4, 40, "base_model.model.model.language_model.layers.9.self_attn.q_proj.lora_A.weight");
    expect_refused(&m, s, E_DATA, "layers.9.self_attn.q_proj.lora_A.weight belongs to no module");
    m = plain_adapter(),
    made_random(&m, 4, 97, "base_model.model.model.language_model.embed_tokens.lora_embedding_A");
    expect_refused(&m, s, E_DATA, "adapters of embeddings");
    m = plain_adapter(), m.t[1].shape[0] = 24, m.t[1].shape[1] = 8;
    expect_refused(&m, s, E_DATA, "shape [24, 8] instead of [48, 4]");
    m = plain_adapter(), m.t[0].dtype = I32;
    expect_refused(&m, s, E_DATA, "stored as i32");
    m = plain_adapter(),
    made_random(&m, 48, 40, "base_model.model.model.language_model.layers.1.self_attn.q_proj.weight");
    expect_refused(&m, s, E_DATA, "only part of the tensors that are one weight with");
    m = (Made){ .config = config_of(4, 8, NULL) };
    made_random(&m, 97, 40, "base_model.model.lm_head.weight");
    expect_refused(&m, s, E_DATA, "the file has no adapters");
    m = plain_adapter(), made_random(&m, 97, 48, "base_model.model.lm_head.weight");
    expect_refused(&m, s, E_DATA,
                   "lm_head.weight has shape [97, 48] in the file and [97, 40] by config.json");
    m = plain_adapter(), made_random(&m, 40, 24, EXPERTS "0.down_proj.weight");
    expect_refused(&m, s, E_DATA, EXPERTS "1.down_proj.weight");
}

static void refuses_experts(const ModelShape *s)
{
    Made m = { .config = config_of(3, 8, NULL) };
    made_random(&m, 10, 40, EXPERTS "lora_A.weight"), made_random(&m, 48, 10, EXPERTS "lora_B.weight");
    expect_refused(&m, s, E_DATA, "10 rows, which is not a multiple of 4 experts");
    m = (Made){ .config = config_of(4, 8, NULL) };
    made_random(&m, 16, 40, EXPERTS "base_layer.lora_A.weight"),
        made_random(&m, 48, 16, EXPERTS "base_layer.lora_B.weight");
    expect_refused(&m, s, E_DATA, "experts.lora_A.weight is not in the file");
    m = (Made){ .config = config_of(4, 8, NULL) };
    made_random(&m, 4, 40, EXPERTS "0.gate_proj.lora_A.weight"),
        made_random(&m, 24, 4, EXPERTS "0.gate_proj.lora_B.weight");
    expect_refused(&m, s, E_DATA, EXPERTS "0.up_proj.lora_A.weight");
}

/* A tied model's embedding without the head, or with a different head. */
static void refuses_untied_embedding(void)
{
    ModelShape tied = small_shape(dense);
    for (int i = 0; i < 2; i++) {
        Made m = { .config = config_of(4, 8, NULL) };
        made_random(&m, 4, 24, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
        made_random(&m, 32, 4, "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight");
        made_random(&m, 51, 24, "base_model.model.model.embed_tokens.weight");
        if (i) made_random(&m, 51, 24, "base_model.model.lm_head.weight");
        expect_refused(&m, &tied, E_DATA, "trained apart from the head");
    }
}

static void refuses_folders(const ModelShape *s)
{
    PeftFile f;
    Made m = plain_adapter();
    EXPECT_FAIL(peft_open(&f, lab_path("none"), s), E_IO, "none");
    char path[400], bin[400];
    snprintf(path, sizeof path, "%s/" PEFT_WEIGHTS, made_save(&m)),
        snprintf(bin, sizeof bin, "%s/adapter_model.bin", lab_path("made"));
    EXPECT(!truncate(path, 300), "truncate");
    EXPECT_FAIL(peft_open(&f, lab_path("made"), s), E_DATA, "truncated");
    EXPECT(!rename(path, bin), "rename");
    EXPECT_FAIL(peft_open(&f, lab_path("made"), s), E_DATA, "adapter_model.bin: a pickled");
    made_close(&m);
}

static void refusals(void)
{
    ModelShape s = small_shape(vl_moe);
    refuses_configs(&s);
    refuses_tensors(&s);
    refuses_experts(&s);
    refuses_untied_embedding();
    refuses_folders(&s);
}

int main(void)
{
    RUN(round_trip);
    RUN(any_layout);
    RUN(reads_forms_of_other_programs);
    RUN(square_experts);
    RUN(reads_files_of_peft);
    RUN(refusals);
    folder_remove(lab_tmp());
    return lab_report();
}
