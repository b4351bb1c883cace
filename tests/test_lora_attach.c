/* tests/test_lora_attach.c -- which weights get adapters and which entries are errors; adapters on meshes;
 * their initialization. */
#include "partlab.h"
#include "model/presets.h"

#include <omp.h>

static const char dense_config[] =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 50, \"hidden_size\": 24, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 6, \"intermediate_size\": 40,"
    " \"rope_theta\": 10000.0}";

typedef struct Ask { const char *target, *exclude, *save; bool frozen[GROUP_N]; } Ask;

static struct { Words target, exclude, save; LoraConf c; } ask_;

static const LoraConf *conf_of(const Ask *a)
{
    ask_.c = (LoraConf){ .rank = 4, .alpha = 8, .target = words(&ask_.target, a->target),
                            .exclude = words(&ask_.exclude, a->exclude), .save = words(&ask_.save, a->save) };
    return &ask_.c;
}

static Status open_with(Model *m, const ModelShape *s, Ask a)
{
    return model_open_whole(m, s, a.frozen, conf_of(&a));
}

/* ---- entries ---- */

static int count_adapters(const Model *m)
{
    int n = 0;
    for (int i = 0; i < m->params.n; i++)
        if (m->params.p[i]->lora) n += m->params.p[i]->lora->parts;
    return n;
}

static void expect_adapters(const ModelShape *s, Ask a, int want)
{
    Model m;
    EXPECT_OK(open_with(&m, s, a));
    EXPECT(count_adapters(&m) == want, "%s without %s: %d adapters, not %d", a.target,
           a.exclude ? a.exclude : "any", count_adapters(&m), want);
    for (int i = 0; i < m.params.n; i++) {
        const Param *p = m.params.p[i];
        EXPECT(p->frozen == !p->adapter_of, "%s: frozen %d", p->piece[0].name, p->frozen);
    }
    model_close(&m);
}

static void entries_select_modules(void)
{
    ModelShape s = part_shape(false, "1"), tied = part_shape(true, "1"), text = small_shape(dense_config);
    int attention = 4 * 4, tower = 2 * 2, vision = tower + 2 * 2 + 2 * 2;      /* blocks; two mergers */
    int experts = 3 * 2, dense = 3;
    expect_adapters(&s, (Ask){ .target = "all-linear" }, attention + vision + experts + dense);
    expect_adapters(&s, (Ask){ .target = "all-linear", .frozen = { true } }, attention + 4 + experts + dense);
    expect_adapters(&s, (Ask){ .target = "all-linear", .frozen = { true, true } },
                    attention + experts + dense);
    expect_adapters(&s, (Ask){ .target = "all-linear", .frozen = { false, false, true } }, vision);
    expect_adapters(&s, (Ask){ .target = "all-attention" }, attention + tower);
    expect_adapters(&s, (Ask){ .target = "experts" }, experts);
    expect_adapters(&s, (Ask){ .target = "vision" }, vision);
    expect_adapters(&s, (Ask){ .target = "vision", .frozen = { true } }, 4);
    expect_adapters(&s, (Ask){ .target = "q_proj,v_proj" }, 8);
    expect_adapters(&s, (Ask){ .target = "q_proj,q_proj" }, 4);
    expect_adapters(&s, (Ask){ .target = "gate_up_proj" }, 3);
    expect_adapters(&s, (Ask){ .target = "mlp.experts.down_proj" }, 3);
    expect_adapters(&s, (Ask){ .target = "down_proj" }, 4);
    expect_adapters(&s, (Ask){ .target = "mlp.down_proj" }, 1);
    /* not patch_embed, a convolution */
    expect_adapters(&s, (Ask){ .target = "proj" }, 2);
    expect_adapters(&s, (Ask){ .target = "gate" }, 3);
    expect_adapters(&s, (Ask){ .target = "all-linear,mlp.gate,lm_head", .exclude = "vision" },
                 attention + experts + dense + 3 + 1);
    expect_adapters(&s, (Ask){ .target = "lm_head" }, 1);
    expect_adapters(&s, (Ask){ .target = "*.mlp.gate" }, 3);
    /* without its router */
    expect_adapters(&s, (Ask){ .target = "model.language_model.layers.2.*" }, 6);
    expect_adapters(&s, (Ask){ .target = "layers.[02].self_attn.?_proj" }, 8);
    expect_adapters(&s, (Ask){ .target = "model.language_model.layers.3.self_attn.q_proj" }, 1);
    expect_adapters(&s, (Ask){ .target = "*" }, attention + vision + experts + dense);
    expect_adapters(&s, (Ask){ .target = "all-linear", .exclude = "visual" }, attention + experts + dense);
    expect_adapters(&s, (Ask){ .target = "all-linear", .exclude = "visual.merger,*.layers.3.*,experts" },
                 3 * 4 + vision - 2 + dense);
    expect_adapters(&s, (Ask){ .target = "all-linear", .exclude = "lm_head" },
                 attention + vision + experts + dense);
    expect_adapters(&tied, (Ask){ .target = "all-linear" }, attention + vision + experts + dense);
    expect_adapters(&text, (Ask){ .target = "all-linear" }, 2 * 7);
    expect_adapters(&text, (Ask){ .target = "gate_proj,up_proj,down_proj" }, 2 * 3);
}

