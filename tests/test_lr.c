/* Learning rates by hand: every shape at steps where the answer is known, warm-up, groups, floors. */
#include "lab.h"
#include "train/lr.h"

static Config cfg;

static Lr made(const char *shape, double ratio, int64_t warmup, int64_t steps)
{
    Lr lr = { 0 };
    struct cfg_optim o = cfg.optim;
    o.lr_scheduler_type = shape, o.learning_rate = 1e-3, o.min_lr = 1e-4, o.warmup_ratio = ratio,
    o.warmup_steps = warmup;
    EXPECT_OK(lr_open(&lr, &o, steps));
    return lr;
}

static void expect(const Lr *lr, int64_t step, double want)
{
    double got = lr_at(lr, G_LLM, step);
    EXPECT(fabs(got - want) < 1e-12, "step %lld: %.12g, want %.12g", (long long)step, got, want);
}

static void cosine(void)
{
    Lr lr = made("cosine", 0, 10, 110);
    expect(&lr, 1, 1e-4);
    expect(&lr, 5, 5e-4);
    expect(&lr, 10, 1e-3);
    expect(&lr, 11, 1e-3);
    expect(&lr, 36, 1e-4 + 9e-4 * (1 + cos(acos(-1) / 4)) / 2);
    expect(&lr, 61, 5.5e-4);
    expect(&lr, 110, 1e-4 + 9e-4 * (1 + cos(acos(-1) * 0.99)) / 2);
    EXPECT(lr_at(&lr, G_LLM, 110) > 1e-4, "the last step is not wasted on the floor");
}

static void linear(void)
{
    Lr lr = made("linear", 0, 10, 110);
    expect(&lr, 3, 3e-4);
    expect(&lr, 11, 1e-3);
    expect(&lr, 61, 5.5e-4);
    expect(&lr, 110, 1e-4 + 9e-4 * 0.01);
}

static void constant_and_wsd(void)
{
    Lr c = made("constant", 0, 10, 110), w = made("wsd", 0, 10, 100), late = made("wsd", 0, 95, 100);
    expect(&c, 11, 1e-3);
    expect(&c, 110, 1e-3);
    expect(&w, 10, 1e-3);
    expect(&w, 80, 1e-3);
    expect(&w, 81, 1e-3);
    expect(&w, 91, 5.5e-4);
    expect(&w, 100, 1e-4 + 9e-4 * 0.05);
    expect(&late, 95, 1e-3);                                 /* warm-up reaches into the last fifth */
    expect(&late, 98, 1e-4 + 9e-4 * 0.6);
}

static void warmup_by_ratio(void)
{
    Lr lr = made("linear", 0.05, 0, 101), none = made("linear", 0, 0, 10), all = made("cosine", 1, 0, 8);
    EXPECT(lr.warmup == 6, "5 %% of 101 steps, rounded up: %lld", (long long)lr.warmup);
    expect(&none, 1, 1e-3);
    expect(&all, 8, 1e-3);
    EXPECT(made("cosine", 0, 50, 20).warmup == 20, "no longer than the run");
    expect(&none, 11, 1e-4);                                 /* past the end nothing strange happens */
}

static void groups(void)
{
    Lr lr = { 0 };
    struct cfg_optim o = cfg.optim;
    o.learning_rate = 1e-3, o.vit_lr = 1e-5, o.min_lr = 1e-4, o.lr_scheduler_type = "linear",
    o.warmup_steps = 2;
    EXPECT_OK(lr_open(&lr, &o, 12));
    EXPECT(lr_at(&lr, G_ALIGNER, 7) == lr_at(&lr, G_LLM, 7), "a group without a rate has the common one");
    EXPECT(fabs(lr_at(&lr, G_VIT, 1) - 5e-6) < 1e-15 && fabs(lr_at(&lr, G_VIT, 12) - 1e-5) < 1e-15,
           "a peak below the floor is its own floor: %g", lr_at(&lr, G_VIT, 12));
    o.min_lr = 2e-3;
    EXPECT_FAIL(lr_open(&lr, &o, 12), E_CONFIG, "optim.min_lr");
}

int main(void)
{
    config_default(&cfg);
    RUN(cosine);
    RUN(linear);
    RUN(constant_and_wsd);
    RUN(warmup_by_ratio);
    RUN(groups);
    return lab_report();
}
