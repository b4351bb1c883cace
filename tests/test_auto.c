/* tests/test_auto.c -- sections parallel and memory that are left to the planner: what fits stays as it is,
 * and what is chosen for random models, ranks and memory limits trains. TREB_AUTO: how many of them. */
#include "commlab.h"
#include "runlab.h"
#include "plan/auto.h"
#include "plan/dryrun.h"

static RunLab lab;

/* ---- random models ---- */

typedef struct Draw { uint64_t at; } Draw;

static int pick(Draw *d, int n, const int *list) { return list[rng_below(17, 3, d->at++, (uint64_t)n)]; }
#define PICK(d, ...) pick(d, sizeof((int[]){ __VA_ARGS__ }) / sizeof(int), (int[]){ __VA_ARGS__ })

static void text_config(char *out, size_t n, Draw *d, bool tower)
{
    int H = PICK(d, 2, 4, 8), G = PICK(d, 1, 2), experts = PICK(d, 0, 4, 8, 6);
    size_t at = (size_t)snprintf(out, n,
        "\"vocab_size\": 320, \"hidden_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
        "\"num_key_value_heads\": %d, \"head_dim\": 12, \"intermediate_size\": %d, \"rope_theta\": 10000.0",
        PICK(d, 24, 40, 64), PICK(d, 2, 3, 4, 6), H, G, PICK(d, 48, 56, 96));
    if (experts || tower)
        snprintf(out + at, n - at, ", \"moe_intermediate_size\": %d, \"num_experts\": %d, "
                 "\"num_experts_per_tok\": 2, \"norm_topk_prob\": true", PICK(d, 16, 24, 40),
                 experts ? experts : 4);
}

/* A text model with or without experts, or, if true, one with a vision tower. */
static bool write_model(const char *folder, Draw *d)
{
    char text[1024], all[2048], path[400];
    bool tower = PICK(d, 0, 0, 1);
    text_config(text, sizeof text, d, tower);
    int hidden = 0;
    sscanf(strstr(text, "hidden_size") + 14, "%d", &hidden);
    if (tower)
        snprintf(all, sizeof all,
            "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 305, \"video_token_id\": 306, "
            "\"dtype\": \"float32\", \"text_config\": {%s, \"rope_scaling\": {\"rope_type\": \"default\", "
            "\"mrope_section\": [2, 2, 2]}}, \"vision_config\": {\"depth\": 2, \"hidden_size\": 24, "
            "\"intermediate_size\": 36, \"num_heads\": 2, \"patch_size\": 4, "
            "\"num_position_embeddings\": 25, \"out_hidden_size\": %d, "
            "\"deepstack_visual_indexes\": [0]}}", text, hidden);
    else
        snprintf(all, sizeof all, "{\"model_type\": \"%s\", \"torch_dtype\": \"float32\", %s}",
                 strstr(text, "num_experts") ? "qwen3_moe" : "qwen3", text);
    snprintf(path, sizeof path, "%s/config.json", folder);
    tiny_write(path, all, strlen(all));
    return tower;
}

/* ---- a run ---- */

static struct {
    bool       resumes, keeps;           /* the run before; its folder */
    char       overrides[800], run[32];
    Status     got[8];
    char       text[8][300];
    AutoChoice choice;
} job;

static void open_recipe(Config *c)
{
    runlab_recipe(c, &lab, job.run, job.overrides);
    EXPECT_OK(config_set(c, job.resumes ? "train.max_steps=3" : "train.max_steps=2"));
    if (job.resumes) EXPECT_OK(config_set(c, "checkpoint.resume_from_checkpoint=auto"));
}

