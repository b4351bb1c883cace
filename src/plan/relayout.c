/* plan/relayout.c -- see relayout.h. */
#include "plan/relayout.h"

#include "plan/dryrun.h"
#include "plan/search.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* ---- this machine ---- */

static bool names_row(const char *device, const char *id)
{
    size_t n = strcspn(id, "-");
    for (const char *at = device; *at; at++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)at[i]) == id[i]) i++;
        if (i == n && (at == device || !isalnum((unsigned char)at[-1]))) return true;
    }
    return false;
}

/* `this` if it was measured on the recipe's backend, else the row of the GPU by its name; for CPU ranks each
 * one's share of the memory. */
static Status find_hardware(Hardware *h, const char *asked, int per_node)
{
    char device[256] = "";
    const char *backend = !strcmp(asked, "auto") && strstr(backend_names(), "cuda") ? "cuda" : asked;
    bool cuda = !strcmp(backend, "cuda");
    if (cuda) backend_describe("cuda", device, sizeof device);
    if (!hardware_find(h, "this") && !strcmp(h->backend, cuda ? "cuda" : "cpu")) return OK;
    for (int i = 0; cuda && hardware_at(i); i++)
        if (names_row(device, hardware_at(i))) return hardware_find(h, hardware_at(i));
    TRY(hardware_find(h, cuda ? "h100" : "cpu"));
    if (!cuda) h->capacity = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / per_node;
    return OK;
}

/* ---- a candidate as overrides ---- */

__attribute__((format(printf, 2, 3))) static void add_key(Relayout *r, const char *fmt, ...)
{
    va_list args;
    REQUIRE(r->keys < RELAYOUT_KEYS, "more than %d keys of a layout", RELAYOUT_KEYS);
    va_start(args, fmt);
    vsnprintf(r->key[r->keys++], RELAYOUT_TEXT, fmt, args);
    va_end(args);
}

static void add_number(Relayout *r, const char *key, int64_t is, int64_t want)
{
    if (is != want) add_key(r, "%s=%lld", key, (long long)want);
}

/* ZeRO 0 to 2 are one family of the search: the recipe decides between them. */
static int64_t zero_stage(const Config *c, const Candidate *found)
{
    if (found->zero == 3) return 3;
    return c->parallel.zero < 3 ? c->parallel.zero : 1;
}

static void add_degrees(Relayout *r, const Config *c, const Candidate *f)
{
    const struct cfg_parallel *p = &c->parallel;
    add_number(r, "parallel.tp", p->tp, f->tp);
    add_number(r, "parallel.cp", p->cp, f->cp);
    add_number(r, "parallel.pp", p->pp, f->pp);
    add_number(r, "parallel.vpp", p->vpp, f->vpp);
    add_number(r, "parallel.ep", p->ep, f->ep);
    add_number(r, "parallel.etp", p->etp, f->etp);
    add_number(r, "parallel.zero", p->zero, zero_stage(c, f));
    add_number(r, "parallel.replicas", p->replicas, 1);
    if (f->cp_inner > 1) add_key(r, "parallel.cp_sizes=[%d, %d]", f->cp_inner, f->cp / f->cp_inner);
    else if (p->cp_sizes.n) add_key(r, "parallel.cp_sizes=[]");
    const char *comm = f->cp_inner > 1 ? "a2a+p2p" : "p2p";
    if (strcmp(p->cp_comm, comm)) add_key(r, "parallel.cp_comm=%s", comm);
}

static void add_stages(Relayout *r, const Config *c, const Candidate *f, int layers)
{
    const struct cfg_parallel *p = &c->parallel;
    LayerSplit split = { 0 };
    if (f->pp > 1) space_split(&split, layers, f->pp, f->vpp);
    if (strcmp(p->layout, split.string)) add_key(r, "parallel.layout=\"%s\"", split.string);
    add_number(r, "parallel.first_layers", p->first_layers, 0);
    add_number(r, "parallel.last_layers", p->last_layers, 0);
    add_number(r, "parallel.microbatch_group", p->microbatch_group, 0);
    if (p->count_embedding != split.embedding)
        add_key(r, "parallel.count_embedding=%s", split.embedding ? "true" : "false");
    if (p->count_loss != split.loss) add_key(r, "parallel.count_loss=%s", split.loss ? "true" : "false");
}

static void add_dispatch(Relayout *r, const Config *c, const Candidate *f)
{
    if (strcmp(c->moe.dispatcher, "auto")) add_key(r, "moe.dispatcher=auto");
    if (c->moe.overlap != f->overlap) add_key(r, "moe.overlap=%s", f->overlap ? "true" : "false");
    add_number(r, "moe.ranks_per_domain", c->moe.ranks_per_domain, 0);
    add_number(r, "comm.ranks_per_node", c->comm.ranks_per_node, 0);
}

static void set_keys(Relayout *r, const Relayouter *x, const Candidate *f)
{
    r->keys = 0;
    add_degrees(r, &x->recipe, f);
    add_stages(r, &x->recipe, f, (int)x->shape.text.L);
    add_dispatch(r, &x->recipe, f);
    add_number(r, "train.global_tokens", x->recipe.train.global_tokens, x->global_tokens);
}

/* ---- trying candidates ---- */

static Status open_changed(Config *c, const Relayouter *x, const Relayout *r)
{
    Status st = config_open(c, x->ask->recipe, x->ask->overrides, x->ask->override);
    if (st) return st;
    for (int i = 0; i < r->keys && !st; i++) st = config_set(c, r->key[i]);
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

static bool is_new_layout(const Search *s, int at)
{
    const Candidate *c = &s->found[at].c;
    for (int i = 0; i < at; i++) {
        const Candidate *f = &s->found[i].c;
        if (f->tp == c->tp && f->cp == c->cp && f->pp == c->pp && f->vpp == c->vpp && f->ep == c->ep &&
            f->etp == c->etp && f->zero == c->zero && f->overlap == c->overlap) return false;
    }
    return true;
}

/* True: r is filled. */
static bool try_found(Relayout *r, Relayouter *x, const Search *s)
{
    int dry = 0, per_node = s->ask.task.hw.domain < r->ranks ? s->ask.task.hw.domain : r->ranks;
    for (int i = 0; i < s->n && dry < MOST_DRY_RUNS; i++) {
        double peak = 0;
        if (!is_new_layout(s, i)) continue;
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
    if (x->adapters) a->task.lora = &x->lora, a->adapters = &x->recipe;
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
    x->model = (ModelRow){ .name = "recipe", .preset = *m->preset ? m->preset : m->path,
                           .text = x->shape.text, .vision = x->shape.vision };
    int64_t dp = x->ask->was / (p->tp * p->cp * p->pp);
    x->global_tokens = t->global_tokens ? t->global_tokens : t->micro_tokens * (dp > 1 ? dp : 1);
    TRY(find_hardware(&x->hw, x->recipe.device.backend, x->ask->per_node));
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
