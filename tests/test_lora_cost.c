/* tests/test_lora_cost.c -- runs with adapters in the analytic model: what trains is what the built model
 * has; memory and time are near the dry run for random models, layouts, words and ranks; searches end in
 * recipes. */
#include "base/rng.h"
#include "analyticlab.h"
#include "nn/decoder.h"
#include "plan/dryrun.h"
#include "plan/search.h"

#include <string.h>
#include <time.h>

static uint64_t seed;
static LoraCost  adapted;                 /* of the case at hand: it must not move */

static int64_t below(uint64_t i, int64_t n) { return (int64_t)rng_below(seed, 77, i, (uint64_t)n); }
#define PICK(i, list) list[below(i, (int64_t)(sizeof list / sizeof *list))]

/* ---- cases ---- */

typedef struct Case { SearchAsk ask; FoundLayout way; Config lora; char text[480]; } Case;

static void draw_task(Task *t)
{
    static const char *const models[] = { "qwen3-30b-a3b", "qwen3-vl-30b-a3b", "qwen3-vl-30b-a3b",
                                          "qwen3-vl-8b",   "qwen3-vl-2b",      "qwen3-235b-a22b" };
    *t = task(PICK(1, models), 1 << below(2, 7), 0, 4, 4);
    EXPECT_OK(hardware_find(&t->hw, below(3, 2) ? "h200" : "h100"));
    t->seq = 1024 << below(4, 5), t->imbalance = 1.15, t->unfused_logits = t->foreign = false;
    if (t->model->vision.depth && below(5, 3)) t->patches = t->seq * (1 + below(6, 3));
}

static void draw_way(Candidate *c, Task *t)
{
    static const unsigned words[] = { 0, 0, RE_NORM, RE_MOE_ACT | RE_NORM, RE_MOE, RE_FULL, RE_VISION,
                                      RE_MOE_DISPATCH, RE_CORE };
    bool moe = t->model->text.E;
    *c = way(1 << below(8, 3), 1 << below(9, 3), 1, 1 + (int)below(12, 2));
    c->zero = below(7, 3) ? 1 : 3;
    if (c->zero == 3) c->pp = 1;
    if (t->seq >= 8192) c->cp = 1 << below(16, 2);
    while (c->tp * c->cp * c->pp > t->gpus) *(c->pp > 1 ? &c->pp : c->cp > 1 ? &c->cp : &c->tp) /= 2;
    if (c->pp > 1) c->vpp = 1 + (int)below(17, 2);
    if (moe) c->ep = 1 << below(10, 4);
    while (c->ep * c->pp > t->gpus) c->ep /= 2;
    c->recompute = PICK(11, words);
    if (!moe) c->recompute &= ~(unsigned)(RE_MOE_ACT | RE_MOE | RE_MOE_DISPATCH);
    if (!t->model->vision.depth) c->recompute &= ~(unsigned)RE_VISION;
    t->gbs = c->mbs * t->gpus / (c->tp * c->cp * c->pp) * (c->pp > 1 ? 2 * c->pp : 4);
}

static void set(Config *c, const char *fmt, const char *value)
{
    char line[200];
    snprintf(line, sizeof line, fmt, value);
    EXPECT_OK(config_set(c, line));
}

static void draw_adapters(Config *c)
{
    static const char *const targets[] = { "all-linear", "all-linear", "all-attention", "experts", "vision",
                                           "q_proj", "down_proj", "[q_proj, v_proj, mlp.gate]",
                                           "\"*layers.[12]?.*\"", "[layers.20.self_attn.o_proj]" };
    char rank[16];
    snprintf(rank, sizeof rank, "%lld", 4LL << below(14, 5));
    config_default(c);
    set(c, "lora.target_modules=%s", PICK(13, targets));
    set(c, "lora.rank=%s", rank);
    if (below(15, 4) == 0) set(c, "lora.expert_a=%s", "shared");
    if (below(18, 6) == 0) set(c, "lora.exclude_modules=%s", "[k_proj, visual.merger]");
    if (below(19, 6) == 0) set(c, "lora.modules_to_save=%s", "[embed_tokens, \"*.input_layernorm\"]");
    if (below(20, 6) == 0) set(c, "lora.dropout=%s", "0.05");
    if (below(21, 8) == 0) set(c, "model.freeze_vit=%s", "true");
}

