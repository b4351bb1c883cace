/* plan/relayout.c -- see relayout.h. */
#include "plan/relayout.h"

#include "plan/dryrun.h"
#include "plan/search.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DRY_RUNS = 16, MOST_COUNTS = 8 };    /* for one number of ranks; legal numbers of ranks */

typedef struct Relayouter {
    const RelayoutAsk *ask;
    Config     recipe;
    ModelShape shape;
    ModelRow   model;
    Hardware   hw;
    int64_t    global_tokens;
    LoraCost   lora;
    bool       adapters;                 /* lora is open */
    char       refused[320];             /* why the first candidate was not taken */
} Relayouter;

static void set_keys(Relayout *r, const Relayouter *x, const Candidate *f)
{
    const Config *c = &x->recipe;
    r->keys.n = 0;
    layout_keys_set(&r->keys, c, f, (int)x->shape.text.L);
    if (strcmp(c->moe.dispatcher, "auto")) layout_key(&r->keys, "moe.dispatcher=auto");
    if (c->moe.overlap != f->overlap) layout_key(&r->keys, "moe.overlap=%s", f->overlap ? "true" : "false");
    layout_key_number(&r->keys, "moe.ranks_per_domain", c->moe.ranks_per_domain, 0);
    layout_key_number(&r->keys, "comm.ranks_per_node", c->comm.ranks_per_node, 0);
    layout_key_number(&r->keys, "train.global_tokens", c->train.global_tokens, x->global_tokens);
}

/* ---- trying candidates ---- */

static Status open_changed(Config *c, const Relayouter *x, const Relayout *r)
{
    Status st = config_open(c, x->ask->recipe, x->ask->overrides, x->ask->override);
    if (st) return st;
    st = layout_keys_apply(c, &r->keys);
    if (st) config_close(c);
    return st;
}

/* Memory of the fullest rank; an error if the trainer refuses the layout. */
static Status measure(double *peak, const Relayouter *x, const Relayout *r, int per_node)
{
    Config c;
    DryRun d;
    TRY(open_changed(&c, x, r));
    Status st = dryrun_open(&d, &c, r->ranks, per_node, NULL);
    if (!st) {
        *peak = (double)dryrun_peak(&d, NULL);
        dryrun_close(&d);
    }
    config_close(&c);
    return st;
}

static void explain(Relayout *r, const Relayouter *x, const Search *s, int tried, double peak)
{
    r->step = s->found[tried].step;
    layout_text(r->layout, sizeof r->layout, &s->ask, &s->found[tried].c);
    snprintf(r->reason, sizeof r->reason,
             "the fastest by the planner's search that fits: %.3g s a step, %.3g of %.3g GiB of %s", r->step,
             peak / (1 << 30), (x->hw.capacity - x->hw.fixed) / (1 << 30), x->hw.id);
}

/* True: r is filled. */
static bool try_found(Relayout *r, Relayouter *x, const Search *s)
{
    int dry = 0, per_node = s->ask.task.hw.domain < r->ranks ? s->ask.task.hw.domain : r->ranks;
    for (int i = 0; i < s->n && dry < MOST_DRY_RUNS; i++) {
        double peak = 0;
        if (!layout_is_new(s, i)) continue;
        set_keys(r, x, &s->found[i].c);
        Status st = measure(&peak, x, r, per_node);
        dry++;
        if (!st && fit_of(peak, &x->hw) != FIT_NOT) return explain(r, x, s, i, peak), true;
        if (*x->refused) continue;
        if (!st) st = fail(E_FIT, "%d ranks need %.1f GiB each", r->ranks, peak / (1 << 30));
        snprintf(x->refused, sizeof x->refused, "%.300s", status_text());
    }
    return false;
}

static void set_ask(SearchAsk *a, const Relayouter *x, int ranks)
{
    const struct cfg_train *t = &x->recipe.train;
    search_default(a);
    a->fix.mbs = 1, a->top = 1, a->dry = false;
    a->task = (Task){ .model = &x->model, .hw = x->hw, .gpus = ranks, .seq = t->micro_tokens,
                      .gbs = x->global_tokens / t->micro_tokens, .imbalance = 1.15,
                      .patches = x->shape.vision.depth ? t->micro_patches : 0,
                      .frozen_vision = x->recipe.model.freeze_vit };
    a->task.hw.domain = x->ask->per_node < ranks ? x->ask->per_node : ranks;
    if (!x->adapters) return;
    a->task.lora = &x->lora, a->adapters = &x->recipe;
    a->task.base_bytes = search_base_bytes(&x->recipe);
}

static Status try_ranks(Relayout *r, Relayouter *x, int ranks, bool *found)
{
    SearchAsk a;
    Search   *s = malloc(sizeof *s);
    if (!s) return fail(E_FIT, "no memory for a search");
    *r = (Relayout){ .ranks = ranks };
    set_ask(&a, x, ranks);
    Status st = search_open(s, &a);
    if (!st) *found = try_found(r, x, s);
    if (!st && !s->n && !*x->refused)
        snprintf(x->refused, sizeof x->refused, "%.300s",
                 s->refusals ? s->refused[0].why : "no layout is legal");
    if (!st) search_close(s);
    free(s);
    return st;
}

static Status open_recipe(Relayouter *x)
{
    const struct cfg_parallel *p = &x->recipe.parallel;
    const struct cfg_train *t = &x->recipe.train;
    const struct cfg_model *m = &x->recipe.model;
    char from[160];
    TRY(dryrun_shape(&x->shape, from, sizeof from, &x->recipe.model));
    TRY(recipe_shape(&x->shape, &x->recipe));
    x->model = (ModelRow){ .name = "recipe", .preset = *m->preset ? m->preset : m->path,
                           .text = x->shape.text, .vision = x->shape.vision };
    int64_t dp = x->ask->was / (p->tp * p->cp * p->pp);
    x->global_tokens = t->global_tokens ? t->global_tokens : t->micro_tokens * (dp > 1 ? dp : 1);
    TRY(hardware_here(&x->hw, x->recipe.device.backend, x->ask->per_node));
    x->adapters = x->recipe.lora.rank || *x->recipe.lora.path;
    return x->adapters ? lora_cost_open(&x->lora, &x->model, &x->recipe, x->shape.vision.depth > 0) : OK;
}

/* Tries numbers of ranks from the most down to half of them, and further if none has a layout so far. */
static Status find(Relayout *best, Relayouter *x)
{
    Relayout r;
    int      counts = 0, most = x->ask->most;
    TRY(open_recipe(x));
    for (int n = most; n >= x->ask->least && n > 0 && counts < MOST_COUNTS; n--) {
        bool found = false;
        if (counts && 2 * n < most) break;
        TRY(try_ranks(&r, x, n, &found));
        if (found && (!counts || r.step * (1 + x->hw.error) < best->step)) *best = r;
        counts += found;
    }
    if (counts) return OK;
    return fail(E_FIT, "no layout of this recipe is legal and fits on %d ranks%s: %s", x->ask->most,
                x->ask->most > x->ask->least ? " or fewer" : "", x->refused);
}

Status relayout_find(Relayout *r, const RelayoutAsk *ask)
{
    Relayouter *x = calloc(1, sizeof *x);
    if (!x) return fail(E_FIT, "no memory for a search");
    x->ask = ask;
    Status st = config_open(&x->recipe, ask->recipe, ask->overrides, ask->override);
    if (!st) {
        st = find(r, x);
        if (x->adapters) lora_cost_close(&x->lora);
        config_close(&x->recipe);
    }
    free(x);
    return st;
}
