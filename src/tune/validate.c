/* tune/validate.c -- see validate.h. */
#include "tune/validate.h"

#include "base/json.h"
#include "report/contract.h"
#include "report/report_run.h"
#include "tune/trial.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 50, HALF = 25, FROM = 41, CHECKS = 16, WHAT = 240 };

static const double MEMORY_SLACK = 0.05; /* of the plan: what libraries allocate besides it */
static const double SLACK_GIB = 2;

typedef struct Check { const char *name; bool ok; char what[WHAT]; } Check;

typedef struct Validation {
    const ValidateAsk *ask;
    Config    recipe;
    Path      folder, whole, resumed, baseline;      /* folders of the runs */
    ReportRun run[3];                                /* the whole, the resumed and the baseline's */
    bool      open[3], own_baseline;                 /* own: the recipe is its own baseline */
    Check     check[CHECKS];
    int       checks;
    double    mean, least, most, cv;                 /* seconds of steps 41 to 50 */
} Validation;

__attribute__((format(printf, 4, 5))) static void note(Validation *v, const char *name, bool ok,
                                                       const char *fmt, ...)
{
    va_list args;
    Check  *c = &v->check[v->checks++];
    REQUIRE(v->checks <= CHECKS, "more than %d checks", CHECKS);
    c->name = name, c->ok = ok;
    va_start(args, fmt);
    vsnprintf(c->what, sizeof c->what, fmt, args);
    va_end(args);
    printf("  %-4s %-12s %s\n", ok ? "ok" : "FAIL", name, c->what);
    fflush(stdout);
}

/* ---- runs ---- */

static Status start(Validation *v, const char *name, const Config *recipe, const char *set, Path run)
{
    Config c = *recipe;
    Path   file, log;
    int    code = 0;
    c.keep = (MemPool){ 0 };
    TRY(path_join(run, v->folder, name));
    snprintf(file, sizeof file, "%.4000s.yaml", run), snprintf(log, sizeof log, "%.4000s.log", run);
    c.checkpoint.output_dir = run;
    Status st = config_set_all(&c, set);
    if (!st) st = trial_write(file, &c, NULL);
    if (!st) st = trial_train(&code, v->ask->ranks, file, log, 0);
    mem_pool_close(&c.keep);
    if (!st && code) st = fail(E_CHECK, "%s: the run ended with exit code %d; see %s", name, code, log);
    return st;
}

static Status read_run(Validation *v, int i, const char *folder)
{
    TRY(run_open(&v->run[i], folder));
    v->open[i] = true;
    return v->run[i].has_metrics ? OK : fail(E_CHECK, "%s: no metrics", folder);
}

#define COMMON "train.max_steps=50 checkpoint.hf=none eval.eval_steps=0 eval.eval_on_start=false " \
               "log.logging_steps=1 log.report_to=[jsonl] "

static Status run_whole(Validation *v)
{
    TRY(start(v, "whole", &v->recipe, COMMON "checkpoint.save_steps=25 checkpoint.save_at_end=false "
              "checkpoint.resume_from_checkpoint=none", v->whole));
    return read_run(v, 0, v->whole);
}

static Status run_resumed(Validation *v)
{
    char set[sizeof(Path) + 400];
    snprintf(set, sizeof set, COMMON "checkpoint.save_steps=0 checkpoint.save_at_end=false "
             "checkpoint.resume_from_checkpoint=%s/checkpoint-%d", v->whole, HALF);
    TRY(start(v, "resumed", &v->recipe, set, v->resumed));
    return read_run(v, 1, v->resumed);
}

static const char SAFE[] = "train.precision=bf16 train.cuda_graph=[none] moe.overlap=false";

