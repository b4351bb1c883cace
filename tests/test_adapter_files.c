/* Adapters on disk: written and read back to the bit for every kind of module and from any layout, forms that
 * others write, merged models, and what a wrong file is told. */
#include "partlab.h"
#include "base/folder.h"
#include "model/adapter_files.h"
#include "model/family.h"

#include <math.h>

static const char vl_moe[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 90, \"video_token_id\": 91, \"dtype\": \"float32\","
    " \"text_config\": {\"vocab_size\": 97, \"hidden_size\": 40, \"num_hidden_layers\": 3,"
    "  \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 12, \"intermediate_size\": 56,"
    "  \"moe_intermediate_size\": 24, \"num_experts\": 4, \"num_experts_per_tok\": 2, \"mlp_only_layers\": [1],"
    "  \"rope_theta\": 10000.0, \"attention_bias\": true, \"initializer_range\": 0.2,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 2, 2]}},"
    " \"vision_config\": {\"depth\": 2, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 40,"
    "  \"deepstack_visual_indexes\": [0]}}";

#define TEXT_MOE(more)                                                                                         \
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 51, \"hidden_size\": 24, \"num_hidden_layers\": 2,"        \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, \"intermediate_size\": 40,"      \
    " \"moe_intermediate_size\": 16, \"num_experts\": 4, \"num_experts_per_tok\": 2, \"rope_theta\": 10000.0"   \
    more "}"

static const char text_moe[] = TEXT_MOE("");
static const char mixed_moe[] = TEXT_MOE(", \"mlp_only_layers\": [0]");
static const char dense[] =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 51, \"hidden_size\": 24, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, \"intermediate_size\": 40,"
    " \"rope_theta\": 10000.0, \"tie_word_embeddings\": true}";

static const Layout one = { .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = 1, .etp = 1, .replicas = 1, .cp_near = 1 };

static ModelShape shape_of(const char *config)
{
    Json *o;
    ModelShape s;
    if (json_parse(&o, config, strlen(config), "test config") || shape_read(&s, o, "test config"))
        printf("%s\n", status_text()), exit(1);
    json_decref(o);
    return s;
}

static const char *folder(const char *name)
{
    static char path[4][300];
    static int  at;
    char *out = path[at++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", lab_tmp(), name);
    return out;
}

typedef struct Words { const char *item[6]; int n; WordList list; } Words;

/* "a,b,c" */
static void words(Words *w, const char *text)
{
    static char copy[8][200];
    static int  at;
    char *p = copy[at++ % 8];
    *w = (Words){ 0 };
    snprintf(p, sizeof copy[0], "%s", text ? text : "");
    for (p = strtok(p, ","); p; p = strtok(NULL, ",")) w->item[w->n++] = p;
    w->list = (WordList){ w->item, w->n };
}

/* Every element of a parameter is a function of its name and place in the whole, so ranks agree. */
static void fill_random(RankPart *r, uint64_t seed)
{
    for (int i = 0; i < r->m.params.n; i++) {
        const Param *p = r->m.params.p[i];
        Comb c[HELD_COMBS];
        Held h = param_weights(p);
        uint64_t stream = rng_stream(p->piece[0].name);
        int n = held_combs(c, p, h);
        for (int k = 0; k < n; k++)
            for (int64_t run = 0; run < c[k].count; run++)
                rng_fill_normal((float *)h.t.data + c[k].local + run * c[k].len, c[k].len, seed, stream,
                                (uint64_t)(c[k].at + run * c[k].stride), 0.0f, 0.3f);
    }
}

static bool adapted(const Model *m, const Param *p)
{
    if (p->beside) return true;
    return m->lora->save && !p->frozen;
}

/* What a rank has bound, whole. */
static Status from_bound(void *self, Model *m, Backend *be, int i)
{
    const RankPart *r = self;
    const Param *p = m->params.p[i], *q = r->m.params.p[i];
    memcpy(p->w.data, q->w.data, (size_t)t_bytes(p->w));
    return OK;
}

static void expect_same(const RankPart *a, const RankPart *b, const char *what)
{
    int pairs = 0;
    for (int i = 0; i < a->m.params.n; i++) {
        const Param *p = a->m.params.p[i], *q = b->m.params.p[i];
        pairs += p->beside != NULL;
        if (!adapted(&a->m, p)) continue;
        EXPECT(!strcmp(p->piece[0].name, q->piece[0].name) && t_count(p->w) == t_count(q->w) &&
                   !memcmp(p->w.data, q->w.data, (size_t)t_bytes(p->w)),
               "%s: %s differs", what, p->piece[0].name);
    }
    EXPECT(pairs && a->m.params.n == b->m.params.n, "%s: %d pairs, %d and %d parameters", what, pairs,
           a->m.params.n, b->m.params.n);
}

static void poison(RankPart *r)
{
    for (int i = 0; i < r->m.params.n; i++)
        memset(r->m.params.p[i]->w.data, 0x7f, (size_t)t_bytes(r->m.params.p[i]->w));
}

static void save(RankPart *r, const ModelShape *s, const AdapterConf *c, const char *dir)
{
    Backend be;
    Model whole;
    Chunk all = { 0, s->text.L, true, true };
    folder_remove(dir);
    EXPECT_OK(backend_open(&be, "cpu"));
    EXPECT_OK(model_open_part(&whole, s, NULL, c, NULL, &all, 1));
    EXPECT_OK(adapter_save(&whole, &be, (ParamSource){ from_bound, r }, dir, "some/base"));
    model_close(&whole);
    backend_close(&be);
}

typedef struct Case { const char *config, *target, *save; bool rslora, shared; const AdapterTarget *exact; int n; } Case;

static AdapterConf conf_of(const Case *k, Words *target, Words *saved)
{
    words(target, k->target), words(saved, k->save);
    AdapterConf c = { .rank = 4, .alpha = 6.5, .rslora = k->rslora, .shared_a = k->shared, .dropout = 0.25,
                      .target = &target->list, .save = k->save ? &saved->list : NULL, .exact = k->exact,
                      .exacts = k->n };
    return c;
}

/* Written and read: the same modules with the same ranks, scales and bits. */
static void trip(const Case *k)
{
    ModelShape s = shape_of(k->config);
    Words target, saved;
    AdapterConf c = conf_of(k, &target, &saved);
    RankPart a, b;
    AdapterFile f;
    Backend be;
    const char *dir = folder("trip");
    char what[200];
    snprintf(what, sizeof what, "%s, %s", s.family, k->target ? k->target : "exact");
    EXPECT_OK(backend_open(&be, "cpu"));
    part_open_adapted(&a, &s, NULL, &c, &one, 0, 1, F32, WHOLE_STATE);
    fill_random(&a, 5);
    save(&a, &s, &c, dir);
    EXPECT_OK(adapter_open(&f, dir, &s));
    if (!f.base) exit(lab_report() + 1);
    EXPECT(f.conf.rslora == k->rslora && !strcmp(f.base, "some/base"), "%s: configuration", what);
    f.conf.shared_a = k->shared;
    part_open_adapted(&b, &s, NULL, &f.conf, &one, 0, 1, F32, WHOLE_STATE);
    poison(&b);
    EXPECT_OK(adapter_load(&f, &b.m, &be));
    expect_same(&a, &b, what);
    for (int i = 0; i < a.m.params.n; i++) {
        const Lora *x = a.m.params.p[i]->lora, *y = b.m.params.p[i]->lora;
        EXPECT(!x == !y, "%s: %s", what, a.m.params.p[i]->piece[0].name);
        for (int p = 0; x && y && p < x->parts; p++)
            EXPECT(x->part[p].r == y->part[p].r && x->part[p].scale == y->part[p].scale, "%s: %s: rank %lld, scale %g",
                   what, a.m.params.p[i]->piece[0].name, (long long)y->part[p].r, (double)y->part[p].scale);
    }
    part_close(&a), part_close(&b);
    adapter_close(&f);
    backend_close(&be);
}

static void round_trip(void)
{
    static const AdapterTarget ranks[] = {
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
        { vl_moe, "all-linear,mlp.gate,lm_head", "model.language_model.norm,embed_tokens", true, false, NULL, 0 },
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
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) trip(&list[i]);
}

int main(void)
{
    RUN(round_trip);
    folder_remove(lab_tmp());
    return lab_report();
}
