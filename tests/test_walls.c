/* treb diagnose on constructed runs: ranks that are threads with clocks of their own (clocklab.h), over slow
 * links, with a slow loader, little memory, a heavy tower, tiny micro-batches; and healthy runs, of which
 * none is blamed. The short list runs by default; with TREB_WALLS=1 every case runs, the first fix of each is
 * applied and measured against what was predicted, and a profile must say the same as metrics. CASE=word
 * picks cases, VERBOSE=1 prints diagnoses. tests/hardware_core.json is a core of an x86 server. */
#include "commlab.h"
#include "clocklab.h"
#include "tiny_tokenizer.h"
#include "pictures.h"
#include "diagnose/source.h"
#include "profile/measure.h"
#include "report/report_run.h"
#include "train/trainer.h"

#include <omp.h>
#include <sys/stat.h>

/* ---- a model, data, and a run of it ---- */

typedef struct DiagnoseCase {
    const char *name;
    int         ranks;
    double      rate;                    /* MB/s of every rank's link; 0: as fast as memory */
    const char *model, *data;            /* "text", "tower", "slight"; "text", "pictures", "large" */
    const char *set;                     /* overrides, blanks between them */
    double      limit;                   /* memory for a rank over what the run takes; 0: plenty */
    WallId      wall;
    bool        brief;                   /* in the short list */
} DiagnoseCase;

static void put_file(const char *name, const char *text)
{
    FILE *f = fopen(lab_path(name), "wb");
    REQUIRE(f && fputs(text, f) >= 0 && !fclose(f), "cannot write %s", name);
}

static const char config_text[] =
    "{\"model_type\": \"qwen3_moe\", \"dtype\": \"float32\", \"vocab_size\": 320, \"hidden_size\": 192,"
    " \"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"head_dim\": 48,"
    " \"intermediate_size\": 512, \"moe_intermediate_size\": 192, \"num_experts\": 8,"
    " \"num_experts_per_tok\": 2, \"rope_theta\": 10000.0, \"initializer_range\": 0.02,"
    " \"tie_word_embeddings\": false}";