/* The baseline of the options, or the recipe by its plainest ways. */
static Status run_baseline(Validation *v)
{
    Config c = v->recipe;
    Contract a, b;
    char set[512];
    const char *file = v->ask->baseline;
    snprintf(set, sizeof set, COMMON "checkpoint.save_steps=0 checkpoint.save_at_end=false "
             "checkpoint.resume_from_checkpoint=none%s%s", file ? "" : " ", file ? "" : SAFE);
    if (file) {
        TRY(config_open(&c, file, 0, NULL));
        Status st = start(v, "baseline", &c, set, v->baseline);
        config_close(&c);
        return st ? st : read_run(v, 2, v->baseline);
    }
    c.keep = (MemPool){ 0 };
    Status st = config_set_all(&c, SAFE);
    if (!st) st = contract_of_config(&a, &c);
    if (!st && !(st = contract_of_config(&b, &v->recipe))) {
        v->own_baseline = !contract_compare(NULL, 0, &a, &b, NULL, 0);
        contract_close(&b);
    }
    if (!st) contract_close(&a);
    mem_pool_close(&c.keep);
    if (st || v->own_baseline) return st;
    TRY(start(v, "baseline", &v->recipe, set, v->baseline));
    return read_run(v, 2, v->baseline);
}

/* ---- checks ---- */

static const Series *series(const Validation *v, int run, const char *key)
{
    return v->open[run] ? series_find(&v->run[run].metrics, key) : NULL;
}

static double at_step(const Series *s, int step)
{
    for (int64_t i = 0; s && i < s->n; i++)
        if ((int)s->at[i].step == step) return s->at[i].value;
    return NAN;
}

static double mean_of(const Series *s, int from, int to)
{
    double sum = 0;
    for (int i = from; i <= to; i++) sum += at_step(s, i);
    return sum / (to - from + 1);
}

static void check_steps(Validation *v)
{
    const Series *loss = series(v, 0, "train/loss"), *skipped = series(v, 0, "train/skipped_steps");
    double skips = skipped && skipped->n ? skipped->at[skipped->n - 1].value : 0;
    int64_t n = loss ? loss->n : 0, bad = loss ? loss->bad : 0;
    note(v, "steps", n == STEPS, "%lld of %d steps", (long long)n, STEPS);
    note(v, "finite", n && !bad, "%lld losses are not finite", (long long)bad);
    note(v, "skipped", skips <= 0, "%.0f steps were skipped", skips);
}

static void check_window(Validation *v)
{
    const Series *s = series(v, 0, "perf/step_time");
    double square = 0;
    v->mean = mean_of(s, FROM, STEPS), v->least = INFINITY, v->most = 0;
    for (int i = FROM; i <= STEPS; i++) {
        double x = at_step(s, i);
        v->least = fmin(v->least, x), v->most = fmax(v->most, x), square += (x - v->mean) * (x - v->mean);
    }
    v->cv = sqrt(square / (STEPS - FROM + 1)) / v->mean;
    note(v, "window", v->mean > 0, "steps %d to %d: %.4g s each (%.4g to %.4g, CV %.1f %%), %.4g tokens/s a "
         "rank, %.4g TFLOP/s", FROM, STEPS, v->mean, v->least, v->most, 100 * v->cv,
         mean_of(series(v, 0, "perf/tokens_per_second_per_gpu"), FROM, STEPS),
         mean_of(series(v, 0, "perf/tflops"), FROM, STEPS));
}

static void check_loss(Validation *v)
{
    double mine = mean_of(series(v, 0, "train/loss"), FROM, STEPS);
    double other = mean_of(series(v, 2, "train/loss"), FROM, STEPS);
    double off = fabs(mine - other) / fabs(other);
    if (v->own_baseline) note(v, "loss", isfinite(mine), "%.5g; the recipe is its own baseline", mine);
    else
        note(v, "loss", off <= v->ask->tolerance, "%.5g, the baseline's %.5g at equal tokens: %.2f %% apart, "
             "%.2g %% are allowed", mine, other, 100 * off, 100 * v->ask->tolerance);
}

/* On GPUs sums of atomics may differ in the last bits unless train.deterministic is set. */
static void check_resume(Validation *v)
{
    const Series *a = series(v, 0, "train/loss"), *b = series(v, 1, "train/loss");
    double worst = 0, allowed = v->recipe.train.deterministic ? 0 : 0.002;
    for (int i = HALF + 1; i <= STEPS; i++) {
        double off = fabs(at_step(a, i) - at_step(b, i)) / fabs(at_step(a, i));
        worst = isnan(off) ? INFINITY : fmax(worst, off);
    }
    note(v, "resume", worst <= allowed, "%d + %d steps: losses differ by at most %.2g %%", HALF, STEPS - HALF,
         100 * worst);
}

