/* tests/test_report.c -- the document of a run's page: what is read, what the page says about missing files,
 * and that no text of a run becomes markup. tests/report.sh looks at drawn pages in a browser. */
#include "base/config.h"
#include "base/folder.h"
#include "data/image_encode.h"
#include "lab.h"
#include "report/contract.h"
#include "report/report.h"
#include "report/report_parts.h"

#include <sys/stat.h>
#include <time.h>

/* --- run folders ------------------------------------------------------------------------------------- */

typedef struct Folder { char dir[512]; } Folder;

static Folder run_folder(const char *name)
{
    Folder f;
    char samples[600];
    snprintf(f.dir, sizeof f.dir, "%s/%s", lab_tmp(), name);
    snprintf(samples, sizeof samples, "%s/samples", f.dir);
    if (mkdir(f.dir, 0777) || mkdir(samples, 0777)) perror(f.dir), exit(1);
    return f;
}

static const char *in(const Folder *f, const char *name)
{
    static char path[4][1100];
    static int at;
    char *p = path[at++ % 4];
    snprintf(p, 1100, "%s/%s", f->dir, name);
    return p;
}

static void put_bytes(const Folder *f, const char *name, const void *bytes, size_t n)
{
    FILE *out = fopen(in(f, name), "wb");
    if (!out || fwrite(bytes, 1, n, out) != n || fclose(out)) perror(name), exit(1);
}

/* JSON reads better in C with ' for ". */
static char *quoted(const char *text)
{
    char *copy = strdup(text);
    for (char *c = copy; *c; c++)
        if (*c == '\'') *c = '"';
    return copy;
}

static void put(const Folder *f, const char *name, const char *text)
{
    char *json = quoted(text);
    put_bytes(f, name, json, strlen(json));
    free(json);
}

static Status report_one(const char *dir, const char *out)
{
    return report_write(&(ReportAsk){ .dir = { dir }, .runs = 1, .out = out }, NULL);
}

/* The page of two runs that are compared by a key; the caller frees it. */
static char *page_by_key(const Folder *a, const Folder *b, const char *key, ReportCounts *c)
{
    ReportAsk ask = { .dir = { a->dir, b ? b->dir : NULL }, .runs = b ? 2 : 1, .out = in(a, "report.html"),
                      .declared = &key, .keys = key != NULL };
    ReportCounts mine;
    EXPECT_OK(report_write(&ask, c ? c : &mine));
    FILE *f = fopen(in(a, "report.html"), "rb");
    char *text = calloc(1, 64 << 20);
    size_t n = f ? fread(text, 1, (64 << 20) - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    return text;
}

/* The page of one or two runs; the caller frees it. */
static char *page_of(const Folder *a, const Folder *b, ReportCounts *c)
{
    return page_by_key(a, b, NULL, c);
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)); text += strlen(word)) n++;
    return n;
}

static void check_words(const char *test, const char *page, bool wanted, const char *const *word)
{
    for (; *word; word++) {
        bool there = strstr(page, *word);
        EXPECT(there == wanted, "%s: \"%s\" is %son the page", test, *word, there ? "" : "not ");
    }
}

#define HAS(page, ...)   check_words(__func__, page, true,  (const char *const[]){ __VA_ARGS__, NULL })
#define HASNT(page, ...) check_words(__func__, page, false, (const char *const[]){ __VA_ARGS__, NULL })

static void put_metrics(const Folder *f, int steps, double loss, const char *label)
{
    FILE *out = fopen(in(f, "metrics.jsonl"), "wb");
    char *rest =
        quoted("'train/learning_rate': 1e-05, 'perf/mfu': 0.48, 'perf/hfu': 0.5, 'perf/mfu_vision': 0.41, "
               "'perf/mfu_merger': 0.2, 'perf/mfu_decoder': 0.52, 'perf/mfu_head': 0.6, "
               "'perf/tokens_per_second_per_gpu': 31200, 'perf/step_time': 0.25, 'perf/data_wait': 0, "
               "'perf/exposed_comm': 0.03, 'perf/exposed_comm/tp': 0.02, 'perf/hidden_comm/tp': 0.8, "
               "'mem/planned_gib': 1.5, 'moe/aux_loss': 1.02, "
               "'moe/max_over_mean/layer_00': 1.5, 'moe/max_over_mean/layer_01': 2.5, "
               "'data/visual_token_share': 0.6");
    for (int s = 1; s <= steps; s++) {
        fprintf(out, "{\"step\": %d, \"time\": %.3f, \"label\": \"%s\", \"train/loss\": %.9g, ", s,
                1.75e9 + s, label, loss * 10 / (s + 9));
        fprintf(out, "\"train/grad_norm\": %.9g, \"loss_by_source/ocr\": %.9g, %s}\n", 3.0 / s, loss, rest);
        if (s % 10 == 0) fprintf(out, "{\"step\": %d, \"eval/loss\": %g, \"eval/accuracy\": 0.5}\n", s, loss);
    }
    fclose(out);
    free(rest);
}

