/* plan/auto.c -- see auto.h: the search for the sections that are left to the planner. */
#include "plan/auto.h"

#include "plan/dryrun.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TRIALS = 200, ENOUGH = 8, SETTING = 128 };

static const double GIB = 1 << 30;
static const double CLOSE = 0.02;        /* times so close count as equal: the search's order decides */
static const double CAREFUL = 0.97;      /* of a GPU's free memory: libraries take some that no plan has */

/* A layout with its memory settings. */
typedef struct Trial {
    LayoutKeys keys;
    char       layout[96], memory[SETTING];
    double     bytes, step;              /* of the fullest rank; predicted seconds */
    Status     status;                   /* of its dry run */
} Trial;

typedef struct Chooser {
    const AutoAsk *ask;
    ModelShape     shape;
    ModelRow       model;
    LoraCost       lora;
    bool           adapters;             /* lora is open */
    bool           layouts, memory;      /* are chosen */
    bool           asked;                /* the recipe says parallel: auto */
    int64_t        global_tokens;
    unsigned       rung[RUNGS];          /* words of memory.recompute, each step saves more */
    int            rungs, offloads;      /* steps of the two ladders of section memory */
    int            trials, fitted;
    Trial          plain, best, trial;
    double         next;                 /* seconds of the second best, 0: none */
} Chooser;

static bool on_gpu(const Chooser *x) { return !strcmp(x->ask->hw.backend, "cuda"); }

static double limit(const Chooser *x) { return x->ask->available * (on_gpu(x) ? CAREFUL : 1); }

/* ---- one trial ---- */

/* Overrides in one text, with blanks between them. */
static Status apply_setting(Config *c, const char *set)
{
    for (const char *at = set; *at; at += strspn(at, " ")) {
        char one[SETTING];
        size_t n = strcspn(at, " ");
        snprintf(one, sizeof one, "%.*s", (int)n, at);
        TRY(config_set(c, one));
        at += n;
    }
    return OK;
}

static void measure(Chooser *x, Trial *t)
{
    const AutoAsk *a = x->ask;
    Config c = *a->recipe;
    DryRun d;
    c.keep = (MemPool){ 0 };                             /* only texts of the overrides are freed below */
    t->status = layout_keys_apply(&c, &t->keys);
    if (!t->status) t->status = apply_setting(&c, t->memory);
    if (!t->status) t->status = dryrun_open(&d, &c, a->ranks, a->per_node, &a->hw);
    if (!t->status) {
        t->bytes = (double)dryrun_peak(&d, NULL), t->step = d.step.step;
        dryrun_close(&d);
    }
    mem_pool_close(&c.keep);
    x->trials++;
}

static const double offloads[] = { 0, 0.25, 0.5, 0.75, 1 };

static bool fits(Chooser *x, Trial *t, int rung, int offload)
{
    char   words[96];
    size_t at = 0;
    search_words_text(words, sizeof words, x->rung[rung], ",");
    *t->memory = 0;
    if (*words) at += (size_t)snprintf(t->memory, sizeof t->memory, "memory.recompute=[%s]", words);
    if (offload)
        snprintf(t->memory + at, sizeof t->memory - at, "%smemory.optimizer_offload=%g", at ? " " : "",
                 offloads[offload]);
    measure(x, t);
    return !t->status && t->bytes <= limit(x);
}

/* The least offload, and with it the least recompute from `rung` on, that fit. The most recompute is tried
 * first: if that does not fit, less does not. */
static bool settle(Chooser *x, Trial *t, int rung)
{
    int last = x->rungs - 1;
    for (int k = 0; k < x->offloads; k++) {
        if (fits(x, t, rung, k)) return true;
        if (rung == last || (!fits(x, t, last, k) && !t->status)) continue;
        for (int i = rung + 1; i <= last; i++)
            if (fits(x, t, i, k)) return true;
    }
    return false;
}

/* ---- what is tried ---- */

/* The row of states_at that is nearest to the recipe. */
static int states_of(const Config *c)
{
    if (!strcmp(c->optim.state_dtype, "int8")) return 4;
    if (!strcmp(c->optim.grad_dtype, "bfloat16")) return 3;
    return !strcmp(c->optim.state_dtype, "bfloat16") ? 2 : !strcmp(c->optim.master, "split");
}

