/* tests/test_flops.c -- FLOPs of the model from counts alone: known sums of a 30B model, and the ledger of a
 * real step, trained, frozen and with adapters. */
#include "small.h"
#include "model/presets.h"
#include "engine/flops.h"

static ModelShape preset(const char *name)
{
    Json *hf;
    ModelShape s = { 0 };
    EXPECT_OK(preset_config(&hf, name));
    EXPECT_OK(shape_read(&s, hf, name));
    json_decref(hf);
    return s;
}

static void near(const char *what, double got, double want)   /* in TFLOP, as many digits as the table has */
{
    EXPECT(fabs(got / 1e12 - want) < 6e-4 * want, "%s: %.5g TFLOP, want %.5g", what, got / 1e12, want);
}

/* The reference points of the model's specification; its lm_head projects every position. */
static void known_sums(void)
{
    ModelWork  v, w;
    ModelShape s = preset("Qwen3-VL-30B-A3B"), text = preset("Qwen3-30B-A3B");
    Load picture = { 1280, 4096, 1280, 1280.0 * 1281 / 2, 4096.0 * 4096 };
    Load pack = { 26 * 320, 26 * 1200, 26 * 320, 26 * 320.0 * 321 / 2, 26 * 1200.0 * 1200 };
    Load long_text = { 8192, 0, 8192, 8192.0 * 8193 / 2, 0 };
    EXPECT_OK(work_open(&v, &s, NULL, NULL));
    EXPECT_OK(work_open(&w, &text, NULL, NULL));
    Flops f = flops_forward(&v, &picture), t = flops_train(&v, &picture);
    near("vision", f.part[PART_VISION] + f.part[PART_MERGER], 5.7206);
    near("mergers", f.part[PART_MERGER], .0628 + .1884);
    near("decoder", f.part[PART_DECODER] + f.part[PART_HEAD], 8.4314);
    near("head", f.part[PART_HEAD], .7966);
    near("training", flops_sum(&t), 42.44);
    f = flops_forward(&v, &pack), t = flops_train(&v, &pack);
    near("pack, vision", f.part[PART_VISION] + f.part[PART_MERGER], 32.333);
    near("pack, decoder", f.part[PART_DECODER] + f.part[PART_HEAD], 51.663);
    near("pack, training", flops_sum(&t), 251.9);
    t = flops_train(&w, &long_text);
    near("text, training", flops_sum(&t), 228.7);
}

/* 8192 tokens through frozen weights with adapters of rank 16: twice a product, thrice attention,
 * 3 x 2 T r (in + out) an adapter; but the first layer's input needs no gradient. */
static void known_adapters(void)
{
    ModelShape s = preset("Qwen3-30B-A3B");
    const char *word = "all-linear";
    WordList    target = { &word, 1 };
    LoraConf c = { .rank = 16, .alpha = 32, .target = &target };
    Load      l = { 8192, 0, 8192, 8192.0 * 8193 / 2, 0 };
    ModelWork w, full;
    EXPECT_OK(work_open(&w, &s, NULL, &c));
    EXPECT_OK(work_open(&full, &s, NULL, NULL));
    double T = 8192, r = 16, D = 2048, qkv = 4096 + 512 + 512, F = 768, K = 8, L = 48;
    double core = L * 4 * 4096 * l.pairs;
    double adapters = L * ((3 * D + qkv) + (4096 + D) + K * (D + 2 * F) + K * (F + D));
    Flops  f = flops_train(&w, &l), once = flops_forward(&full, &l);
    double want = 2 * (flops_sum(&once) - core) + 3 * core + 6 * T * r * adapters;
    want -= 2 * T * D * qkv + 6 * T * r * D;
    EXPECT(fabs(flops_sum(&f) / want - 1) < 1e-9, "%.6g TFLOP, want %.6g", flops_sum(&f) / 1e12, want / 1e12);
}