static void put_recipe(const Folder *f, const char *override)
{
    Config cfg;
    FILE *out = fopen(in(f, "recipe.yaml"), "wb");
    config_default(&cfg);
    EXPECT_OK(config_set(&cfg, override));
    config_dump(out, &cfg);
    config_close(&cfg);
    fclose(out);
}

/* A picture with so much noise that it is as large as it is. */
static void put_picture(const Folder *f, const char *name, int h, int w)
{
    uint8_t *rgb = malloc((size_t)(h * w * 3));
    uint32_t x = 12345;
    for (int i = 0; i < h * w * 3; i++) x = x * 1664525 + 1013904223, rgb[i] = (uint8_t)(x >> 24);
    EXPECT_OK(image_encode_png_file(in(f, name), rgb, h, w));
    free(rgb);
}

static void put_whole_run(const Folder *f)
{
    put_metrics(f, 200, 2.0, "training-equivalent");
    put_recipe(f, "optim.learning_rate=0.000123");
    put(f, "env.json", "{'cpu': 'a fine one', 'gpu': [{'name': 'H200'}], 'cores': 2, 'cuda': false}");
    put(f, "plan.json",
        "{'arenas': [{'name': 'param', 'bytes': 1073741824, 'labels': [{'name': 'experts', 'bytes': "
        "805306368}]}, {'name': 'act', 'bytes': 536870912}], 'flops': {'vision': 1e12, 'decoder': 3e12}}");
    put(f, "expert_load.json",
        "{'step': 200, 'layers': [{'layer': 3, 'image': [1, 2, 0, 9], 'text': [5, 5, 5, 5]}, "
        "{'layer': 4, 'image': [0, 0, 0, 0], 'text': [1, 2, 3, 4]}]}");
    put(f, "samples/step-100.jsonl",
        "{'question': 'how many?', 'answer': 'two', 'expected': 'three', 'correct': false, "
        "'images': ['../small.png']}\n");
    put(f, "samples/step-200.jsonl",
        "{'question': 'how many?', 'answer': 'three', 'expected': 'three', 'correct': true, "
        "'images': ['../small.png']}\n{'question': 'why?', 'answer': ''}\n");
    put_picture(f, "small.png", 16, 24);
}

/* --- the page ---------------------------------------------------------------------------------------- */

static void whole_run(void)
{
    Folder f = run_folder("whole");
    ReportCounts c;
    put_whole_run(&f);
    char *page = page_of(&f, NULL, &c);
    HAS(page, "<title>whole", "\"step \",{\"b\":\"200\"}", "training-equivalent", "Loss by source",
        "Utilisation by part", "Waiting", "Hidden communication by group", "1.50\xc2\xa0GiB",
        "FLOPs of one step: 4.00\xc2\xa0TFLOP", "experts: 768\xc2\xa0MiB", "Image tokens",
        "\"busiest \",{\"b\":\"3 \xc3\x97 mean\"},\" (layer 3, expert 3), idle \",{\"b\":\"1\"},\" of 4\"",
        "Earlier answers", "data:image/png;base64,iVBORw0KGgo", "{\"b\":\"1 of 1\"},\" right\"", "a fine one",
        "gpu[0].name", "0.000123", "optim.learning_rate",
        "\"mean of layers\",\"color\":1,\"first\":\"2\",\"last\":\"2\"",
        "\"worst layer\",\"color\":0,\"first\":\"2.5\",\"last\":\"2.5\"", "Content-Security-Policy",
        "median of 190 steps, without 10 of warm-up", "HFU adds recomputation and padding rows",
        "\"name\":\"Planned memory\",\"values\":[[\"1.5 \"");
    EXPECT(c.notes == 0 && c.charts == 18, "%d notes, %d charts", c.notes, c.charts);
    EXPECT(c.questions == 2 && c.pictures == 1, "%d questions, %d pictures", c.questions, c.pictures);
    EXPECT(c.bytes == (int64_t)strlen(page), "%lld bytes", (long long)c.bytes);
    HASNT(page, "Other metrics", "Measured memory", "http:", "https:", "@import", "url(", "src=");
    EXPECT(count(page, "\"src\"") == count(page, "\"src\":\"data:"), "something is loaded from outside");
    free(page);
}

