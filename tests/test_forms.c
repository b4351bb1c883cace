/* tests/test_forms.c -- records in the forms that people bring, rendered by a chat template: ids and
 * supervised tokens equal those of transformers (tests/forms, written by tools/make_form_cases.py). */
#include "lab.h"

#include "data/sample.h"

#include <string.h>
#include <unistd.h>

enum { PATCH = 16 };

static struct {
    Config        recipe;
    Tokenizer    *tokenizer;
    Source        source;
    SourceList    list;
    Dataset       data;
    SampleConf    conf;
    SampleScratch scratch;
    char          path[400];
} set;

/* The record of each case, a line each. */
static void write_records(const Json *cases)
{
    FILE *f = fopen(set.path, "w");
    REQUIRE(f, "cannot write %s", set.path);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_dumpf(json_object_get(json_array_get(cases, i), "record"), f, JSON_COMPACT);
        putc('\n', f);
    }
    fclose(f);
}

static Status open_set(void)
{
    static const Budget all = { .tokens = 8192, .patches = 1 << 20, .docs = 1, .supervised = 8192 };
    PatchShape patch = { .patch = PATCH, .frames = 2, .merge = 2, .channels = 3 };
    config_default(&set.recipe);
    set.recipe.image.min_pixels = 1024, set.recipe.image.max_pixels = 4096;
    set.recipe.data.template = "tests/forms/template.jinja", set.recipe.data.media_dir = "tests/forms";
    TRY(tokenizer_open(&set.tokenizer, "tests/gold_text"));
    StreamShape stream = { .image_token = tokenizer_id(set.tokenizer, "<|image_pad|>"),
                           .video_token = tokenizer_id(set.tokenizer, "<|video_pad|>"),
                           .merge = 2, .patch_dim = 3 * 2 * PATCH * PATCH };
    TRY(sample_conf(&set.conf, &set.recipe, set.tokenizer, &patch, &stream, &all));
    set.source = (Source){ .path = set.path, .weight = 1, .channel = "" };
    set.list   = (SourceList){ &set.source, 1 };
    DatasetConf d = { .sources = &set.list, .key = "data.train", .once = true,
                      .format = { set.tokenizer, set.conf.max_length } };
    TRY(dataset_open(&set.data, &d));
    set.conf.data = &set.data;
    return sample_scratch_open(&set.scratch, set.tokenizer);
}

static int64_t number_at(const Json *o, const char *key, int64_t i)
{
    return json_integer_value(json_array_get(json_object_get(o, key), (size_t)i));
}

/* A row predicts the token after it where the assistant wrote that. */
static void expect_case(const Sample *s, const Json *want)
{
    const char *name = json_string_value(json_object_get(want, "name"));
    int64_t     n = (int64_t)json_array_size(json_object_get(want, "ids"));
    EXPECT(s->ids.n == n, "%s: %lld tokens, transformers has %lld", name, (long long)s->ids.n, (long long)n);
    for (int64_t i = 0; i < s->ids.n && i < n; i++) {
        int64_t next = i + 1 < n && number_at(want, "mask", i + 1) ? number_at(want, "ids", i + 1) : -1;
        EXPECT(s->ids.v[i] == number_at(want, "ids", i), "%s: token %lld is %d", name, (long long)i,
               s->ids.v[i]);
        EXPECT(s->targets.v[i] == next, "%s: row %lld predicts %d, not %lld", name, (long long)i,
               s->targets.v[i], (long long)next);
        if (s->ids.v[i] != number_at(want, "ids", i) || s->targets.v[i] != next) return;
    }
}

static void equal_transformers(void)
{
    FILE *f = fopen("tests/forms/cases.jsonl", "r");
    Json *cases = json_array();
    REQUIRE(f, "tests/forms/cases.jsonl");
    for (Json *line; (line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL));)
        json_array_append_new(cases, line);
    fclose(f);
    write_records(cases);
    EXPECT_OK(open_set());
    EXPECT(json_array_size(cases) >= 20 && set.data.samples == (int64_t)json_array_size(cases), "%lld forms",
           (long long)set.data.samples);
    for (int64_t i = 0; i < set.data.samples; i++) {
        Sample s;
        EXPECT_OK(sample_load(&s, &set.scratch, &set.conf, i));
        expect_case(&s, json_array_get(cases, (size_t)i));
        sample_close(&s);
    }
    json_decref(cases);
    sample_scratch_close(&set.scratch);
    dataset_close(&set.data);
    tokenizer_close(set.tokenizer);
    config_close(&set.recipe);
}

int main(void)
{
    snprintf(set.path, sizeof set.path, "%s/forms.jsonl", lab_tmp());
    RUN(equal_transformers);
    remove(set.path), rmdir(lab_tmp());
    return lab_report();
}