static void presets_are_the_models(void)
{
    static const struct { const char *name; long long want;
    } rows[] = {
        { "Qwen3-VL-2B", 2127532032 },       { "Qwen3-VL-4B", 4437815808 },
        { "Qwen3-VL-8B", 8767123696 },       { "Qwen3-VL-32B", 33357390064 },
        { "Qwen3-VL-30B-A3B", 31070754032 }, { "Qwen3-VL-235B-A22B", 235670022896 },
        { "Qwen3-30B-A3B", 30532122624 },    { "Qwen3-235B-A22B", 235093634560 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ModelShape s = preset(rows[i].name);
        Model m = { 0 };
        EXPECT_OK(model_open(&m, &s, NULL));
        EXPECT(params_count(&m.params) == rows[i].want, "%s: %lld parameters, not %lld", rows[i].name,
               (long long)params_count(&m.params), rows[i].want);
        model_close(&m);
    }
    Json *hf;
    EXPECT_FAIL(preset_config(&hf, "Qwen3-VL-31B"), E_CONFIG, "Qwen3-VL-30B-A3B");
}

/* What the preset says, demo/config.json says too. */
static void demo_is_the_file(void)
{
    static const char *const parts[] = { "text_config", "vision_config" };
    static const char *const ids[] = { "image_token_id", "video_token_id", "vision_start_token_id",
                                       "vision_end_token_id" };
    Json *hf = NULL, *file = NULL, *value;
    const char *key;
    EXPECT_OK(preset_config(&hf, "demo"));
    EXPECT_OK(json_load(&file, "demo/config.json"));
    for (int i = 0; i < 2; i++)
        json_object_foreach(json_object_get(hf, parts[i]), key, value)
            EXPECT(json_equal(value, json_object_get(json_object_get(file, parts[i]), key)), "%s.%s",
                   parts[i], key);
    for (int i = 0; i < 4; i++)
        EXPECT(json_equal(json_object_get(hf, ids[i]), json_object_get(file, ids[i])), "%s", ids[i]);
    json_decref(hf), json_decref(file);
}

static const Budget roomy = { .tokens = 120, .patches = 64, .docs = 6, .supervised = 100 };

/* With budgets filled to the last row, what the ops charged is what the model needs. */
static void ledger_of(const char *what, const ModelShape *shape, unsigned pictures, const bool *frozen,
                      const LoraConf *lora)
{
    static const char *const parts[PART_N] = { "vision", "merger", "decoder", "head", "optim" };
    Stream s;
    Engine e;
    small_stream(&s, shape, roomy, 0, 3, pictures);
    Budget b = { .tokens = s.tokens, .patches = s.patches, .docs = s.docs, .supervised = s.supervised };
    stream_close(&s);
    small_stream(&s, shape, b, 0, 3, pictures);
    EngineConf conf = small_conf(b);
    memcpy(conf.frozen, frozen, sizeof conf.frozen);
    if (lora) conf.lora = *lora;
    small_engine(&e, shape, &conf, &s);
    ledger_clear(&e.be.ledger);
    small_step(&e, 0.1f);
    Load load = load_of(&s);
    Flops f = flops_train(&e.work, &load);
    for (int p = 0; p < PART_OPTIM; p++)
        EXPECT(fabs(e.be.ledger.by_part[p].flops - f.part[p]) < 1e-9 * f.part[p] + 0.5,
               "%s, pictures %u: %s: %.0f done, %.0f needed", what, pictures, parts[p],
               e.be.ledger.by_part[p].flops, f.part[p]);
    engine_close(&e);
    stream_close(&s);
}

static void ledger_equals_formula(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    for (int g = 0; g < 7; g++)
        for (unsigned pictures = 0; pictures < 8; pictures += 7) {
            bool frozen[GROUP_N];
            char what[32];
            for (int k = 0; k < GROUP_N; k++) frozen[k] = g >> k & 1;
            snprintf(what, sizeof what, "frozen %d", g);
            ledger_of(what, &shape, pictures, frozen, NULL);
        }
}

/* Adapters here and there: the gradient goes no further than the lowest of them, and not into what it does
 * not need on the way. */
static void ledger_of_adapters(void)
{
    static const struct { const char *target, *save; } rows[] = {
        { "all-linear", NULL }, { "experts", NULL }, { "vision", NULL }, { "lm_head", NULL },
        { "v_proj", "lm_head" }, { "experts", "embed_tokens" }, { "layers.1.mlp.*", NULL },
        { "layers.2.self_attn.o_proj", NULL }, { "layers.2.self_attn.q_proj", "layers.1.input_layernorm" },
        { "layers.2.mlp.experts.down_proj", NULL }, { "layers.2.mlp.experts.gate_up_proj", "mlp.gate" },
        { "layers.0.mlp.gate", NULL }, { "blocks.1.attn.proj", NULL }, { "blocks.2.mlp.linear_fc1", NULL },
        { "visual.merger.linear_fc2", NULL }, { "deepstack_merger_list.*.linear_fc1", NULL },
    };
    ModelShape shape = small_shape(small_vl_moe);
    const bool none[GROUP_N] = { 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (unsigned pictures = 0; pictures < 8; pictures += 7) {
            WordList target = { &rows[i].target, 1 }, save = { &rows[i].save, 1 };
            LoraConf c = { .rank = 3, .alpha = 6, .target = &target, .shared_a = i % 2,
                              .save = rows[i].save ? &save : NULL };
            ledger_of(rows[i].target, &shape, pictures, none, &c);
        }
}

static void forward_alone(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    Stream s, full;
    StreamShape ss = shape_stream(&shape);
    Engine e;
    EngineConf conf = small_conf(roomy);
    conf.train = false;
    full = stream_full(&ss, &roomy);
    EXPECT_OK(engine_open(&e, &shape, &conf, &full));
    Load load = load_of(&full);
    Flops f = flops_forward(&e.work, &load);
    for (int p = 0; p < PART_OPTIM; p++)
        EXPECT(fabs(e.plan.ledger.by_part[p].flops - f.part[p]) < 0.5, "part %d: %.0f, %.0f", p,
               e.plan.ledger.by_part[p].flops, f.part[p]);
    small_stream(&s, &shape, roomy, 0, 3, 7); /* a stream with a tail fits what full has planned */
    EXPECT_OK(model_init(&e.model, &e.be, 3));
    engine_publish_weights(&e);
    engine_upload(&e, &s);
    engine_forward(&e, 1.0f);
    EXPECT_OK(backend_sync(&e.be));
    load = load_of(&s);
    Flops less = flops_forward(&e.work, &load);
    EXPECT(flops_sum(&less) < flops_sum(&f), "a tail is not the model's work");
    engine_close(&e);
    stream_close(&s);
}

int main(void)
{
    RUN(known_sums);
    RUN(known_adapters);
    RUN(presets_are_the_models);
    RUN(demo_is_the_file);
    RUN(ledger_equals_formula);
    RUN(ledger_of_adapters);
    RUN(forward_alone);
    return lab_report();
}