/* Rank 1 of a group of two stops after call 7 of tp, and before it has sent message 3 to rank 0. */
static void put_hang(const Folder *f)
{
    static const char groups[] = "'groups': [{'group': 'tp', 'transport': 'mpi', 'calls': %d, 'members': "
                                 "[0, 1]}, {'group': 'pp', 'calls': 0, 'members': [0, 1]}]";
    char text[2000], list[2][300];
    for (int i = 0; i < 2; i++) snprintf(list[i], sizeof list[i], groups, 9 - i);
    mkdir(in(f, "hang"), 0777);
    snprintf(text, sizeof text, "{'version': 1, 'rank': 0, 'ranks': 3, 'process': 77, 'host': '<b>node</b>', "
             "'why': 'rank 1 has stopped', 'place': 'step 5, layer 2', 'state': 'waits 60 s', 'waits': true, "
             "'written': 160, %s, 'calls': [{'call': 'all_gather', 'group': 'tp', 'seq': 7, 'peer': null, "
             "'layer': 1, 'micro_batch': 0, 'began': 99, 'ended': 99.5}, {'call': 'all_reduce', "
             "'group': 'tp', 'seq': 8, 'peer': null, 'layer': 2, 'micro_batch': 0, 'began': 100, "
             "'ended': null}, "
             "{'call': 'recv', 'group': 'pp', 'seq': 3, 'peer': 1, 'layer': null, 'micro_batch': 4, "
             "'began': 98, 'ended': null}]}", list[0]);
    put(f, "hang/rank-00000.json", text);
    snprintf(text, sizeof text, "{'version': 1, 'rank': 1, 'ranks': 3, 'process': 78, 'host': 'b', "
             "'why': 'rank 1 has stopped', 'place': 'step 5, layer 2, forward', "
             "'state': 'computes for 60 s', 'waits': false, 'written': 161, %s, 'calls': "
             "[{'call': 'all_gather', 'group': 'tp', 'seq': 7, "
             "'peer': null, 'layer': 1, 'micro_batch': 0, 'began': 99, 'ended': 99.25}]}", list[1]);
    put(f, "hang/rank-00001.json", text);
}

static void a_hang_is_shown_side_by_side(void)
{
    Folder f = run_folder("hung");
    ReportCounts c;
    put_whole_run(&f);
    put_hang(&f);
    char *page = page_of(&f, NULL, &c);
    HAS(page, "The watchdog ended the run", "rank 1 has stopped", "1 rank left no record",
        "{\"b\":\"computes for 60 s\"}", "\"waits 60 s\"", "Last calls of group tp",
        "[[\"7\"],[\"all_gather\",\", layer 1\",\", micro-batch 0\",{\"small\":\" done in 0.5 s\"}],"
        "[\"all_gather\",\", layer 1\",\", micro-batch 0\",{\"small\":\" done in 0.25 s\"}]]",
        "[[{\"badge warn\":\"8\"}],[{\"b\":\"all_reduce\"},\", layer 2\",\", micro-batch 0\","
        "{\"small\":\" not done after 60 s\"}],[{\"badge warn\":\"not reached\"}]]",
        "Messages that are not done", "[[\"pp 3\"],[\"0\"],[{\"b\":\"recv\"},\", micro-batch 4\"");
    HASNT(page, "<b>node</b>");
    EXPECT(c.notes == 0, "%d notes", c.notes);
    free(page);
    put(&f, "hang/rank-00001.json", "{'version': 1, 'rank'");
    put(&f, "hang/rank-00002.json", "[]");
    page = page_of(&f, NULL, &c);
    HAS(page, "The watchdog ended the run", "rank-00001.json", "hang/rank-00002.json: not a record of a rank",
        "2 ranks left no record");
    EXPECT(c.notes == 2, "%d notes", c.notes);
    free(page);
}

static void the_error_that_ended_a_run_is_shown(void)
{
    Folder f = run_folder("failed");
    ReportCounts c;
    put_whole_run(&f);
    put(&f, "train.log", "2026-01-02T03:04:05Z step 1\n"
        "2026-01-02T03:04:06Z [0] error: a disk is full: <b>\n");
    char *page = page_of(&f, NULL, &c);
    HAS(page, "the run ended with an error: a disk is full");
    HASNT(page, "full: <b>");
    EXPECT(c.notes == 1, "%d notes", c.notes);
    free(page);
    put(&f, "train.log", "2026-01-02T03:04:05Z error: an old one\n2026-01-02T03:04:06Z step 2 error: no\n");
    page = page_of(&f, NULL, &c);
    EXPECT(c.notes == 0, "%d notes: a resumed run goes on after its error", c.notes);
    free(page);
}