static void expect_error(const ModelShape *s, Ask a, const char *entry, const char *word)
{
    Model m;
    EXPECT_FAIL(open_with(&m, s, a), E_CONFIG, entry);
    EXPECT(strstr(status_text(), word), "\"%s\" is not in: %s", word, status_text());
    if (getenv("TREB_SHOW")) puts(status_text());
}

static void entries_without_effect_fail(void)
{
    ModelShape s = part_shape(false, ""), tied = part_shape(true, ""), text = small_shape(dense_config);
    expect_error(&s, (Ask){ .target = "q_proj,q_prj" }, "lora.target_modules: q_prj", "nearest is q_proj");
    expect_error(&s, (Ask){ .target = "zebra" }, "zebra", "there are qkv, proj, linear_fc1, linear_fc2");
    expect_error(&s, (Ask){ .target = "gate_proj" }, "gate_proj", "set experts or gate_up_proj");
    expect_error(&s, (Ask){ .target = "up_proj,down_proj" }, "up_proj", "gate and up as one weight");
    expect_error(&s, (Ask){ .target = "qkv", .frozen = { true } }, "qkv", "set model.freeze_vit to false");
    expect_error(&s, (Ask){ .target = "vision", .frozen = { true, true } }, "vision",
                 "model.freeze_vit and model.freeze_aligner");
    expect_error(&s, (Ask){ .target = "experts", .frozen = { false, false, true } }, "experts", "freeze_llm");
    expect_error(&s, (Ask){ .target = "q_proj", .exclude = "self_attn" }, "q_proj", "lora.exclude_modules");
    expect_error(&s, (Ask){ .target = "linear_fc2", .save = "visual" }, "linear_fc2", "modules_to_save");
    expect_error(&s, (Ask){ .target = "all-linear", .exclude = "o_prj" }, "lora.exclude_modules: o_prj",
                 "nearest is o_proj");
    expect_error(&s, (Ask){ .target = "embed_tokens" }, "embed_tokens", "lora.modules_to_save trains");
    expect_error(&s, (Ask){ .target = "patch_embed.proj" }, "patch_embed.proj", "not a linear layer");
    expect_error(&s, (Ask){ .target = ".*\\.(q|k)_proj" }, "_proj", "regular expression");
    expect_error(&s, (Ask){ .target = "*lm_head" }, "*lm_head", "nearest is lm_head");
    expect_error(&s, (Ask){ .target = "q_proj", .save = "lm_hed" }, "modules_to_save: lm_hed", "lm_head");
    expect_error(&s, (Ask){ .target = "q_proj", .save = "gate_up_proj" }, "gate_up", "half of the module");
    expect_error(&s, (Ask){ .target = "q_proj", .save = "self_attn.k_proj" }, "k_proj", "one parameter with");
    expect_error(&s, (Ask){ .target = "q_proj", .save = "visual.merger", .frozen = { false, true } },
                 "visual.merger", "model.freeze_aligner to false");
    expect_error(&tied, (Ask){ .target = "q_proj,lm_head" }, "lm_head", "tie_word_embeddings");
    expect_error(&tied, (Ask){ .target = "q_proj", .save = "lm_head" }, "lm_head", "name embed_tokens");
    expect_error(&text, (Ask){ .target = "experts" }, "experts", "no experts");
    expect_error(&text, (Ask){ .target = "vision" }, "vision", "no vision tower");
    expect_error(&text, (Ask){ .target = "q_proj", .exclude = "vision" }, "lora.exclude_modules: vision",
                 "no vision tower");
    expect_error(&s, (Ask){ .target = "q_proj", .save = "vision" }, "lora.modules_to_save: vision", "visual");
    Model m;
    Ask a = { .target = "q_proj,visual.blocks.0.attn.proj" };
    LoraConf wide = *conf_of(&a);
    wide.rank = 48;
    EXPECT_FAIL(model_open_whole(&m, &s, NULL, &wide), E_CONFIG, "16 inputs and 16 outputs");
}

