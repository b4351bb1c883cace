/* tune/tune.c -- see tune.h: the rounds. */
#include "tune/tune.h"

#include "base/clock.h"
#include "base/str.h"
#include "plan/auto.h"
#include "plan/dryrun.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_RUNS = 3 };                 /* of a round with one candidate: B B A */

static const double QUIET = 0.003;       /* differences below this are never taken for a gain */
static const double CLEAR = 0.04;        /* those above this, and CLEAR_NOISE times the noise, need one run */
static const double CLEAR_NOISE = 5;

Status tune_seconds(double *seconds, const char *text)
{
    char  *end;
    double n = strtod(text, &end);
    double unit = !strcmp(end, "s") || !*end ? 1 : !strcmp(end, "m") ? 60 : !strcmp(end, "h") ? 3600 : 0;
    if (end == text || unit <= 0 || !(n > 0) || n * unit > 1e7)
        return fail(E_CONFIG, "--budget %s: write a time such as 90s, 30m or 2h", text);
    return *seconds = n * unit, OK;
}

static double left(const Tune *t)
{
    return t->ask->budget > 0 ? t->ask->budget - (clock_now() - t->started) : 1e9;
}

/* ---- one round ---- */

static void note_noise(Tune *t, double spread)
{
    if (isnan(spread)) return;
    t->noise = (t->noise * t->pairs + spread) / (t->pairs + 1);
    t->pairs++, t->worst = fmax(t->worst, spread);
    if (t->noise < QUIET) t->noise = QUIET;
}

static void note_cost(Tune *t, const AbRound *r)
{
    double sum = 0;
    int    n = 0;
    for (int i = -1; i < r->n; i++) {
        const AbCandidate *c = i < 0 ? &r->base : &r->candidate[i];
        for (int k = i < 0; k < c->runs; k++) sum += c->run[k].seconds, n++;
    }
    if (n) t->cost = sum / n;
}

static Status note_entry(Tune *t, const AbRound *r, int i, bool kept)
{
    const AbCandidate *c = &r->candidate[i];
    if (t->entries == TUNE_TRIED) return OK;
    TuneEntry *e = &t->entry[t->entries++];
    const Trial *last = &c->run[c->runs > 1 && !c->run[0].end];
    *e = (TuneEntry){ .round = t->rounds, .predicted = c->predicted, .gain = c->gain, .noise = t->noise,
                      .base_step = r->base.run[0].step, .step = last->step, .peak = last->peak,
                      .end = last->end, .kept = kept, .label = r->label };
    memcpy(e->set, c->set, sizeof e->set), memcpy(e->why, c->why, sizeof e->why);
    memcpy(e->failure, last->why, sizeof e->failure);
    return tune_write_entry(t, e);
}

static void keep_base(Tune *t, const AbCandidate *c)
{
    const Trial *first = &c->run[0], *last = &c->run[c->runs - 1];
    t->rate = (first->rate + last->rate) / 2, t->step = (first->step + last->step) / 2;
    t->last = *last;
}

/* A change of dispatcher or precision: what fits and what launches cost is another question then. */
static bool moves_much(const char *set)
{
    return strstr(set, "moe.dispatcher") || strstr(set, "train.precision") || strstr(set, "moe.overlap");
}

static void print_entry(const TuneEntry *e)
{
    char predicted[40] = "";
    if (!isnan(e->predicted))
        snprintf(predicted, sizeof predicted, ", predicted %+.1f %%", 100 * e->predicted);
    if (e->end) printf("  -> %s: %s\n", e->set, trial_word(e->end));
    else
        printf("  -> %s: %+.1f %%%s, noise %.1f %%: %s\n", e->set, 100 * e->gain, predicted, 100 * e->noise,
               e->kept ? "kept" : "not kept");
}

static Status decide(Tune *t, const AbRound *r)
{
    int best = ab_winner(r, t->noise), from = t->entries;
    for (int i = 0; i < r->n; i++) TRY(note_entry(t, r, i, i == best));
    for (int i = from; i < t->entries; i++) print_entry(&t->entry[i]);
    keep_base(t, best < 0 ? &r->base : &r->candidate[best]);
    if (best < 0) return OK;
    t->retest |= moves_much(r->candidate[best].set);
    TRY(config_set_all(&t->base, r->candidate[best].set));
    return tune_write_best(t);
}

/* Where time is short, fewer candidates of a key leave some for other keys. */
static bool affordable(Tune *t, AbRound *r)
{
    while (r->n > 1 && left(t) < t->cost * (2 * r->n + 1 + 2 * LEAST_RUNS)) r->n--;
    if (left(t) >= t->cost * LEAST_RUNS) return true;
    snprintf(t->end, sizeof t->end, "the budget of %.0f s is spent: another round takes about %.0f s, %.0f s "
             "are left", t->ask->budget, t->cost * LEAST_RUNS, fmax(0, left(t)));
    return false;
}

/* ended: there is nothing to run, or no time for it. */
static Status run_round(Tune *t, AbRound *r, bool *ended)
{
    *ended = !r->n || !affordable(t, r);
    if (*ended) return OK;
    printf("round %d: %s\n", ++t->rounds, r->candidate[0].why);
    for (int i = 0; i < r->n; i++) tune_is_tried(t, r->candidate[i].set, true);
    r->base.run[0] = t->last, r->base.runs = 1;
    r->clear = t->pairs ? fmax(CLEAR, CLEAR_NOISE * t->worst) : 0;
    TRY(ab_run(r, &t->conf, &t->base, &t->number));
    note_noise(t, r->noise);
    note_cost(t, r);
    return decide(t, r);
}