/* Every %s of text, as JSON or YAML, is the same hostile one. */
static void put_evil(const Folder *f, const char *name, const char *text)
{
    static const char evil[] = "<script>alert(1)</script>\\u0022><img src=x onerror=alert(2)>\\u0027&amp;";
    char whole[4096];
    snprintf(whole, sizeof whole, text, evil, evil, evil, evil);
    put(f, name, whole);
}

static void text_stays_text(void)
{
    Folder f = run_folder("<script>alert(0)<\xff");
    put_evil(&f, "metrics.jsonl",
             "{'step': 1, 'label': '%s', 'loss_by_source/%s': 1, '%s': 2, 'train/loss': null}\n"
             "{'step': 2, 'train/loss': 3}\n");
    put_evil(&f, "recipe.yaml", "'%s': '%s'\nlist: ['%s']\n");
    put_evil(&f, "env.json", "{'%s': '%s'}");
    put_evil(&f, "plan.json",
             "{'arenas': [{'name': '%s', 'bytes': 9, 'labels': [{'name': '%s', 'bytes': 5}]}]}");
    for (int i = 1; i < 3; i++)
        put_evil(
            &f, i == 1 ? "samples/step-1.jsonl" : "samples/step-2.jsonl",
            "{'question': '%s', 'answer': '%s', 'expected': '%s', 'correct': false, 'images': ['%s']}\n");
    char *page = page_of(&f, &f, NULL); /* of two runs: every part of the page is there */
    EXPECT(count(page, "<script") == 1, "%d scripts", count(page, "<script"));
    HASNT(page, "<img", "\xff");
    HAS(page, "<title>&#60;script&#62;alert(0)&#60;\xef\xbf\xbd and");
    int n = count(page, "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e\\\"\\u003e\\u003cimg src=x "
                        "onerror=alert(2)\\u003e'\\u0026amp;");
    EXPECT(n >= 20, "%d of it as text", n);
    free(page);
}

static void missing_files(void)
{
    Folder f = run_folder("only-metrics"), g = run_folder("only-recipe");
    const char *dir[1] = { lab_tmp() };
    char *page;
    put_metrics(&f, 20, 2.0, "benchmark-only");
    page = page_of(&f, NULL, NULL);
    HAS(page, "{\"badge warn\":\"benchmark-only\"}", "no recipe.yaml", "no env.json", "no plan.json",
        "no expert_load.json", "no samples/step-N.jsonl", "No expert_load.json with layers");
    free(page);
    put(&g, "recipe.yaml", "train: {seed: 3}\n");
    page = page_of(&g, &f, NULL);
    HAS(page, "no metrics.jsonl: there are no curves");
    free(page);
    EXPECT_FAIL(report_one(dir[0], "unused.html"), E_DATA, "no file of a run");
    dir[0] = "no/such/run";
    EXPECT_FAIL(report_one(dir[0], "unused.html"), E_IO, "no/such/run");
    dir[0] = in(&g, "recipe.yaml");
    EXPECT_FAIL(report_one(dir[0], "unused.html"), E_DATA, "not a folder");
    dir[0] = g.dir;
    EXPECT_FAIL(report_one(dir[0], "no/such/folder/report.html"), E_IO, "no/such/folder");
}

static void damaged_files(void)
{
    static const char bytes[] =
        "{\"step\": 1, \"train/loss\": 2}\n{\"step\": 2, \"train/lo\n\xff\xfe\0\1\n[1]\n\n"
        "{\"train/loss\": 2}\n{\"step\": -4, \"train/loss\": 2}\n"
        "{\"step\": 4, \"train/loss\": null}\n{\"step\": 5, \"train/lo";
    Folder f = run_folder("damaged");
    put_bytes(&f, "metrics.jsonl", bytes, sizeof bytes - 1);
    put(&f, "recipe.yaml", "a: [1, 2\nb: {");
    put(&f, "env.json", "{'a': ");
    put(&f, "plan.json", "[3]");
    put(&f, "expert_load.json",
        "{'layers': [{'layer': 0, 'text': [1, 2, 3]}, {'layer': 1, 'text': [1, -2, 3]}]}");
    put(&f, "samples/step-7.jsonl", "{'question': 'q', 'answer': 'a'}\nbroken\n{'question': 1}\n[]\n");
    put(&f, "samples/step-x.jsonl", "not one of ours");
    put(&f, "quarantine.jsonl", "{}\n{}\n");
    char *page = page_of(&f, NULL, NULL);
    HAS(page, "metrics.jsonl: 5 damaged lines were left out", "its last line is not finished",
        "train/loss: 1 value was not finite, first at step 4", "recipe.yaml:", "env.json: line 1",
        "plan.json: not an object", "expert_load.json: 1 of 2 layers could not be read (each needs 3 counts)",
        "samples/step-7.jsonl: 3 damaged lines were left out", "2 samples of the data could not be used");
    free(page);
    unlink(in(&f, "metrics.jsonl"));
    if (mkfifo(in(&f, "metrics.jsonl"), 0666)) perror("mkfifo");
    page = page_of(&f, NULL, NULL);
    HAS(page, "metrics.jsonl is not a file");
    free(page);
}