static void saved_modules_are_trained_in_full(void)
{
    ModelShape s = part_shape(false, "1");
    Model m;
    EXPECT_OK(open_with(&m, &s, (Ask){ .target = "self_attn.q_proj,linear_fc1", .save =
                        "visual.merger,lm_head,layers.2.mlp.experts,layers.3.self_attn,q_norm" }));
    EXPECT(!m.head.w->frozen && !m.head.w->lora && m.embed->frozen && m.head.norm->frozen, "head");
    const Merger *merger = &m.vision.merger, *stack = &m.vision.stack[0];
    EXPECT(!merger->w1->frozen && !merger->w1->lora && !merger->norm_b->frozen, "merger");
    EXPECT(stack->w1->frozen && stack->w1->lora && stack->norm_w->frozen, "stack");
    EXPECT(!decoder_moe(&m.layer[2])->w_gu->frozen && !decoder_moe(&m.layer[2])->w_d->frozen &&
               decoder_moe(&m.layer[0])->w_d->frozen,
           "experts");
    EXPECT(!decoder_gqa(&m.layer[3])->w_qkv->frozen && !decoder_gqa(&m.layer[3])->b_qkv->frozen &&
               !decoder_gqa(&m.layer[3])->w_qkv->lora,
           "all of an attention");
    EXPECT(decoder_gqa(&m.layer[0])->w_qkv->frozen && decoder_gqa(&m.layer[0])->w_qkv->lora &&
               !decoder_gqa(&m.layer[0])->q_norm->frozen && decoder_gqa(&m.layer[0])->k_norm->frozen,
           "q_norm alone of another attention");
    EXPECT(!m.frozen[G_LLM] && !m.frozen[G_VIT] && !m.frozen[G_ALIGNER], "groups");
    model_close(&m);
    EXPECT_OK(open_with(&m, &s, (Ask){ .target = "q_proj", .save = "visual.merger.norm" }));
    EXPECT(!m.frozen[G_LLM] && m.frozen[G_VIT] && !m.frozen[G_ALIGNER], "the tower is frozen");
    /* opened again with the resulting frozen groups: the same model */
    Model again;
    EXPECT_OK(model_open_whole_of(&again, &m));
    EXPECT(again.params.n == m.params.n && !memcmp(again.frozen, m.frozen, sizeof m.frozen), "opened again");
    for (int i = 0; i < m.params.n; i++)
        EXPECT(again.params.p[i]->frozen == m.params.p[i]->frozen, "%s", m.params.p[i]->piece[0].name);
    model_close(&again), model_close(&m);
}

static const Param *find(const Model *m, const char *name)
{
    for (int i = 0; i < m->params.n; i++)
        for (int k = 0; k < m->params.p[i]->pieces; k++)
            if (!strcmp(m->params.p[i]->piece[k].name, name)) return m->params.p[i];
    return NULL;
}

static bool is_tensor(const Model *m, const char *name, int64_t rows, int64_t cols)
{
    const Param *p = find(m, name);
    for (int k = 0; p && k < p->pieces; k++)
        if (!strcmp(p->piece[k].name, name))
            return p->piece[k].rank == 2 && p->piece[k].shape[0] == rows && p->piece[k].shape[1] == cols;
    return false;
}

