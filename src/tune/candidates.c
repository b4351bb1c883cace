/* tune/candidates.c -- changes to try: those of --set, and a sweep over micro-batch, recompute, CUDA graphs
 * and offload that dry runs rank. */
#include "tune/tune.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double CAREFUL = 0.97;      /* of a GPU's memory: libraries take some that no plan has */

static bool on_gpu(const Tune *t) { return !strcmp(t->machine.backend, "cuda"); }

static bool fits(const Tune *t, double bytes)
{
    return bytes <= t->machine.available * (on_gpu(t) ? CAREFUL : 1);
}

static double predict(const Tune *t, const char *set)
{
    double before, after, bytes;
    if (tune_plan(t, "", &before, &bytes) || tune_plan(t, set, &after, &bytes) || after <= 0) return NAN;
    return before / after - 1;
}

/* ---- --set KEY=A|B|C ---- */

Status candidates_of_set(AbRound *r, Tune *t, const char *set)
{
    const char *eq = strchr(set, '=');
    if (!eq) return fail(E_CONFIG, "--set %s: write KEY=A|B|C", set);
    for (const char *at = eq + 1; r->n < AB_CANDIDATES; at += strcspn(at, "|") + 1) {
        AbCandidate *c = &r->candidate[r->n];
        *c = (AbCandidate){ .predicted = NAN };
        snprintf(c->set, sizeof c->set, "%.*s%.*s", (int)(eq + 1 - set), set, (int)strcspn(at, "|"), at);
        snprintf(c->why, sizeof c->why, "--set %.180s", set);
        Config copy = t->base;
        copy.keep = (MemPool){ 0 };
        Status st = config_set_all(&copy, c->set);
        mem_pool_close(&copy.keep);
        TRY(st);
        if (!tune_is_tried(t, c->set, false)) c->predicted = predict(t, c->set), r->n++;
        if (!at[strcspn(at, "|")]) break;
    }
    return OK;
}

/* ---- the sweep ---- */

typedef struct SweepPoint { char set[AB_SET]; double gain; } SweepPoint;

enum { SWEEP_POINTS = 512, SWEEP_TRIED = 3 };

static void list_text(char *out, size_t n, const WordList *w)
{
    size_t at = (size_t)snprintf(out, n, "[");
    for (int i = 0; i < w->n && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%s", i ? "," : "", w->item[i]);
    if (at < n) snprintf(out + at, n - at, "]");
}

__attribute__((format(printf, 3, 4))) static void add(char set[AB_SET], bool differs, const char *fmt, ...)
{
    va_list args;
    size_t  at = strlen(set);
    if (!differs) return;
    if (at && at + 1 < AB_SET) set[at++] = ' ', set[at] = 0;
    va_start(args, fmt);
    vsnprintf(set + at, AB_SET - at, fmt, args);
    va_end(args);
}

static void add_micro(char set[AB_SET], const Tune *t, int64_t factor)
{
    const struct cfg_train *c = &t->base.train;
    if (factor == 1) return;
    add(set, true, "train.micro_tokens=%lld", (long long)(c->micro_tokens * factor));
    add(set, t->tower, "train.micro_patches=%lld", (long long)(c->micro_patches * factor));
}

static void add_point(SweepPoint *p, int *n, Tune *t, const char *set, double base)
{
    double step, bytes;
    if (*n == SWEEP_POINTS || !*set || tune_is_tried(t, set, false)) return;
    if (tune_plan(t, set, &step, &bytes) || !fits(t, bytes) || step <= 0) return;
    snprintf(p[*n].set, AB_SET, "%s", set);
    p[(*n)++].gain = base / step - 1;
}

/* Sets that are for models with experts alone are refused or change nothing on other models. */
static const char *const recomputes[] = {
    "[]",
#define RECOMPUTE_SET(class, swept, when, list, in_words, forbids) swept ? "[" list "]" : NULL,
#include "engine/recompute_sets.def"
#undef RECOMPUTE_SET
    "[full]"
};
static const char *const graphs[] = { "[none]", "[attn,moe_router,moe_preprocess]", "[attn,mlp]", "[full]" };
enum { RECOMPUTES = sizeof recomputes / sizeof *recomputes, GRAPHS = sizeof graphs / sizeof *graphs };

static int sweep_micro(SweepPoint *p, int n, Tune *t, double base, int64_t factor)
{
    char own[2][96];
    double offload = t->base.memory.optimizer_offload;
    list_text(own[0], sizeof own[0], &t->base.memory.recompute);
    list_text(own[1], sizeof own[1], &t->base.train.cuda_graph);
    for (int i = 0; i < RECOMPUTES; i++)
        for (int k = 0; k < (on_gpu(t) ? GRAPHS : 1); k++)
            for (int o = 0; o < 1 + (offload > 0); o++) {
                char set[AB_SET] = "";
                if (!recomputes[i]) continue;
                add_micro(set, t, factor);
                add(set, strcmp(own[0], recomputes[i]), "memory.recompute=%s", recomputes[i]);
                add(set, on_gpu(t) && strcmp(own[1], graphs[k]), "train.cuda_graph=%s", graphs[k]);
                add(set, o, "memory.optimizer_offload=%g", offload > 0.5 ? offload / 2 : 0);
                add_point(p, &n, t, set, base);
            }
    return n;
}

/* The largest gain first; of equals the shorter change. */
static int by_gain(const void *a, const void *b)
{
    const SweepPoint *x = a, *y = b;
    double d = y->gain - x->gain;
    if (fabs(d) > 1e-4) return d > 0 ? 1 : -1;
    return (int)strlen(x->set) - (int)strlen(y->set);
}

static void take(AbRound *r, const SweepPoint *p, const char *why, int of)
{
    AbCandidate *c = &r->candidate[r->n++];
    *c = (AbCandidate){ .predicted = p->gain };
    memcpy(c->set, p->set, sizeof c->set);
    snprintf(c->why, sizeof c->why, "%s, of %d points that dry runs rank", why, of);
}

/* How long a step waits for launches is what plans know least: graphs alone are tried before the end. */
static void take_graphs(AbRound *r, const SweepPoint *p, int n)
{
    for (int i = 0; i < n && r->n < SWEEP_TRIED; i++)
        if (p[i].gain > -0.01 && !strncmp(p[i].set, "train.cuda_graph", 16) && !strchr(p[i].set, ' '))
            take(r, &p[i], "CUDA graphs alone: plans know waits for launches least", n);
}

Status candidates_of_sweep(AbRound *r, Tune *t)
{
    double base, bytes, least = t->retest ? -0.02 : t->noise;
    SweepPoint *p = malloc(SWEEP_POINTS * sizeof *p);
    int n = 0;
    if (!p) return fail(E_FIT, "no memory for a sweep");
    Status st = tune_plan(t, "", &base, &bytes);
    for (int64_t factor = 1; !st && factor <= 16; factor *= 2) n = sweep_micro(p, n, t, base, factor);
    qsort(p, (size_t)n, sizeof *p, by_gain);
    for (int i = 0; i < n && r->n < SWEEP_TRIED && p[i].gain >= least; i++)
        take(r, &p[i], "sweep of micro-batch, recompute, graphs and offload: the best", n);
    if (!r->n) take_graphs(r, p, n);
    free(p);
    return st;
}