/* Every rank against its own plan; the worst one is shown. */
static Status check_memory(Validation *v)
{
    Path   path;
    Json  *file = NULL, *row;
    size_t i;
    double most = 0, used = 0, plan = 0;
    TRY(path_join(path, v->whole, "memory.json"));
    TRY(json_load(&file, path));
    Json *ranks = json_object_get(file, "ranks");
    json_array_foreach(ranks, i, row) {
        double u = json_number_value(json_object_get(row, "measured_gib"));
        double p = json_number_value(json_object_get(row, "planned_gib")), over = u - p;
        if (!i || over > most) most = over, used = u, plan = p;
    }
    note(v, "memory", json_array_size(ranks) && used <= plan * (1 + MEMORY_SLACK) + SLACK_GIB,
         "peaks of %d ranks against their plans: at worst %.2f GiB, planned %.2f besides context and "
         "libraries", (int)json_array_size(ranks), used, plan);
    return json_decref(file), OK;
}

static Status check_label(Validation *v)
{
    Contract    c;
    const char *list[LABEL_REASONS];
    TRY(contract_read(&c, v->whole));
    int n = label_reasons(list, &c.facts);
    note(v, "label", !n || !v->ask->training, "%s%s%s", label_word(&c.facts), n ? ": " : "",
         n ? list[0] : "");
    contract_close(&c);
    return OK;
}

/* ---- evidence ---- */

typedef struct Find { const char *begins, *names; bool found; } Find;

static Status find_line(void *self, char *line, size_t n, LineKind kind)
{
    Find *f = self;
    const char *at = kind == LINE_LONG ? NULL : strstr(line, f->begins);
    if (at && strstr(at, f->names)) f->found = true;
    return OK;
}

static bool log_has(const Validation *v, const char *begins, const char *names)
{
    Path log;
    Find f = { begins, names, false };
    snprintf(log, sizeof log, "%.4000s.log", v->whole);
    return !lines_read(log, find_line, &f) && f.found;
}

static void check_used(Validation *v)
{
    const Config *c = &v->recipe;
    const char *dispatcher = c->moe.dispatcher;
    bool spread = c->parallel.ep * c->parallel.etp > 1, fp8 = strcmp(c->train.precision, "bf16") != 0;
    bool graphs = c->train.cuda_graph.n && strcmp(c->train.cuda_graph.item[0], "none");
    if (spread)
        note(v, "dispatcher", log_has(v, "dispatch  ", strcmp(dispatcher, "auto") ? dispatcher : ""),
             "moe.dispatcher = %s", dispatcher);
    if (fp8) note(v, "precision", log_has(v, "precision  ", c->train.precision), "%s", c->train.precision);
    if (!graphs) return;
    const Series *eager = series(v, 0, "perf/eager_phases");
    double last = at_step(eager, STEPS);
    note(v, "graphs", log_has(v, "CUDA graphs", "") && last <= 0, "%.0f phases of step %d ran eagerly", last,
         STEPS);
}

/* ---- the package ---- */

static Status write_csv(const Validation *v)
{
    static const char *const keys[] = { "train/loss", "train/grad_norm", "perf/step_time",
                                        "perf/tokens_per_second_per_gpu", "perf/tflops", "perf/mfu",
                                        KEY_MEASURED, KEY_PLANNED, "train/skipped_steps" };
    enum { KEYS = sizeof keys / sizeof *keys };
    Path path;
    TRY(path_join(path, v->folder, "steps.csv"));
    FILE *f = fopen(path, "w");
    if (!f) return fail(E_IO, "%s: %s", path, strerror(errno));
    fputs("step", f);
    for (int k = 0; k < KEYS; k++) fprintf(f, ",%s", keys[k]);
    for (int i = 1; i <= STEPS; i++) {
        fprintf(f, "\n%d", i);
        for (int k = 0; k < KEYS; k++) fprintf(f, ",%.9g", at_step(series(v, 0, keys[k]), i));
    }
    putc('\n', f);
    return fclose(f) ? fail(E_IO, "%s: %s", path, strerror(errno)) : OK;
}

