/* tests/test_config.c -- recipes: defaults, files, overrides, errors, round trip, hostile YAML. */
#include "base/config.h"
#include "base/config_table.h"
#include "base/str.h"
#include "lab.h"
#include <ctype.h>

static Status parse_more(Config *cfg, const char *yaml)
{
    return config_parse(cfg, yaml, strlen(yaml), "r.yaml");
}

/* Defaults with yaml on top; the caller closes. */
static Status parse(Config *cfg, const char *yaml)
{
    config_default(cfg);
    return parse_more(cfg, yaml);
}

static Status set(Config *cfg, const char *override)
{
    config_default(cfg);
    return config_set(cfg, override);
}

#define REFUSED_BY(read, text, word) do {                                                         \
        Config c_;                                                                                \
        EXPECT_FAIL(read(&c_, text), E_CONFIG, word);                                             \
        config_close(&c_);                                                                        \
    } while (0)
#define REFUSED(yaml, word)          REFUSED_BY(parse, yaml, word)
#define SET_REFUSED(override, word)  REFUSED_BY(set, override, word)

static char *dump(const Config *cfg)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    config_dump(f, cfg);
    fclose(f);
    return text;
}

static void expect_round_trip(const Config *cfg)
{
    Config back;
    char *once = dump(cfg);
    EXPECT_OK(parse(&back, once));
    char *twice = dump(&back);
    EXPECT(!strcmp(once, twice), "first\n%s\nthen\n%s", once, twice);
    free(once), free(twice);
    config_close(&back);
}

/* Text of n copies of a numbered pattern after head. */
static char *repeat(const char *head, const char *pattern, int n, const char *tail)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    fputs(head, f);
    for (int i = 0; i < n; i++) fprintf(f, pattern, i);
    fputs(tail, f);
    fclose(f);
    return text;
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    if (!f || fputs(text, f) < 0 || fclose(f)) perror(path), exit(1);
}

static void defaults(void)
{
    Config cfg;
    EXPECT_OK(config_open(&cfg, NULL, 0, NULL));
    EXPECT(cfg.optim.learning_rate == 1e-5 && cfg.optim.adam_beta2 == 0.95, "%g", cfg.optim.learning_rate);
    EXPECT(cfg.image.min_pixels == 65536 && cfg.image.max_pixels == 16777216, "pixels");
    EXPECT(cfg.train.seed == 42 && !cfg.train.deterministic, "seed");
    EXPECT(!strcmp(cfg.model.path, "") && cfg.data.train.n == 0, "nothing to train on yet");
    EXPECT(cfg.lora.target_modules.n == 1 && !strcmp(cfg.lora.target_modules.item[0], "all-linear"), "lora");
    EXPECT(cfg.log.report_to.n == 2 && cfg.memory.recompute.n == 0, "lists");
    expect_round_trip(&cfg);
    config_close(&cfg);
    config_close(&cfg);
}

static void defaults_are_within_their_own_bounds(void)
{
    for EACH_ROW(r, config_rows()) {
        Config cfg;
        char *text = NULL;
        size_t len;
        FILE *f = open_memstream(&text, &len);
        fprintf(f, "%s: {%s: ", r->section, r->key);
        config_put_value(f, r, r->def);
        fputs("}", f);
        fclose(f);
        EXPECT_OK(parse(&cfg, text));
        EXPECT(*r->help && r->min <= r->max, "%s.%s", r->section, r->key);
        config_close(&cfg);
        free(text);
    }
}

static void block_and_flow(void)
{
    Config cfg;
    EXPECT_OK(parse(&cfg, "train:\n  max_steps: 20   # a comment\n  seed: 7\n"
                          "optim: {learning_rate: 1e-4, vit_lr: 1.0E-6}\n"
                          "memory:\n  recompute:\n  - moe_act\n  - layernorm\nlog: {report_to: jsonl}\n"
                          "model: {path: 'a b', freeze_vit: True, preset: \"x\\ty\"}\neval:\n"));
    EXPECT(cfg.train.max_steps == 20 && cfg.train.seed == 7, "block");
    EXPECT(cfg.optim.learning_rate == 1e-4 && cfg.optim.vit_lr == 1e-6, "flow");
    EXPECT(cfg.memory.recompute.n == 2 && !strcmp(cfg.memory.recompute.item[1], "layernorm"), "block list");
    EXPECT(cfg.log.report_to.n == 1 && !strcmp(cfg.log.report_to.item[0], "jsonl"),
           "a word is a list of one");
    EXPECT(!strcmp(cfg.model.path, "a b") && cfg.model.freeze_vit && !strcmp(cfg.model.preset, "x\ty"),
           "texts");
    EXPECT(cfg.eval.eval_steps == 500, "an empty section changes nothing");
    expect_round_trip(&cfg);
    config_close(&cfg);
}

