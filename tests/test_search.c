/* tests/test_search.c -- the search for a layout: ranked candidates are legal and fit, in the order of
 * search.h; layouts that were published as faster come first; the first is a recipe that reads back and
 * passes a dry run. */
#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "lab.h"
#include "model/family.h"
#include "model/presets.h"
#include "plan/dryrun.h"
#include "plan/search.h"

#include <limits.h>

static SearchAsk asked(const char *model, const char *hw, int gpus, int64_t seq, int64_t gbs)
{
    SearchAsk a;
    search_default(&a);
    a.task.model = model_row(model);
    EXPECT(a.task.model, "no row for %s", model);
    EXPECT_OK(hardware_find(&a.task.hw, hw));
    a.task.gpus = gpus, a.task.seq = seq, a.task.gbs = gbs;
    return a;
}

static Search *searched(const SearchAsk *a)
{
    Search *s = calloc(1, sizeof *s);
    EXPECT_OK(search_open(s, a));
    return s;
}

static void done(Search *s)
{
    search_close(s);
    free(s);
}

/* --- what is ranked ---------------------------------------------------------------------------------- */

static void expect_legal(const Search *s, const FoundLayout *f)
{
    RuleInput x;
    LayerSplit split;
    char      layout[96];
    space_rules(&x, &s->ask);
    space_candidate(&x, &split, &s->ask, &f->c);
    layout_text(layout, sizeof layout, &s->ask, &f->c);
    Status st = rules_check(&x, NULL);
    EXPECT(!st, "%s mbs %d: %s", layout, f->c.mbs, status_text());
}

static void load_preset(ModelShape *s, const char *name)
{
    Json *hf = NULL;
    EXPECT_OK(preset_config(&hf, name));
    if (hf) EXPECT_OK(shape_read(s, hf, name));
    json_decref(hf);
}

/* The rules accept the recipe of a candidate, too. */
static void expect_legal_recipe(const Search *s, const FoundLayout *f)
{
    Config     cfg;
    ModelShape shape;
    load_preset(&shape, s->ask.task.model->preset);
    Status st = search_config(&cfg, &s->ask, f);
    EXPECT_OK(st);
    if (st) return;
    RuleInput x = rules_input(&cfg, &shape, s->ask.task.gpus, s->ask.task.hw.domain);
    EXPECT_OK(rules_check(&x, NULL));
    config_close(&cfg);
}

/* The candidate fits, and cheaper settings do not. */
static void expect_frugal(const Search *s, const FoundLayout *f)
{
    Task t = s->ask.task;
    const States *w = states_at(f->states);
    Candidate c = f->c;
    t.grad_bytes = w->grad, t.moment_bytes = w->moment, t.master_bytes = w->master;
    double peak = analytic_peak(&t, &c, NULL), capacity = t.hw.capacity;
    EXPECT(peak == f->peak && peak <= 0.97 * capacity && f->tight == (peak > 0.92 * capacity), "%.3g of %.3g",
           peak, capacity);
    for (int i = 0; i < f->rung && !c.overlap; i++) {
        c.recompute = s->rung[i];
        double more = analytic_peak(&t, &c, NULL);
        EXPECT(more > 0.92 * capacity, "rung %d fits with %.3g of %.3g, rung %d was taken", i, more, capacity,
               f->rung);
    }
}

static void all_that_is_ranked_is_legal_and_fits(void)
{
    static const char *const gpu_names[] = { "a100", "h100", "h200", "b200", "gb200", "gb300" };
    static const int counts[] = { 1, 2, 8, 12, 16, 24, 32, 48, 64, 72, 96, 128, 256, 512, 1024 };
    uint64_t seed = (uint64_t)(clock_wall() * 1e6);
    uint64_t at = 0;
    int rows = 0;
#define DRAW(n) ((int)rng_below(seed, 0, at++, (uint64_t)(n)))
    printf("  seed %llu\n", (unsigned long long)seed);
    while (model_row_at(rows)) rows++;
    for (int i = 0; i < 12; i++) {
        const char *model = model_row_at(DRAW(rows))->name, *gpu = gpu_names[DRAW(6)];
        int gpus = counts[DRAW(15)], seq = 2048 << DRAW(7), gbs = 64 << DRAW(7);
        SearchAsk a = asked(model, gpu, gpus, seq, gbs);
        if (a.task.model->vision.depth && DRAW(2)) a.task.patches = a.task.seq;
        a.objective = DRAW(2) ? FOR_FIT : FOR_THROUGHPUT;
        Search *s = searched(&a);
        int step = s->n / 200 + 1;
        for (int k = 0; k < s->n; k += step) {
            expect_legal(s, &s->found[k]);
            expect_frugal(s, &s->found[k]);
            if (search_can_build(&a) && k < 5 * step) expect_legal_recipe(s, &s->found[k]);
        }
        done(s);
    }
}