static void describe(Case *x, const char *target)
{
    const Task *t = &x->ask.task;
    const Candidate *c = &x->way.c;
    char layout[96], words[96];
    layout_text(layout, sizeof layout, &x->ask, c);
    search_words_text(words, sizeof words, c->recompute, "+");
    snprintf(x->text, sizeof x->text, "%llu: %s %s, %d %s, zero %d, mbs %d of %lld tokens and %lld patches, "
             "recompute %s; %s rank %lld%s%s%s", (unsigned long long)seed, t->model->name, layout, t->gpus,
             t->hw.id, c->zero, c->mbs, (long long)t->seq, (long long)t->patches, *words ? words : "nothing",
             target, (long long)x->lora.lora.rank, x->lora.lora.exclude_modules.n ? " excludes" : "",
             x->lora.lora.modules_to_save.n ? " saves" : "", x->lora.model.freeze_vit ? " frozen tower" : "");
}

/* False: lora.target_modules does not go with the model, and the message names the key. */
static bool draw(Case *x)
{
    search_default(&x->ask);
    x->way = (FoundLayout){ 0 };
    draw_task(&x->ask.task);
    draw_way(&x->way.c, &x->ask.task);
    draw_adapters(&x->lora);
    describe(x, x->lora.lora.target_modules.item[0]);
    if (!search_adapt(&x->ask, &adapted, &x->lora)) return true;
    EXPECT(strstr(status_text(), "lora."), "%s: %s", x->text, status_text());
    config_close(&x->lora);
    return false;
}

static uint64_t first_seed(void)
{
    const char *given = getenv("TREB_SEED");
    return given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
}

static int many(int usual) { return getenv("TREB_PLANS") ? atoi(getenv("TREB_PLANS")) : usual; }

/* ---- what trains ---- */

static double sum(const Trained *t)
{
    double n = 0;
    for (int i = 0; i < CUT_N; i++) n += t->adapters[i] + t->whole[i];
    return n;
}

static void check_counts(const Case *x)
{
    const LoraCost *a = &adapted;
    double n = sum(&a->first) + sum(&a->last);
    for (int l = 0; l < x->ask.task.model->text.L; l++) n += sum(&a->layer[a->of[l]].trained);
    EXPECT(n == (double)(a->trains.adapters + a->trains.whole), "%s: %.0f of %.0f", x->text, n,
           (double)(a->trains.adapters + a->trains.whole));
}

/* ---- against the dry run ---- */

/* Ratios of the analytic model to the dry run. */
typedef struct Ratios { double least, most, sum; int n; } Ratios;

static Ratios memory = { .least = 1e9 }, seconds = { .least = 1e9 };

static void note(Ratios *r, double ratio)
{
    r->least = fmin(r->least, ratio), r->most = fmax(r->most, ratio);
    r->sum += ratio, r->n++;
}

/* Where ranks share pictures out, the dry run plans each rank for all of them; analytic time does not. */
static bool pictures_shared(const Case *x) { return x->ask.task.patches && x->way.c.tp * x->way.c.cp > 1; }