#define LM "base_model.model.model.language_model."

static void tensors_have_peft_names(void)
{
    ModelShape s = part_shape(false, "1");
    Model m;
    EXPECT_OK(open_with(&m, &s, (Ask){ .target = "all-linear,lm_head,gate", .exclude =
                        "layers.2.mlp.experts.down_proj,layers.1.self_attn.k_proj" }));
    EXPECT(is_tensor(&m, LM "layers.0.self_attn.q_proj.lora_A.weight", 4, 24), "A of q");
    EXPECT(is_tensor(&m, LM "layers.0.self_attn.v_proj.lora_A.weight", 4, 24), "A of v");
    EXPECT(is_tensor(&m, LM "layers.0.self_attn.v_proj.lora_B.weight", 12, 4), "B of v");
    EXPECT(!find(&m, LM "layers.1.self_attn.k_proj.lora_A.weight"), "k of layer 1 is excluded");
    EXPECT(is_tensor(&m, "base_model.model.model.visual.blocks.1.attn.qkv.lora_B.weight", 48, 4), "qkv");
    EXPECT(is_tensor(&m, "base_model.model.lm_head.lora_B.weight", 50, 4), "head");
    EXPECT(is_tensor(&m, LM "layers.0.mlp.gate.lora_B.weight", 8, 4), "router");
    EXPECT(is_tensor(&m, LM "layers.0.mlp.experts.base_layer.lora_A.weight", 8 * 4, 24), "gate_up of two");
    EXPECT(is_tensor(&m, LM "layers.0.mlp.experts.base_layer.lora_B.weight", 24, 4 * 8), "gate_up of two");
    EXPECT(is_tensor(&m, LM "layers.0.mlp.experts.lora_A.weight", 8 * 4, 12), "down of two");
    EXPECT(is_tensor(&m, LM "layers.2.mlp.experts.lora_A.weight", 8 * 4, 24), "gate_up alone");
    EXPECT(!find(&m, LM "layers.2.mlp.experts.base_layer.lora_A.weight"), "gate_up alone");
    const Lora *l = decoder_gqa(&m.layer[1])->w_qkv->lora;
    EXPECT(l->parts == 2 && l->part[1].piece == 2 && l->part[1].at == 60 && l->part[1].rows == 12 &&
           l->part[1].from == 4 && l->part[1].r == 4 && l->part[1].scale == 2, "v behind q");
    EXPECT(l->a->adapter_of == decoder_gqa(&m.layer[1])->w_qkv && l->a->unit == l->a->adapter_of->unit &&
           !l->a->frozen && l->a->shard.shape[0] == 8, "A of q, v");
    model_close(&m);
}

static void loaded_adapter_defines_modules(void)
{
    ModelShape s = part_shape(false, "1");
    LoraTarget t[] = { { "model.language_model.layers.0.self_attn.v_proj", 2, 8 },
                          { "model.language_model.layers.0.self_attn.q_proj", 16, 8 },
                          { "model.language_model.layers.0.mlp.experts.down_proj", 3, 6 },
                          { "model.visual.merger.linear_fc1", 1, 1 } };
    LoraConf c = { .rank = 16, .rslora = true, .exact = t, .exacts = 4 };
    bool frozen[GROUP_N] = { true, true, false };
    Model m;
    EXPECT_OK(model_open_whole(&m, &s, frozen, &c));
    const Lora *l = decoder_gqa(&m.layer[0])->w_qkv->lora, *d = decoder_moe(&m.layer[0])->w_d->lora;
    EXPECT(count_adapters(&m) == 4 && l->parts == 2 && l->a->shape[0] == 18, "%d adapters",
           count_adapters(&m));
    EXPECT(l->part[0].r == 16 && l->part[0].scale == 2, "q: %lld", (long long)l->part[0].r);
    EXPECT(l->part[1].r == 2 && l->part[1].from == 16, "v: %lld", (long long)l->part[1].r);
    EXPECT(d->part[0].scale == (float)(6 / sqrt(3)), "experts: scale %g", d->part[0].scale);
    EXPECT(!strcmp(d->a->piece[0].name, LM "layers.0.mlp.experts.lora_A.weight"), "%s", d->a->piece[0].name);
    EXPECT(m.vision.merger.w1->lora->a->frozen && m.frozen[G_ALIGNER] && !l->a->frozen,
           "a frozen part's is frozen");
    model_close(&m);
    snprintf(t[3].module, sizeof t[3].module, "model.visual.merger.linear_fc3");
    EXPECT_FAIL(model_open_whole(&m, &s, NULL, &c), E_CONFIG, "linear_fc3");
}