static void estimates_twenty_thousand_a_second(void)
{
    static const struct { const char *model, *hw; int gpus; int64_t gbs; } rows[] = {
        { "qwen3-235b-a22b", "h100", 64, 1024 },
        { "qwen3-30b-a3b", "h200", 8, 512 },
        { "deepseek-v3", "h100", 1024, 8192 },
        { "deepseek-v3", "b200", 256, 4096 },
    };
    int64_t candidates = 0;
    double seconds = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        SearchAsk a = asked(rows[i].model, rows[i].hw, rows[i].gpus, 4096, rows[i].gbs);
        Search *s = searched(&a);
        candidates += s->candidates, seconds += s->seconds;
        done(s);
    }
    printf("  %.0f candidates a second\n", (double)candidates / seconds);
#ifndef TREB_SANITIZE
    EXPECT((double)candidates / seconds > 20000, "%lld in %.3f s", (long long)candidates, seconds);
#endif
}

/* --- the order --------------------------------------------------------------------------------------- */

static FoundLayout way(int tp, int pp, int ep, int zero, double step)
{
    Candidate c = { .tp = tp, .cp = 1, .pp = pp, .vpp = 1, .ep = ep, .etp = 1, .mbs = 1, .zero = zero };
    return (FoundLayout){ .c = c, .step = step, .leaves = ep > 8, .peak = 50e9 };
}

/* Whether the search puts a before b. */
static bool prefers(Objective o, FoundLayout a, FoundLayout b)
{
    FoundLayout two[2] = { b, a };
    Search s = { .ask = { .objective = o }, .found = two, .n = 2 };
    a.dry_step = 1, b.dry_step = 2;                            /* marks: unused without a dry run */
    two[0] = b, two[1] = a;
    EXPECT_OK(search_rank(&s, 0));
    return two[0].dry_step == 1;
}

static FoundLayout with(FoundLayout f, unsigned recompute, int rung, int states, double offload)
{
    f.c.recompute = recompute, f.rung = rung, f.states = states, f.c.offload = offload;
    return f;
}

