/* tests/test_rules.c -- every rule: a layout that violates it is refused with its number, and the change that
 * the message names makes it legal. The recipes in recipes/ are legal on the ranks in their names. */
#include "base/json.h"
#include "lab.h"
#include "model/family.h"
#include "model/presets.h"
#include "parallel/rules.h"

#include <glob.h>
#include <limits.h>

#define MOE   "Qwen3-VL-30B-A3B"
#define BIG   "Qwen3-VL-235B-A22B"
#define DENSE "Qwen3-VL-8B"
#define TEXT  "Qwen3-30B-A3B"
#define LATENT "Moonlight-16B-A3B"
#define OSS   "gpt-oss-20b"
#define OLMOE "OLMoE-1B-7B-0924"
#define DELTA "Qwen3-Next-80B-A3B"

static void load_preset(ModelShape *s, const char *name)
{
    Json *hf = NULL;
    EXPECT_OK(preset_config(&hf, name));
    if (hf) EXPECT_OK(shape_read(s, hf, name));
    json_decref(hf);
}

/* A case is a world, a model and overrides; all other settings are legal for one rank. */
typedef struct Case { int number, world, per_node; const char *model, *set[6]; } Case;

static const Case cases[] = {
    { 1,   6,  0, MOE,   { "parallel.tp=4" } },
    { 1,   8,  0, MOE,   { "parallel.cp=3", "train.micro_tokens=6144" } },
    { 2,   8,  0, MOE,   { "parallel.ep=16" } },
    { 5,   12, 0, MOE,   { "parallel.tp=3", "train.micro_tokens=6144" } },
    { 6,   48, 0, BIG,   { "parallel.tp=16", "parallel.pp=3", "parallel.layout=Et*31|t*32|t*31L" } },
    { 10,  8,  0, DENSE, { "parallel.ep=8" } },
    { 10,  8,  0, DENSE, { "parallel.etp=2" } },
    { 11,  12, 0, MOE,   { "parallel.ep=12" } },
    { 12,  10, 0, MOE,   { "parallel.etp=5" } },
    { 14,  8,  0, MOE,   { "parallel.cp=8", "train.micro_tokens=1000" } },
    { 14,  8,  0, MOE,   { "parallel.tp=8", "train.micro_tokens=1004" } },
    { 15,  8,  0, MOE,   { "parallel.cp=8", "parallel.cp_comm=a2a+p2p" } },
    { 16,  8,  0, MOE,   { "parallel.cp=8", "parallel.cp_comm=a2a+p2p", "parallel.cp_sizes=[2, 2]" } },
    { 16,  8,  0, MOE,   { "parallel.cp=8", "parallel.cp_comm=a2a+p2p", "parallel.cp_sizes=[two, 4]" } },
    { 16,  8,  0, MOE,   { "parallel.cp=8", "parallel.cp_sizes=[2, 4]" } },
    { 17,  8,  0, MOE,   { "parallel.cp=8", "parallel.cp_comm=a2a" } },
    { 17,  8,  0, MOE,   { "parallel.cp=8", "parallel.cp_comm=a2a+p2p", "parallel.cp_sizes=[8, 1]" } },
    { 23,  8,  0, MOE,   { "parallel.vpp=2" } },
    { 23,  8,  0, MOE,   { "parallel.layout=Et*24|t*24L" } },
    { 25,  8,  0, BIG,   { "parallel.pp=8", "train.global_tokens=65536" } },
    { 25,  8,  0, MOE,   { "parallel.pp=4", "parallel.first_layers=5", "train.global_tokens=65536" } },
    { 26,  8,  0, MOE,   { "parallel.pp=4", "parallel.first_layers=6", "parallel.count_loss=true",
                           "train.global_tokens=65536" } },
    { 28,  8,  0, MOE,   { "parallel.pp=4", "parallel.layout=Et*24|t*12|t*12L",
                           "train.global_tokens=65536" } },
    { 29,  8,  0, MOE,   { "parallel.pp=4", "parallel.layout=Et*24|t*12|t*11|L",
                           "train.global_tokens=65536" } },
    { 30,  8,  0, MOE,   { "parallel.pp=4", "parallel.vpp=2", "parallel.microbatch_group=3",
                           "train.global_tokens=131072" } },
    { 30,  8,  0, MOE,   { "parallel.pp=4", "parallel.vpp=2" } },
    { 30,  8,  0, MOE,   { "parallel.pp=4", "parallel.microbatch_group=4", "train.global_tokens=65536" } },
    { 31,  8,  0, MOE,   { "parallel.pp=4", "parallel.vpp=2", "parallel.microbatch_group=5",
                           "train.global_tokens=98304" } },
    { 32,  8,  0, MOE,   { "parallel.pp=4", "train.global_tokens=32768" } },
    { 33,  8,  0, MOE,   { "train.global_tokens=100000" } },
    { 34,  8,  0, MOE,   { "train.global_tokens=8192" } },
    { 42,  8,  0, MOE,   { "parallel.ep=8", "moe.dispatcher=deepep", "moe.capacity_factor=1.5",
                           "moe.pad_to_capacity=true" } },
    { 43,  8,  0, MOE,   { "moe.dispatcher=hybridep" } },
    { 43,  8,  0, MOE,   { "moe.dispatcher=local", "parallel.ep=8" } },
    { 45,  8,  0, MOE,   { "parallel.ep=8", "moe.ranks_per_domain=3" } },
    { 110, 16, 8, MOE,   { "parallel.ep=16", "moe.dispatcher=peer" } },
    { 110, 8,  0, MOE,   { "parallel.ep=8", "moe.dispatcher=peer", "moe.ranks_per_domain=4" } },
    { 110, 8,  0, MOE,   { "parallel.ep=2", "parallel.etp=4", "moe.dispatcher=deepep_peer",
                           "moe.ranks_per_domain=2" } },
    { 110, 16, 4, MOE,   { "parallel.ep=16", "moe.dispatcher=deepep_peer", "moe.ranks_per_domain=8" } },
    { 48,  8,  0, MOE,   { "parallel.ep=8", "moe.pad_to_capacity=true" } },
    { 52,  8,  0, MOE,   { "" } },
    { 56,  8,  0, MOE,   { "moe.force_balance=true" } },
    { 60,  8,  0, MOE,   { "moe.overlap=true" } },
    { 61,  8,  0, MOE,   { "parallel.pp=2", "parallel.ep=4", "moe.overlap=true",
                           "train.global_tokens=131072" } },
    { 62,  8,  0, MOE,   { "parallel.ep=8", "moe.overlap=true", "memory.recompute=[layernorm, moe]" } },
    { 66,  8,  0, MOE,   { "memory.recompute=full", "memory.recompute_layers=0" } },
    { 66,  8,  0, MOE,   { "memory.recompute=[moe]", "memory.recompute_method=block" } },
    { 66,  8,  0, MOE,   { "memory.recompute_layers=4" } },
    { 67,  8,  0, MOE,   { "memory.recompute=[layernorm, attention]" } },
    { 68,  8,  0, DENSE, { "memory.recompute=[moe_act]" } },
    { 68,  8,  0, DENSE, { "memory.recompute=[mlp, moe]" } },
    { 68,  8,  0, MOE,   { "memory.recompute=[shared_experts, moe_act]" } },
    { 68,  8,  0, MOE,   { "memory.recompute=[up_proj]" } },
    { 68,  8,  0, MOE,   { "memory.recompute=[mla_up_proj]" } },
    { 68,  8,  0, MOE,   { "memory.recompute=[gdn_norm_out]" } },
    { 108, 8,  0, OSS,   { "parallel.etp=2" } },
    { 107, 8,  0, OLMOE, { "parallel.tp=2" } },
    { 19,  24, 0, DELTA, { "parallel.tp=3", "train.micro_tokens=6144" } },
    { 105, 8,  0, DELTA, { "parallel.cp=4", "train.micro_tokens=16" } },
    { 68,  8,  0, TEXT,  { "memory.recompute=[norm, vision]" } },
    { 68,  8,  0, TEXT,  { "memory.recompute=[vision_act]" } },
    { 68,  8,  0, MOE,   { "memory.recompute=[mlp]" } },
    { 72,  8,  0, MOE,   { "memory.activation_offload=[core_attn, mlp_act]" } },
    { 72,  8,  0, MOE,   { "memory.activation_offload=[moe_act, attn_proj]", "memory.recompute=[moe]" } },
    { 72,  8,  0, MOE,   { "memory.activation_offload=[attn_norm, qkv_linear]", "memory.recompute=full" } },
    { 72,  8,  0, DENSE, { "memory.activation_offload=[expert_fc1, mlp]" } },
    { 72,  8,  0, TEXT,  { "memory.activation_offload=[vision]" } },
    { 72,  8,  0, MOE,   { "memory.activation_offload_fraction=0.5" } },
    { 72,  8,  0, MOE,   { "memory.activation_offload=[mlp]" } },
    { 89,  8,  0, MOE,   { "parallel.replicas=3" } },
    { 89,  8,  0, MOE,   { "parallel.replicas=2", "parallel.ep=8" } },
    { 89,  8,  0, MOE,   { "parallel.replicas=2", "parallel.zero=0" } },
    { 91,  8,  0, MOE,   { "parallel.zero=3", "parallel.tp=2" } },
    { 101, 16, 8, MOE,   { "parallel.tp=16" } },
    { 101, 16, 8, MOE,   { "parallel.ep=16" } },
    { 102, 8,  0, MOE,   { "parallel.cp=8" } },
    { 103, 14, 0, DENSE, { "parallel.tp=7", "train.micro_tokens=7168" } },
    { 104, 512, 0, MOE,  { "parallel.cp=512" } },
    { 106, 8,  0, MOE,   { "memory.recompute=[moe_act, moe]" } },
    { 106, 8,  0, MOE,   { "memory.recompute=[norm, layernorm]" } },
    { 106, 8,  0, MOE,   { "memory.recompute=[full, norm]", "memory.recompute_layers=2" } },
    { 106, 8,  0, MOE,   { "memory.recompute=[moe, core_attn, moe]" } },
    { 109, 8,  0, MOE,   { "train.precision=fp8_block", "train.fp8_products=[experts, head]" } },
};
enum { CASES = sizeof cases / sizeof *cases };

