/* tests/test_fit.c -- a run that does not fit ends before memory is mapped, on all ranks with the same exit
 * code, and with the advised change it fits. */
#include "commlab.h"
#include "runlab.h"
#include "engine/fit.h"

static RunLab lab;

/* Opens a run on a device of `memory` bytes; needs: the bytes that it plans. */
static Status open_with(const char *overrides, double memory, double *needs)
{
    static int  run;
    Config      c;
    Trainer     t;
    char        name[32];
    snprintf(name, sizeof name, "run%d", run++);
    runlab_recipe(&c, &lab, name, overrides);
    TrainerConf conf = { .recipe = &c, .least = LOG_ERROR + 1, .memory = memory };
    Status st = trainer_open(&t, &conf);
    if (!st && needs) *needs = (double)engine_device_bytes(&t.engine.plan, t.engine.conf.backend);
    trainer_close(&t);
    config_close(&c);
    return st;
}

static void memory_is_checked_to_the_byte(void)
{
    double needs = 0;
    EXPECT_OK(open_with("", 0, &needs));
    EXPECT_OK(open_with("", needs, NULL));
    EXPECT_FAIL(open_with("", needs - 1, NULL), E_FIT, "does not fit: rank 0");
    EXPECT(status_exit_code(E_FIT) == 3, "exit code %d", status_exit_code(E_FIT));
}

/* The overrides that a message advises, one a line. */
static void advised(char *out, size_t n)
{
    const char *at = strstr(status_text(), "is enough: ");
    snprintf(out, n, "%s", at ? at + strlen("is enough: ") : "");
    if (strstr(out, " (")) *strstr(out, " (") = 0;
    for (char *c = out; *c; c++)
        if (*c == ' ') *c = '\n';
}

static void advice_that_is_taken_helps(void)
{
    double needs = 0;
    char   set[512];
    EXPECT_OK(open_with("", 0, &needs));
    for (double share = 0.95; share > 0.5; share -= 0.15) {
        EXPECT_FAIL(open_with("", share * needs, NULL), E_FIT, "is enough: ");
        advised(set, sizeof set);
        EXPECT(*set, "%s", status_text());
        if (*set) EXPECT_OK(open_with(set, share * needs, NULL));
    }
    EXPECT_FAIL(open_with("", 1000, NULL), E_FIT, "take more ranks");
}

static void advice_on_adapters(void)
{
    double needs = 0;
    char   set[512], text[600];
    EXPECT_OK(open_with("lora.rank=8", 0, &needs));
    EXPECT_FAIL(open_with("lora.rank=8", 0.8 * needs, NULL), E_FIT, "is enough: ");
    advised(set, sizeof set);
    snprintf(text, sizeof text, "lora.rank=8\n%s", set);
    EXPECT_OK(open_with(text, 0.8 * needs, NULL));
}

typedef struct Fake { double bytes; int asked; } Fake;

/* A plan in which each word of recompute saves 10, half the micro-batch half of the rest, and full leaves
 * 30. */
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
    FitRequest ask = { .recipe    = &c,
                       .shape     = &shape,
                       .ranks     = 1,
                       .per_node  = 1,
                       .bytes     = 100,
                       .available = 60,
                       .plan      = fake_plan,
                       .self      = &f };
    EXPECT_OK(fit_advise(&a, &ask));
    EXPECT(a.n > 5 && f.asked >= a.n, "%d rows", a.n);
    for (int i = 1; i < a.n; i++)
        EXPECT(a.row[i].cost > a.row[i - 1].cost ||
               (a.row[i].cost == a.row[i - 1].cost && a.row[i].bytes >= a.row[i - 1].bytes), "row %d", i);
    EXPECT(fit_cheapest(&a) && strstr(fit_cheapest(&a)->set, "micro_tokens=4096"), "%s",
           fit_cheapest(&a) ? fit_cheapest(&a)->set : "none");
    ask.available = 12;                                        /* no single change is enough */
    EXPECT_OK(fit_advise(&a, &ask));
    EXPECT(!fit_cheapest(&a) || strchr(fit_cheapest(&a)->set, ' '), "%s", fit_cheapest(&a)->set);
    config_close(&c);
}

/* As on a GPU that offloads the optimizer's state to the host. */
static void offloaded_bytes_must_fit_the_host(void)
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
    FitCheck check = { .recipe = &c, .shape = &shape, .conf = &conf, .memory = 1e12, .host = 1e12,
                       .full = &full };
    EXPECT_OK(fit_check(&check));
    check.host = 1000;
    EXPECT_FAIL(fit_check(&check), E_FIT, "lower memory.optimizer_offload");
    config_close(&c);
}

/* Ranks are threads here and share the memory of one process. */
static struct { double memory; Status got[8]; char text[8][400]; } result;

static void rank_main(Peer *p)
{
    Config  c;
    Trainer t;
    runlab_recipe(&c, &lab, "ranks", "train.global_tokens=1800");
    TrainerConf conf = { .recipe = &c, .least = LOG_ERROR + 1, .memory = result.memory, .world = p->world };
    result.got[p->rank] = trainer_open(&t, &conf);
    if (result.got[p->rank]) snprintf(result.text[p->rank], 400, "%s", status_text());
    trainer_close(&t);
    config_close(&c);
}

static void all_ranks_end_alike(void)
{
    double needs = 0;
    EXPECT_OK(open_with("", 0, &needs));
    result.memory = 1.5 * needs;                           /* one rank would fit, two do not */
    on_ranks(4, 0, rank_main);
    for (int i = 0; i < 4; i++) {
        EXPECT(result.got[i] == E_FIT, "rank %d: status %d", i, (int)result.got[i]);
        EXPECT(!strcmp(result.text[i], result.text[0]) && strstr(result.text[i], "of its host"),
               "rank %d: %s", i, result.text[i]);
    }
}

int main(void)
{
    runlab_open(&lab, 12);
    RUN(memory_is_checked_to_the_byte);
    RUN(advice_that_is_taken_helps);
    RUN(advice_on_adapters);
    RUN(cheap_advice_comes_first);
    RUN(offloaded_bytes_must_fit_the_host);
    RUN(all_ranks_end_alike);
    runlab_close(&lab);
    return lab_report();
}