/* ---- numbers ---- */

static void counts_of_the_30b(void)
{
    Json *hf;
    ModelShape s;
    Model m;
    EXPECT_OK(preset_config(&hf, "Qwen3-VL-30B-A3B"));
    EXPECT_OK(shape_read(&s, hf, "preset"));
    json_decref(hf);
    int64_t D = 2048, Q = 32 * 128, KV = 4 * 128, I = 768, E = 128, V = 1152, F = 4304, W = 4 * V, r = 16;
    int64_t attention = (D + Q) + 2 * (D + KV) + (Q + D), experts = E * ((D + 2 * I) + (I + D));
    int64_t tower = 27 * ((V + 3 * V) + 2 * V + 2 * (V + F)), mergers = 4 * ((W + W) + (W + D));
    int64_t shared = (E - 1) * (D + I);
    Ask a = { .target = "all-linear" };
    LoraConf c = *conf_of(&a);
    c.rank = r;
    EXPECT_OK(model_open_whole(&m, &s, NULL, &c));
    EXPECT(small_trained(&m) == r * (48 * (attention + experts) + tower + mergers), "%lld",
           (long long)small_trained(&m));
    model_close(&m);
    c.shared_a = true;
    EXPECT_OK(model_open_whole(&m, &s, NULL, &c));
    EXPECT(small_trained(&m) == r * (48 * (attention + experts - shared) + tower + mergers), "%lld",
           (long long)small_trained(&m));
    model_close(&m);
}

/* ---- over meshes ---- */

static RankPart whole;

/* Counts, per element of the whole model, how often ranks update it. */
static void count_updates(int *seen, const RankPart *r, Slicing mode)
{
    for (int i = 0; i < r->m.params.n; i++) {
        const Param *p = r->m.params.p[i], *q = part_param(&whole, p->piece[0].name);
        int ranks[64], n = mesh_group(&r->mesh, p->grad_group, ranks), place = 0;
        StridedRange c[SHARD_VIEW_RANGES], all[PARAM_RANGES];
        if (!p->adapter_of) continue;
        if (mode != WHOLE_STATE) n = 1;
        for (int k = 0; whole.m.params.p[k] != q; k++) place += (int)param_count(whole.m.params.p[k]);
        int64_t end = p->shard.offset + p->shard.len;
        if (end > p->shard.unique) end = p->shard.unique;
        int64_t len = end > p->shard.offset ? end - p->shard.offset : 0;
        int ranges = ranges_clip(c, all, param_ranges(p, all), p->shard.offset, len);
        for (int k = 0; k < ranges; k++)
            for (int64_t x = 0; x < c[k].count; x++)
                for (int64_t y = 0; y < c[k].len; y++)
                    seen[place + c[k].at + x * c[k].stride + y] += 5040 / n;
    }
}

/* Each rank's values equal those of a single rank at the positions that its ranges give. */
static void expect_same_init(const RankPart *r)
{
    for (int i = 0; i < r->m.params.n; i++) {
        const Param *p = r->m.params.p[i], *q = part_param(&whole, p->piece[0].name);
        ShardView h = param_weight_view(p);
        StridedRange c[SHARD_VIEW_RANGES];
        int n = shard_view_ranges(c, p, h);
        bool same = true;
        for (int k = 0; k < n; k++)
            for (int64_t x = 0; x < c[k].count; x++)
                same &= !memcmp((float *)h.t.data + c[k].local + x * c[k].len,
                                (float *)q->shard.w.data + c[k].at + x * c[k].stride,
                                (size_t)c[k].len * sizeof(float));
        EXPECT(same, "%s: rank %d has other values", p->piece[0].name, r->mesh.rank);
    }
}