static void rank_main(Peer *p)
{
    Config     c;
    Trainer    t;
    AutoChoice choice;
    open_recipe(&c);
    Status st = auto_choose(&choice, &c, p->world);
    TrainerConf conf = { .recipe = &c, .least = LOG_ERROR + 1, .world = p->size > 1 ? p->world : NULL };
    if (!st) st = trainer_open(&t, &conf);
    if (!st) st = trainer_run(&t), trainer_close(&t);
    job.got[p->rank] = st;
    if (st) snprintf(job.text[p->rank], sizeof job.text[0], "%s", status_text());
    if (p->rank == 0) job.choice = choice;
    config_close(&c);
}

/* Trains two steps on `ranks`, each with `limit` bytes; "": no limit. */
static Status train(const char *overrides, int ranks, double limit)
{
    static int run;
    snprintf(job.run, sizeof job.run, "auto%d", job.resumes ? run : ++run);
    snprintf(job.overrides, sizeof job.overrides, "device.memory_limit=%.17g\n%s", limit / 0x1p30, overrides);
    on_ranks(ranks, 0, rank_main);
    for (int i = 1; i < ranks; i++)
        EXPECT(job.got[i] == job.got[0], "rank %d: %d, rank 0: %d", i, (int)job.got[i], (int)job.got[0]);
    if (!job.keeps) folder_remove(lab_path(job.run));
    return job.got[0];
}

/* Bytes of the fullest rank with the recipe as it is. */
static double plain_bytes(const char *overrides, int ranks)
{
    Config  c;
    DryRun  d;
    double  bytes = 0;
    snprintf(job.overrides, sizeof job.overrides, "%s", overrides);
    open_recipe(&c);
    if (!dryrun_open(&d, &c, ranks, ranks, NULL)) {
        bytes = (double)dryrun_peak(&d, NULL);
        dryrun_close(&d);
    }
    config_close(&c);
    return bytes;
}

/* ---- tests ---- */

static void what_fits_stays_as_it_is(void)
{
    double bytes = plain_bytes("", 2);
    EXPECT_OK(train("", 1, 0));
    EXPECT(!job.choice.keys.n && !job.choice.lines.n, "%d keys, %s", job.choice.keys.n,
           job.choice.lines.at[0]);
    EXPECT_OK(train("", 2, bytes));
    EXPECT(job.choice.keys.n == 1 && !strcmp(job.choice.keys.at[0], "parallel.ranks=2"), "%s",
           job.choice.keys.at[0]);
    EXPECT(!job.choice.lines.n, "%s", job.choice.lines.at[0]);
    EXPECT_OK(train("", 2, bytes - 1));
    EXPECT(job.choice.keys.n > 1 && job.choice.lines.n == 5, "%d keys", job.choice.keys.n);
}

static bool has_key(const char *part)
{
    for (int i = 0; i < job.choice.keys.n; i++)
        if (strstr(job.choice.keys.at[i], part)) return true;
    return false;
}

static void what_the_recipe_sets_is_kept(void)
{
    double bytes = plain_bytes("", 2);
    EXPECT_OK(train("parallel.zero=1", 2, 0.9 * bytes));
    EXPECT(has_key("memory.recompute") && !has_key("parallel.tp") && !has_key("parallel.ep"), "%d keys",
           job.choice.keys.n);
    Status st = train("memory.recompute=[]", 2, 0.93 * bytes);
    EXPECT(!st && !has_key("memory."), "status %d, %d keys: %s", (int)st, job.choice.keys.n, job.text[0]);
    EXPECT_FAIL(train("memory.recompute=[]\nparallel.zero=1", 1, 0.8 * bytes), E_FIT, "");
    EXPECT(!job.choice.keys.n, "%d keys", job.choice.keys.n);
}

static void nothing_fits_a_byte(void)
{
    Status st = train("", 2, 1000);
    EXPECT(st == E_FIT && strstr(job.text[0], "treb plan --gpus"), "%d: %s", (int)st, job.text[0]);
}