static void order_of_preference(void)
{
    FoundLayout plain = way(1, 1, 8, 1, 10), slow = way(1, 1, 8, 1, 20), tight = plain;
    tight.tight = true;
    EXPECT(prefers(FOR_FIT, slow, tight), "memory to spare");
    EXPECT(prefers(FOR_FIT, slow, way(2, 1, 8, 1, 10)) && prefers(FOR_FIT, slow, way(1, 2, 8, 1, 10)),
           "least parallel");
    EXPECT(prefers(FOR_FIT, way(1, 2, 8, 1, 20), with(plain, RE_FULL, 6, 0, 0)), "selective before full");
    EXPECT(prefers(FOR_FIT, with(way(4, 8, 8, 1, 20), RE_FULL, 6, 0, 0), with(plain, 0, 0, 2, 0)),
           "exact states");
    EXPECT(prefers(FOR_FIT, with(way(4, 8, 8, 1, 20), 0, 0, 3, 0), with(plain, 0, 0, 0, 0.25)),
           "offload last");
    EXPECT(prefers(FOR_THROUGHPUT, way(4, 8, 8, 1, 10.9), with(plain, 0, 0, 2, 0)),
           "exact states may cost 9 %%");
    EXPECT(prefers(FOR_THROUGHPUT, with(plain, 0, 0, 2, 0), way(4, 8, 8, 1, 11.5)), "and not more");
    EXPECT(prefers(FOR_THROUGHPUT, with(plain, 0, 0, 0, 0.25), with(way(4, 8, 8, 1, 20), 0, 0, 3, 0)),
           "nor does no offload");
    EXPECT(prefers(FOR_FIT, way(1, 1, 8, 1, 20), way(1, 1, 16, 1, 10)), "experts inside a node");
    EXPECT(prefers(FOR_FIT, with(way(1, 16, 8, 1, 20), RE_FULL, 6, 0, 0), way(8, 1, 64, 1, 10)),
           "stages across it");
    EXPECT(prefers(FOR_FIT, with(slow, RE_MOE_ACT, 1, 0, 0), with(plain, RE_MOE_ACT | RE_NORM, 2, 0, 0)),
           "little again");
    EXPECT(prefers(FOR_FIT, plain, slow), "faster of equals");
    EXPECT(prefers(FOR_FIT, way(1, 1, 8, 3, 9), way(1, 4, 8, 1, 10)), "families by time");
    EXPECT(prefers(FOR_FIT, way(1, 4, 8, 1, 9), way(1, 1, 8, 3, 10)), "families by time");
    EXPECT(prefers(FOR_THROUGHPUT, way(2, 4, 8, 1, 10), way(1, 1, 8, 1, 11)), "faster");
    EXPECT(prefers(FOR_THROUGHPUT, way(1, 1, 8, 1, 10.1), way(2, 4, 8, 1, 10)), "close times by preference");
}

static void fixed_settings_stay(void)
{
    SearchAsk a = asked("qwen3-235b-a22b", "h100", 256, 4096, 1024);
    EXPECT_OK(search_fix(
        &a.fix, "tp=2,pp=8,ep=32,mbs=1,recompute=moe_act+layernorm,states=f32,offload=0,dispatch=deepep,"
                "overlap=0,zero=1"));
    Search *s = searched(&a);
    EXPECT(s->n, "nothing fits");
    for (int i = 0; i < s->n; i++) {
        const Candidate *c = &s->found[i].c;
        EXPECT(c->tp == 2 && c->pp == 8 && c->ep == 32 && c->mbs == 1 &&
                   c->recompute == (RE_MOE_ACT | RE_NORM) && s->found[i].states == 0 && c->offload == 0 &&
                   c->dispatch == DISPATCHER_deepep && !c->overlap && c->zero == 1,
               "%d", i);
    }
    done(s);
    EXPECT_FAIL(search_fix(&a.fix, "tq=2"), E_CONFIG, "known are tp");
    EXPECT_FAIL(search_fix(&a.fix, "tp=0"), E_CONFIG, "from 1");
    EXPECT_FAIL(search_fix(&a.fix, "tp"), E_CONFIG, "name=value");
    EXPECT_FAIL(search_fix(&a.fix, "recompute=moe_at"), E_CONFIG, "moe_at");
    EXPECT_FAIL(search_fix(&a.fix, "offload=2"), E_CONFIG, "between 0 and 1");
}

