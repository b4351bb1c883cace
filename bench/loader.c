/* bench/loader.c -- `treb bench loader`: how fast the data of a recipe becomes micro-batches, per
 * core, and how long a step of a given length would wait for them. Cores are counted by the processor time
 * used, so that others on the machine do not count. */
#include "bench/bench.h"
#include "cli/data.h"
#include "cli/command.h"

#include "base/clock.h"
#include "base/thread_pool.h"
#include "data/loader.h"
#include <stdlib.h>
#include <time.h>

typedef struct LoaderBench {
    int64_t steps, workers, step_ms;
    bool    json;
    double  first, wall, cpu, waited;        /* seconds: to the first step; after it */
    int64_t samples, tokens, patches, slices;
} LoaderBench;

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void compute(int64_t ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    if (ms) nanosleep(&t, NULL);
}

static Status run(LoaderBench *b, Loader *l, int micro, double from)
{
    double start = 0, cpu = 0;
    for (int64_t i = 0; i <= b->steps; i++) {
        LoaderStep s;
        TRY(loader_next(l, &s));
        if (i == 0) b->first = clock_now() - from, start = clock_now(), cpu = cpu_seconds();
        else b->waited += s.waited, b->samples += s.samples, b->tokens += s.tokens, b->patches += s.patches;
        for (int k = 0; i && k < micro; k++) b->slices += s.micro[k]->slices;
        if (i < b->steps) compute(b->step_ms);
    }
    b->wall = clock_now() - start, b->cpu = cpu_seconds() - cpu;
    return OK;
}

static void print(const LoaderBench *b, int workers)
{
    double per = 1 / (b->cpu > 0 ? b->cpu : 1e-9);
    if (b->json) {
        Json *o = json_pack("{sf sf sf sf sf sf sf si}", "first_step_s", b->first, "samples_per_core_s",
                            (double)b->samples * per, "images_per_core_s", (double)b->slices * per,
                            "tokens_per_core_s", (double)b->tokens * per, "patches_per_core_s",
                            (double)b->patches * per, "cores_used", b->cpu / b->wall, "waited_share",
                            b->waited / b->wall, "workers", workers);
        json_dumpf(o, stdout, JSON_INDENT(2)), putchar('\n');
        json_decref(o);
        return;
    }
    printf("loader: %lld steps with %d workers, first after %.2f s; %lld samples, %lld pictures, %lld "
           "tokens, %lld patches\n",
           (long long)b->steps, workers, b->first, (long long)b->samples, (long long)b->slices,
           (long long)b->tokens, (long long)b->patches);
    printf("  a second of one core: %.0f samples, %.0f pictures, %.0f tokens, %.0f patches; %.2f cores were "
           "busy\n",
           (double)b->samples * per, (double)b->slices * per, (double)b->tokens * per,
           (double)b->patches * per, b->cpu / b->wall);
    printf("  a step of %lld ms would have waited %.1f ms, %.1f %% of the time\n", (long long)b->step_ms,
           1e3 * b->waited / (double)b->steps, 100 * b->waited / b->wall);
}

static Status bench(LoaderBench *b, const DataSetup *s)
{
    Loader    *l = NULL;
    double     from = clock_now();
    int        workers = b->workers ? (int)b->workers : cpu_count() > 1 ? cpu_count() - 1 : 1;
    LoaderConf conf    = { .sources   = &s->recipe.data.train,
                           .recipe    = &s->recipe,
                           .tokenizer = s->model.tokenizer,
                           .shape     = s->stream,
                           .patch     = s->patch,
                           .budget    = s->budget,
                           .micro     = s->micro,
                           .ranks     = 1,
                           .workers   = workers,
                           .log       = &s->log };
    if (!s->model.tokenizer)
        return fail(E_CONFIG, "bench loader: tokens need a model; add model.path=FOLDER");
    Status st = loader_open(&l, &conf, NULL);
    if (!st) st = run(b, l, s->micro, from);
    if (!st) print(b, workers);
    loader_close(l);
    return st;
}

static const Option options[] = {
    OPTION_INT(LoaderBench, steps, "--steps", "N", 1, 1000000, "steps to read (default 20)"),
    OPTION_INT(LoaderBench, workers, "--workers", "N", 0, 4096, "worker threads; 0: the recipe's"),
    OPTION_INT(LoaderBench, step_ms, "--step-ms", "N", 0, 1000000,
               "milliseconds that a step would compute (default 0)"),
    OPTION_FLAG(LoaderBench, json, "--json", "print the result as JSON"), OPTION_END
};

static Status run_loader(int argc, char **argv)
{
    DataSetup   s;
    LoaderBench b = { .steps = 20 };
    PlainArgs   plain = { .most = PLAIN_ANY };
    TRY(options_parse(argc, argv, options, &b, &plain));
    Status st = data_setup_open(&s, "bench loader", plain.value, plain.n);
    if (!st) {
        st = bench(&b, &s);
        data_setup_close(&s);
    }
    plain_args_close(&plain);
    return st;
}

static const Usage usage = {
    .args    = "recipe.yaml [section.key=value ...]",
    .options = options,
};

const Command bench_loader = {
    .name  = "loader",
    .help  = "the reading of a recipe's data",
    .run   = run_loader,
    .usage = USAGE(&usage),
};
