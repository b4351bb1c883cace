/* Evaluation: loss and exact answers per channel, the control with blank images, the samples file, bad data;
 * and the same through infer/predict.h from a model folder, on one rank and on several. */
#include "commlab.h"
#include "small.h"

#include "base/folder.h"
#include "data/image_encode.h"
#include "infer/answer.h"
#include "infer/evaluate.h"
#include "infer/predict.h"

static const char config[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 586, \"video_token_id\": 587,"
    " \"dtype\": \"float32\", \"text_config\": {\"vocab_size\": 610, \"hidden_size\": 48,"
    "  \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 12,"
    "  \"intermediate_size\": 64, \"moe_intermediate_size\": 32, \"num_experts\": 4,"
    "  \"num_experts_per_tok\": 2, \"rope_theta\": 10000.0, \"initializer_range\": 0.1,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 2, 2]}},"
    " \"vision_config\": {\"depth\": 2, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 48,"
    "  \"deepstack_visual_indexes\": [0]}}";

#define TURN(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define ASK(question, answer) "\"messages\": [" TURN("user", question) ", " TURN("assistant", answer) "]"
#define SHOW(file) ", \"images\": [\"" file "\"]"

/* Two samples that differ only in the image, two that differ in the text, two of two turns, one without an
 * answer. */
static const char *const lines[] = {
    "{\"channel\": \"colour\", " ASK("<image>What colour is it?", "red") SHOW("red.png") "}",
    "{\"channel\": \"sum\", " ASK("2 and 2?", "four") "}",
    "{\"channel\": \"colour\", " ASK("<image>What colour is it?", " blue ") SHOW("blue.png") "}",
    "{\"channel\": \"sum\", " ASK("3 and 3?", "six") "}",
    "{\"messages\": [" TURN("user", "<image>Look.") ", " TURN("assistant", "seen") ", "
    TURN("user", "2 and 2?") ", " TURN("assistant", "four again") "]" SHOW("blue.png") "}",
    "{\"channel\": \"plain\", \"text\": \"words without a question\"}",
};
enum { LINES = sizeof lines / sizeof *lines };

static char path[300], dir[256];

static const char *in_dir(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_text(const char *name, const char *const *text, int n)
{
    FILE *f = fopen(in_dir(name), "w");
    for (int i = 0; f && i < n; i++) fprintf(f, "%s\n", text[i]);
    if (!f || fclose(f)) perror(path), exit(1);
}

static void write_image(const char *name, int r, int g, int b)
{
    static uint8_t rgb[32 * 32 * 3];
    for (int i = 0; i < 32 * 32; i++)
        rgb[3 * i] = (uint8_t)r, rgb[3 * i + 1] = (uint8_t)g, rgb[3 * i + 2] = (uint8_t)b;
    EXPECT_OK(image_encode_png_file(in_dir(name), rgb, 32, 32));
}

static const Budget budget = { .tokens = 256, .patches = 192, .docs = 8, .supervised = 256 };

typedef struct World {
    Config     recipe;
    Source     source;
    SourceList list;
    Tokenizer *tokenizer;
    ModelShape shape;
    Engine     e;
    EvalConf   eval;
} World;

static void world_open(World *w)
{
    StreamShape ss;
    EngineConf conf = small_conf(budget);
    *w = (World){ 0 };
    if (!*dir) {
        snprintf(dir, sizeof dir, "%s", lab_tmp());
        write_image("red.png", 230, 20, 30), write_image("blue.png", 10, 40, 220);
        write_text("eval.jsonl", lines, LINES);
    }
    w->shape = small_shape(config), ss = shape_stream(&w->shape);
    Stream full = stream_full(&ss, &budget);
    config_default(&w->recipe);
    w->recipe.image.min_pixels = 1024, w->recipe.image.max_pixels = 4096;
    w->source = (Source){ .path = strdup(in_dir("eval.jsonl")), .weight = 1, .channel = "other" };
    w->list = (SourceList){ &w->source, 1 };
    EXPECT_OK(tokenizer_open(&w->tokenizer, "tests/gold_text"));
    conf.evaluate = true, conf.decode = eval_decode_capacity(8, &budget);
    EXPECT_OK(engine_open(&w->e, &w->shape, &conf, &full));
    EXPECT_OK(model_init(&w->e.model, &w->e.be, 3));
    engine_publish_weights(&w->e);
    w->eval = (EvalConf){ .recipe = &w->recipe, .sources = &w->list, .tokenizer = w->tokenizer, .max_new = 8,
                          .patch = { .patch = 4, .frames = 2, .merge = 2, .channels = 3 } };
}

static void world_close(World *w)
{
    engine_close(&w->e);
    tokenizer_close(w->tokenizer);
    config_close(&w->recipe);
    free((char *)w->source.path);
}

/* All documents as one batch. */
static void fill(World *w, Stream *s)
{
    static float pixels[64 * 96];
    SampleConf sc;
    SampleScratch scratch;
    Dataset data;
    StreamShape ss = shape_stream(&w->shape);
    DatasetConf dc = { .sources = &w->list, .key = "test", .once = true };
    EXPECT_OK(sample_conf(&sc, &w->recipe, w->tokenizer, &w->eval.patch, &ss, &budget));
    EXPECT_OK(dataset_open(&data, &dc));
    EXPECT_OK(sample_scratch_open(&scratch, w->tokenizer));
    EXPECT_OK(stream_open(s, &ss, &budget));
    sc.data = &data;
    for (int64_t i = 0; i < data.pass; i++) {
        Sample x;
        EXPECT_OK(sample_load(&x, &scratch, &sc, i));
        if (x.slices) EXPECT_OK(sample_pixels(pixels, false, &x, &scratch, &sc, 0));
        VisualSlice slice = { x.slices ? x.slice[0].h : 0, x.slices ? x.slice[0].w : 0, pixels };
        Document d = { x.ids.n, x.ids.v, x.targets.v, x.slices, &slice };
        EXPECT_OK(stream_add(s, &d));
        sample_close(&x);
    }
    sample_scratch_close(&scratch);
    dataset_close(&data);
}

/* Overfits to the documents; the weights are saved on the first call and loaded later. */
static double overfit(World *w)
{
    static char  *known;
    static Losses l;
    size_t bytes = w->e.arena[A_PARAM].used;
    Stream s;
    if (known) return memcpy(w->e.arena[A_PARAM].base, known, bytes), l.ce;
    fill(w, &s);
    for (int i = 1; i <= 60; i++) {
        OptimConf o = { .adam = { 8e-3f, 0.9f, 0.95f, 1e-8f, 0.0f, 1.0f, i } };
        engine_upload(&w->e, &s);
        l = small_step(&w->e, 1.0f / (float)s.supervised);
        engine_update(&w->e, &o);
    }
    stream_close(&s);
    known = malloc(bytes);
    memcpy(known, w->e.arena[A_PARAM].base, bytes);
    return l.ce;
}

static const EvalRow *row_of(const EvalResult *r, const char *channel)
{
    static const EvalRow none;
    for (int i = 0; i < r->rows; i++)
        if (!strcmp(r->row[i].channel, channel)) return &r->row[i];
    return &none;
}

/* An overfitted model gives its answers; before training it does not; with blank images it cannot distinguish
 * the images. */
static void overfitted_answers(void)
{
    World w;
    EvalResult r;
    Losses l;
    Stream s;
    world_open(&w);
    EXPECT_OK(evaluate_model(&w.e, &w.eval, &r));
    EXPECT(r.total.asked == 5 && r.total.correct == 0, "%d of %d before", (int)r.total.correct,
           (int)r.total.asked);
    EXPECT(r.total.samples == LINES && r.rows == 4, "%d samples, %d channels", (int)r.total.samples, r.rows);
    eval_result_close(&r);
    double loss = overfit(&w);
    EXPECT(loss < 0.1, "loss %g after training", loss);
    EXPECT_OK(evaluate_model(&w.e, &w.eval, &r));
    EXPECT(r.total.asked == 5 && r.total.correct == 5, "%d of %d after", (int)r.total.correct,
           (int)r.total.asked);
    EXPECT(row_of(&r, "colour")->asked == 2 && row_of(&r, "sum")->asked == 2 &&
               row_of(&r, "other")->asked == 1 && row_of(&r, "plain")->asked == 0,
           "channels");
    fill(&w, &s);
    engine_upload(&w.e, &s);
    engine_evaluate(&w.e, 1.0f);
    EXPECT_OK(engine_read_losses(&w.e, &l));
    EXPECT(r.total.supervised == s.supervised && fabs(r.total.ce - l.ce) < 1e-4 * l.ce + 1e-5,
           "loss %.9g, as one batch %.9g", r.total.ce, l.ce);
    stream_close(&s);
    eval_result_close(&r);
    w.eval.blind = true;
    EXPECT_OK(evaluate_model(&w.e, &w.eval, &r));
    EXPECT(row_of(&r, "colour")->correct <= 1 && row_of(&r, "sum")->correct == 2,
           "blind: %d colours, %d sums", (int)row_of(&r, "colour")->correct, (int)row_of(&r, "sum")->correct);
    eval_result_close(&r);
    world_close(&w);
}

/* Smaller batches, or a limit on samples, change no sample's result. */
static void batches_and_limits(void)
{
    World w;
    EvalResult all, few, some;
    world_open(&w);
    EXPECT_OK(evaluate_model(&w.e, &w.eval, &all));
    w.e.conf.decode.docs = 1;
    EXPECT_OK(evaluate_model(&w.e, &w.eval, &few));
    EXPECT(fabs(all.total.ce - few.total.ce) < 1e-5 * all.total.ce && all.total.correct == few.total.correct,
           "one at a time: loss %.9g, not %.9g", few.total.ce, all.total.ce);
    w.eval.max_samples = 2, w.eval.max_new = 0;
    EXPECT_OK(evaluate_model(&w.e, &w.eval, &some));
    EXPECT(some.total.samples == 2 && some.total.asked == 0, "%d samples, %d asked", (int)some.total.samples,
           (int)some.total.asked);
    eval_result_close(&all), eval_result_close(&few), eval_result_close(&some);
    world_close(&w);
}

static void samples_file(void)
{
    World w;
    EvalResult r;
    char file[300], line[4096];
    int n = 0;
    world_open(&w);
    overfit(&w);
    snprintf(file, sizeof file, "%s", in_dir("samples.jsonl"));
    w.eval.samples = file;
    EXPECT_OK(evaluate_model(&w.e, &w.eval, &r));
    eval_result_close(&r);
    FILE *f = fopen(file, "r");
    EXPECT(f, "no file of samples");
    for (; f && fgets(line, sizeof line, f); n++) {
        Json *o = NULL;
        EXPECT_OK(json_parse(&o, line, strlen(line), "sample"));
        const char *q = json_string_value(json_object_get(o, "question"));
        const char *a = json_string_value(json_object_get(o, "answer")),
                   *x = json_string_value(json_object_get(o, "expected"));
        EXPECT(q && a && x && !strcmp(a, x) && json_is_true(json_object_get(o, "correct")), "%s", line);
        const Json *images = json_object_get(o, "images");
        bool colour = q && strstr(q, "colour");
        EXPECT(!colour || json_array_size(images) == 1, "%s", line);
        const char *image = json_string_value(json_array_get(images, 0));
        EXPECT(!image || (image[0] == '/' && !access(image, R_OK)), "%s", image);
        json_decref(o);
    }
    if (f) fclose(f);
    EXPECT(n == 5, "%d lines", n);
    w.eval.sample_lines = 2;
    EXPECT_OK(evaluate_model(&w.e, &w.eval, &r));
    eval_result_close(&r);
    f = fopen(file, "r");
    for (n = 0; f && fgets(line, sizeof line, f); n++) { }
    if (f) fclose(f);
    EXPECT(n >= 1 && n <= 2, "%d lines of 2", n);
    w.eval.samples = "/nowhere/samples.jsonl";
    EXPECT_FAIL(evaluate_model(&w.e, &w.eval, &r), E_IO, "/nowhere");
    world_close(&w);
}

static void bad_samples(void)
{
    static const char *const bad[] = {
        "{" ASK("2 and 2?", "four") "}",
        "{" ASK("<image>?", "x") SHOW("none.png") "}",
        "{" ASK("<image>?", "x") SHOW("cut.png") "}",
        "not a line",
    };
    World w;
    EvalResult r;
    char whole[20000];
    world_open(&w);
    write_text("bad.jsonl", bad, 4);
    free((char *)w.source.path);
    w.source.path = strdup(path);
    FILE *f = fopen(in_dir("red.png"), "rb");
    size_t n = f ? fread(whole, 1, sizeof whole, f) : 0;
    if (f) fclose(f);
    EXPECT_OK(file_replace(in_dir("cut.png"), whole, n * 2 / 3));
    EXPECT_FAIL(evaluate_model(&w.e, &w.eval, &r), E_IO, "none.png");
    w.recipe.data.bad_sample = "skip";
    EXPECT_OK(evaluate_model(&w.e, &w.eval, &r));
    EXPECT(r.skipped == 3 && r.total.samples == 1 && r.total.asked == 1, "%d skipped, %d used",
           (int)r.skipped, (int)r.total.samples);
    eval_result_close(&r);
    world_close(&w);
}

static void finds_answers(void)
{
    Tokenizer *t;
    AnswerFinder m;
    Ids ids = { 0 };
    TokenScratch *s;
    int64_t prompt, end;
    static const char text[] =
        "<|im_start|>user\nassistant\nwhat<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
        "<|im_start|>user\nand<|im_end|>\n<|im_start|>assistant\nlast one<|im_end|>\n";
    EXPECT_OK(tokenizer_open(&t, "tests/gold_text"));
    EXPECT_OK(token_scratch_open(&s, t));
    EXPECT_OK(answer_finder_open(&m, t));
    EXPECT_OK(tokenizer_encode(t, s, &ids, text, sizeof text - 1, false));
    EXPECT(answer_find(&m, &ids, &prompt, &end), "no answer found");
    Text got = { 0 }, want = { 0 };
    EXPECT_OK(detokenize(&got, t, ids.v + prompt, end - prompt));
    EXPECT_OK(text_printf(&want, " \tlast one\n"));
    EXPECT(answer_equals(&got, &want), "%.*s", (int)got.n, got.v);
    want.n = 4;
    EXPECT(!answer_equals(&got, &want), "a part is not the whole");
    ids.n = end;                                             /* truncated before <|im_end|> */
    EXPECT(!answer_find(&m, &ids, &prompt, &end), "an answer without its end");
    text_close(&got), text_close(&want);
    ids_close(&ids);
    answer_finder_close(&m);
    token_scratch_close(s);
    tokenizer_close(t);
}

static char model[300];                                      /* the overfitted model as a folder */

static void save_model(World *w)
{
    const char *const conf[] = { config }, *const processor[] = {
        "{\"size\": {\"shortest_edge\": 1024, \"longest_edge\": 4096}}"
    };
    const char *const stops[] = { "{\"eos_token_id\": [576, 7]}" };
    overfit(w);
    snprintf(model, sizeof model, "%s/model", dir);
    EXPECT_OK(weights_save(&w->e.model, &w->e.be, model, F32, 1 << 30));
    write_text("model/config.json", conf, 1);
    write_text("model/preprocessor_config.json", processor, 1);
    write_text("model/generation_config.json", stops, 1);
    EXPECT_OK(file_copy("tests/gold_text/tokenizer.json", in_dir("model/tokenizer.json")));
}

/* The model saved as a folder and opened again gives the same answers. */
static void from_a_folder(void)
{
    World w;
    Predictor p;
    EvalResult r;
    world_open(&w);
    save_model(&w);
    Config recipe;
    config_default(&recipe);
    recipe.model.path = model;
    EXPECT_OK(predict_open(&p, &recipe));
    EXPECT(recipe.image.min_pixels == 1024 && recipe.image.max_pixels == 4096, "pixel bounds");
    EXPECT(p.stops == 3 && p.stop[0] == 576 && p.stop[1] == 574 && p.stop[2] == 7, "%d stops", p.stops);
    PredictConf load = { .budget = budget, .capacity = eval_decode_capacity(8, &budget) };
    EXPECT_OK(predict_load(&p, &load));
    EvalConf eval = w.eval;
    eval.recipe = &recipe, eval.tokenizer = p.source.tokenizer, eval.patch = p.patch;
    EXPECT_OK(evaluate_model(&p.e, &eval, &r));
    EXPECT(r.total.correct == 5, "%d right", (int)r.total.correct);
    eval_result_close(&r);
    predict_close(&p);
    config_close(&recipe);
    world_close(&w);
}

/* ---- ranks ---- */

static struct {
    const char *keys;                    /* overrides, one a line */
    const World *w;
    EvalResult  want;                    /* of one rank */
    char        file[2][300];            /* answers of one rank; of several */
    pthread_mutex_t lock;
    int         wrong;                   /* ranks whose result differs */
    char        text[300];
} many = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool same_rows(const EvalRow *a, const EvalRow *b)
{
    return !strcmp(a->channel, b->channel) && a->samples == b->samples && a->supervised == b->supervised &&
           a->asked == b->asked && a->correct == b->correct &&
           fabs(a->ce - b->ce) <= 1e-5 * (1 + fabs(b->ce));
}

static bool same_results(const EvalResult *a, const EvalResult *b)
{
    bool same = a->rows == b->rows && a->skipped == b->skipped && a->generated == b->generated &&
                same_rows(&a->total, &b->total);
    for (int i = 0; i < a->rows && same; i++) same = same_rows(&a->row[i], &b->row[i]);
    return same;
}

static Status evaluate_folder(Comm *world, EvalResult *r)
{
    Config    recipe;
    Predictor p = { 0 };
    EvalConf  eval = many.w->eval;
    char      key[64];
    config_default(&recipe);
    recipe.model.path = model, recipe.train.micro_tokens = budget.tokens, recipe.data.bad_sample = "skip";
    for (const char *at = many.keys; at && *at; at += strcspn(at, "\n"), at += *at == '\n') {
        snprintf(key, sizeof key, "%.*s", (int)strcspn(at, "\n"), at);
        TRY(config_set(&recipe, key));
    }
    PredictConf load = { .budget = budget, .capacity = eval_decode_capacity(8, &budget), .world = world };
    Status st = predict_open(&p, &recipe);
    if (!st) st = predict_load(&p, &load);
    eval.recipe = &recipe, eval.tokenizer = p.source.tokenizer, eval.patch = p.patch, eval.workers = 1;
    eval.samples = many.file[world != NULL];
    if (!st) st = evaluate_model(&p.e, &eval, r);
    predict_close(&p);
    config_close(&recipe);
    return st;
}

static void evaluate_rank(Peer *p)
{
    EvalResult r = { 0 };
    Status st = evaluate_folder(p->world, &r);
    pthread_mutex_lock(&many.lock);
    if (st || !same_results(&r, &many.want)) {
        many.wrong++;
        snprintf(many.text, sizeof many.text, "rank %d: %s, loss %.9g, %d of %d right, %d skipped", p->rank,
                 st ? status_text() : "other results", r.total.ce, (int)r.total.correct, (int)r.total.asked,
                 (int)r.skipped);
    }
    pthread_mutex_unlock(&many.lock);
    eval_result_close(&r);
}

static bool same_files(const char *a, const char *b)
{
    static char text[2][20000];
    size_t n[2] = { 0, 0 };
    const char *name[2] = { a, b };
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(name[i], "rb");
        if (f) n[i] = fread(text[i], 1, sizeof text[i], f), fclose(f);
    }
    return n[0] && n[0] == n[1] && !memcmp(text[0], text[1], n[0]);
}

/* Results and answers of every layout, with pictures on some replicas alone, more ranks than samples, and
 * samples that cannot be read: those of one rank. */
static void over_ranks(void)
{
    static const struct { int n; const char *keys; } layout[] = {
        { 2, "" }, { 3, "" }, { 2, "parallel.tp=2" }, { 2, "parallel.pp=2" }, { 2, "parallel.ep=2" },
        { 2, "parallel.zero=3" }, { 4, "parallel.tp=2\nparallel.pp=2" }, { 4, "parallel.ep=2" },
        { 4, "parallel.ep=4\nparallel.zero=3" }, { 16, "parallel.ep=2\nparallel.pp=2" },
    };
    World w;
    world_open(&w);
    if (!*model) save_model(&w);
    for (int bad = 0; bad < 2; bad++) {
        if (bad) free((char *)w.source.path), w.source.path = strdup(in_dir("bad.jsonl"));
        many.w = &w, many.keys = NULL;
        for (int i = 0; i < 2; i++) snprintf(many.file[i], sizeof many.file[i], "%s/answers-%d", dir, i);
        EXPECT_OK(evaluate_folder(NULL, &many.want));
        EXPECT(many.want.skipped == (bad ? 3 : 0) && many.want.total.asked == (bad ? 1 : 5), "one rank");
        for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) {
            many.keys = layout[i].keys, many.wrong = 0;
            on_ranks(layout[i].n, 0, evaluate_rank);
            EXPECT(!many.wrong, "%d ranks %s: %s", layout[i].n, layout[i].keys, many.text);
            EXPECT(same_files(many.file[0], many.file[1]), "%d ranks %s: other answers", layout[i].n,
                   layout[i].keys);
        }
        eval_result_close(&many.want);
    }
    world_close(&w);
}

/* What fails on one rank fails on all, with a text that names the rank. */
static void fails_on_all_ranks(void)
{
    World w;
    world_open(&w);
    many.w = &w, many.keys = "", many.wrong = 0;
    snprintf(many.file[1], sizeof many.file[1], "/nowhere/answers");
    on_ranks(3, 0, evaluate_rank);
    EXPECT(many.wrong == 3 && strstr(many.text, "/nowhere/answers"), "%d ranks: %s", many.wrong, many.text);
    many.keys = "parallel.cp=3", many.wrong = 0;
    on_ranks(3, 0, evaluate_rank);
    EXPECT(many.wrong == 3 && strstr(many.text, "parallel.cp=1"), "%d ranks: %s", many.wrong, many.text);
    world_close(&w);
}

int main(void)
{
    RUN(finds_answers);
    RUN(overfitted_answers);
    RUN(batches_and_limits);
    RUN(samples_file);
    RUN(bad_samples);
    RUN(from_a_folder);
    RUN(over_ranks);
    RUN(fails_on_all_ranks);
    if (*dir) folder_remove(dir);
    return lab_report();
}