static void two_runs(void)
{
    Folder a = run_folder("a"), b = run_folder("b");
    ReportCounts c;
    put_whole_run(&a), put_whole_run(&b);
    put_metrics(&b, 300, 1.0, "training-equivalent");
    put_recipe(&b, "optim.learning_rate=0.5");
    put(&b, "samples/step-200.jsonl", "{'question': 'how many?', 'answer': 'four', 'expected': 'three', "
        "'correct': false, 'images': ['../small.png']}\n");
    char *page = page_of(&a, &b, &c);
    HAS(page, "[\"optim.learning_rate\",\"0.000123\",\"0.5\"]");
    const char *end = strstr(page, "The machines are the same");
    const char *seed = strstr(strstr(page, "\"id\":\"differences\""), "train.seed");
    EXPECT(end && seed > end, "a key that does not differ is not listed");
    EXPECT(!c.pair.comparable && strstr(c.pair.text, "by 1 key: optim.learning_rate (0.000123, 0.5)"), "%s",
           c.pair.text);
    HAS(page, "Not comparable"), HASNT(page, " better\"");
    free(page);
    page = page_by_key(&a, &b, "optim.learning_rate", &c);
    EXPECT(c.pair.comparable, "%s", c.pair.text);
    HASNT(page, "Not comparable");
    HAS(page, " better\"", "median of 190 steps, without 10 of warm-up; B: median of 290 steps");
    EXPECT(c.questions == 2, "a question of both is shown once: %d", c.questions);
    EXPECT(count(page, "\"range\":[1,300,") >= 12, "axes are shared");
    free(page);
}

/* Labels come from the recipe, the machine and the metrics; a comparison is no better than its runs. */
static void labels(void)
{
    Folder a = run_folder("exact"), b = run_folder("rounded");
    ReportCounts c;
    put_whole_run(&a), put_whole_run(&b);
    put_recipe(&b, "optim.state_dtype=bfloat16");
    char *page = page_by_key(&a, &b, "optim.", &c);
    EXPECT(c.pair.comparable, "%s", c.pair.text);
    HAS(page, "A comparison that is benchmark-only", "rounded optimizer states against exact ones");
    free(page);
    put_recipe(&b, "moe.force_balance=true");
    put(&b, "env.json", "{'run': {'ranks': 2, 'weights': 'random', 'vision': true}}");
    put(&b, "metrics.jsonl", "{'step': 1, 'label': 'training-equivalent', 'data/visual_token_share': 0}\n");
    page = page_of(&b, NULL, &c);
    HAS(page, "{\"badge warn\":\"benchmark-only\"}", "forced balance", "random weights",
        "no picture in the data");
    free(page);
    page = page_of(&a, &b, &c);
    EXPECT(!c.pair.comparable && strstr(c.pair.text, "env.cores (2, absent)"), "%s", c.pair.text);
    free(page);
}

static void contract_hashes(void)
{
    Contract a, b;
    Config   recipe;
    char     h[4][CONTRACT_HASH];
    const char *key = "parallel.";
    config_default(&recipe);
    EXPECT_OK(contract_of_config(&a, &recipe));
    EXPECT_OK(config_set(&recipe, "parallel.ep=4"));
    EXPECT_OK(config_set(&recipe, "checkpoint.output_dir=elsewhere"));
    EXPECT_OK(contract_of_config(&b, &recipe));
    contract_hash(h[0], &a, NULL, 0), contract_hash(h[1], &b, NULL, 0);
    contract_hash(h[2], &a, &key, 1), contract_hash(h[3], &b, &key, 1);
    EXPECT(strcmp(h[0], h[1]) && !strcmp(h[2], h[3]) && strcmp(h[0], h[2]), "%s %s %s %s", h[0], h[1], h[2],
           h[3]);
    contract_close(&a), contract_close(&b);
    config_close(&recipe);
}