static void set_ask(SearchAsk *a, const Chooser *x, bool limited)
{
    const Config *c = x->ask->recipe;
    const struct cfg_train *t = &c->train;
    search_default(a);
    a->fix.mbs = 1, a->top = 1, a->dry = false, a->fix.overlap = c->moe.overlap;
    a->fix.states = states_of(c);
    a->task = (Task){ .model = &x->model, .hw = x->ask->hw, .gpus = x->ask->ranks, .seq = t->micro_tokens,
                      .gbs = x->global_tokens / t->micro_tokens, .imbalance = 1.15,
                      .patches = x->shape.vision.depth ? t->micro_patches : 0,
                      .frozen_vision = c->model.freeze_vit };
    a->task.hw.domain = x->ask->per_node;
    a->task.hw.capacity = limited ? x->ask->available + x->ask->hw.fixed : 1e18;
    if (x->adapters) a->task.lora = &x->lora, a->adapters = c, a->task.base_bytes = search_base_bytes(c);
}

/* Without section memory to choose each ladder has one step: the recipe's own. */
static void make_ladders(Chooser *x)
{
    SearchAsk a;
    x->rungs = x->offloads = 1;
    if (!x->memory) return;
    set_ask(&a, x, false);
    x->rungs = space_rungs(x->rung, &a);
    if (on_gpu(x)) x->offloads = sizeof offloads / sizeof *offloads;
}

static void consider(Chooser *x)
{
    bool better = !x->fitted++ || x->trial.step < (1 - CLOSE) * x->best.step;
    double second = better ? x->best.step : x->trial.step;
    if (x->fitted > 1 && (x->next <= 0 || second < x->next)) x->next = second;
    if (better) x->best = x->trial;
}

static void try_found(Chooser *x, const Search *s, bool limited)
{
    Trial *t = &x->trial;
    for (int i = 0; i < s->n && x->trials < MOST_TRIALS && x->fitted < ENOUGH; i++) {
        const FoundLayout *f = &s->found[i];
        if (!layout_is_new(s, i)) continue;
        *t = (Trial){ .bytes = 0 };
        layout_keys_set(&t->keys, x->ask->recipe, &f->c, (int)x->shape.text.L);
        layout_key_number(&t->keys, "train.global_tokens", x->ask->recipe->train.global_tokens,
                          x->global_tokens);
        layout_text(t->layout, sizeof t->layout, &s->ask, &f->c);
        if (f->c.zero == 3) strcat(t->layout, " zero3");
        if (settle(x, t, limited && f->rung < x->rungs ? f->rung : 0)) consider(x);
    }
}

/* limited: the search itself leaves out what the analytic model finds too large. */
static Status try_layouts(Chooser *x, bool limited)
{
    SearchAsk a;
    Search   *s = malloc(sizeof *s);
    if (!s) return fail(E_FIT, "no memory for a search");
    set_ask(&a, x, limited);
    Status st = search_open(s, &a);
    if (!st) {
        try_found(x, s, limited);
        search_close(s);
    }
    free(s);
    return st;
}

/* On CPU ranks, which may hold float32 weights, the analytic model's bytes do not count. */
static Status try_all(Chooser *x)
{
    x->trial = x->plain;
    if (!x->layouts) {
        if (settle(x, &x->trial, 0)) consider(x);
        return OK;
    }
    if (on_gpu(x) && x->memory) TRY(try_layouts(x, true));
    return x->fitted ? OK : try_layouts(x, false);
}

/* ---- the choice in words ---- */

/* "61.20 GiB", or "3.4 MiB". */
static const char *size_text(char text[24], double bytes)
{
    bool small = bytes < 0.1 * GIB;
    snprintf(text, 24, "%.2f %s", bytes / (small ? GIB / 1024 : GIB), small ? "MiB" : "GiB");
    return text;
}

static void explain_why(Chooser *x, TextLines *l, const char *refusal)
{
    const Trial *p = &x->plain;
    char need[24], there[24];
    if (*refusal) lines_add(l, "why          %s alone is refused: %.150s", p->layout, refusal);
    else if (p->bytes > x->ask->available)
        lines_add(l, "why          with %s alone the fullest rank needs %s, and may take %s", p->layout,
                  size_text(need, p->bytes), size_text(there, x->ask->available));
    else
        lines_add(l, "why          predicted to be %.0f %% faster than %s",
                  100 * (p->step / x->best.step - 1), p->layout);
}