/* A run that is resumed, here without its limit, goes on with what it chose. */
static void a_resumed_run_keeps_its_choice(void)
{
    double bytes = plain_bytes("", 2);
    job.keeps = true;
    EXPECT_OK(train("", 2, 0.7 * bytes));
    EXPECT(job.choice.keys.n > 1 && !*job.choice.yaml, "%d keys", job.choice.keys.n);
    Config c;
    open_recipe(&c);
    EXPECT_OK(layout_keys_apply(&c, &job.choice.keys));
    int64_t pp = c.parallel.pp, ep = c.parallel.ep, words = c.memory.recompute.n;
    config_close(&c);
    job.resumes = true, job.keeps = false;
    EXPECT_OK(train("", 2, 0));
    job.resumes = false;
    open_recipe(&c);
    EXPECT_OK(config_parse(&c, job.choice.yaml, strlen(job.choice.yaml), "yaml"));
    EXPECT(c.parallel.pp == pp && c.parallel.ep == ep && c.memory.recompute.n == words && !job.choice.keys.n,
           "pp %d ep %d, %d words", (int)c.parallel.pp, (int)c.parallel.ep, c.memory.recompute.n);
    config_close(&c);
}

/* A step has as many tokens as without a choice. */
static void tokens_of_a_step_stay(void)
{
    double bytes = plain_bytes("train.global_tokens=0", 2);
    Config c;
    EXPECT_OK(train("train.global_tokens=0", 2, 0.62 * bytes));
    open_recipe(&c);
    EXPECT_OK(layout_keys_apply(&c, &job.choice.keys));
    int64_t dp = 2 / (c.parallel.tp * c.parallel.cp * c.parallel.pp);
    int64_t step = c.train.global_tokens ? c.train.global_tokens : dp * c.train.micro_tokens;
    EXPECT(step == 2 * c.train.micro_tokens, "%lld tokens, dp %lld", (long long)step, (long long)dp);
    config_close(&c);
}

/* Where memory is short a choice is made and its run trains, or nothing fits and the run is refused. */
static void random_choices_train(void)
{
    Draw  d = { 0 };
    char  overrides[700];
    int   n = getenv("TREB_AUTO") ? atoi(getenv("TREB_AUTO")) : 4, chosen = 0, tried = 0;
    for (int i = 0; tried < n && i < 4 * n; i++) {
        int    ranks = PICK(&d, 1, 2, 2, 3, 4, 4), share = PICK(&d, 40, 55, 65, 75, 85, 95);
        int    micro = PICK(&d, 448, 480, 512);
        bool   tower = write_model(lab.model, &d);
        const char *lora = PICK(&d, 0, 0, 0, 1) ? "\nlora.rank=4" : "";
        const char *asks = PICK(&d, 0, 0, 1) ? "\nparallel=auto" : "";
        snprintf(overrides, sizeof overrides,
                 "data.train=%s\ntrain.micro_tokens=%d\ntrain.global_tokens=%d%s%s",
                 tower ? lab.set.path : lab.text, micro, (ranks == 3 ? 3 : 4) * micro, lora, asks);
        double bytes = plain_bytes(overrides, ranks);
        if (bytes <= 0) continue;
        Status st = train(overrides, ranks, bytes * share / 100);
        tried++;
        if (st == E_FIT && !has_key("parallel.ranks=1") && job.choice.keys.n <= 1) continue;
        EXPECT(!st && job.choice.keys.n > 0, "%d ranks, %d %%, %s: %d, %s", ranks, share, overrides, (int)st,
               st ? job.text[0] : "no choice");
        chosen++;
    }
    EXPECT(tried == n && 2 * chosen >= n, "%d of %d tried, %d chosen", tried, n, chosen);
}

int main(void)
{
    runlab_open(&lab, 12);
    RUN(what_fits_stays_as_it_is);
    RUN(what_the_recipe_sets_is_kept);
    RUN(nothing_fits_a_byte);
    RUN(tokens_of_a_step_stay);
    RUN(a_resumed_run_keeps_its_choice);
    RUN(random_choices_train);
    runlab_close(&lab);
    return lab_report();
}
