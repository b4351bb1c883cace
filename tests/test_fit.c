/* tests/test_fit.c -- a run that does not fit ends before anything is mapped, on all ranks with the same exit
 * code, and the advice it ends with is true: taken, it makes the run fit. */
#include "commlab.h"
#include "runlab.h"
#include "engine/fit.h"

static RunLab lab;

/* What the run would want of a device, and what comes of it on one that has `memory` bytes. */
static Status open_with(const char *overrides, double memory, double *wants)
{
    static int  run;
    Config      c;
    Trainer     t;
    char        name[32];
    snprintf(name, sizeof name, "run%d", run++);
    runlab_recipe(&c, &lab, name, overrides);
    TrainerConf conf = { .recipe = &c, .least = LOG_ERROR + 1, .memory = memory };
    Status st = trainer_open(&t, &conf);
    if (!st && wants) *wants = (double)engine_device_bytes(&t.engine.plan, t.engine.conf.backend);
    trainer_close(&t);
    config_close(&c);
    return st;
}

static void memory_is_checked_to_the_byte(void)
{
    double wants = 0;
    EXPECT_OK(open_with("", 0, &wants));
    EXPECT_OK(open_with("", wants, NULL));
    EXPECT_FAIL(open_with("", wants - 1, NULL), E_FIT, "does not fit: rank 0");
    EXPECT(status_exit_code(E_FIT) == 3, "exit code %d", status_exit_code(E_FIT));
}

/* The overrides that a message ends with, one a line. */
static void advised(char *out, size_t n)
{
    const char *at = strstr(status_text(), "is enough: ");
    snprintf(out, n, "%s", at ? at + strlen("is enough: ") : "");
    for (char *c = out; *c; c++)
        if (*c == ' ') *c = '\n';
}

static void advice_that_is_taken_helps(void)
{
    double wants = 0;
    char   set[512];
    EXPECT_OK(open_with("", 0, &wants));
    for (double share = 0.95; share > 0.5; share -= 0.15) {
        EXPECT_FAIL(open_with("", share * wants, NULL), E_FIT, "is enough: ");
        advised(set, sizeof set);
        EXPECT(*set, "%s", status_text());
        if (*set) EXPECT_OK(open_with(set, share * wants, NULL));
    }
    EXPECT_FAIL(open_with("", 1000, NULL), E_FIT, "take more ranks");
}

static void advice_on_adapters(void)
{
    double wants = 0;
    char   set[512], text[600];
    EXPECT_OK(open_with("lora.rank=8", 0, &wants));
    EXPECT_FAIL(open_with("lora.rank=8", 0.8 * wants, NULL), E_FIT, "is enough: ");
    advised(set, sizeof set);
    snprintf(text, sizeof text, "lora.rank=8\n%s", set);
    EXPECT_OK(open_with(text, 0.8 * wants, NULL));
}

typedef struct Fake { double bytes; int asked; } Fake;

/* Each word of recompute saves ten, half the micro-batch half of the rest; full leaves 30. */
static Status fake_plan(void *self, const Config *c, double *bytes)
{
    Fake *f = self;
    f->asked++;
    *bytes = f->bytes - 10 * c->memory.recompute.n;
    for (int i = 0; i < c->memory.recompute.n; i++)
        if (!strcmp(c->memory.recompute.item[i], "full")) *bytes = 30;
    *bytes *= (double)c->train.micro_tokens / 8192;
    return OK;
}