static void numbers(void)
{
    Config cfg;
    EXPECT_OK(parse(&cfg, "train: {max_steps: 1e3, seed: 2.0, global_tokens: +5}\n"
                          "optim: {weight_decay: .5, min_lr: 0}\n"));
    EXPECT(cfg.train.max_steps == 1000 && cfg.train.seed == 2 && cfg.train.global_tokens == 5,
           "whole by value");
    EXPECT(cfg.optim.weight_decay == 0.5 && cfg.optim.min_lr == 0, "reals");
    config_close(&cfg);
    REFUSED("train: {max_steps: 8k}", "train.max_steps = 8k: must be a whole number, written out: suffixes");
    REFUSED("train: {max_steps: 1_000}", "separators are not read");
    REFUSED("train: {max_steps: 1.5}", "train.max_steps = 1.5: must be a whole number");
    REFUSED("train: {max_steps: many}", "train.max_steps = many: must be a whole number");
    REFUSED("train: {max_steps: 0x10}", "must be a whole number");
    REFUSED("train: {max_steps: 1e400}", "must be between 0 and 1000000000");
    REFUSED("optim: {learning_rate: nan}", "must be a number");
    REFUSED("optim: {learning_rate: inf}", "must be a number");
    REFUSED("optim: {learning_rate: .}", "must be a number");
    REFUSED("optim: {learning_rate: 1e}", "must be a number");
}

static void nothing_and_null(void)
{
    Config cfg;
    EXPECT_OK(parse(&cfg, "train: {max_steps: 5}\ndata: {train: a.jsonl}"));
    EXPECT_OK(parse_more(&cfg, "train: {max_steps: null}\ndata: {train: ~}"));
    EXPECT(cfg.train.max_steps == 0 && cfg.data.train.n == 0, "null gives the default back");
    config_close(&cfg);
    REFUSED("train:\n  max_steps:\n", "r.yaml:2: train.max_steps: no value given");
    SET_REFUSED("train.max_steps=", "train.max_steps: no value given");
    EXPECT_OK(parse(&cfg, ""));
    config_close(&cfg);
    EXPECT_OK(parse(&cfg, "# only a comment\n"));
    config_close(&cfg);
}

static void expect_auto(const Config *cfg, const char *section, bool is, bool asked)
{
    bool said;
    EXPECT(config_is_auto(cfg, section, &said) == is && said == asked, "%s", section);
}

/* Sections that the planner chooses: absent, or said to be auto, which takes back what was set before. */
static void sections_left_to_the_planner(void)
{
    Config cfg;
    EXPECT_OK(parse(&cfg, "parallel: auto\nmemory: {recompute: [full]}"));
    expect_auto(&cfg, "parallel", true, true), expect_auto(&cfg, "memory", false, false);
    expect_auto(&cfg, "train", false, false);
    EXPECT_OK(config_set(&cfg, "memory=auto"));
    expect_auto(&cfg, "memory", true, true);
    EXPECT(!cfg.memory.recompute.n, "%d words", cfg.memory.recompute.n);
    EXPECT_OK(config_set(&cfg, "parallel.ranks=8"));
    expect_auto(&cfg, "parallel", true, false);
    EXPECT_OK(config_set(&cfg, "parallel.tp=1"));
    expect_auto(&cfg, "parallel", false, false);
    config_close(&cfg);
}

/* The dry run assumes no routing, and no other section is chosen: such recipes are refused. */
static void refuses_what_nothing_reads(void)
{
    REFUSED("memory: {optimizer_offload: 0.5, auto: true}",
            "memory.auto: not a key here. Only the sections parallel and memory");
    REFUSED("parallel: {auto: false}", "`treb plan --gpus N --model NAME` finds a layout");
    REFUSED("moe: auto", "r.yaml:1: moe.auto: not a key here. Only the sections parallel and memory");
    REFUSED("plan: {routing: zipf}", "plan: not a key here. Drop it: buffers are planned for what "
            "moe.rank_capacity lets a rank receive");
    SET_REFUSED("parallel.auto=true", "parallel.auto: not a key here");
    SET_REFUSED("plan.routing=uniform", "plan: not a key here. Drop it");
    REFUSED("train: auto", "train.auto: not a key here");
    REFUSED("parallel: 3", "parallel: must be a mapping of keys, such as {tp: ...}");
    REFUSED("parallel: [auto]", "parallel: must be a mapping of keys");
}