static bool compare(const Case *x)
{
    const Task *t = &x->ask.task;
    Config cfg;
    DryRun d;
    StepTime s;
    EXPECT_OK(search_config(&cfg, &x->ask, &x->way));
    Status st = dryrun_open(&d, &cfg, t->gpus, t->hw.domain < t->gpus ? t->hw.domain : t->gpus, &t->hw);
    config_close(&cfg);
    if (st) return false;
    double peak = analytic_peak(t, &x->way.c, NULL) - t->hw.fixed, dry = (double)dryrun_peak(&d, NULL);
    analytic_time(&s, t, &x->way.c);
    note(&memory, peak / dry);
    EXPECT(fabs(peak - dry) <= 0.25 * dry + 0.1e9, "%s: %.2f GB analytic, %.2f by dry run", x->text,
           peak / 1e9, dry / 1e9);
    double ratio = s.step / d.step.step;
    if (!pictures_shared(x)) {
        note(&seconds, ratio);
        EXPECT(ratio > 0.4 && ratio < 2, "%s: %.3g s analytic, %.3g by dry run", x->text, s.step,
               d.step.step);
    }
    near("work", s.model_tflops * s.step, d.step.model_tflops * d.step.step, 0.05);
    dryrun_close(&d);
    return true;
}

static void analytic_knows_adapters(void)
{
    uint64_t from = first_seed();
    int n = many(30), planned = 0, opened = 0;
    Case x;
    for (int i = 0; i < n; i++) {
        seed = from + (uint64_t)i;
        if (!draw(&x)) continue;
        check_counts(&x);
        planned += compare(&x), opened++;
        lora_cost_close(&adapted);
        config_close(&x.lora);
    }
    printf("  %d of %d cases from seed %llu: analytic over dry run %.3f to %.3f of memory, mean %.3f; "
           "%.2f to %.2f of time, mean %.2f\n", planned, n, (unsigned long long)from, memory.least,
           memory.most, memory.sum / memory.n, seconds.least, seconds.most, seconds.sum / seconds.n);
    EXPECT(planned > n / 3 && planned >= opened - n / 4, "%d planned of %d", planned, opened);
    near("memory on the mean", memory.sum / memory.n, 1, 0.03);
    near("time on the mean", seconds.sum / seconds.n, 1.1, 0.25);
}

/* ---- words ---- */

/* Opens a case of one rank: what `target` makes of a model. */
static void adapt(Case *x, const char *model, const char *target, const char *rank)
{
    search_default(&x->ask);
    x->ask.task = task(model, 1, 8, 4, 4);
    x->ask.task.unfused_logits = x->ask.task.foreign = false, x->ask.task.seq = 8192;
    x->way = (FoundLayout){ .c = way(1, 1, 1, 1) };
    EXPECT_OK(hardware_find(&x->ask.task.hw, "h200"));
    config_default(&x->lora);
    set(&x->lora, "lora.target_modules=%s", target);
    set(&x->lora, "lora.rank=%s", rank);
    if (x->ask.task.model->vision.depth) x->ask.task.patches = 4096;
    EXPECT_OK(search_adapt(&x->ask, &adapted, &x->lora));
}

static void leave(Case *x)
{
    lora_cost_close(&adapted);
    config_close(&x->lora);
}

/* The weight of a layer that lies there in its modules (decoder_describe). */
static const LoraWeight *weight_at(const LoraLayer *x, const TextShape *t, int module, size_t param)
{
    Description d;
    int i = 0;
    decoder_describe(&d, t, x->kinds);
    while (i < d.steps - 1 && (d.step[i].module != module || d.step[i].param != (int)param)) i++;
    return &x->weight[i];
}

/* An adapter on one output projection: nothing below it has a backward, attention in its own layer has
 * none. */