/* The cuts of an adapter, derived from its weight independently of lora.c. */
static void expect_cut_as_the_weight(const RankPart *r)
{
    for (int i = 0; i < r->m.params.n; i++) {
        const Param *w = r->m.params.p[i];
        const Lora  *l = w->lora;
        if (!l) continue;
        int last = w->ndim - 1;
        int64_t at = 0;
        EXPECT(l->a->shard.shape[last] == w->shard.shape[last], "%s: A has its columns", w->piece[0].name);
        for (int k = 0; k < l->parts; k++) {
            const LoraPart *x = &l->part[k];
            EXPECT(x->b->shard.shape[last] == x->r && x->b->shard.shape[last - 1] == x->rows, "%s: B",
                   w->piece[0].name);
            EXPECT(x->at == at, "%s: part %d at %lld", w->piece[0].name, k, (long long)x->at);
            at += x->rows;
        }
        EXPECT(at == w->shard.shape[last - 1], "%s: %lld rows of %lld", w->piece[0].name, (long long)at,
               (long long)w->shard.shape[last - 1]);
        if (w->ndim < 3) continue;
        int64_t experts = w->shard.shape[0];
        EXPECT(l->part[0].b->shard.shape[0] == experts &&
               (l->a->shard.shape[0] == experts || l->a->shape[0] == 1), "%s: experts", w->piece[0].name);
    }
}

static void expect_each_once(const int *seen, const MeshLayout *l, int world, Slicing mode)
{
    int64_t at = 0;
    for (int i = 0; i < whole.m.params.n; i++) {
        const Param *p = whole.m.params.p[i];
        bool good = true;
        for (int64_t k = 0; k < param_count(p); k++) good &= !p->adapter_of || seen[at + k] == 5040;
        EXPECT(good, "world %d tp %d cp %d pp %d ep %d etp %d, mode %d: %s is not there once", world, l->tp,
               l->cp, l->pp, l->ep, l->etp, (int)mode, p->piece[0].name);
        at += param_count(p);
    }
}

static void shards_cover_the_whole(void)
{
    ModelShape s = part_shape(false, "1");
    Backend be;
    static RankPart r;
    Ask a = { .target = "all-linear,gate,lm_head" };
    LoraConf c = *conf_of(&a);
    EXPECT_OK(backend_open(&be, "cpu"));
    for (uint64_t round = 0; round < 24; round++) {
        int world;
        MeshLayout l = part_layout(16, round / 2, &world);
        Slicing mode = (Slicing)(round % 3);
        c.shared_a = round % 2;
        part_open_adapted(&whole, &s, NULL, &c, &(MeshLayout){ 0 }, 0, 1, F32, WHOLE_STATE);
        EXPECT_OK(model_init(&whole.m, &be, 9));
        int *seen = calloc((size_t)params_count(&whole.m.params), sizeof *seen);
        for (int rank = 0; rank < world; rank++) {
            part_open_adapted(&r, &s, NULL, &c, &l, rank, world, F32, mode);
            EXPECT_OK(model_init(&r.m, &be, 9));
            expect_cut_as_the_weight(&r);
            expect_same_init(&r);
            count_updates(seen, &r, mode);
            part_close(&r);
        }
        expect_each_once(seen, &l, world, mode);
        free(seen);
        part_close(&whole);
    }
    backend_close(&be);
}

/* A pipeline stage without the vision tower accepts an entry that selects modules of the tower. */
static void stages_agree(void)
{
    ModelShape s = part_shape(true, "1");
    static RankPart r;
    Ask a = { .target = "vision,layers.0.self_attn.q_proj", .save = "embed_tokens" };
    const LoraConf *c = conf_of(&a);
    for (int stage = 0; stage < 2; stage++) {
        part_open_adapted(&r, &s, NULL, c, &(MeshLayout){ .pp = 2 }, stage, 2, F32, WHOLE_STATE);
        EXPECT(!r.m.frozen[G_VIT] && !r.m.frozen[G_LLM] && !r.m.frozen[G_ALIGNER], "groups of the whole");
        EXPECT(count_adapters(&r.m) == (stage ? 0 : 13), "%d adapters on stage %d", count_adapters(&r.m),
               stage);
        EXPECT(!(stage ? r.m.head.w : r.m.embed)->frozen, "both tables are trained");
        part_close(&r);
    }
}