/* A fixed, illegal layout is refused by the rule it violates. */
static void fixed_illegal_settings_name_their_rule(void)
{
    static const struct { const char *model, *fix; int rule; } rows[] = {
        { "qwen3-30b-a3b", "ep=12", 2 },
        { "qwen3-30b-a3b", "tp=3", 1 },
        { "qwen3-30b-a3b", "ep=3,pp=1,tp=1", 2 },
        { "qwen3-30b-a3b", "vpp=2,pp=1", 23 },
        { "qwen3-30b-a3b", "overlap=1,ep=1,etp=1", 60 },
        { "qwen3-30b-a3b", "recompute=mla_up_proj", 68 },
        { "gpt-oss-20b", "etp=2", 108 },
        { "olmoe", "tp=2", 107 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        SearchAsk a = asked(rows[i].model, "h100", 16, 4096, 1024);
        EXPECT_OK(search_fix(&a.fix, rows[i].fix));
        Search *s = searched(&a);
        bool said = false;
        for (int k = 0; k < s->refusals; k++)
            said |= s->refused[k].rule == rows[i].rule && *s->refused[k].why;
        EXPECT(!s->n && said, "%s: %d found, rule %d %s", rows[i].fix, s->n, rows[i].rule,
               said ? "said" : "not said");
        done(s);
    }
}

/* --- sanity ------------------------------------------------------------------------------------------ */

static void one_gpu_is_too_few_for_30b(void)
{
    SearchAsk a = asked("qwen3-30b-a3b", "h100", 1, 4096, 16);
    Search *s = searched(&a);
    char *text = NULL, gpu[32];
    size_t n;
    int least = 0;
    FILE *f = open_memstream(&text, &n);
    EXPECT_OK(search_places(s));
    EXPECT_OK(search_print(f, s));
    fclose(f);
    EXPECT(!s->n && !s->places, "%d fit", s->n);
    EXPECT(strstr(text, "nothing fits") && strstr(text, "what would fit") && strstr(text, "tp=1 pp=1: "),
           "%s", text);
    EXPECT_OK(search_least(&a, 1024, &least));
    EXPECT(least == 8 || least == 16, "%d", least);
    EXPECT_OK(search_gpu(&a, gpu, sizeof gpu));
    free(text);
    done(s);
}

static void a_small_model_fits_on_one_gpu(void)
{
    SearchAsk a = asked("olmoe-7b-1b", "h200", 1, 4096, 64);
    Search *s = searched(&a);
    EXPECT(s->n, "nothing fits");
    if (s->n) EXPECT(s->found->c.tp == 1 && s->found->c.ep == 1 && s->found->c.pp == 1, "%d ways", s->n);
    done(s);
}

/* A published layout; with f32 states and no recompute it takes 121 GB. */
static void glm_air_on_32_does_not_fit(void)
{
    SearchAsk a = asked("glm-4.5-air", "h100", 32, 4096, 256);
    EXPECT_OK(search_fix(
        &a.fix, "tp=1,cp=1,pp=4,ep=8,etp=1,states=f32,recompute=none,offload=0,vpp=1,zero=1,overlap=0"));
    Search *s = searched(&a);
    EXPECT(!s->n && s->refusals == 1 && s->refused->rule == 0, "%d fit", s->n);
    EXPECT(s->refused->peak > 100e9, "%.0f GB", s->refused->peak / 1e9);
    done(s);
}

static void large_models_fit(void)
{
    SearchAsk a = asked("deepseek-v3", "h100", 1024, 4096, 8192);
    Search *s = searched(&a);
    EXPECT(s->n && !s->found->tight, "%d", s->n);
    EXPECT_OK(search_places(s));
    EXPECT(s->places == a.top && s->dried, "%d places, %d dry runs", s->places, s->dried);
    done(s);
    a = asked("minimax-m2", "h100", 1024, 4096, 8192);
    s = searched(&a);
    EXPECT_OK(search_places(s));
    EXPECT(s->places == a.top && !s->dried, "%d places, %d dry runs of a model that cannot be built",
           s->places, s->dried);
    done(s);
}

/* --- published runs ---------------------------------------------------------------------------------- */

/* Seconds of a step of the best candidate with these settings, without regard to memory. */
static double seconds_of(SearchAsk a, const char *fix)
{
    double step = 0;
    a.task.hw.capacity *= 4;
    EXPECT_OK(search_fix(&a.fix, fix));
    Search *s = searched(&a);
    EXPECT(s->n, "%s: %s", fix, s->refusals ? s->refused->why : "nothing is there");
    if (s->n) step = s->found->step;
    done(s);
    return step;
}

/* Two layouts of one task, the faster one first. */
static void the_faster_of_published_rows_is_preferred(void)
{
    static const struct {
        const char *row, *model, *hw;
        int         gpus;
        int64_t     gbs;
        Precision   precision;
        const char *both, *faster, *slower;
    } rows[] = {
        { "T7", "qwen3-30b-a3b", "h100", 16, 1024, PREC_FP8, "tp=1,mbs=1,overlap=1,dispatch=alltoall",
          "pp=2,vpp=12,ep=8", "pp=1,ep=16" },
        { "T8", "qwen3-30b-a3b", "b200", 8, 512, PREC_MXFP8, "tp=1,pp=1,ep=8", "mbs=4", "mbs=1" },
        { "T23", "deepseek-v3", "b200", 256, 4096, PREC_MXFP8, "tp=1,mbs=1,dispatch=deepep",
          "pp=8,vpp=2,ep=32", "pp=16,vpp=1,ep=8" },
        { "T24", "deepseek-v3", "b300", 256, 4096, PREC_MXFP8, "tp=1,ep=8,vpp=1,dispatch=deepep",
          "pp=8,mbs=2", "pp=16,mbs=1" },
        { "T29", "gpt-oss-120b", "b200", 64, 1280, PREC_BF16, "tp=1,pp=1,mbs=4,dispatch=deepep", "ep=8",
          "ep=64" },
        { "A9", "llama3-70b", "h100", 32, 64, PREC_FP8, "mbs=1,vpp=5,zero=1", "tp=4,pp=4,recompute=core_attn",
          "tp=4,pp=8,recompute=core_attn" },
        { "A9", "llama3-70b", "h100", 32, 64, PREC_FP8, "mbs=1,vpp=5,zero=1", "tp=4,pp=4,recompute=core_attn",
          "tp=8,pp=4,recompute=core_attn" },
        { "A9", "llama3-70b", "h100", 32, 64, PREC_FP8, "mbs=1,vpp=5,zero=1,tp=4,pp=4", "recompute=core_attn",
          "recompute=core_attn+mlp" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        SearchAsk a = asked(rows[i].model, rows[i].hw, rows[i].gpus, 4096, rows[i].gbs);
        a.task.precision = rows[i].precision, a.task.imbalance = 1;
        task_set_engine(&a.task, engine_row("megatron"));
        a.task.graphs = strcmp(rows[i].row, "T7") ? GRAPHS_NONE : GRAPHS_PARTIAL;
        EXPECT_OK(search_fix(&a.fix, rows[i].both));
        double fast = seconds_of(a, rows[i].faster), slow = seconds_of(a, rows[i].slower);
        printf("  %-4s %s %.3g s, %s %.3g s\n", rows[i].row, rows[i].faster, fast, rows[i].slower, slow);
        EXPECT(fast < slow, "%s: %s takes %.3g s, %s %.3g s", rows[i].row, rows[i].faster, fast,
               rows[i].slower, slow);
    }
}

static const FoundLayout *winner(Search **s, const char *model, const char *hw, int gpus, int64_t gbs)
{
    SearchAsk a = asked(model, hw, gpus, 4096, gbs);
    *s = searched(&a);
    EXPECT_OK(search_places(*s));
    EXPECT((*s)->places, "%s on %d %s: nothing fits", model, gpus, hw);
    return (*s)->places ? (*s)->found : NULL;
}

/* The search finds layouts like the public starting points. */
static void search_finds_public_starting_points(void)
{
    Search *s;
    const FoundLayout *f = winner(&s, "qwen3-30b-a3b", "h200", 8, 512);
    if (f)
        EXPECT(f->c.tp == 1 && f->c.pp == 1 && f->c.ep == 8, "tp %d pp %d ep %d", f->c.tp, f->c.pp, f->c.ep);
    done(s);
    f = winner(&s, "qwen3-30b-a3b", "h100", 16, 1024);
    if (f)
        EXPECT(f->c.tp == 1 && f->c.ep >= 8 && f->c.ep <= 16, "tp %d pp %d ep %d", f->c.tp, f->c.pp, f->c.ep);
    done(s);
    f = winner(&s, "qwen3-235b-a22b", "h100", 256, 8192);
    if (f)
        EXPECT(f->c.tp <= 4 && f->c.pp >= 4 && f->c.pp <= 16 && f->c.ep >= 8 && f->c.ep <= 32,
               "tp %d pp %d ep %d zero %d", f->c.tp, f->c.pp, f->c.ep, f->c.zero);
    done(s);
}

/* --- the recipe -------------------------------------------------------------------------------------- */

static char *dumped(const Config *c)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    config_dump(f, c);
    fclose(f);
    return text;
}

static void write_recipe(const Search *s, const char *path)
{
    FILE *f = fopen(path, "w");
    EXPECT(f, "%s", path);
    if (!f) return;
    EXPECT_OK(search_recipe(f, s, s->found, "treb plan --gpus …"));
    fclose(f);
}

/* Written and read back without a difference; its dry run has the peak of the ranking. */
static void the_first_is_a_recipe(void)
{
    static const struct { const char *model, *hw; int gpus; int64_t seq, gbs, patches; } rows[] = {
        { "qwen3-30b-a3b", "h200", 8, 4096, 512, 0 },       { "qwen3-235b-a22b", "h100", 256, 4096, 1024, 0 },
        { "qwen3-vl-30b-a3b", "h100", 32, 4096, 512, 4096 }, { "qwen3-vl-8b", "h100", 8, 8192, 64, 8192 },
    };
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/found.yaml", lab_tmp());
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        SearchAsk a = asked(rows[i].model, rows[i].hw, rows[i].gpus, rows[i].seq, rows[i].gbs);
        Config made, read;
        DryRun d;
        a.task.patches = rows[i].patches, a.top = 2;
        Search *s = searched(&a);
        EXPECT_OK(search_places(s));
        EXPECT(s->places && s->found->dried, "%s: nothing fits", rows[i].model);
        if (s->places) {
            write_recipe(s, path);
            EXPECT_OK(search_config(&made, &a, s->found));
            EXPECT_OK(config_open(&read, path, 0, NULL));
            char *want = dumped(&made), *got = dumped(&read);
            EXPECT(!strcmp(want, got), "made\n%s\nread\n%s", want, got);
            EXPECT_OK(dryrun_open(&d, &read, a.task.gpus,
                                  a.task.hw.domain < a.task.gpus ? a.task.hw.domain : a.task.gpus,
                                  &a.task.hw));
            double peak = (double)dryrun_peak(&d, NULL) + a.task.hw.fixed;
            EXPECT(peak == s->found->dry_peak && peak <= 0.97 * a.task.hw.capacity, "%.3g, was %.3g", peak,
                   s->found->dry_peak);
            printf("  %s: analytic %.1f GB, dry run %.1f GB\n", rows[i].model, s->found->peak / 1e9,
                   peak / 1e9);
            dryrun_close(&d);
            free(want), free(got);
            config_close(&made), config_close(&read);
        }
        done(s);
    }
    remove(path);
    rmdir(lab_tmp());
}