static void backward_stops_where_nothing_trains(void)
{
    Case x;
    adapt(&x, "qwen3-vl-30b-a3b", "layers.20.self_attn.o_proj", "16");
    const LoraCost  *a = &adapted;
    const TextShape *t = &x.ask.task.model->text;
    const LoraLayer *low = &a->layer[a->of[0]], *own = &a->layer[a->of[20]], *high = &a->layer[a->of[47]];
    const LoraWeight *o = weight_at(own, t, 0, offsetof(Attention, w_o));
    EXPECT(a->classes == 3 && a->of[0] == a->of[19] && a->of[21] == a->of[47], "%d classes", a->classes);
    EXPECT(!low->kept && !low->back && !weight_at(low, t, 2, offsetof(Moe, w_gu))->input, "below it");
    EXPECT(own->kept && own->back && !own->core && !weight_at(own, t, 0, offsetof(Attention, w_qkv))->input &&
           weight_at(own, t, 2, offsetof(Moe, w_gu))->input && o->learns && o->r == 16 && o->out == 2048,
           "its own layer");
    EXPECT(high->kept && high->core && weight_at(high, t, 0, offsetof(Attention, w_qkv))->input &&
           !weight_at(high, t, 0, offsetof(Attention, w_o))->r &&
           !weight_trains(weight_at(high, t, 2, offsetof(Moe, w_gu))), "above it");
    EXPECT(!a->tower.blocks && !a->tower.mergers && a->tower.back == 0, "the tower");
    EXPECT(a->head.input && !weight_trains(&a->head), "the head");
    leave(&x);
}

/* Adapters on the tower have gradients come down through all layers; experts that are frozen keep no rows. */
static void the_tower_is_below_all(void)
{
    Case x;
    adapt(&x, "qwen3-vl-30b-a3b", "vision", "16");
    const LoraLayer *first = &adapted.layer[adapted.of[0]];
    LayerBytes b;
    analytic_layer(&b, &x.ask.task, &x.way.c, (LayerClass){ .kinds = first->kinds, .lora = first });
    EXPECT(adapted.classes == 1 && first->kept && first->core &&
           weight_at(first, &x.ask.task.model->text, 0, offsetof(Attention, w_qkv))->input, "of %d classes",
           adapted.classes);
    EXPECT(adapted.tower.blocks == 27 && adapted.tower.mergers == 4, "%d blocks, %d mergers",
           adapted.tower.blocks, adapted.tower.mergers);
    EXPECT(b.of[L_DISPATCH] == 0 && b.of[L_ACT] == 0 && b.of[L_LORA] == 0 && b.of[L_GATE_UP] > 0 &&
           b.unread > b.of[L_GATE_UP], "rows are kept");
    leave(&x);
}

/* Without pictures no gradient comes to the tower: layers keep what the backward of another micro-batch would
 * read, and take no scratch for gradients. */
static void tower_alone_needs_pictures(void)
{
    Case x;
    StageMemory with, without;
    adapt(&x, "qwen3-vl-30b-a3b", "vision", "16");
    x.ask.task.gpus = 2, x.ask.task.patches = 0, x.way.c = way(1, 2, 1, 1);
    analytic_memory(&with, &x.ask.task, &x.way.c, 0);
    lora_cost_close(&adapted);
    EXPECT_OK(search_adapt(&x.ask, &adapted, &x.lora));
    analytic_memory(&without, &x.ask.task, &x.way.c, 0);
    const LoraLayer *first = &adapted.layer[adapted.of[0]];
    EXPECT(adapted.classes == 1 && first->kept && !first->back && !first->core && !adapted.head.input,
           "of %d classes", adapted.classes);
    EXPECT(without.activations == with.activations && without.buffers < 0.8 * with.buffers,
           "%.2f GB of buffers, %.2f with a backward", without.buffers / 1e9, with.buffers / 1e9);
    leave(&x);
}

typedef struct Takes { double bytes, seconds; } Takes;

static Takes takes_of(const char *model, const char *target, const char *rank)
{
    Case x;
    StepTime s;
    adapt(&x, model, target, rank);
    analytic_time(&s, &x.ask.task, &x.way.c);
    Takes c = { analytic_peak(&x.ask.task, &x.way.c, NULL), s.step };
    leave(&x);
    return c;
}