static void pictures(void)
{
    Folder f = run_folder("pictures");
    ReportCounts c;
    put(&f, "recipe.yaml", "a: 1\n");
    put(&f, "text.png", "only called a picture");
    put_bytes(&f, "cut.png", "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\xff\xff\0\0\xff\xff\x08\2", 26);
    put_picture(&f, "large.png", 600, 900);                            /* 1.6 MB */
    put(&f, "samples/step-1.jsonl",
        "{'question': 'q', 'answer': 'a', 'images': ['../large.png', '../text.png', "
        "'../cut.png', 'none.png', '/dev/zero', 'data:image/svg+xml;base64,PHN2Zy8+', 7, "
        "'data:image/png;base64,"
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQAY3Y2wAAAAAElFTkSuQmCC']}\n");
    char *page = page_of(&f, NULL, &c);
    EXPECT(c.pictures == 2, "%d", c.pictures);
    HAS(page, "\"src\":\"data:image/jpeg;base64,/9j/", "\"src\":\"data:image/png;base64,iVBORw0KGgo",
        "cut.png: damaged", "text.png: not a picture", "none.png: cannot be read",
        "/dev/zero: cannot be read");
    HASNT(page, "svg+xml");
    EXPECT(c.bytes < 400000, "%lld bytes: a large picture is made small", (long long)c.bytes);
    free(page);
}

/* --- metrics ----------------------------------------------------------------------------------------- */

static MetricsFile *read_metrics(const Folder *f, const char *text, MemPool *keep)
{
    MetricsFile *m = calloc(1, sizeof *m);
    put(f, "metrics.jsonl", text);
    EXPECT_OK(metrics_read(m, keep, in(f, "metrics.jsonl")));
    return m;
}

static void numbers_of_lines(void)
{
    static const char *const good[] = {
        "0", "-0.0", "1", "-12.5", "0.1", "123456789.123456", "9007199254740993", "1e-5", "1E+3", "2.5e300",
        "0.000000000000000000000000123", "123456789012345678901234567890", "3.141592653589793",
    };
    Folder f = run_folder("numbers");
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        MemPool keep = { 0 };
        char line[400];
        snprintf(line, sizeof line,
                 "{'step':1,'v':%s}\n { 'step' : 2 ,\t'v' : %s , 'x\\u0041': 5, 'm': [1, {}]} \r\n", good[i],
                 good[i]);
        MetricsFile *m = read_metrics(&f, line, &keep);
        Series *s = series_find(m, "v"), *x = series_find(m, "xA");
        double want = strtod(good[i], NULL);
        bool equal = s && s->n == 2 && s->at[0].value == want && s->at[1].value == want;
        EXPECT(fabs(want) < 1e100 ? equal : !s, "%s", good[i]); /* beyond is as good as infinite */
        EXPECT(x && x->n == 1 && x->at[0].step == 2, "a name with an escape");
        EXPECT(m->lines == 2 && m->damaged == 0, "%s: %lld damaged", good[i], (long long)m->damaged);
        metrics_file_close(m), free(m), mem_pool_close(&keep);
    }
}

static void lines_that_are_not(void)
{
    static const char *const bad[] = {
        "{'step':1,'v':01}",
        "{'step':1,'v':1.}",
        "{'step':1,'v':.5}",
        "{'step':1,'v':+1}",
        "{'step':1,'v':1e}",
        "{'step':1,'v':NaN}",
        "{'step':1,}",
        "{'step':1} x",
        "{}",
        "{'step':'1'}",
        "{'step':1e99}",
        "{'step':null}",
        "{'step':1,'v':1",
        "step",
        "{'step':1,'a\xff':2}",
    };
    Folder f = run_folder("bad-lines");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        MemPool keep = { 0 };
        char line[400];
        snprintf(line, sizeof line, "%s\n{'step':2,'v':3}\n", bad[i]);
        MetricsFile *m = read_metrics(&f, line, &keep);
        EXPECT(m->damaged == 1 && m->lines == 1, "%s: %lld damaged", bad[i], (long long)m->damaged);
        EXPECT(series_last(series_find(m, "v")) == 3, "%s: the next line is read", bad[i]);
        metrics_file_close(m), free(m), mem_pool_close(&keep);
    }
}

static void resumed_run(void)
{
    Folder f = run_folder("resumed");
    MemPool keep = { 0 };
    MetricsFile *m =
        read_metrics(&f,
                     "{'step':1,'v':10}\n{'step':2,'v':20}\n{'step':3,'v':30}\n{'step':3,'w':1}\n"
                     "{'step':2,'v':21}\n{'step':3,'v':31,'v':32}\n",
                     &keep);
    Series *s = series_find(m, "v");
    EXPECT(m->resumes == 1 && s && s->n == 3, "%lld resumes", (long long)m->resumes);
    EXPECT(s->at[0].value == 10 && s->at[1].value == 21 && s->at[2].value == 32, "the later line holds");
    metrics_file_close(m), free(m), mem_pool_close(&keep);
}