/* ---- initialization ---- */

static void expect_values(const Param *p, double bound, double deviation)
{
    const float *w = p->shard.w.data;
    int64_t n = param_count(p);
    double sum = 0, squares = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += w[i], squares += (double)w[i] * w[i];
        most = fmax(most, fabs(w[i]));
    }
    double mean = sum / (double)n, sd = sqrt(squares / (double)n), slack = 4 * deviation / sqrt((double)n);
    EXPECT(most <= bound && fabs(mean) <= slack && fabs(sd - deviation) <= slack,
           "%s: %lld values up to %g, mean %g, deviation %g, not %g", p->piece[0].name, (long long)n, most,
           mean, sd, deviation);
}

static void init_matches_peft(void)
{
    ModelShape s = part_shape(false, "1");
    Backend be;
    Ask a = { .target = "all-linear" };
    LoraConf c = *conf_of(&a);
    EXPECT_OK(backend_open(&be, "cpu"));
    for (int kind = 0; kind < 4; kind++) {
        c.gaussian = kind & 1, c.shared_a = kind & 2;
        part_open_adapted(&whole, &s, NULL, &c, &(MeshLayout){ 0 }, 0, 1, F32, WHOLE_STATE);
        EXPECT_OK(model_init(&whole.m, &be, 3));
        for (int i = 0; i < whole.m.params.n; i++) {
            const Param *p = whole.m.params.p[i];
            const Lora  *l = p->lora;
            if (!l) continue;
            double bound = 1 / sqrt((double)p->shape[p->ndim - 1]);
            if (c.gaussian) expect_values(l->a, 100, 1.0 / (double)c.rank);
            else            expect_values(l->a, bound * (1 + 1e-6), bound / sqrt(3));
            for (int k = 0; k < l->parts; k++) expect_values(l->part[k].b, 0, 0);
        }
        part_close(&whole);
    }
    backend_close(&be);
}

/* lora_init leaves other weights unchanged and gives the same adapters as model_init. */
static void lora_init_keeps_loaded_weights(void)
{
    ModelShape s = part_shape(false, "1");
    Backend be;
    static RankPart r;
    Ask a = { .target = "all-linear", .save = "lm_head" };
    LoraConf c = *conf_of(&a);
    EXPECT_OK(backend_open(&be, "cpu"));
    part_open_adapted(&whole, &s, NULL, &c, &(MeshLayout){ 0 }, 0, 1, F32, WHOLE_STATE);
    part_open_adapted(&r, &s, NULL, &c, &(MeshLayout){ 0 }, 0, 1, F32, WHOLE_STATE);
    EXPECT_OK(model_init(&whole.m, &be, 3));
    EXPECT_OK(lora_init(&r.m, &be, 3));
    for (int i = 0; i < r.m.params.n; i++) {
        const Param *p = r.m.params.p[i], *q = whole.m.params.p[i];
        bool zero = true, same = !memcmp(p->shard.w.data, q->shard.w.data, (size_t)t_bytes(p->shard.w));
        for (int64_t k = 0; k < param_count(p); k++) zero &= ((float *)p->shard.w.data)[k] == 0;
        EXPECT(p->adapter_of ? same : zero, "%s", p->piece[0].name);
    }
    part_close(&r), part_close(&whole);
    backend_close(&be);
}

int main(void)
{
    omp_set_num_threads(1);                                  /* tensors are tiny */
    RUN(entries_select_modules);
    RUN(entries_without_effect_fail);
    RUN(saved_modules_are_trained_in_full);
    RUN(tensors_have_peft_names);
    RUN(loaded_adapter_defines_modules);
    RUN(counts_of_the_30b);
    RUN(shards_cover_the_whole);
    RUN(stages_agree);
    RUN(init_matches_peft);
    RUN(lora_init_keeps_loaded_weights);
    return lab_report();
}