static void cheap_advice_comes_first(void)
{
    FitAdvice  a;
    Config     c;
    ModelShape shape;
    Json      *hf;
    Fake       f = { .bytes = 100 };
    config_default(&c);
    EXPECT_OK(json_parse(&hf, runlab_config, strlen(runlab_config), "config"));
    EXPECT_OK(shape_read(&shape, hf, "config"));
    json_decref(hf);
    FitRequest ask = { .recipe = &c, .shape = &shape, .ranks = 1, .per_node = 1, .bytes = 100, .room = 60,
                   .plan = fake_plan, .self = &f };
    EXPECT_OK(fit_advise(&a, &ask));
    EXPECT(a.n > 5 && f.asked >= a.n, "%d rows", a.n);
    for (int i = 1; i < a.n; i++)
        EXPECT(a.row[i].cost > a.row[i - 1].cost ||
               (a.row[i].cost == a.row[i - 1].cost && a.row[i].bytes >= a.row[i - 1].bytes), "row %d", i);
    EXPECT(fit_cheapest(&a) && strstr(fit_cheapest(&a)->set, "micro_tokens=4096"), "%s",
           fit_cheapest(&a) ? fit_cheapest(&a)->set : "none");
    ask.room = 12;                                        /* by no single change */
    EXPECT_OK(fit_advise(&a, &ask));
    EXPECT(!fit_cheapest(&a) || strchr(fit_cheapest(&a)->set, ' '), "%s", fit_cheapest(&a)->set);
    config_close(&c);
}

/* As on a card, which keeps the optimizer's state beside it. */
static void what_is_parked_must_fit_the_host(void)
{
    Config      c;
    ModelShape  shape;
    EngineConf  conf;
    Ranks       r;
    Mesh        place;
    Json       *hf;
    EXPECT_OK(json_parse(&hf, runlab_config, strlen(runlab_config), "config"));
    EXPECT_OK(shape_read(&shape, hf, "config"));
    json_decref(hf);
    runlab_recipe(&c, &lab, "host", "memory.optimizer_offload=1");
    EXPECT_OK(recipe_ranks(&r, &place, &c, &shape, NULL, NULL));
    EXPECT_OK(recipe_engine(&conf, &c, &shape, F32, &r, NULL));
    StreamShape ss = shape_stream(&shape);
    Stream      full = stream_full(&ss, &conf.budget);
    conf.backend = "cuda";
    FitCheck check = { .recipe = &c, .shape = &shape, .conf = &conf, .memory = 1e12, .host = 1e12, .full = &full };
    EXPECT_OK(fit_check(&check));
    check.host = 1000;
    EXPECT_FAIL(fit_check(&check), E_FIT, "lower memory.optimizer_offload");
    config_close(&c);
}

/* Ranks are threads here, so one process's memory is what they share. */
static struct { double memory; Status got[8]; char text[8][400]; } heard;

static void rank_main(Peer *p)
{
    Config  c;
    Trainer t;
    runlab_recipe(&c, &lab, "ranks", "train.global_tokens=1800");
    TrainerConf conf = { .recipe = &c, .least = LOG_ERROR + 1, .memory = heard.memory, .world = p->world };
    heard.got[p->rank] = trainer_open(&t, &conf);
    if (heard.got[p->rank]) snprintf(heard.text[p->rank], 400, "%s", status_text());
    trainer_close(&t);
    config_close(&c);
}

static void all_ranks_end_alike(void)
{
    double wants = 0;
    EXPECT_OK(open_with("", 0, &wants));
    heard.memory = 1.5 * wants;                           /* one of them would fit */
    on_ranks(4, 0, rank_main);
    for (int i = 0; i < 4; i++) {
        EXPECT(heard.got[i] == E_FIT, "rank %d: status %d", i, (int)heard.got[i]);
        EXPECT(!strcmp(heard.text[i], heard.text[0]) && strstr(heard.text[i], "of its host"), "rank %d: %s", i,
               heard.text[i]);
    }
}

int main(void)
{
    runlab_open(&lab, 12);
    RUN(memory_is_checked_to_the_byte);
    RUN(advice_that_is_taken_helps);
    RUN(advice_on_adapters);
    RUN(cheap_advice_comes_first);
    RUN(what_is_parked_must_fit_the_host);
    RUN(all_ranks_end_alike);
    runlab_close(&lab);
    return lab_report();
}
