/* tests/test_content.c -- predicted times follow the documents and pictures of the data; memory is that of
 * full micro-batches whatever the data are. */
#include "lab.h"
#include "cli/data_look.h"
#include "diagnose/diagnose.h"
#include "ops/ops.h"
#include "profile/predict.h"

enum { PACK = 8192, PATCHES = 16384 };

static const char adapters[] = "model:  {preset: Qwen3-VL-30B-A3B}\n"
                               "data:   {max_length: 8192}\nimage:  {max_pixels: 1048576}\n"
                               "train:  {micro_tokens: 8192, micro_patches: 16384, global_tokens: 8192}\n"
                               "lora:   {rank: 16, alpha: 32, target_modules: [all-linear]}\n"
                               "memory: {recompute: [norm, moe_act, vision_act]}\n";

static void open_adapters(Config *c)
{
    config_default(c);
    REQUIRE(!config_parse(c, adapters, strlen(adapters), "recipe"), "%s", status_text());
}

/* Full micro-batches of such documents and pictures, as many patches as the budget has. */
static BatchContent full_of(double document, double picture)
{
    return (BatchContent){ .source = CONTENT_MEASURED, .fill = 1, .document = document, .supervised = 1,
                           .patches = picture > 0 ? (double)PATCHES / PACK : 0, .picture = picture };
}

static void plan(DryRun *d, const Config *recipe, const BatchContent *content)
{
    static Hardware hw;
    EXPECT_OK(hardware_find(&hw, "h200"));
    int ranks = dryrun_ranks(&recipe->parallel);
    EXPECT_OK(dryrun_open_conf(d, &(DryConf){ .recipe = recipe, .ranks = ranks, .per_node = ranks, .hw = &hw,
                                              .uneven = USUAL_UNEVEN, .content = content }));
}

typedef struct Planned { double attention, step, flops, decoder, vision, head, peak; } Planned;

static Planned planned_of(const Config *recipe, const BatchContent *content)
{
    DryRun  d;
    Planned x = { 0 };
    plan(&d, recipe, content);
    if (!d.stage) return x;
    const StageTime *t = &d.stage[0].time;
    x = (Planned){ t->op[OP_attention_fwd] + t->op[OP_attention_bwd], d.step.step, d.ask.flops,
                   t->part[PART_DECODER], t->part[PART_VISION], t->part[PART_HEAD],
                   (double)dryrun_peak(&d, NULL) };
    dryrun_close(&d);
    return x;
}

static Planned planned(const BatchContent *content)
{
    Config c;
    open_adapters(&c);
    Planned x = planned_of(&c, content);
    config_close(&c);
    return x;
}

static bool near(double x, double want, double within) { return fabs(x / want - 1) <= within; }

/* Documents of an eighth of the pack: an eighth of the pairs, and of the time of attention. */
static void documents_decide_attention(void)
{
    BatchContent eight = full_of(PACK / 8, 0), one = full_of(PACK, 0);
    Planned      x = planned(&eight), y = planned(&one);
    EXPECT(near(x.attention, y.attention / 8, 0.05), "%g and %g s of attention", x.attention, y.attention);
    EXPECT(near(y.decoder - x.decoder, y.attention - x.attention, 0.01), "%g and %g s", x.decoder, y.decoder);
    EXPECT(near(y.step - x.step, y.attention - x.attention, 0.01) && x.flops < y.flops, "%g and %g s", x.step,
           y.step);
}

static double attention_over_cp(const char *kind, double document)
{
    char         text[200];
    Config       c;
    BatchContent content = full_of(document, 0);
    config_default(&c);
    snprintf(text, sizeof text, "model: {preset: Qwen3-30B-A3B}\ndata: {max_length: 65536}\n"
             "train: {micro_tokens: 65536}\nparallel: {ranks: 4, cp: 4, cp_comm: %s}\n", kind);
    REQUIRE(!config_parse(&c, text, strlen(text), "recipe"), "%s", status_text());
    double x = planned_of(&c, &content).attention;
    config_close(&c);
    return x;
}