static Json *summary(const Validation *v, bool ok)
{
    Json *o = json_object(), *checks = json_array();
    json_object_set_new(o, "accepted", json_boolean(ok));
    json_object_set_new(o, "ranks", json_integer(v->ask->ranks));
    json_object_set_new(o, "step_mean", json_real(v->mean));
    json_object_set_new(o, "step_min", json_real(v->least));
    json_object_set_new(o, "step_max", json_real(v->most));
    json_object_set_new(o, "step_cv", json_real(v->cv));
    for (int i = 0; i < v->checks; i++) {
        Json *c = json_object();
        json_object_set_new(c, "check", json_string(v->check[i].name));
        json_object_set_new(c, "ok", json_boolean(v->check[i].ok));
        json_object_set_new(c, "what", json_string(v->check[i].what));
        json_array_append_new(checks, c);
    }
    json_object_set_new(o, "checks", checks);
    return o;
}

static Status write_json(const char *folder, const char *name, Json *o)
{
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    Status st = text ? file_write_atomic(folder, name, text, strlen(text)) : fail(E_FIT, "no memory");
    free(text);
    json_decref(o);
    return st;
}

static Status write_package(const Validation *v, bool ok)
{
    Contract c;
    Json    *o = NULL;
    Path     from, to;
    TRY(write_csv(v));
    TRY(write_json(v->folder, "summary.json", summary(v, ok)));
    TRY(contract_read(&c, v->whole));
    Status st = contract_json(&o, &c);
    if (!st) st = write_json(v->folder, "contract.json", o);
    contract_close(&c);
    if (!st) st = path_join(from, v->whole, "recipe.yaml");
    if (!st) st = path_join(to, v->folder, "recipe.yaml");
    return st ? st : file_copy(from, to);
}

/* ---- the whole ---- */

static Status open(Validation *v)
{
    const ValidateAsk *a = v->ask;
    bool empty = false;
    TRY(config_open(&v->recipe, a->recipe, a->overrides, a->override));
    if (!*v->recipe.checkpoint.output_dir && !a->folder)
        return fail(E_CONFIG, "checkpoint.output_dir is not set: name a folder for the runs with --out");
    if (a->folder) snprintf(v->folder, sizeof v->folder, "%s", a->folder);
    else snprintf(v->folder, sizeof v->folder, "%.4000s-validate", v->recipe.checkpoint.output_dir);
    TRY(folder_is_empty(v->folder, &empty));
    if (!empty) return fail(E_CONFIG, "%s: the folder is not empty; name another one with --out", v->folder);
    return folder_make(v->folder);
}

static Status check_all(Validation *v)
{
    bool ok = true;
    TRY(run_whole(v));
    check_steps(v), check_window(v), check_used(v);
    TRY(check_memory(v));
    TRY(check_label(v));
    TRY(run_resumed(v));
    check_resume(v);
    TRY(run_baseline(v));
    check_loss(v);
    for (int i = 0; i < v->checks; i++) ok &= v->check[i].ok;
    TRY(write_package(v, ok));
    printf("%s: %s\n", v->folder, ok ? "accepted" : "refused");
    return ok ? OK : fail(E_CHECK, "%s is not accepted; %s/summary.json has the checks", v->ask->recipe,
                          v->folder);
}

Status validate_run(const ValidateAsk *ask)
{
    Validation *v = calloc(1, sizeof *v);
    if (!v) return fail(E_FIT, "no memory");
    v->ask = ask;
    Status st = open(v);
    if (!st) st = check_all(v);
    for (int i = 0; i < 3; i++)
        if (v->open[i]) run_close(&v->run[i]);
    config_close(&v->recipe);
    free(v);
    return st;
}