static void endless_line(void)
{
    Folder f = run_folder("endless");
    MemPool keep = { 0 };
    size_t n = 20 << 20;
    char *text = malloc(n + 64);
    memset(text, '[', n);
    strcpy(text + n, "\n{'step':1,'v':2}");
    MetricsFile *m = read_metrics(&f, text, &keep);
    EXPECT(m->damaged == 1 && m->lines == 1, "%lld damaged, %lld lines", (long long)m->damaged,
           (long long)m->lines);
    metrics_file_close(m), free(m), mem_pool_close(&keep), free(text);
}

static void many_names(void)
{
    Folder f = run_folder("names");
    MemPool keep = { 0 };
    Text t = { 0 };
    for (int i = 0; i < 2000; i++) EXPECT_OK(text_printf(&t, "{'step':%d,'name-%d':%d}\n", i, i, i));
    EXPECT_OK(text_push(&t, "", 1));
    MetricsFile *m = read_metrics(&f, t.v, &keep);
    EXPECT(m->n == SERIES_MAX && m->crowded == 2000 - SERIES_MAX, "%d names, %lld left out", m->n,
           (long long)m->crowded);
    metrics_file_close(m), free(m), mem_pool_close(&keep), text_close(&t);
}

/* A spike of one step among a million must be seen, in the series and in what is drawn of it. */
static void extremes_stay(void)
{
    enum { N = 400000, SPIKE = 123457 };
    Folder f = run_folder("long");
    MemPool keep = { 0 };
    FILE *out = fopen(in(&f, "metrics.jsonl"), "wb");
    for (int i = 0; i < N; i++)
        fprintf(out, "{\"step\":%d,\"v\":%d}\n", i, i == SPIKE ? 1000 : i == SPIKE + 1 ? -1000 : i % 7);
    fclose(out);
    MetricsFile *m = calloc(1, sizeof *m);
    EXPECT_OK(metrics_read(m, &keep, in(&f, "metrics.jsonl")));
    Series *s = series_find(m, "v");
    EXPECT(s->n <= SERIES_POINTS && series_extreme(s, true).step == SPIKE &&
               series_extreme(s, false).step == SPIKE + 1,
           "the series");
    Point *p = malloc(4 * 101 * sizeof *p);
    int64_t n = points_thin(p, s->at, s->n, 0, N - 1, 100);
    double most = 0, least = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, p[i].value), least = fmin(least, p[i].value);
        EXPECT(i == 0 || p[i].step > p[i - 1].step, "steps rise at %lld", (long long)i);
    }
    EXPECT(n <= 404 && most == 1000 && least == -1000 && p[0].step == 0, "%lld points, %g to %g",
           (long long)n, least, most);
    n = points_smooth(p, s->at, s->n, 100);
    for (int64_t i = 0; i < n; i++)
        EXPECT(p[i].value >= 0 && p[i].value <= 6, "a spike leaks: %g", p[i].value);
    metrics_file_close(m), free(m), mem_pool_close(&keep), free(p);
}

static void long_run_is_quick(void)
{
    Folder f = run_folder("quick");
    put_metrics(&f, 100000, 2.0, "training-equivalent");
    clock_t from = clock();
    char *page = page_of(&f, NULL, NULL);
    double s = (double)(clock() - from) / CLOCKS_PER_SEC, most = 1;
#ifdef TREB_SANITIZE
    most = 20;
#endif
    EXPECT(s < most, "100,000 lines took %.2f s", s);
    EXPECT(strlen(page) < 2000000, "%zu bytes", strlen(page));
    free(page);
}

/* --- small pieces ------------------------------------------------------------------------------------ */