/* However context parallelism shares them out: documents of an eighth have an eighth of the pairs. */
static void documents_decide_attention_over_cp(void)
{
    static const char *const kinds[] = { "p2p", "all_gather", "a2a" };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        double x = attention_over_cp(kinds[i], 8192), y = attention_over_cp(kinds[i], 65536);
        EXPECT(near(x, y / 8, 0.05), "%s: %g and %g s of attention", kinds[i], x, y);
    }
}

/* Pictures of a quarter of the patches, as many patches: a quarter of the pairs. Twice as many pictures:
 * twice the pairs. */
static void pictures_decide_vision(void)
{
    BatchContent large = full_of(1, 2304), small = full_of(1, 576), text = full_of(1, 0), twice = small;
    Planned      x = planned(&small), y = planned(&large);
    Config       c;
    double       rest = planned(&text).attention, one = x.attention - rest;
    EXPECT(near(one, (y.attention - rest) / 4, 0.1), "%g and %g s of attention", one, y.attention - rest);
    EXPECT(near(y.vision - x.vision, y.attention - x.attention, 0.01), "%g and %g s", x.vision, y.vision);
    open_adapters(&c);
    EXPECT_OK(config_set(&c, "train.micro_patches=32768"));
    twice.patches *= 2;
    Planned z = planned_of(&c, &twice);
    EXPECT(near(z.attention - rest, 2 * one, 0.1), "%g and %g s of attention", z.attention - rest, one);
    config_close(&c);
}

/* Micro-batches that are not full take the memory of full ones, and the head computes supervised rows. */
static void memory_is_of_full_micro_batches(void)
{
    BatchContent some = { .fill = 0.7, .document = 450, .supervised = 0.2, .patches = 2, .picture = 1200 };
    BatchContent text = { .fill = 0.7, .document = 450, .supervised = 0.2 };
    Planned      all = planned(NULL), x = planned(&some), y = planned(&text);
    EXPECT(x.peak == all.peak && y.peak == all.peak, "%g, %g, %g bytes", all.peak, x.peak, y.peak);
    EXPECT(near(x.head, 0.14 * all.head, 0.3), "%g and %g s of the head", x.head, all.head);
    EXPECT(y.vision < 1e-3 * x.vision, "%g and %g s of the tower", x.vision, y.vision);
}

/* What is assumed of a recipe: documents of data.max_length, all supervised, pictures of a usual size. */
static void recipes_assume_the_longest(void)
{
    Config       c;
    DryRun       d;
    BatchContent same;
    open_adapters(&c);
    plan(&d, &c, NULL);
    EXPECT(d.content.source == CONTENT_ASSUMED && d.content.document == PACK && d.content.fill == 1 &&
           d.content.supervised == 1 && d.content.patches == 2 && d.content.picture < 2304,
           "%g tokens, %g patches", d.content.document, d.content.picture);
    same = d.content;
    double assumed = d.step.step;
    dryrun_close(&d);
    EXPECT(planned(&same).step == assumed, "%g and %g s", planned(&same).step, assumed);
    EXPECT_OK(config_set(&c, "data.max_length=2048"));
    plan(&d, &c, NULL);
    EXPECT(d.content.document == 2048, "%g tokens", d.content.document);
    dryrun_close(&d);
    config_close(&c);
}

/* Four samples of a quarter of a micro-batch's patches each fill half of its tokens. */
static void samples_are_packed(void)
{
    static DataLook d;
    BatchContent    c;
    char            text[300];
    Budget          b = { .tokens = PACK, .patches = PATCHES, .docs = 1000, .supervised = PACK };
    d = (DataLook){ .samples = DATA_LOOK, .looked = DATA_LOOK };
    for (int i = 0; i < DATA_LOOK; i++) d.size[i] = (DocSize){ 1024, 4096, 256 };
    d.sum = (Load){ 1024 * DATA_LOOK, 4096 * DATA_LOOK, 256 * DATA_LOOK, DATA_LOOK * 1024 * 1025.0 / 2,
                    DATA_LOOK * 4 * 1024 * 1024.0 };          /* four pictures each */
    EXPECT_OK(data_look_content(&c, &d, &b));
    EXPECT(c.fill == 0.5 && c.document == 1024 && c.supervised == 0.25 && c.patches == 4 && c.picture == 1024,
           "%g full, %g tokens, %g supervised, %g patches a token, %g a picture", c.fill, c.document,
           c.supervised, c.patches, c.picture);
    d.looked = 3, d.sum.tokens = 3 * 1024, d.sum.patches = 3 * 4096;
    EXPECT_OK(data_look_content(&c, &d, &b));                 /* too few to fill a micro-batch */
    EXPECT(c.fill == 0.5, "%g full", c.fill);
    content_text(text, sizeof text, &c);
    EXPECT(strstr(text, "as sampled: micro-batches 50 % full") && strstr(text, "pictures of "), "%s", text);
}