/* ---- the whole ---- */

/* One run of the recipe as given: the wall it shows decides what is tried first. */
static Status measure_first(Tune *t)
{
    Trial x;
    TRY(trial_run(&x, &t->conf, &t->base, "000"));
    t->number = 1, t->cost = x.seconds, t->last = x;
    if (x.end) return fail(E_CHECK, "the recipe itself %s: %s", trial_word(x.end), x.why);
    t->first_rate = t->rate = x.rate, t->first_step = t->step = x.step;
    printf("the recipe: %.4g s a step, %.4g tokens/s, %.1f GiB (planned %.1f); a run takes %.1f s\n", x.step,
           x.rate, x.peak, x.planned, x.seconds);
    return OK;
}

static Status tune_sets(Tune *t, AbRound *r)
{
    bool ended = false;
    for (int i = 0; i < t->ask->sets && !*t->end; i++) {
        *r = (AbRound){ .n = 0 };
        TRY(candidates_of_set(r, t, t->ask->set[i]));
        TRY(run_round(t, r, &ended));
    }
    while (t->retest && !*t->end) {
        *r = (AbRound){ .n = 0 }, t->retest = false;
        TRY(candidates_of_sweep(r, t));
        TRY(run_round(t, r, &ended));
    }
    return OK;
}

static Status tune_auto(Tune *t, AbRound *r)
{
    bool ended = false;
    while (!ended && !*t->end) {
        *r = (AbRound){ .n = 0 };
        if (!t->retest) TRY(candidates_of_diagnose(r, t));
        if (!r->n) {
            TRY(candidates_of_sweep(r, t));
            t->retest = false;
        }
        TRY(run_round(t, r, &ended));
    }
    return OK;
}

static Status run_rounds(Tune *t)
{
    AbRound *r = malloc(sizeof *r);
    if (!r) return fail(E_FIT, "no memory for a round");
    Status st = measure_first(t);
    if (!st) st = t->ask->sets ? tune_sets(t, r) : tune_auto(t, r);
    if (!st && !*t->end)
        snprintf(t->end, sizeof t->end, t->ask->sets ? "every value was measured"
                 : "no change that was not tried is predicted to give more than the noise, %.1f %%",
                 100 * t->noise);
    free(r);
    return st;
}

/* Fills sections that are left to the planner, and fixes the tokens of a step. */
static Status resolve(Tune *t)
{
    Config *c = &t->base;
    AutoAsk ask = { .recipe = c, .ranks = t->ask->ranks, .per_node = t->ask->ranks, .hw = t->machine.hw,
                    .available = t->machine.available };
    AutoChoice *a = malloc(sizeof *a);
    if (!a) return fail(E_FIT, "no memory for a search");
    Status st = auto_find(a, &ask);
    if (!st) st = layout_keys_apply(c, &a->keys);
    free(a);
    TRY(st);
    const struct cfg_parallel *p = &c->parallel;
    int64_t dp = t->ask->ranks / (p->tp * p->cp * p->pp);
    if (!c->train.global_tokens) c->train.global_tokens = c->train.micro_tokens * (dp > 1 ? dp : 1);
    c->parallel.ranks = t->ask->ranks;
    c->auto_parallel = c->auto_memory = false;
    return OK;
}

static Status open(Tune *t)
{
    const TuneAsk *a = t->ask;
    bool empty = false;
    char from[160];
    ModelShape shape;
    TRY(config_open(&t->base, a->recipe, a->overrides, a->override));
    if (!*t->base.checkpoint.output_dir && !a->folder)
        return fail(E_CONFIG, "checkpoint.output_dir is not set: name a folder for the runs with --out");
    if (a->folder) snprintf(t->folder, sizeof t->folder, "%s", a->folder);
    else snprintf(t->folder, sizeof t->folder, "%.4000s-tune", t->base.checkpoint.output_dir);
    TRY(folder_is_empty(t->folder, &empty));
    if (!empty) return fail(E_CONFIG, "%s: the folder is not empty; name another one with --out", t->folder);
    TRY(path_join(t->runs, t->folder, "runs"));
    TRY(folder_make(t->runs));
    TRY(machine_ask(&t->machine, &t->base, a->ranks));
    TRY(dryrun_shape(&shape, from, sizeof from, &t->base.model));
    t->tower = shape.vision.depth > 0;
    t->conf = (TrialConf){ .folder = t->runs, .ranks = a->ranks, .warmup = a->warmup, .window = a->window,
                           .limit = a->budget };
    return resolve(t);
}

static void print_end(const Tune *t)
{
    printf("%s\n", t->end);
    printf("from %.4g to %.4g tokens/s: %+.1f %%, %.4g to %.4g s a step, in %d runs and %.0f s\n",
           t->first_rate, t->rate, 100 * (t->rate / t->first_rate - 1), t->first_step, t->step, t->number,
           clock_now() - t->started);
    printf("%s/best.yaml, tune.jsonl, tune.html\n", t->folder);
}

Status tune_run(const TuneAsk *ask)
{
    Tune *t = calloc(1, sizeof *t);
    if (!t) return fail(E_FIT, "no memory");
    t->ask = ask, t->started = clock_now(), t->noise = QUIET;
    Status st = open(t);
    if (!st) st = run_rounds(t);
    if (!st) st = tune_write_best(t);
    if (!st) st = tune_write_page(t);
    if (!st) print_end(t);
    config_close(&t->base);
    free(t);
    return st;
}
