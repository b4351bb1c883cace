/* The model's work from counts alone: known sums of a 30B model, and the ledger of a real step, trained and
 * frozen. */
#include "small.h"
#include "model/presets.h"
#include "train/flops.h"

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

/* With budgets filled to the last row, what the ops charged is what the model needs. */
static void ledger_equals_formula(void)
{
    static const Budget roomy = { .tokens = 120, .patches = 64, .docs = 6, .supervised = 100 };
    static const char *const parts[PART_N] = { "vision", "merger", "decoder", "head", "optim" };
    ModelShape shape = small_shape(small_vl_moe);
    for (int g = 0; g < 7; g++)
        for (unsigned pictures = 0; pictures < 8; pictures += 7) {
            Stream s;
            small_stream(&s, &shape, roomy, 0, 3, pictures);
            Budget b = { .tokens = s.tokens, .patches = s.patches, .docs = s.docs,
                         .supervised = s.supervised };
            stream_close(&s);
            small_stream(&s, &shape, b, 0, 3, pictures);
            Engine e;
            EngineConf conf = small_conf(b);
            for (int k = 0; k < GROUP_N; k++) conf.frozen[k] = g >> k & 1;
            small_engine(&e, &shape, &conf, &s);
            ledger_clear(&e.be.ledger);
            small_step(&e, 0.1f);
            Load load = load_of(&s);
            Flops f = flops_train(&e.work, &load);
            for (int p = 0; p < PART_OPTIM; p++)
                EXPECT(fabs(e.be.ledger.by_part[p].flops - f.part[p]) < 1e-9 * f.part[p] + 0.5,
                       "frozen %d, pictures %u: %s: %.0f done, %.0f needed", g, pictures, parts[p],
                       e.be.ledger.by_part[p].flops, f.part[p]);
            engine_close(&e);
            stream_close(&s);
        }
}

static void forward_alone(void)
{
    static const Budget roomy = { .tokens = 120, .patches = 64, .docs = 6, .supervised = 100 };
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
    engine_loaded(&e);
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
    RUN(presets_are_the_models);
    RUN(demo_is_the_file);
    RUN(ledger_equals_formula);
    RUN(forward_alone);
    return lab_report();
}