/* A step of a profile on one H200: 18 photographs of about 1,200 patches with their questions. */
static StepProfile measured_step(void)
{
    StepProfile s;
    step_profile_clear(&s);
    s.step = 0.4, s.tokens = 8000, s.token_budget = PACK, s.supervised = 1500, s.patches = 16000;
    s.document = 450, s.picture = 1200;
    return s;
}

/* A profile's plan is of the documents that were measured; one of an earlier build does not tell them. */
static void profiles_plan_what_they_measured(void)
{
    Config   c;
    Hardware hw;
    Profile  p = { .has_measured = true, .measured = measured_step() }, old = p;
    open_adapters(&c);
    EXPECT_OK(hardware_find(&hw, "h200"));
    EXPECT_OK(profile_predict(&p, &c, 1, 1, &hw));
    const StepProfile *q = &p.predicted;
    EXPECT(q->document == 450 && q->picture == 1200 && q->tokens == 8000 && q->token_budget == PACK &&
           q->supervised == 1500 && near(q->patches, 16000, 1e-9), "%g tokens, %g patches", q->tokens,
           q->patches);
    old.measured.document = NAN;
    EXPECT_OK(profile_predict(&old, &c, 1, 1, &hw));
    EXPECT(old.predicted.document == PACK, "%g tokens", old.predicted.document);
    EXPECT(q->step < 0.7 * old.predicted.step, "%g and %g s", q->step, old.predicted.step);
    double attention = q->category[CAT_ATTENTION], longest = old.predicted.category[CAT_ATTENTION];
    EXPECT(attention < 0.2 * longest, "%g and %g s of attention", attention, longest);
    EXPECT(q->memory_peak == old.predicted.memory_peak, "%g bytes", q->memory_peak);
    config_close(&c);
}

/* Every plan of a diagnosis is of the documents that were measured, and of pictures that a change allows. */
static void diagnoses_plan_what_was_measured(void)
{
    Config       c;
    BatchContent content;
    StepProfile  s = measured_step(), plain, small;
    Diagnosis   *d;
    DiagnoseAsk  ask = { .recipe = &c, .ranks = 1, .per_node = 1, .content = &content };
    open_adapters(&c);
    EXPECT(content_of_step(&content, &s), "not known");
    EXPECT_OK(hardware_find(&ask.hw, "h200"));
    EXPECT_OK(diagnose_open(&d, &ask));
    if (!d) return;
    EXPECT(d->plan.document == 450 && d->e.at.document == 450, "%g tokens", d->plan.document);
    EXPECT_OK(plan_step(&plain, &d->e, &c));
    Config changed = c;
    changed.keep   = (MemPool){ 0 };
    changed.image.max_pixels = 300 * 256;
    EXPECT_OK(plan_step(&small, &d->e, &changed));
    EXPECT(plain.picture == 1200 && small.picture == 300 && near(small.patches, plain.patches / 4, 1e-9),
           "%g and %g patches", small.picture, small.patches);
    EXPECT(small.category[CAT_ATTENTION] < plain.category[CAT_ATTENTION], "attention");
    diagnose_close(d), config_close(&c);
}

int main(void)
{
    RUN(documents_decide_attention);
    RUN(documents_decide_attention_over_cp);
    RUN(pictures_decide_vision);
    RUN(memory_is_of_full_micro_batches);
    RUN(recipes_assume_the_longest);
    RUN(samples_are_packed);
    RUN(profiles_plan_what_they_measured);
    RUN(diagnoses_plan_what_was_measured);
    return lab_report();
}