static void sources(void)
{
    Config cfg;
    EXPECT_OK(parse(&cfg, "data:\n  train:\n    - {path: a.jsonl, weight: 2}\n    - \"b-*.tar\"\n"
                          "    - path: c\n      channel: ocr\n      max_samples: 10\n  eval: v.jsonl\n"));
    EXPECT(cfg.data.train.n == 3 && cfg.data.eval.n == 1, "%d %d", cfg.data.train.n, cfg.data.eval.n);
    EXPECT(cfg.data.train.item[0].weight == 2 && cfg.data.train.item[1].weight == 1, "weights");
    EXPECT(!strcmp(cfg.data.train.item[1].path, "b-*.tar") && !strcmp(cfg.data.eval.item[0].path, "v.jsonl"),
           "bare");
    EXPECT(cfg.data.train.item[2].max_samples == 10 && !strcmp(cfg.data.train.item[2].channel, "ocr"),
           "fields");
    expect_round_trip(&cfg);
    config_close(&cfg);
    REFUSED("data:\n  train:\n  - {path: a}\n  - {weight: 1}\n", "r.yaml:4: data.train[1].path: missing");
    REFUSED("data:\n  train:\n  - {path: a,\n     wieght: 1}\n",
            "r.yaml:4: data.train[0].wieght: not a key. Did you mean weight?");
    REFUSED("data: {train: [{file_name: a}]}", "Use path.");
    REFUSED("data: {train: [{path: a, weight: -1}]}", "data.train[0].weight = -1: must be between");
    REFUSED("data: {train: [{path: a, zzzzzz: -1}]}", "lists those of an entry");
    REFUSED("data: {train: [[a]]}", "data.train[0]: must be a path or");
    REFUSED("data: {train: [{path: [a]}]}", "data.train[0].path: must be a single value, not a list");
    REFUSED("data: {train: [~]}", "data.train[0].path: missing");
}

static void overrides(void)
{
    Config cfg;
    char *args[] = {
        "train.max_steps=7",          "optim.learning_rate=1e-4", "memory.recompute=[moe_act, layernorm]",
        "data.train[0].path=*.jsonl", "data.train[0].weight=0.5", "data.train[1]={path: b, channel: x}",
        "data.eval=v #1.jsonl",       "model.path=\"a: b\"",      "parallel.layout=Et*3|(tt|)*22mL",
        "model.freeze_vit=true",      "train={seed: 9}",          "data.train[1].weight=3",
    };
    EXPECT_OK(config_open(&cfg, NULL, sizeof args / sizeof *args, args));
    EXPECT(cfg.train.max_steps == 7 && cfg.optim.learning_rate == 1e-4 && cfg.train.seed == 9, "numbers");
    EXPECT(cfg.memory.recompute.n == 2 && cfg.data.train.n == 2, "lists");
    EXPECT(!strcmp(cfg.data.train.item[0].path, "*.jsonl") && cfg.data.train.item[0].weight == 0.5,
           "a glob is a text");
    EXPECT(!strcmp(cfg.data.train.item[1].channel, "x") && cfg.data.train.item[1].weight == 3,
           "an entry changed in place");
    EXPECT(!strcmp(cfg.data.eval.item[0].path, "v #1.jsonl") && !strcmp(cfg.model.path, "a: b"),
           "texts as they are");
    EXPECT(!strcmp(cfg.parallel.layout, "Et*3|(tt|)*22mL"), "%s", cfg.parallel.layout);
    expect_round_trip(&cfg);
    config_close(&cfg);
    SET_REFUSED("train.max_steps", "an override is written section.key=value");
    SET_REFUSED("=3", "an override is written");
    SET_REFUSED("data.train[1].path=x", "data.train has 0 entries; the next is [0]");
    SET_REFUSED("data.train[0].weight=2", "data.train[0].path: missing");
    SET_REFUSED("data.train[x].path=x", "an entry is written data.train[0]");
    SET_REFUSED("data.train[0=x", "an entry is written");
    SET_REFUSED("data.train[0]x=x", "an entry is written");
    SET_REFUSED("data.train[99999999999999999999]=x", "an entry is written");
    SET_REFUSED("data.train[0].pth=x", "data.train[0].pth: not a key. Did you mean path?");
    SET_REFUSED("train.seed[0]=x", "no entries to number");
    SET_REFUSED("train.max_step=3", "train.max_step: not a key. Did you mean train.max_steps?");
    SET_REFUSED("memory.recompute=[a", "memory.recompute = [a: ");
    SET_REFUSED("model.path=\xff", "not UTF-8");
    char *path = repeat("model.path=", "%07d", 1 << 14, "");
    SET_REFUSED(path, "model.path: a text of more than 64 KiB");
    free(path);
    SET_REFUSED("train=5", "train: must be a mapping");
    SET_REFUSED("optim.learning_rate=[1]", "must be a single value, not a list");
}