/* Some rules cannot be violated with a preset alone. */
static RuleInput input(const Config *c, const ModelShape *s, const Case *k, int world)
{
    RuleInput x = rules_input(c, s, world, k->per_node);
    if (k->number == 52) x.per_token = 1;
    if (k->number == 5)   x.kv_heads = 3;
    if (k->number == 6)   x.kv_heads = 3;
    if (k->number == 103) x.heads = 14, x.kv_heads = 7;
    if (k->number == 109) x.tied = true;
    return x;
}

static const RuleViolation *hit_of(const RuleReport *r, int number)
{
    for (int i = 0; i < r->n; i++)
        if (r->violation[i].number == number) return &r->violation[i];
    return NULL;
}

/* The change that the message of a FIX_NONE rule proposes, from the text after "parallel.layout = ". */
static void fix_by_hand(Config *c, RuleInput *x, const RuleViolation *h)
{
    const char *at = strstr(h->why, "set parallel.layout = ");
    char text[256];
    if (h->number == 52) x->renorm = false;
    if (h->number == 109) EXPECT_OK(config_set(c, "train.fp8_products=[experts]"));
    if (h->number == 26) EXPECT_OK(config_set(c, "parallel.count_loss=false"));
    at = at ? at + strlen("set ")
            : (at = strstr(h->why, "for example ")) ? at + strlen("for example ") : NULL;
    if (!at) return;
    if (!strncmp(at, "parallel.layout = ", 18)) at += 18;
    snprintf(text, sizeof text, "parallel.layout=%s", at);
    EXPECT_OK(config_set(c, text));
    EXPECT_OK(config_set(c, "parallel.first_layers=0"));
}