static void explain(AutoChoice *a, Chooser *x, const char *refusal)
{
    const Trial *b = &x->best;
    char next[48] = "", keys[200] = "", need[24], there[24];
    size_t at = 0;
    if (x->next > 0) snprintf(next, sizeof next, ", the next best %.3g s", x->next);
    for (int i = 0; i < a->keys.n && at < sizeof keys; i++)
        at += (size_t)snprintf(keys + at, sizeof keys - at, " %s", a->keys.at[i]);
    if (x->layouts) lines_add(&a->lines, "auto         %s on %d ranks%s%s", b->layout, x->ask->ranks,
                              *b->memory ? ", " : "", b->memory);
    else            lines_add(&a->lines, "auto         %s", b->memory);
    explain_why(x, &a->lines, refusal);
    lines_add(&a->lines, "             the fullest rank takes %s of %s", size_text(need, b->bytes),
              size_text(there, x->ask->available));
    lines_add(&a->lines, "             predicted %.3g s a step by the rates of %s%s; %d dry runs", b->step,
              x->ask->hw.id, next, x->trials);
    lines_add(&a->lines, "             in the run's recipe as%s", keys);
}

static void choose(AutoChoice *a, Chooser *x, const char *refusal)
{
    const Trial *b = &x->best;
    a->keys = b->keys;
    for (const char *at = b->memory; *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        layout_key(&a->keys, "%.*s", (int)n, at);
        at += n;
    }
    explain(a, x, refusal);
}

/* ---- the whole ---- */

static void set_plain(Chooser *x)
{
    const struct cfg_parallel *p = &x->ask->recipe->parallel;
    int64_t dp = x->ask->ranks / (p->tp * p->cp * p->pp);
    if (x->layouts) snprintf(x->plain.layout, sizeof x->plain.layout, "dp%d", x->ask->ranks);
    else snprintf(x->plain.layout, sizeof x->plain.layout, "the recipe's layout");
    const struct cfg_train *t = &x->ask->recipe->train;
    x->global_tokens = t->global_tokens ? t->global_tokens : t->micro_tokens * (dp > 1 ? dp : 1);
}

static Status find(AutoChoice *a, Chooser *x)
{
    char refusal[200] = "";
    set_plain(x);
    measure(x, &x->plain);
    bool plain = !x->plain.status && x->plain.bytes <= x->ask->available;
    if (x->plain.status) snprintf(refusal, sizeof refusal, "%s", status_text());
    if (plain && !(x->asked && x->layouts)) return OK;
    make_ladders(x);
    TRY(try_all(x));
    bool faster = x->fitted && x->best.step * (1 + x->ask->hw.error) < x->plain.step;
    if (x->fitted && (!plain || faster)) choose(a, x, refusal);
    else if (plain)
        lines_add(&a->lines, "auto         %s fits and no layout is predicted to be faster by more than the "
                  "error of predictions, %.0f %%", x->plain.layout, 100 * x->ask->hw.error);
    return OK;
}

static Status open(Chooser *x)
{
    const Config *c = x->ask->recipe;
    const struct cfg_model *m = &c->model;
    char from[160];
    bool memory;
    x->layouts = config_is_auto(c, "parallel", &x->asked) && x->ask->ranks > 1;
    x->memory = config_is_auto(c, "memory", &memory);
    TRY(dryrun_shape(&x->shape, from, sizeof from, m));
    TRY(recipe_shape(&x->shape, c));
    x->model = (ModelRow){ .name = "recipe", .preset = *m->preset ? m->preset : m->path,
                           .text = x->shape.text, .vision = x->shape.vision };
    x->adapters = c->lora.rank || *c->lora.path;
    return x->adapters ? lora_cost_open(&x->lora, &x->model, c, x->shape.vision.depth > 0) : OK;
}

/* A recipe that cannot be planned is left to the run, which says why. */
Status auto_find(AutoChoice *a, const AutoAsk *ask)
{
    Chooser *x = calloc(1, sizeof *x);
    *a = (AutoChoice){ .keys = { 0 } };
    if (!x) return fail(E_FIT, "no memory for a search");
    x->ask = ask;
    Status st = open(x);
    if (!st && (x->layouts || x->memory)) st = find(a, x);
    if (st) *a = (AutoChoice){ .keys = { 0 } };
    if (x->adapters) lora_cost_close(&x->lora);
    free(x);
    return OK;
}