/* Set is what a recipe or an override names, if only to what it is by itself. */
static void what_was_said(void)
{
    static const char text[] = "lora: {alpha: 32}\n";
    Config cfg;
    config_default(&cfg);
    EXPECT(!config_is_set(&cfg, "lora", NULL) && !config_is_set(&cfg, "nothing", NULL), "nothing was said");
    EXPECT_OK(config_parse(&cfg, text, sizeof text - 1, "recipe"));
    EXPECT_OK(config_set(&cfg, "train.seed=42"));
    EXPECT(config_is_set(&cfg, "lora", "alpha") && !config_is_set(&cfg, "lora", "rank"), "a key of a recipe");
    EXPECT(!strcmp(config_is_set(&cfg, "lora", NULL), "alpha"), "the first of its section");
    EXPECT(config_is_set(&cfg, "train", "seed") && !config_is_set(&cfg, "optim", NULL), "an override");
    config_close(&cfg);
}

static void nearest_key(void)
{
    REFUSED("train:\n\n  max_step: 3\n",
            "r.yaml:3: train.max_step: not a key. Did you mean train.max_steps?");
    REFUSED("train: {max_setps: 3}", "Did you mean train.max_steps?");
    REFUSED("train: {max-steps: 3}", "Did you mean train.max_steps?");
    REFUSED("checkpoint: {output: x}", "Did you mean checkpoint.output_dir?");
    REFUSED("image: {max_pixel: 3}", "Did you mean image.max_pixels?");
    REFUSED("train: {qqqqqqqq: 3}", "train.qqqqqqqq: not a key. `treb help train` lists");
    REFUSED("\ntrian: {max_steps: 3}", "r.yaml:2: trian: not a section. Did you mean train?");
    REFUSED("zzzzzzzz: 1", "zzzzzzzz: not a section. `treb help` lists");
    SET_REFUSED("optm.learning_rate=1", "optm: not a section. Did you mean optim?");
    REFUSED("train: {learning_rate: 1}", "train.learning_rate: not a key here. It is optim.learning_rate.");
    REFUSED("model: {max_pixels: 1}", "It is image.max_pixels or video.max_pixels.");
    REFUSED("max_steps: 1", "max_steps: not a key here. It is train.max_steps.");
}

static void foreign_keys(void)
{
    REFUSED("train: {gradient_accumulation_steps: 8}",
                   "r.yaml:1: train.gradient_accumulation_steps: not a key here. "
                   "Set train.global_tokens; accumulation follows.");
    REFUSED("per_device_train_batch_size: 1", "set train.micro_tokens");
    REFUSED("train: {bf16: true}", "Set model.dtype: bfloat16");
    REFUSED("deepspeed: ds.json", "Set parallel.zero");
    REFUSED("data: {packing: true}", "always packed");
    REFUSED("model: {flash_attn: fa2}", "one attention");
    REFUSED("model_name_or_path: x", "Use model.path.");
    REFUSED("optim: {lr: 1e-4}", "optim.lr: not a key here. Use optim.learning_rate.");
    REFUSED("train: {train-iters: 5}", "Use train.max_steps.");
    REFUSED("parallel: {tensor_model_parallel_size: 2}", "Use parallel.tp.");
    REFUSED("image: {MAX_PIXELS: 5}", "Did you mean image.max_pixels?");
    REFUSED("training: {steps: 5}", "training: not a section here. Use train.");
    REFUSED("parallel: {dp: 5}", "ranks / (tp * cp * pp)");
    REFUSED("train: {<<: {a: 1}}", "Merge keys are not read");
    REFUSED("lora: {r: 8}", "Use lora.rank.");
    SET_REFUSED("learning_rate=1", "It is optim.learning_rate.");
}