static void expect_case(const Case *k)
{
    Config c;
    ModelShape s;
    RuleReport r;
    char text[640];
    int world = k->world;
    config_default(&c);
    load_preset(&s, k->model);
    for (int i = 0; i < 6 && k->set[i] && *k->set[i]; i++) EXPECT_OK(config_set(&c, k->set[i]));
    RuleInput x = input(&c, &s, k, world);
    rules_find(&r, &x);
    const RuleViolation *h = hit_of(&r, k->number);
    EXPECT(h, "rule %d is not broken by %s", k->number, k->set[0]);
    if (h) {
        rule_text(text, sizeof text, h);
        if (getenv("TREB_SHOW")) printf("  %c %s\n", h->severity, text);
        EXPECT(h->severity == 'E' ? r.errors > 0 : !r.errors, "rule %d: %c", k->number, h->severity);
        if (h->severity == 'E') EXPECT_FAIL(rules_check(&x, NULL), E_CONFIG, r.violation[0].why);
        else                    EXPECT_OK(rules_check(&x, NULL));
        if (!strncmp(h->fix, "world=", 6)) world = atoi(h->fix + 6);
        else if (*h->fix) EXPECT_OK(config_set(&c, h->fix));
        RuleViolation was = *h;
        x = input(&c, &s, k, world);
        if (!*was.fix) fix_by_hand(&c, &x, &was), x = was.number == 52 ? x : input(&c, &s, k, world);
        rules_find(&r, &x);
        if (r.errors) rule_text(text, sizeof text, &r.violation[0]);
        EXPECT(!r.errors && !hit_of(&r, k->number) && rules_legal(&x), "rule %d: after %s: %s", k->number,
               *was.fix ? was.fix : was.why, r.errors ? text : "still there");
    }
    config_close(&c);
}

static void each_rule(void)
{
    for (int i = 0; i < CASES; i++) expect_case(&cases[i]);
}

static void every_rule_has_a_case(void)
{
    static const int numbers[] = {
#define RULE(number, ...) number,
#include "parallel/rules.def"
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        bool found = false;
        for (int k = 0; k < CASES && !found; k++) found = cases[k].number == numbers[i];
        EXPECT(found, "rule %d has no case", numbers[i]);
    }
}