static void more_takes_more(void)
{
    static const char *const rows[][2] = { { "layers.40.self_attn.q_proj", "8" }, { "q_proj", "8" },
                                           { "all-attention", "8" }, { "all-linear", "8" },
                                           { "all-linear", "64" } };
    Takes last = { 0, 0 };
    Task t = task("qwen3-vl-30b-a3b", 1, 8, 4, 4);
    Candidate c = way(1, 1, 1, 1);
    StepTime s;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Takes now = takes_of("qwen3-vl-30b-a3b", rows[i][0], rows[i][1]);
        EXPECT(now.bytes > last.bytes && now.seconds > last.seconds,
               "%s rank %s: %.1f GB, %.3g s; %.1f, %.3g", rows[i][0], rows[i][1],
               now.bytes / 1e9, now.seconds, last.bytes / 1e9, last.seconds);
        last = now;
    }
    EXPECT_OK(hardware_find(&t.hw, "h200"));
    t.unfused_logits = t.foreign = false, t.seq = 8192, t.patches = 4096;
    analytic_time(&s, &t, &c);
    EXPECT(analytic_peak(&t, &c, NULL) > 3 * last.bytes && s.step > last.seconds, "the whole model");
}

/* ---- searches ---- */

static void what_is_refused(void)
{
    Config    lora;
    SearchAsk a;
    search_default(&a);
    a.task = task("minimax-m2", 8, 64, 4, 4);
    config_default(&lora);
    set(&lora, "lora.rank=%s", "16");
    EXPECT(search_adapt(&a, &adapted, &lora) && strstr(status_text(), "minimax-m2") && !a.task.lora,
           "a model that is not built here: %s", status_text());
    a.task = task("qwen3-30b-a3b", 8, 64, 4, 4);
    a.task.precision = PREC_MXFP8;
    EXPECT(search_adapt(&a, &adapted, &lora) && strstr(status_text(), "--precision"), "%s", status_text());
    a.task.precision = PREC_BF16;
    set(&lora, "lora.target_modules=%s", "[all-linear, qproj]");
    EXPECT(search_adapt(&a, &adapted, &lora) && strstr(status_text(), "nearest is q_proj"), "%s",
           status_text());
    config_close(&lora);
}

/* On GPUs that do not hold full training, a search ends in a recipe whose dry run agrees. */
static void searches_end_in_recipes(void)
{
    Case    x;
    Config  cfg;
    Search *s = malloc(sizeof *s);
    int     least = 0, whole = 0;
    adapt(&x, "qwen3-vl-30b-a3b", "all-linear", "16");
    x.ask.task.gpus = 8, x.ask.task.gbs = 64, x.ask.top = 3, x.ask.task.imbalance = 1.15;
    EXPECT_OK(hardware_find(&x.ask.task.hw, "h100"));
    EXPECT_OK(search_open(s, &x.ask));
    EXPECT_OK(search_places(s));
    EXPECT(s->places == 3 && s->found[0].dried, "%d places", s->places);
    for (int i = 0; i < s->places; i++)
        near("memory", s->found[i].peak, s->found[i].dry_peak, 0.05);
    EXPECT_OK(search_config(&cfg, &s->ask, s->found));
    EXPECT(cfg.lora.rank == 16 && !strcmp(cfg.lora.target_modules.item[0], "all-linear"), "the recipe");
    config_close(&cfg);
    EXPECT_OK(search_least(&x.ask, 64, &least));
    x.ask.task.lora = NULL, x.ask.adapters = NULL;
    EXPECT_OK(search_least(&x.ask, 64, &whole));
    printf("  %d h100 train adapters on all weights, %d the whole model\n", least, whole);
    EXPECT(least > 0 && whole >= 4 * least, "%d GPUs with adapters, %d without", least, whole);
    search_close(s);
    free(s);
    leave(&x);
}

int main(void)
{
    RUN(backward_stops_where_nothing_trains);
    RUN(the_tower_is_below_all);
    RUN(tower_alone_needs_pictures);
    RUN(more_takes_more);
    RUN(what_is_refused);
    RUN(searches_end_in_recipes);
    RUN(analytic_knows_adapters);
    return lab_report();
}