/* Each foreign spelling leads to one place and is not a key itself. */
static void foreign_spellings_are_unambiguous(void)
{
    static const char *const answered[] = {
#define ANSWER(spellings, text) spellings,
#include "base/config_answers.def"
    };
    char seen[65536] = ",";
    size_t used = 1, len, n = sizeof answered / sizeof *answered;
    for (int i = 0; i < config_rows().n + (int)n; i++) {
        const char *rest = i < (int)n ? answered[i] : config_rows().row[i - (int)n].also;
        for (const char *item; (item = str_item(&rest, ',', &len));) {
            char word[80];
            snprintf(word, sizeof word, ",%.*s,", (int)len, item);
            EXPECT(!strstr(seen, word), "%s leads to two places", word);
            used += (size_t)snprintf(seen + used, sizeof seen - used, "%s", word + 1);
            word[len + 1] = 0;
            for EACH_ROW(r, config_rows())
                EXPECT(strcmp(r->key, word + 1), "%s is a key of %s", r->key, r->section);
        }
    }
}

static void bounds_and_types(void)
{
    REFUSED("\noptim: {learning_rate: 3}", "r.yaml:2: optim.learning_rate = 3: must be between 0 and 1");
    SET_REFUSED("optim.learning_rate=3", "optim.learning_rate = 3: must be between 0 and 1");
    REFUSED("parallel: {zero: 4}", "parallel.zero = 4: must be between 0 and 3");
    REFUSED("parallel: {tp: 0}", "parallel.tp = 0: must be between 1 and 65536");
    REFUSED("optim: {lr_scheduler_type: cosin}",
            "optim.lr_scheduler_type = cosin: must be one of cosine, linear, constant, wsd");
    REFUSED("log: {report_to: [jsonl, wandb]}", "log.report_to = wandb: must be one of tensorboard, jsonl");
    REFUSED("model: {freeze_vit: yes}", "model.freeze_vit = yes: must be true or false");
    REFUSED("train: {seed: {a: 1}}", "train.seed: must be a single value, not a mapping");
    REFUSED("memory: {recompute: {a: 1}}", "memory.recompute: must be a single value, not a mapping");
    REFUSED("memory: {recompute: [[a]]}", "memory.recompute: must be a list of words");
    REFUSED("train: [1]", "train: must be a mapping");
    REFUSED("[train]", "a recipe is a mapping of sections");
    REFUSED("just text", "a recipe is a mapping of sections");
}

static void yaml_mistakes(void)
{
    REFUSED("train:\n  seed: 1\n  seed: 2\n", "r.yaml:3: seed: given twice, first on line 2");
    REFUSED("train: {seed: 1}\noptim: {}\ntrain: {seed: 2}\n", "r.yaml:3: train: given twice");
    REFUSED("train:\n\tseed: 1\n", "r.yaml:2: a tab cannot indent in YAML: use spaces");
    REFUSED("# \xc3\xa9\ntrain:\n  \tseed: 1\n", "r.yaml:3: ");
    REFUSED("train: {seed: 1\n", "r.yaml:");
    REFUSED("train: {seed: 1}\n---\ntrain: {seed: 2}\n", "r.yaml:2: a second document begins here");
    REFUSED("? [a]\n: b\n", "a key must be a word");
    REFUSED("train: {seed: \"a\\0b\"}", "NUL");
    REFUSED("train: {seed: *missing}", "r.yaml:1: alias *missing: no anchor");
    REFUSED("train: &a {seed: *a}", "alias *a: no anchor of that name is complete before it");
    Config cfg;
    EXPECT_OK(parse(&cfg, "train: {seed: &s 5, max_steps: *s}\ndata: {train: &t [a, b], eval: *t}\n"));
    EXPECT(cfg.train.max_steps == 5 && cfg.data.eval.n == 2, "aliases stand for their anchors");
    config_close(&cfg);
}

static void hostile_nesting(void)
{
    enum { N = 100000 };
    char *deep = malloc(N + 16);
    for (const char *open = "[{-?"; *open; open++) {
        memset(deep, *open, N);
        if (*open == '-' || *open == '?') for (int i = 1; i < N; i += 2) deep[i] = ' ';
        deep[N] = 0;
        Config cfg;
        EXPECT_FAIL(parse(&cfg, deep), E_CONFIG, "nested deeper than 32 levels");
        config_close(&cfg);
    }
    free(deep);
}

static void hostile_aliases(void)
{
    char bomb[4096] = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
    for (int i = 1; i < 20; i++) {
        char line[160];
        snprintf(line, sizeof line, "a%1$d: &a%1$d [*a%2$d, *a%2$d, *a%2$d, *a%2$d]\n", i, i - 1);
        strcat(bomb, line);
    }
    REFUSED(bomb, "more than 100000 values (counting what aliases stand for)");

    char tower[4096] = "a0: &a0 [x]\n";             /* each one level deeper than the last */
    for (int i = 1; i < 40; i++) {
        char line[64];
        snprintf(line, sizeof line, "a%d: &a%d [*a%d]\n", i, i, i - 1);
        strcat(tower, line);
    }
    REFUSED(tower, "nested deeper than 32 levels");
}