/* All violations are reported at once; the first is the error. */
static void all_at_once(void)
{
    Config c;
    ModelShape s;
    RuleReport r;
    config_default(&c);
    load_preset(&s, MOE);
    EXPECT_OK(config_set(&c, "parallel={tp: 3, ep: 12, vpp: 2, zero: 3}"));
    EXPECT_OK(config_set(&c, "moe={dispatcher: local, force_balance: true}"));
    RuleInput x = rules_input(&c, &s, 8, 8);
    rules_find(&r, &x);
    const int want[] = { 1, 2, 5, 6, 11, 14, 23, 43, 56, 91, 101 };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        EXPECT(hit_of(&r, want[i]), "rule %d is missing", want[i]);
    EXPECT(r.n == sizeof want / sizeof *want && r.errors == 8, "%d hits, %d errors", r.n, r.errors);
    EXPECT_FAIL(rules_check(&x, NULL), E_CONFIG, "8 ranks: not a multiple of tp 3 x cp 1 x pp 1 = 3");
    config_close(&c);
}

/* One rank with default settings is legal for every preset that trains. */
static void one_rank(void)
{
    static const char *const models[] = { MOE, BIG, DENSE, "Qwen3-VL-2B", "Qwen3-30B-A3B", "demo" };
    Config c;
    config_default(&c);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        ModelShape s;
        RuleReport r;
        load_preset(&s, models[i]);
        RuleInput x = rules_input(&c, &s, 1, 0);
        rules_find(&r, &x);
        EXPECT(r.n == 0, "%s: %s", models[i], r.violation[0].why);
    }
    config_close(&c);
}

/* "recipes/qwen3-vl-30b-a3b-16-h100-3d.yaml" is for 16 ranks; a name without a number for one. */
static int ranks_of(const char *path)
{
    int ranks = 1;
    const char *rest = strrchr(path, '/') + 1;
    while (*rest) {
        char *end;
        long n = strtol(rest, &end, 10);
        if (end > rest && (*end == '-' || *end == '.')) ranks = (int)n;
        rest += strcspn(rest, "-.");
        rest += *rest != 0;
    }
    return ranks;
}

/* model.preset, or the last name of model.path without what follows the size. */
static void shape_of(ModelShape *s, const Config *c, const char *file)
{
    char name[128];
    const char *slash = strrchr(c->model.path, '/');
    if (*c->model.preset && !preset_is(c->model.preset)) {
        EXPECT_OK(shape_load(s, c->model.preset));
        return;
    }
    snprintf(name, sizeof name, "%s", *c->model.preset ? c->model.preset : slash ? slash + 1 : c->model.path);
    char *tail = strstr(name, "-Instruct");
    if (tail) *tail = 0;
    EXPECT(preset_is(name), "%s: %s is no preset", file, name);
    if (preset_is(name)) load_preset(s, name);
}

static void expect_recipe(const char *path)
{
    Config c;
    ModelShape s = { 0 };
    RuleReport r;
    char text[640];
    int world = strstr(path, "example") ? 8 : ranks_of(path), per_node = strstr(path, "gb") ? 64 : 8;
    EXPECT_OK(config_open(&c, path, 0, NULL));
    shape_of(&s, &c, path);
    RuleInput x = rules_input(&c, &s, world, per_node);
    rules_find(&r, &x);
    for (int i = 0; i < r.n; i++) {
        rule_text(text, sizeof text, &r.violation[i]);
        EXPECT(r.violation[i].severity == 'W', "%s on %d ranks: %s", path, world, text);
        if (getenv("TREB_SHOW")) printf("  %s: %s\n", path, text);
    }
    EXPECT(c.data.max_length <= c.train.micro_tokens, "%s: a sample of %lld would not fit", path,
           (long long)c.data.max_length);
    if (!r.errors) {
        FILE *f = fopen("/dev/null", "w");
        EXPECT_OK(rules_print(getenv("TREB_SHOW") ? stdout : f, &x, NULL));
        fclose(f);
    }
    config_close(&c);
}

static void recipes_are_legal(void)
{
    glob_t found;
    if (glob("recipes/*.yaml", 0, NULL, &found)) {
        EXPECT(false, "recipes/ is not here");
        return;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) expect_recipe(found.gl_pathv[i]);
    EXPECT(found.gl_pathc >= 10, "%zu recipes", found.gl_pathc);
    globfree(&found);
}

int main(void)
{
    RUN(each_rule);
    RUN(every_rule_has_a_case);
    RUN(all_at_once);
    RUN(one_rank);
    RUN(recipes_are_legal);
    return lab_report();
}