static void escapes(void)
{
    Json *text = page_string("a<b>&\"'\n\tc\x01\x7f\xc2\x80\xff\xe2\x82" "d\xc3\xa9");
    EXPECT(!strcmp(json_string_value(text),
                   "a<b>&\"'\n\tc\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                   "d\xc3\xa9"),
           "%s", json_string_value(text));
    json_decref(text);
    text = page_bytes("a\0b", 3);
    EXPECT(!strcmp(json_string_value(text), "a\xef\xbf\xbd" "b"), "a zero: %s", json_string_value(text));
    json_decref(text);
    static const char *const rows[][2] = { { "", "data:x;base64," },
                                           { "f", "data:x;base64,Zg==" },
                                           { "fo", "data:x;base64,Zm8=" },
                                           { "foo", "data:x;base64,Zm9v" },
                                           { "foobar", "data:x;base64,Zm9vYmFy" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Json *uri = page_data_uri("x", rows[i][0], strlen(rows[i][0]));
        EXPECT(!strcmp(json_string_value(uri), rows[i][1]), "%s", json_string_value(uri));
        json_decref(uri);
    }
}

/* The first ten steps, or a quarter of a short run, are no part of a median. */
static void medians_leave_out_warm_up(void)
{
    Point p[40];
    Series s = { .at = p, .n = 40 };
    for (int i = 0; i < 40; i++) p[i] = (Point){ i, i < 10 ? 100 + i : i % 2 };
    EXPECT(series_warm_up(&s) == 10 && series_median(&s) == 0.5, "%g", series_median(&s));
    s.n = 4;
    EXPECT(series_warm_up(&s) == 1 && series_median(&s) == 102, "%g", series_median(&s));
    s.n = 1;
    EXPECT(series_warm_up(&s) == 0 && series_median(&s) == 100, "%g", series_median(&s));
}

static void planned_and_measured_memory(void)
{
    Folder f = run_folder("memory");
    put(&f, "metrics.jsonl",
        "{'step': 1, 'mem/planned_gib': 2, 'mem/measured_gib': 1.75, 'mem/peak_gib': 1.75}\n");
    put(&f, "plan.json", "{'arenas': [{'name': 'param', 'bytes': 1073741824}]}");
    put(&f, "env.json", "{'build': {'version': '9.8.7', 'commit': '0123456789abcdef'}}");
    char *page = page_of(&f, NULL, NULL);
    HAS(page, "\"name\":\"Planned memory\",\"values\":[[\"2 \"",
        "\"name\":\"Measured memory\",\"values\":[[\"1.75 \"", "\"name\":\"measured\",\"color\":7",
        "treb 9.8.7", "commit 0123456789ab\"");
    HASNT(page, "Other metrics");
    free(page);
    put(&f, "metrics.jsonl", "{'step': 1, 'mem/peak_gib': 3}\n");       /* as older versions wrote it */
    page = page_of(&f, NULL, NULL);
    HAS(page, "\"name\":\"Planned memory\",\"values\":[[\"3 \"");
    HASNT(page, "Measured memory");
    free(page);
}

static void numbers_for_people(void)
{
    static const struct { double v; const char *num;
    } rows[] = {
        { 0, "0" },           { 0.41234, "0.4123" }, { 12.3456, "12.35" }, { 1204, "1,204" },
        { 31200, "31.2k" },   { 1e6, "1M" },         { 999999, "1M" },     { -2.5e9, "-2.5G" },
        { 1.3e-5, "1.3e-5" }, { 9.999e-5, "1e-4" },  { 1e30, "1e30" },     { 99.999, "100" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        EXPECT(!strcmp(NUM(rows[i].v), rows[i].num), "%s for %s", NUM(rows[i].v), rows[i].num);
    EXPECT(!strcmp(WHOLE(1234567), "1,234,567") && !strcmp(WHOLE(-999), "-999") && !strcmp(WHOLE(0), "0"),
           "whole");
    EXPECT(!strcmp(BYTES(0), "0\xc2\xa0"
                             "B") &&
               !strcmp(BYTES(1.5 * (1 << 30)), "1.50\xc2\xa0GiB"),
           "%s", BYTES(1.5 * (1 << 30)));
    EXPECT(!strcmp(SPAN(0.25), "250 ms") && !strcmp(SPAN(61), "1 min 1 s") &&
               !strcmp(SPAN(8040), "2 h 14 min"),
           "%s", SPAN(8040));
    EXPECT(!strcmp(PERCENT(0.481), "48.1\xc2\xa0%"), "%s", PERCENT(0.481));
    EXPECT(!strcmp(NUM(NAN), "\xe2\x80\x93") && !strcmp(SPAN(-1), "\xe2\x80\x93") &&
               !strcmp(WHOLE(INFINITY), "\xe2\x80\x93"),
           "a dash");
}

int main(void)
{
    RUN(whole_run);
    RUN(a_hang_is_shown_side_by_side);
    RUN(the_error_that_ended_a_run_is_shown);
    RUN(text_stays_text);
    RUN(missing_files);
    RUN(damaged_files);
    RUN(two_runs);
    RUN(labels);
    RUN(contract_hashes);
    RUN(pictures);
    RUN(numbers_of_lines);
    RUN(lines_that_are_not);
    RUN(resumed_run);
    RUN(endless_line);
    RUN(many_names);
    RUN(extremes_stay);
    RUN(long_run_is_quick);
    RUN(escapes);
    RUN(medians_leave_out_warm_up);
    RUN(planned_and_measured_memory);
    RUN(numbers_for_people);
    folder_remove(lab_tmp());
    return lab_report();
}