#define REPEATED_REFUSED(head, pattern, n, tail, word) do {                                       \
        char *text_ = repeat(head, pattern, n, tail);                                             \
        REFUSED(text_, word);                                                                     \
        free(text_);                                                                              \
    } while (0)

static void hostile_sizes(void)
{
    REPEATED_REFUSED("", "k%d: 1\n", 1000, "", "r.yaml:513: more than 512 keys in one mapping");
    REPEATED_REFUSED("[", "&a%d 1, ", 1000, "]", "more than 256 anchors");
    REPEATED_REFUSED("data: {train: [", "f%d,", 150000, "]}", "more than 100000 values");
    REPEATED_REFUSED("data: {train: [", "f%d,", 6000, "]}", "r.yaml:1: data.train: more than 5000 entries");
    REPEATED_REFUSED("memory: {recompute: [", "w%d,", 1001, "]}", "memory.recompute: more than 1000 words");
    REPEATED_REFUSED("\nmodel: {path: '", "%07d ", 1 << 17, "'}", "r.yaml:2: a text of more than 64 KiB");
    REPEATED_REFUSED("train: {? '", "%07d", 1 << 17, "' : 1}", "a text of more than 64 KiB");
    REPEATED_REFUSED("train: {seed: ", "%07d", 1000, "}", "train.seed = 0000000");
    REPEATED_REFUSED("train: {? '", "%07d", 1000, "' : 1}", "not a key");
    REPEATED_REFUSED("#", "%07d ", 1 << 20, "", "larger than 4 MiB");
}

static void large_recipes_round_trip(void)
{
    Config cfg;
    char *text = repeat("data: {train: &t [", "f%d,", 5000, "], eval: *t}");
    EXPECT_OK(parse(&cfg, text));
    EXPECT(cfg.data.train.n == 5000 && cfg.data.eval.n == 5000, "%d", cfg.data.eval.n);
    expect_round_trip(&cfg);
    config_close(&cfg);
    free(text);
}

static void hostile_bytes(void)
{
#define BYTES(text) { text, sizeof text - 1 }
    static const struct { const char *bytes; size_t len; } cases[] = {
        BYTES("train: {seed: 1\0}"),   BYTES("\0"),                      BYTES("model: {path: \xe2\x82}"),
        BYTES("model: {path: a\xff}"), BYTES("model: {path: \xc0\x80}"), BYTES("model: {path: a\x01}"),
        BYTES("\xff\xfe\0"),          BYTES("%YAML 9.9\n--- a"),        BYTES("model: {path: \"\\ud800\"}"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Config cfg;
        config_default(&cfg);
        EXPECT_FAIL(config_parse(&cfg, cases[i].bytes, cases[i].len, "r.yaml"), E_CONFIG, "r.yaml:1: ");
        config_close(&cfg);
    }
}

/* Any text survives the dump, whatever YAML thinks of it. */
static void odd_texts_round_trip(void)
{
    static const char *const texts[] = {
        "null", "~", "true", "No", "1e-5", "12", "-", "- a", "a: b", "a #b", "#", "*a", "&a", "!t", "%d", "@",
        "`", "{a}", "[a", "'", "\"", "\\", "a\nb", " a ", "\t", "\x01\x7f", "\xc2\x85", "\xc2\xa0",
        "\xe2\x80\xa8", "\xef\xbb\xbf", "\xef\xbf\xbf", "\xf0\x9f\x8f\xb0",
        "\xe6\xa8\xa1\xe5\x9e\x8b/\xc3\xa9", "a,b", "?", ": ", "a\r\nb", "---", "...", ".inf", "=",
        "<<", "C:\\models\\x", "a/b.c-d_e+f",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        Config cfg, back;
        const char *word[] = { texts[i], texts[i] };
        Source source = config_source_defaults;
        config_default(&cfg);
        source.path = source.channel = cfg.model.path = texts[i];
        cfg.memory.recompute = (WordList){ word, 2 };
        cfg.data.train = (SourceList){ &source, 1 };
        char *text = dump(&cfg);
        EXPECT_OK(parse(&back, text));
        EXPECT(back.model.path && !strcmp(back.model.path, texts[i]), "%s", text);
        EXPECT(back.memory.recompute.n == 2 && !strcmp(back.memory.recompute.item[1], texts[i]), "%s", text);
        EXPECT(back.data.train.n == 1 && !strcmp(back.data.train.item[0].channel, texts[i]), "%s", text);
        config_close(&back);
        free(text);
    }
}

static void odd_numbers_round_trip(void)
{
    static const double values[] = { 0.1, 1.0 / 3, 1e-300, 5e-324, 0.30000000000000004, 1e-5, 1 - 1e-16 };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        Config cfg, back;
        config_default(&cfg);
        cfg.optim.learning_rate = values[i];
        cfg.train.seed = 9000000000000000;
        char *text = dump(&cfg);
        EXPECT_OK(parse(&back, text));
        EXPECT(back.optim.learning_rate == values[i] && back.train.seed == cfg.train.seed, "%.17g",
               back.optim.learning_rate);
        config_close(&back);
        free(text);
    }
}