static const char config_vision[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 305, \"video_token_id\": 306,"
    " \"dtype\": \"float32\", \"tie_word_embeddings\": false,"
    " \"text_config\": {\"vocab_size\": 320, \"hidden_size\": 128, \"num_hidden_layers\": 3,"
    "  \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, \"intermediate_size\": 256,"
    "  \"moe_intermediate_size\": 96, \"num_experts\": 4, \"num_experts_per_tok\": 2,"
    "  \"rope_theta\": 10000.0, \"initializer_range\": 0.02, \"rope_scaling\": {\"rope_type\": \"default\","
    "  \"mrope_section\": [6, 5, 5]}},"
    " \"vision_config\": {\"depth\": %d, \"hidden_size\": %d, \"intermediate_size\": %d, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 128,"
    "  \"deepstack_visual_indexes\": [0]}}";

static void put_model(const char *name, const char *config)
{
    char  path[64];
    Json *tokenizer = tiny_json(TINY_ADDED);
    mkdir(lab_path(name), 0777);
    snprintf(path, sizeof path, "%s/config.json", name);
    put_file(path, config);
    snprintf(path, sizeof path, "%s/tokenizer.json", name);
    REQUIRE(tokenizer && !json_dump_file(tokenizer, lab_path(path), 0), "cannot write %s", path);
    json_decref(tokenizer);
}

static void put_models(void)
{
    char text[4096];
    put_model("text", config_text);
    snprintf(text, sizeof text, config_vision, 6, 192, 512);
    put_model("tower", text);
    snprintf(text, sizeof text, config_vision, 1, 32, 64);
    put_model("slight", text);
}

static void put_text(void)
{
    FILE *f = fopen(lab_path("text.jsonl"), "wb");
    REQUIRE(f, "cannot write text.jsonl");
    for (int i = 0; i < 400; i++) {
        fprintf(f, "{\"text\": \"");
        for (int k = 0; k < 60; k++) fputc('a' + (i * 7 + k * k) % 26, f);
        fprintf(f, "\"}\n");
    }
    fclose(f);
}

/* Lines with one picture of h x w pixels each; names are of both. */
static void put_pictures(const char *name, int h, int w, int lines)
{
    char     file[64];
    uint8_t *rgb = picture_draw(h, w, 3);
    JpegKind kind = { .in = JCS_RGB, .stored = JCS_YCbCr, .channels = 3 };
    Bytes    b = picture_jpeg(rgb, h, w, kind);
    free(rgb);
    snprintf(file, sizeof file, "%s.jpg", name);
    FILE *f = fopen(lab_path(file), "wb");
    REQUIRE(f && fwrite(b.v, 1, b.n, f) == b.n && !fclose(f), "cannot write %s", file);
    free(b.v);
    snprintf(file, sizeof file, "%s.jsonl", name);
    f = fopen(lab_path(file), "wb");
    for (int i = 0; f && i < lines; i++)
        fprintf(f, "{\"conversations\":[{\"from\":\"human\",\"value\":\"<image>\\nlook %d\"},"
                "{\"from\":\"gpt\",\"value\":\"abcdefghijklmnop %d\"}],\"image\":\"%s.jpg\"}\n", i, i, name);
    REQUIRE(f && !fclose(f), "cannot write %s", file);
}

/* ---- a run ---- */

static DiagnoseCase the_case;
static Config       the_recipe;
static Json        *the_machine;
static Profile     *the_profile;         /* taken in place of a run where it is not NULL */

static int steps(void) { return getenv("TREB_WALLS") ? 12 : 5; }

static void open_recipe(const DiagnoseCase *c, const char *run, const char *more)
{
    char text[1500], all[1000], *save = NULL;
    snprintf(text, sizeof text,
             "model: {preset: %s}\ndata: {train: [%s.jsonl], max_length: 128, truncation: right}\n"
             "image: {min_pixels: 1024, max_pixels: 4096}\n"
             "train: {max_steps: %d, micro_tokens: 256, micro_patches: 1024, global_tokens: 1024}\n"
             "checkpoint: {output_dir: %s, save_steps: 0, hf: none}\nlog: {report_to: [jsonl]}\n",
             lab_path(c->model), lab_path(c->data), steps(), lab_path(run));
    config_default(&the_recipe);
    REQUIRE(!config_parse(&the_recipe, text, strlen(text), "recipe"), "%s", status_text());
    snprintf(all, sizeof all, "%s %s", c->set, more);
    for (char *one = strtok_r(all, " ", &save); one; one = strtok_r(NULL, " ", &save))
        REQUIRE(!config_set(&the_recipe, one), "%s", status_text());
}

static Status train(Comm *world)
{
    Trainer     t;
    TrainerConf conf = { .recipe = &the_recipe, .least = LOG_ERROR, .env = the_machine, .world = world };
    TRY(trainer_open(&t, &conf));
    Status st = trainer_run(&t);
    trainer_close(&t);
    return st;
}

static Status take_profile(Comm *world, int rank)
{
    Profile     p;
    MeasureConf conf = { .recipe = &the_recipe, .world = world, .steps = 3, .warmup = 2 };
    TRY(profile_measure(&p, &conf));
    if (rank == 0) *the_profile = p;
    else           profile_close(&p);
    return OK;
}

/* Loaders are other threads: a run that waits for them has the real clock. */
static void rank_main(Peer *p)
{
    Comm *world = p->size > 1 ? p->world : NULL;
    bool  loads = !strcmp(the_case.data, "large");
    omp_set_num_threads(1);
    if (!loads) clocklab_start(p->world, the_case.rate > 0 ? 1e6 * the_case.rate : 1e12);
    Status st = the_profile ? take_profile(world, p->rank) : train(world);
    EXPECT(!st, "%s: %s", the_case.name, status_text());
}

static double run_median(const char *run, const char *key)
{
    ReportRun *r = calloc(1, sizeof *r);
    double     x = NAN;
    if (r && !run_open(r, lab_path(run))) x = series_median(series_find(&r->metrics, key));
    if (r) run_close(r);
    free(r);
    return x;
}

static double run_speed(const char *run) { return run_median(run, "perf/tokens_per_second_per_gpu"); }

/* Seconds of a step that wait for data. */
static double run_wait(const char *run)
{
    return run_median(run, "perf/step_time") * run_median(run, "perf/data_wait");
}

static void run_case(const DiagnoseCase *c, const char *run, const char *more)
{
    folder_remove(lab_path(run));
    the_case = *c;
    open_recipe(c, run, more);
    on_ranks(c->ranks, 0, rank_main);
    config_close(&the_recipe);
}

/* ---- diagnosis ---- */

static bool open_source(DiagnoseSource *s, const DiagnoseCase *c, const char *run)
{
    SourceAsk ask = { .path = lab_path(run), .hardware = "cpu-node", .ranks = c->ranks,
                      .per_node = c->ranks };
    Status    st = source_open(s, &ask);
    EXPECT_OK(st);
    if (st) return false;
    EXPECT_OK(hardware_load(&s->ask.hw, "tests/hardware_core.json"));
    s->ask.limit = c->limit * s->measured.memory_peak;
    return true;
}

/* The gain of a fix, measured: a recipe is trained with it, or its data is packed first. Where the clock is
 * the machine's, other work slows compute of one run or the other: of those the waits alone are compared. */
static double apply_fix(const DiagnoseCase *c, const Fix *f, double speed)
{
    char command[1400], more[400];
    if (f->kind != FIX_COMMAND) return run_case(c, "b", f->set), run_speed("b") / speed - 1;
    folder_remove(lab_path("packed"));
    snprintf(command, sizeof command, "build/treb data pack %s %s%s >/dev/null 2>&1",
             lab_path("a/recipe.yaml"), lab_path("packed"), strstr(f->set, "--") ? " --decoded" : "");
    EXPECT(!system(command), "%s", command);
    snprintf(more, sizeof more, "data.train=[%s]", lab_path("packed/train-*.treb"));
    run_case(c, "b", more);
    double step = run_median("a", "perf/step_time");
    return step / (step - run_wait("a") + run_wait("b")) - 1;
}

/* Verdicts and first fixes, of the cases that the rules were made with and of the others. */
static struct { int cases, right, fixes, near; } score[2];
static bool held_out;

static void try_fix(const DiagnoseCase *c, const Diagnosis *d)
{
    const Fix *f = &d->fix[0];
    if (!getenv("TREB_WALLS") || !d->first || !d->fixes) return;
    double gain = apply_fix(c, f, run_speed("a"));
    bool   near = fabs(f->gain - gain) <= 0.4 * fabs(gain);
    score[held_out].fixes++, score[held_out].near += near;
    printf("  %-28s %-44s predicted %+4.0f %%, measured %+4.0f %%%s\n", c->name, f->set, 100 * f->gain,
           100 * gain, near ? "" : "  far off");
}

static void check_verdict(const DiagnoseCase *c, const DiagnoseAsk *ask, const char *from)
{
    Diagnosis *d;
    Status     st = diagnose_open(&d, ask);
    EXPECT_OK(st);
    if (st) return;
    bool right = d->first == c->wall;
    score[held_out].cases++, score[held_out].right += right;
    EXPECT(right || held_out, "%s (%s): %s, not %s", c->name, from, wall_name(d->first), wall_name(c->wall));
    if (!right) printf("  %s (%s): %s, not %s\n", c->name, from, wall_name(d->first), wall_name(c->wall));
    if (getenv("VERBOSE") || d->first != c->wall) diagnose_print(stdout, d);
    if (!the_profile) try_fix(c, d);
    diagnose_close(d);
}

static void check_run(const DiagnoseCase *c)
{
    DiagnoseSource s;
    run_case(c, "a", "");
    if (!open_source(&s, c, "a")) return;
    check_verdict(c, &s.ask, "metrics");
    source_close(&s);
}

/* The same verdict from a profile of the same recipe. */
static void check_profile(const DiagnoseCase *c)
{
    DiagnoseSource s;
    Profile        p = { 0 };
    the_profile = &p;
    run_case(c, "p", "");
    if (p.has_measured && open_source(&s, c, "a")) {
        s.measured = p.measured, s.ask.spread = p.spread;
        check_verdict(c, &s.ask, "profile");
        source_close(&s);
    }
    the_profile = NULL;
    profile_close(&p);
}

/* ---- the cases ---- */

static const DiagnoseCase cases[] = {
    { "ep 2 at 20 MB/s", 2, 20, "text", "text", "parallel.ep=2", 0, WALL_communication, false },
    { "ep 2 at 60 MB/s", 2, 60, "text", "text", "parallel.ep=2", 0, WALL_communication, true },
    { "ep 2 at 120 MB/s", 2, 120, "text", "text", "parallel.ep=2", 0, WALL_communication, false },
    { "ep 4 at 60 MB/s", 4, 60, "text", "text", "parallel.ep=4 train.global_tokens=2048", 0,
      WALL_communication, false },
    { "tp 2 at 30 MB/s", 2, 30, "text", "text", "parallel.tp=2", 0, WALL_communication, false },
    { "tp 2 at 100 MB/s", 2, 100, "text", "text", "parallel.tp=2", 0, WALL_communication, false },
    { "cp 2 at 30 MB/s", 2, 30, "text", "text", "parallel.cp=2", 0, WALL_communication, false },
    { "cp 2 at 100 MB/s", 2, 100, "text", "text", "parallel.cp=2", 0, WALL_communication, false },
    { "zero 3 at 60 MB/s", 2, 60, "text", "text", "parallel.zero=3", 0, WALL_communication, false },
    { "zero 3 at 200 MB/s", 2, 200, "text", "text", "parallel.zero=3", 0, WALL_communication, false },
    { "zero 2 at 60 MB/s", 2, 60, "text", "text", "parallel.zero=2", 0, WALL_communication, false },
    { "pp 2, two micro-batches", 2, 0, "text", "text", "parallel.pp=2 train.global_tokens=512", 0,
      WALL_bubble, false },
    { "pp 2 at 40 MB/s", 2, 40, "text", "text", "parallel.pp=2", 0, WALL_bubble, false },
    { "16 tokens", 1, 0, "text", "text", "train.micro_tokens=16 data.max_length=16 train.global_tokens=512",
      0, WALL_compute, false },
    { "32 tokens", 1, 0, "text", "text",
      "train.micro_tokens=32 data.max_length=32 train.global_tokens=512", 0, WALL_compute, true },
    { "full recompute", 1, 0, "text", "text", "memory.recompute=[full] train.micro_tokens=1024", 0,
      WALL_memory, true },
    { "full recompute, little memory", 1, 0, "text", "text",
      "memory.recompute=[full] train.micro_tokens=1024", 1.2, WALL_memory, false },
    { "full recompute, ep 2", 2, 0, "text", "text",
      "memory.recompute=[full] parallel.ep=2 train.micro_tokens=512", 0, WALL_memory, false },
    { "tight", 1, 0, "text", "text", "train.micro_tokens=1024", 1.05, WALL_memory, false },
    { "too large", 1, 0, "text", "text", "train.micro_tokens=1024", 0.9, WALL_memory, false },
    { "heavy tower", 1, 0, "tower", "pictures", "train.micro_tokens=512 train.global_tokens=512", 0,
      WALL_vision, false },
    { "heavy tower, dp 2", 2, 0, "tower", "pictures", "train.micro_tokens=512", 0, WALL_vision, false },
    { "large pictures", 1, 0, "slight", "large", "train.micro_tokens=512", 0, WALL_data, false },
    { "large pictures, dp 2", 2, 0, "slight", "large", "train.micro_tokens=512", 0, WALL_data, false },
    { "healthy", 1, 0, "text", "text", "train.micro_tokens=1024", 0, WALL_none, true },
    { "healthy, ep 2", 2, 0, "text", "text", "train.micro_tokens=512 parallel.ep=2 moe.force_balance=true",
      0, WALL_none, false },
    { "healthy, dp 2", 2, 0, "text", "text", "train.micro_tokens=512", 0, WALL_none, false },
    { "healthy, tp 2", 2, 2000, "text", "text", "train.micro_tokens=1024 parallel.tp=2", 0, WALL_none,
      false },
    { "healthy, slight tower", 1, 0, "slight", "pictures", "train.micro_tokens=1024", 0, WALL_none, false },
};

/* Not looked at when thresholds and the transfer of times were made; the walls were written down first. */
static const DiagnoseCase others[] = {
    { "ep 2 at 40 MB/s, larger", 2, 40, "text", "text", "parallel.ep=2 train.micro_tokens=512", 0,
      WALL_communication, false },
    { "ep 2 and zero 3 at 80 MB/s", 2, 80, "text", "text", "parallel.ep=2 parallel.zero=3", 0,
      WALL_communication, false },
    { "tp 4 at 60 MB/s", 4, 60, "text", "text", "parallel.tp=4", 0, WALL_communication, false },
    { "cp 4 at 50 MB/s", 4, 50, "text", "text", "parallel.cp=4", 0, WALL_communication, false },
    { "dp 2 at 15 MB/s, zero 0", 2, 15, "text", "text", "parallel.zero=0", 0, WALL_communication, false },
    { "tp 2 and ep 2 at 50 MB/s", 4, 50, "text", "text", "parallel.tp=2 parallel.ep=2", 0,
      WALL_communication, false },
    { "pp 4, four micro-batches", 4, 0, "text", "text", "parallel.pp=4", 0, WALL_bubble, false },
    { "pp 2, vpp 2, two micro-batches", 2, 0, "text", "text",
      "parallel.pp=2 parallel.vpp=2 train.global_tokens=512", 0, WALL_bubble, false },
    { "24 tokens, dp 2", 2, 0, "text", "text",
      "train.micro_tokens=24 data.max_length=24 train.global_tokens=768", 0, WALL_compute, false },
    { "full recompute, tp 2", 2, 2000, "text", "text",
      "memory.recompute=[full] parallel.tp=2 train.micro_tokens=1024", 0, WALL_memory, false },
    { "full recompute, cp 2", 2, 2000, "text", "text",
      "memory.recompute=[full] parallel.cp=2 train.micro_tokens=1024", 0, WALL_memory, false },
    { "too large, dp 2", 2, 0, "text", "text", "train.micro_tokens=512", 0.85, WALL_memory, false },
    { "heavy tower, large micro-batches", 1, 0, "tower", "pictures",
      "train.micro_tokens=1024 train.micro_patches=2048", 0, WALL_vision, false },
    { "healthy, pp 2, 16 micro-batches", 2, 0, "text", "text", "parallel.pp=2 train.global_tokens=4096", 0,
      WALL_none, false },
    { "healthy, cp 2", 2, 5000, "text", "text", "train.micro_tokens=1024 parallel.cp=2", 0, WALL_none,
      false },
    { "healthy, zero 3", 2, 10000, "text", "text", "train.micro_tokens=512 parallel.zero=3", 0, WALL_none,
      false },
};
enum { CASES = sizeof cases / sizeof *cases, OTHERS = sizeof others / sizeof *others };

static bool wanted(const DiagnoseCase *c)
{
    const char *word = getenv("CASE");
    if (word) return strstr(c->name, word) != NULL;
    return c->brief || getenv("TREB_WALLS");
}

static void each_case(void (*check)(const DiagnoseCase *c))
{
    memset(score, 0, sizeof score);
    for (int i = 0; i < CASES + OTHERS; i++) {
        const DiagnoseCase *c = i < CASES ? &cases[i] : &others[i - CASES];
        held_out = i >= CASES;
        if (wanted(c)) check(c);
    }
    for (int i = 0; i < 2 && getenv("TREB_WALLS"); i++)
        printf("  %s: %d of %d walls, %d of %d first fixes within 40 %% of what was measured\n",
               i ? "others" : "cases", score[i].right, score[i].cases, score[i].near, score[i].fixes);
}

/* Of the others four fifths of the walls must be right, and of all first fixes four fifths near. */
static void constructed_runs(void)
{
    each_case(check_run);
    int fixes = score[0].fixes + score[1].fixes, near = score[0].near + score[1].near;
    EXPECT(near >= 0.8 * fixes, "%d of %d fixes", near, fixes);
    EXPECT(score[1].right >= 0.8 * score[1].cases, "%d of %d others", score[1].right, score[1].cases);
}

static void check_both(const DiagnoseCase *c) { run_case(c, "a", ""), check_profile(c); }

static void constructed_profiles(void)
{
    if (getenv("TREB_WALLS")) each_case(check_both);
    EXPECT(score[1].right >= 0.8 * score[1].cases, "%d of %d others", score[1].right, score[1].cases);
}

int main(void)
{
    the_machine = json_pack("{s:s}", "cpu", "of a test");
    put_models(), put_text(), put_pictures("pictures", 64, 64, 400);
    if (getenv("TREB_WALLS") || getenv("CASE")) put_pictures("large", 4000, 4000, 100);
    RUN(constructed_runs);
    RUN(constructed_profiles);
    json_decref(the_machine);
    folder_remove(lab_tmp());
    return lab_report();
}
