/* tests/test_data.c -- the verbs of `treb data`: check, inspect, pack. */
#include "lab.h"
#include "tinyset.h"

#include <sys/wait.h>

enum { LINES = 50 };

static TinySet     set;
static char        recipe[400], said[1 << 17];
static const char *treb;

/* Runs `treb data ...`; its output is in `said`. */
__attribute__((format(printf, 1, 2))) static int data(const char *fmt, ...)
{
    char    command[2048], arguments[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(arguments, sizeof arguments, fmt, ap);
    va_end(ap);
    snprintf(command, sizeof command, "%s data %s 2>&1", treb, arguments);
    FILE  *p = popen(command, "r");
    size_t n = p ? fread(said, 1, sizeof said - 1, p) : 0;
    said[n] = 0;
    int rc = p ? pclose(p) : -1;
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

#define EXPECT_SAID(rc, want, word)                                                                          \
    do {                                                                                                     \
        int rc_ = (rc);                                                                                      \
        EXPECT(rc_ == (want) && strstr(said, word), "exit %d (want %d), \"%s\" wanted in:\n%s", rc_, want,   \
               word, said);                                                                                  \
    } while (0)

/* The small model of the recorded cases, with the ids of the tiny tokenizer. */
static void model_write(void)
{
    char  path[512];
    Json *c, *t = tiny_json(TINY_ADDED);
    REQUIRE(!json_load(&c, "tests/gold/vl-moe-mix/config.json"), "%s", status_text());
    json_object_set_new(c, "image_token_id", json_integer(TINY_FIRST + 5));
    json_object_set_new(c, "video_token_id", json_integer(TINY_FIRST + 6));
    json_object_set_new(json_object_get(c, "text_config"), "vocab_size", json_integer(320));
    snprintf(path, sizeof path, "%s/model", set.dir);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/model/config.json", set.dir);
    REQUIRE(!json_dump_file(c, path, 0), "%s", path);
    snprintf(path, sizeof path, "%s/model/tokenizer.json", set.dir);
    REQUIRE(!json_dump_file(t, path, 0), "%s", path);
    json_decref(c), json_decref(t);
}

static void recipe_write(void)
{
    FILE *f;
    snprintf(recipe, sizeof recipe, "%s/recipe.yaml", set.dir);
    f = fopen(recipe, "w");
    fprintf(f, "model: {path: %s/model}\ndata: {train: [{path: %s, channel: drawn}], max_length: 600}\n"
               "image: {min_pixels: 1024, max_pixels: 4096}\nvideo: {max_pixels: 8192}\n"
               "train: {micro_tokens: 700, micro_patches: 1400, global_tokens: 1400}\n", set.dir, set.path);
    fclose(f);
}

/* The steps printed by check are the steps of a loader. */
static void check_is_exact(void)
{
    LoaderConf c = set.conf;
    LoaderStep s = { 0 };
    Loader    *l;
    int64_t    steps = 0, tokens = 0;
    Json      *out;
    EXPECT_SAID(data("check %s", recipe), 0, "50 good, 0 bad");
    EXPECT_SAID(data("check %s --json", recipe), 0, "steps_per_epoch");
    EXPECT_OK(json_parse(&out, said, strlen(said), "said"));
    c.budget.docs = 700 / 8 + 1, c.budget.supervised = 700;
    EXPECT_OK(loader_open(&l, &c, NULL));
    for (; s.epoch < 1; steps++, tokens += s.tokens) EXPECT_OK(loader_next(l, &s));
    loader_close(l);
    const Json *train = json_array_get(out, 0);
    EXPECT(json_integer_value(json_object_get(train, "steps_per_epoch")) == steps, "%lld steps",
           (long long)steps);
    EXPECT(json_integer_value(json_object_get(train, "tokens")) == tokens, "%lld tokens", (long long)tokens);
    json_decref(out);
}

static void check_finds_the_bad(void)
{
    static const char lines[] = "{\"text\":\"fine\"}\n\n{\"text\":3}\n"
                                "{\"messages\":[{\"role\":\"user\",\"content\":\"unanswered\"}]}\nnot json\n";
    char path[512];
    snprintf(path, sizeof path, "%s/bad.jsonl", set.dir);
    tiny_write(path, lines, sizeof lines - 1);
    EXPECT_SAID(data("check %s 'data.train[0].path=%s'", recipe, path), 4,
                "bad.jsonl:3: text: expected a string");
    EXPECT(strstr(said, "bad.jsonl:5: not JSON") && strstr(said, "without supervised tokens: 1") &&
               strstr(said, "bad.jsonl:4: no token"),
           "%s", said);
    EXPECT_SAID(data("check %s %s", set.path, path), 4, "tokens are not counted");
    EXPECT_SAID(
        data("check %s model.path=%s/model image.max_pixels=4096 image.min_pixels=1024", set.path, set.dir),
        0, "50 good");
    EXPECT_SAID(data("check %s data.max_length=100", recipe), 4, "data.max_length is 100");
    EXPECT(strstr(said, "over budget: ") && !strstr(said, "over budget: 0"), "%s", said);
    EXPECT_SAID(data("check %s data.max_length=100 data.truncation=delete", recipe), 0,
                "left out by data.truncation");
    EXPECT_SAID(data("check %s/nothing.yaml", set.dir), 4, "nothing.yaml");
    EXPECT_SAID(data("chek"), 2, "check, inspect, render, pack, synth");
}

/* Without keys of image.* the verbs resize as the model's processor file says, within the budgets. */
static void pictures_are_sized_by_the_model(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/model/preprocessor_config.json", set.dir);
    EXPECT_SAID(data("check %s model.path=%s/model train.micro_tokens=700 train.micro_patches=400",
                     set.path, set.dir), 4, "larger ones are reduced to ");
    tiny_write(path, "{\"size\": {\"shortest_edge\": 1024, \"longest_edge\": 4096}}", 55);
    EXPECT_SAID(data("check %s model.path=%s/model", set.path, set.dir), 0, "50 good");
    EXPECT(!strstr(said, "are reduced"), "%s", said);
    remove(path);
}

static void inspect_shows_kinds(void)
{
    EXPECT_SAID(data("inspect %s --sample 1", recipe), 0, "look 1<|im_end|>");
    EXPECT(strstr(said, "p1.png: ") && strstr(said, " patches}<|vision_end|>") && strstr(said, "<|im_end|>]"),
           "%s", said);
    EXPECT_SAID(data("inspect %s --sample 1 --tokens", recipe), 0, "trained");
    EXPECT_SAID(data("inspect %s --step 2", recipe), 0, "═══ micro-batch 1: ");
    EXPECT(strstr(said, "drawn"), "the channel");
    EXPECT_SAID(data("inspect %s --sample 50", recipe), 2, "there are 50 samples, counted from 0");
    EXPECT_SAID(data("inspect %s", set.path), 2, "model.path");
}

static void inspect_writes_a_page(void)
{
    static const char line[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"<image></p><script>alert('x')</script>\"},"
        "{\"role\":\"assistant\",\"content\":\"a & b \xe2\x82\xac\"}],\"images\":[\"p0.jpg\"]}\n";
    char  path[512], page[512];
    snprintf(path, sizeof path, "%s/script.jsonl", set.dir);
    snprintf(page, sizeof page, "%s/page.html", set.dir);
    tiny_write(path, line, sizeof line - 1);
    EXPECT_SAID(data("inspect %s 'data.train[0].path=%s' --html %s", recipe, path, page), 0, "written");
    FILE  *f = fopen(page, "rb");
    size_t n = f ? fread(said, 1, sizeof said - 1, f) : 0;
    said[n] = 0;
    if (f) fclose(f);
    EXPECT(strstr(said, "data:image/jpeg;base64,/9j/") && strstr(said, "\"masked\"") &&
               strstr(said, "\"trained\"") && strstr(said, "\"visual\""),
           "page");
    const char *end = strstr(said, "</script>");
    EXPECT(!strstr(said, "<script>") && end && !strstr(end + 1, "</script"),
           "text of the data is not escaped");
    EXPECT(strstr(said, "\"\\u003c\"") && strstr(said, "\"\\u0026\""), "text");
    EXPECT(strstr(said, "\xe2\x82\xac"), "text");
    EXPECT(!strstr(said, "http:") && !strstr(said, "https:") && !strstr(said, "<link") &&
               !strstr(said, "@import"),
           "the page refers to the network");
}

static void packs(void)
{
    char *summary;
    EXPECT_SAID(data("check %s --json", recipe), 0, "\"tokens\": ");
    summary = strdup(strstr(said, "\"good\""));
    *strstr(summary, "\"token_histogram\"") = 0;
    EXPECT_SAID(data("pack %s %s/packed", recipe, set.dir), 0, "50 samples");
    EXPECT_SAID(data("check %s 'data.train[0].path=%s/packed' --json", recipe, set.dir), 0, summary);
    EXPECT_SAID(data("pack %s %s/packed", recipe, set.dir), 4, "not empty");
    EXPECT_SAID(data("check %s 'data.train[0].path=%s/packed' image.max_pixels=2048", recipe, set.dir), 2,
                "packed with max_pixels");
    EXPECT_SAID(data("pack %s %s/two data.max_length=100", recipe, set.dir), 4, "data.bad_sample: skip");
    EXPECT_SAID(data("pack %s", recipe), 2, "a folder to write to");
    free(summary);
}

/* A template of a file renders, is packed, and is one of the settings that packed files must agree with. */
static void templates_of_files(void)
{
    static const char text[] =
        "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% elif p.type == 'image' %}"
        "<|vision_start|><|image_pad|><|vision_end|>{% else %}<|vision_start|><|video_pad|><|vision_end|>"
        "{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}";
    char path[512], *summary;
    snprintf(path, sizeof path, "%s/own.jinja", set.dir);
    tiny_write(path, text, sizeof text - 1);
    EXPECT_SAID(data("inspect %s --sample 0 data.template=%s", recipe, path), 0,
                "[user]question 0<|im_end|>");
    EXPECT_SAID(data("check %s data.template=%s", recipe, path), 0, "own.jinja");
    EXPECT_SAID(data("check %s --json data.template=%s", recipe, path), 0, "\"tokens\": ");
    summary = strdup(strstr(said, "\"good\""));
    *strstr(summary, "\"token_histogram\"") = 0;
    EXPECT_SAID(data("pack %s %s/rendered data.template=%s", recipe, set.dir, path), 0, "50 samples");
    EXPECT_SAID(
        data("check %s 'data.train[0].path=%s/rendered' --json data.template=%s", recipe, set.dir, path), 0,
        summary);
    EXPECT_SAID(data("check %s 'data.train[0].path=%s/rendered'", recipe, set.dir), 2,
                "packed with template");
    EXPECT_SAID(data("check %s data.template=chatlm", recipe), 4, "data.template (model, chatml or a file)");
    free(summary);
}

int main(void)
{
    treb = getenv("TREB") ? getenv("TREB") : "build/treb";
    if (access(treb, X_OK)) {
        printf("  skip data verbs: %s is not built\nlab: 0 passed, 0 failed, 1 skipped\n", treb);
        return 0;
    }
    tiny_set_open(&set, lab_tmp(), LINES);
    model_write();
    recipe_write();
    RUN(check_is_exact);
    RUN(check_finds_the_bad);
    RUN(pictures_are_sized_by_the_model);
    RUN(inspect_shows_kinds);
    RUN(inspect_writes_a_page);
    RUN(packs);
    RUN(templates_of_files);
    tiny_set_close(&set);
    rmdir(lab_tmp());
    return lab_report();
}