/* Undoes the wrapping of a text: one space stands for every run of spaces and line breaks. */
static void fold_spaces(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++)
        if (!isspace((unsigned char)*at)) *to++ = *at;
        else if (to > text && to[-1] != ' ') *to++ = ' ';
    *to = 0;
}

static void dump_and_help_show_every_key(void)
{
    Config cfg;
    char *help = NULL;
    size_t len;
    FILE *f = open_memstream(&help, &len);
    EXPECT_OK(config_help(f, NULL));
    fclose(f);
    for (const char *line = help; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        EXPECT(strcspn(line, "\n") <= TEXT_WIDTH, "a line of the help is too long: %.120s", line);
    }
    fold_spaces(help);
    config_default(&cfg);
    char *text = dump(&cfg);
    for EACH_ROW(r, config_rows()) {
        char line[ROW_NAME], section[ROW_NAME];
        snprintf(section, sizeof section, "%s:", r->section);
        snprintf(line, sizeof line, "\n  %s: ", r->key);
        const char *from = strstr(text, section);
        EXPECT(from && strstr(from, line), "%s.%s is not in the dump", r->section, r->key);
        EXPECT(strstr(help, r->help), "%s.%s is not in the help", r->section, r->key);
    }
    EXPECT_FAIL(config_help(stdout, "optm"), E_CONFIG, "Did you mean optim?");
    config_close(&cfg);
    free(text), free(help);
}

static void every_problem_at_once(void)
{
    Config cfg;
    EXPECT_FAIL(parse(&cfg, "model_name_or_path: a\ntrain:\n  seed: x\n  max_steps: 3\n  bathc: 1\n"
                            "lora_rank: 8\n"), E_CONFIG,
                "4 keys of the recipe are wrong:\n  r.yaml:1: model_name_or_path: not a key here. "
                "Use model.path.\n  r.yaml:3: train.seed = x: must be a whole number");
    EXPECT(strstr(status_text(), "r.yaml:5: train.bathc") && strstr(status_text(), "r.yaml:6: lora_rank"),
           "%s", status_text());
    EXPECT(cfg.train.max_steps == 3, "keys beside wrong ones are read");
    config_close(&cfg);
    char *many = repeat("train:\n", "  unknown_key_of_another_trainer_%d: 1\n", 200, "");
    EXPECT_FAIL(parse(&cfg, many), E_CONFIG, "200 keys of the recipe are wrong:");
    EXPECT(strstr(status_text(), " more"), "the rest is counted");
    config_close(&cfg);
    free(many);
}

#define WORDS(...) (int)(sizeof (char *[]){ __VA_ARGS__ } / sizeof (char *)), (char *[]){ __VA_ARGS__ }

static void words_of_a_command_line(void)
{
    Config cfg;
    EXPECT_OK(config_open_words(&cfg, WORDS("--model", "m/x", "--dataset", "a.jsonl", "b.jsonl",
                                            "train.seed=5", "--max-steps=7", "--deterministic",
                                            "--lora_rank", "8", "--memory.recompute", "norm", "moe_act",
                                            "--learning_rate", "1e-4")));
    EXPECT(!strcmp(cfg.model.path, "m/x"), "%s", cfg.model.path);
    EXPECT(cfg.data.train.n == 2 && cfg.train.seed == 5, "two files");
    EXPECT(!strcmp(cfg.data.train.item[1].path, "b.jsonl"), "%s", cfg.data.train.item[1].path);
    EXPECT(cfg.train.max_steps == 7 && cfg.train.deterministic && cfg.lora.rank == 8, "keys");
    EXPECT(cfg.memory.recompute.n == 2 && cfg.optim.learning_rate == 1e-4, "a list");
    config_close(&cfg);
    EXPECT_FAIL(config_open_words(&cfg, WORDS("--max_pixels", "9")), E_CONFIG,
                "image.max_pixels or video.max_pixels");
    EXPECT_FAIL(config_open_words(&cfg, WORDS("--bathc", "9")), E_CONFIG, "--bathc: ");
    EXPECT_FAIL(config_open_words(&cfg, WORDS("--lora_rank")), E_CONFIG, "a value must follow");
    EXPECT_FAIL(config_open_words(&cfg, WORDS("--gradient_accumulation_steps", "8")), E_CONFIG,
                "Set train.global_tokens");
    EXPECT_FAIL(config_open_words(&cfg, WORDS("no.yaml", "train.seed=5")), E_IO, "no.yaml");
}