static void unbuildable_model_has_no_recipe(void)
{
    SearchAsk a = asked("minimax-m2", "h100", 1024, 4096, 8192);
    Search *s = searched(&a);
    Config c;
    if (s->n) EXPECT_FAIL(search_config(&c, &a, s->found), E_CONFIG, "only the analytic model");
    done(s);
}

static void json_output(void)
{
    SearchAsk a = asked("qwen3-30b-a3b", "h100", 16, 4096, 1024);
    Search *s = searched(&a);
    char *text = NULL;
    size_t n;
    Json *o = NULL;
    FILE *f = open_memstream(&text, &n);
    a.dry = false;
    EXPECT_OK(search_places(s));
    EXPECT_OK(search_json(f, s));
    fclose(f);
    EXPECT_OK(json_parse(&o, text, n, "plan"));
    EXPECT((int)json_array_size(json_object_get(o, "ranking")) == s->places, "%d places", s->places);
    EXPECT((int)json_array_size(json_object_get(o, "refused")) == s->refusals, "%d refusals", s->refusals);
    json_decref(o);
    free(text);
    done(s);
}

int main(void)
{
    RUN(all_that_is_ranked_is_legal_and_fits);
    RUN(estimates_twenty_thousand_a_second);
    RUN(order_of_preference);
    RUN(fixed_settings_stay);
    RUN(fixed_illegal_settings_name_their_rule);
    RUN(one_gpu_is_too_few_for_30b);
    RUN(a_small_model_fits_on_one_gpu);
    RUN(glm_air_on_32_does_not_fit);
    RUN(large_models_fit);
    RUN(the_faster_of_published_rows_is_preferred);
    RUN(search_finds_public_starting_points);
    RUN(the_first_is_a_recipe);
    RUN(unbuildable_model_has_no_recipe);
    RUN(json_output);
    return lab_report();
}