static void aliases_of_values(void)
{
    Config cfg;
    EXPECT_OK(config_open_words(&cfg, WORDS("model.dtype=bf16", "device.dtype=fp32", "memory.recompute=true",
                                            "checkpoint.resume_from_checkpoint=true", "log.report_to=none")));
    EXPECT(!strcmp(cfg.model.dtype, "bfloat16"), "%s", cfg.model.dtype);
    EXPECT(!strcmp(cfg.device.dtype, "float32"), "%s", cfg.device.dtype);
    EXPECT(cfg.memory.recompute.n == 1 && !strcmp(cfg.memory.recompute.item[0], "full"), "recompute");
    EXPECT(!strcmp(cfg.checkpoint.resume_from_checkpoint, "auto") && !cfg.log.report_to.n, "resume");
    EXPECT_OK(config_set(&cfg, "memory.recompute=false"));
    EXPECT(!cfg.memory.recompute.n, "nothing is recomputed");
    config_close(&cfg);
}

static void files(void)
{
    Config cfg;
    char path[300];
    snprintf(path, sizeof path, "%s/recipe.yaml", lab_tmp());
    write_file(path, "train:\n  seed: 3\n  max_step: 2\n");
    EXPECT_FAIL(config_open(&cfg, path, 0, NULL), E_CONFIG,
                "recipe.yaml:3: train.max_step: not a key. Did you mean");
    config_close(&cfg);
    write_file(path, "train:\n  seed: 3\n");
    char *seed = "train.seed=4", *bad = "train.seed=x";
    EXPECT_OK(config_open(&cfg, path, 1, &seed));
    EXPECT(cfg.train.seed == 4, "an override comes after the file");
    config_close(&cfg);
    EXPECT_FAIL(config_open(&cfg, path, 1, &bad), E_CONFIG, "train.seed = x: must be a whole number");
    unlink(path);
    EXPECT_FAIL(config_open(&cfg, path, 0, NULL), E_IO, "No such file");
    EXPECT_FAIL(config_open(&cfg, lab_tmp(), 0, NULL), E_IO, "Is a directory");
    EXPECT_FAIL(config_open(&cfg, "/dev/zero", 0, NULL), E_CONFIG, "larger than 4 MiB");
    rmdir(lab_tmp());
}

static void example_recipe(void)
{
    Config cfg;
    if (access("recipes/example.yaml", R_OK)) SKIP("recipes/example.yaml is not below this folder");
    EXPECT_OK(config_open(&cfg, "recipes/example.yaml", 0, NULL));
    EXPECT(cfg.data.train.n == 2 && cfg.data.train.item[1].weight == 0.5, "data");
    EXPECT(cfg.parallel.ep == 8 && cfg.model.freeze_vit, "parallel");
    EXPECT(cfg.train.global_tokens == 524288 && !strcmp(cfg.checkpoint.resume_from_checkpoint, "auto"),
           "train");
    expect_round_trip(&cfg);
    config_close(&cfg);
}

int main(void)
{
    RUN(defaults);
    RUN(defaults_are_within_their_own_bounds);
    RUN(block_and_flow);
    RUN(numbers);
    RUN(nothing_and_null);
    RUN(sections_left_to_the_planner);
    RUN(refuses_what_nothing_reads);
    RUN(sources);
    RUN(overrides);
    RUN(what_was_said);
    RUN(nearest_key);
    RUN(foreign_keys);
    RUN(foreign_spellings_are_unambiguous);
    RUN(bounds_and_types);
    RUN(yaml_mistakes);
    RUN(hostile_nesting);
    RUN(hostile_aliases);
    RUN(hostile_sizes);
    RUN(hostile_bytes);
    RUN(large_recipes_round_trip);
    RUN(odd_texts_round_trip);
    RUN(odd_numbers_round_trip);
    RUN(dump_and_help_show_every_key);
    RUN(every_problem_at_once);
    RUN(words_of_a_command_line);
    RUN(aliases_of_values);
    RUN(files);
    RUN(example_recipe);
    return lab_report();
}
