/* plan/search_dry.c -- a candidate as a Config, and dry runs of the best candidates. */
#include "base/clock.h"
#include "base/folder.h"
#include "plan/dryrun.h"
#include "plan/search.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Dry runs of one search; places whose order they decide; further ones to find the fastest. */
enum { MOST_DRY = 32, CHECKED = 12, FASTEST_TRIES = 12 };

bool search_can_build(const SearchAsk *a)
{
    return model_builds(a->task.model) && !a->task.foreign;
}

double search_base_bytes(const Config *recipe)
{
    const char *base = recipe->model.base_quant;
    if (!strcmp(base, "none")) return 0;
    return strcmp(base, "nf4") ? 1 : 0.52;
}

Status search_adapt(SearchAsk *a, LoraCost *x, const Config *recipe)
{
    if (a->task.precision == PREC_MXFP8 || a->task.precision == PREC_NVFP4)
        return fail(E_CONFIG, "--precision %s: frozen weights of adapters are bf16 or fp8; use one of them",
                    precision_plan_word(a->task.precision));
    TRY(lora_cost_open(x, a->task.model, recipe, a->task.patches > 0));
    a->task.lora = x, a->adapters = recipe;
    a->task.base_bytes = search_base_bytes(recipe);
    if (!a->task.model->text.mtp) return OK;
    x->model = *a->task.model, x->model.text.mtp = 0, x->model.mtp_asked = true;
    a->task.model = &x->model;
    return OK;
}

__attribute__((format(printf, 3, 4))) static void set(Status *st, Config *c, const char *fmt, ...)
{
    char text[sizeof(Path) + 64];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!*st) *st = config_set(c, text);
}

#define MOE_SCOPES "attn, moe_router, moe_preprocess"

static void set_layout(Status *st, Config *cfg, const SearchAsk *a, const Candidate *c)
{
    LayerSplit split;
    space_split(&split, (int)a->task.model->text.L, c->pp, c->vpp);
    set(st, cfg, "parallel.ranks=%d", a->task.gpus);
    set(st, cfg, "parallel.tp=%d", c->tp);
    set(st, cfg, "parallel.cp=%d", c->cp);
    set(st, cfg, "parallel.pp=%d", c->pp);
    set(st, cfg, "parallel.vpp=%d", c->vpp);
    set(st, cfg, "parallel.ep=%d", c->ep);
    set(st, cfg, "parallel.etp=%d", c->etp);
    set(st, cfg, "parallel.zero=%d", c->zero);
    if (c->replicas > 1) set(st, cfg, "parallel.replicas=%d", c->replicas);
    if (c->cp_inner > 1) {
        set(st, cfg, "parallel.cp_comm=a2a+p2p");
        set(st, cfg, "parallel.cp_sizes=[%d, %d]", c->cp_inner, c->cp / c->cp_inner);
    }
    if (c->pp == 1) return;
    if (split.embedding) set(st, cfg, "parallel.count_embedding=true");
    if (split.loss)      set(st, cfg, "parallel.count_loss=true");
    if (*split.string)   set(st, cfg, "parallel.layout=\"%s\"", split.string);
}

static void set_memory(Status *st, Config *cfg, const SearchAsk *a, const FoundLayout *f)
{
    const States *w = states_at(f->states);
    char words[160];
    search_words_text(words, sizeof words, f->c.recompute, ", ");
    if (*words) set(st, cfg, "memory.recompute=[%s]", words);
    if (f->c.offload > 0) set(st, cfg, "memory.optimizer_offload=%g", f->c.offload);
    if (w->moment <= 2) set(st, cfg, "optim.state_dtype=%s", w->moment < 2 ? "int8" : "bfloat16");
    if (w->master == 2) set(st, cfg, "optim.master=split");
    if (w->grad == 2) set(st, cfg, "optim.grad_dtype=bfloat16");
}

/* The strings stay the recipe's. */
static void set_adapters(Config *cfg, const Config *recipe)
{
    cfg->lora = recipe->lora;
    cfg->model.freeze_vit = recipe->model.freeze_vit, cfg->model.freeze_llm = recipe->model.freeze_llm;
    cfg->model.freeze_aligner = recipe->model.freeze_aligner;
    cfg->model.base_quant = recipe->model.base_quant;
    cfg->model.base_quant_weights = recipe->model.base_quant_weights;
}

/* A model's name or path without config.json and slashes at its end: so many characters. */
static int folder_length(const char *name)
{
    static const char file[] = "/config.json";
    size_t n = strlen(name), k = sizeof file - 1;
    if (n > k && !strcmp(name + n - k, file)) n -= k;
    while (n > 1 && name[n - 1] == '/') n--;
    return (int)n;
}

static void set_names(Status *st, Config *cfg, const Task *t)
{
    const ModelRow *m = t->model;
    int n = folder_length(m->name), at = n;
    while (at > 0 && m->name[at - 1] != '/') at--;
    if (m->preset) set(st, cfg, "model.preset=%s", m->preset);
    else           set(st, cfg, "model.path=%.*s", folder_length(m->path), m->path);
    set(st, cfg, "checkpoint.output_dir=runs/%.*s-%d-%s", n - at, m->name + at, t->gpus, t->hw.id);
}

Status search_config(Config *cfg, const SearchAsk *a, const FoundLayout *f)
{
    const Task *t = &a->task;
    const Candidate *c = &f->c;
    Status st = OK;
    config_default(cfg);
    if (!search_can_build(a))
        return fail(E_CONFIG, "%s: this trainer cannot build it; only the analytic model can plan it",
                    t->model->name);
    set_names(&st, cfg, t);
    set(&st, cfg, "model.dtype=bfloat16");
    if (t->model->mtp_asked && !t->model->text.mtp) set(&st, cfg, "model.mtp=drop");
    if (t->precision != PREC_BF16) set(&st, cfg, "train.precision=%s", precision_word(t->precision));
    if (t->graphs == GRAPHS_PARTIAL)
        set(&st, cfg, "train.cuda_graph=[%s]", t->model->text.E ? MOE_SCOPES : "attn, mlp");
    if (t->graphs == GRAPHS_FULL) set(&st, cfg, "train.cuda_graph=full");
    if (a->adapters) set_adapters(cfg, a->adapters);
    else if (t->frozen_vision) set(&st, cfg, "model.freeze_vit=true");
    set(&st, cfg, "data.max_length=%lld", (long long)t->seq);
    set(&st, cfg, "train.micro_tokens=%lld", (long long)(t->seq * c->mbs));
    set(&st, cfg, "train.global_tokens=%lld", (long long)(t->seq * t->gbs));
    if (t->model->vision.depth) set(&st, cfg, "train.micro_patches=%lld", (long long)(t->patches * c->mbs));
    set_layout(&st, cfg, a, c);
    set_memory(&st, cfg, a, f);
    if (c->ep * c->etp > 1) {
        if (c->dispatch != dispatcher_auto(c->ep * c->etp > t->hw.domain, false))
            set(&st, cfg, "moe.dispatcher=%s", dispatch_word(c->dispatch));
        set(&st, cfg, "moe.rank_capacity=%g", t->imbalance);
        if (c->overlap) set(&st, cfg, "moe.overlap=true");
    }
    if (st) config_close(cfg);
    return st;
}

/* Assumes that the analytic time of the whole family is off by the same ratio. */
static void calibrate(Search *s, const FoundLayout *f)
{
    int family = f->c.zero == 3;
    if (f->dry_step <= 0) return;
    s->ratio[family] = f->dry_step / f->time.step;
    for (int i = s->places; i < s->n; i++) {
        FoundLayout *g = &s->found[i];
        if (!g->dried && (g->c.zero == 3) == family) g->step = g->time.step * s->ratio[family];
    }
}

static Status run_dry(Search *s, FoundLayout *f)
{
    const Task *t = &s->ask.task;
    Config cfg;
    DryRun d;
    double from = clock_now();
    int    per_node = t->hw.domain < t->gpus ? t->hw.domain : t->gpus;
    TRY(search_config(&cfg, &s->ask, f));
    DryConf conf = { .recipe = &cfg, .ranks = t->gpus, .per_node = per_node, .hw = &t->hw,
                     .uneven = t->imbalance };
    Status  st = dryrun_open_conf(&d, &conf);
    s->dried++;
    f->dried = true;
    if (!st) {
        f->dry_step = d.step.step, f->dry_wall = d.step.wall;
        f->dry_peak = (double)dryrun_peak(&d, &f->stage) + t->hw.fixed;
        if (f->dry_step > 0) f->step = f->dry_step;
        dryrun_close(&d);
    }
    config_close(&cfg);
    s->dry_seconds += clock_now() - from;
    return st;
}

static void drop(Search *s, int i)
{
    memmove(&s->found[i], &s->found[i + 1], (size_t)(--s->n - i) * sizeof *s->found);
}

static bool same_layout(const Candidate *a, const Candidate *b)
{
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->ep == b->ep && a->etp == b->etp &&
           a->zero == b->zero && a->replicas == b->replicas;
}

/* f takes `extra` bytes more than estimated, so other candidates of its layout do too: those that no
 * longer fit are replaced by more frugal ones without a dry run. */
static Status correct_layout(Search *s, const FoundLayout *f, double extra)
{
    TRY(search_settle(s, f->c, extra));
    for (int i = s->n - 1; i >= s->places; i--) {
        FoundLayout g = s->found[i];
        bool alike = same_layout(&g.c, &f->c) && g.c.overlap == f->c.overlap && g.c.mbs == f->c.mbs;
        if (g.dried || !alike || search_fits(&s->ask, g.peak + extra)) continue;
        drop(s, i);
        TRY(search_settle(s, g.c, extra));
    }
    return OK;
}

/* Makes a dry run of candidate i. A candidate that the trainer refuses is dropped, with the error as
 * reason. */
static Status check_dry(Search *s, int i)
{
    const SearchAsk *a = &s->ask;
    FoundLayout f = s->found[i];
    if (run_dry(s, &f)) {
        search_refuse(s, RULE_DRY, &f.c, f.states, 0, status_text());
        return drop(s, i), OK;
    }
    bool fits = search_fits(a, f.dry_peak), less = search_tight(a, f.dry_peak) && !f.tight;
    f.tight = search_tight(a, f.dry_peak);
    s->found[i] = f;
    calibrate(s, &f);
    if (!fits) {
        search_refuse(s, RULE_DRY, &f.c, f.states, f.dry_peak, NULL);
        drop(s, i);
    }
    return less || !fits ? correct_layout(s, &f, f.dry_peak - f.peak) : OK;
}

/* The next candidate whose layout has no place yet; n: none. */
static int next_layout(const Search *s, int from)
{
    for (; from < s->n; from++) {
        int k = 0;
        while (k < s->places && !same_layout(&s->found[k].c, &s->found[from].c)) k++;
        if (k == s->places) break;
    }
    return from;
}

static void give_place(Search *s, int i)
{
    FoundLayout f = s->found[i];
    memmove(&s->found[s->places + 1], &s->found[s->places], (size_t)(i - s->places) * sizeof f);
    s->found[s->places++] = f;
}

/* Once dry runs are used up, checked candidates come before others. */
static int next_checked(const Search *s)
{
    int i = next_layout(s, s->places);
    while (i < s->n && !s->found[i].dried) i = next_layout(s, i + 1);
    return i < s->n ? i : next_layout(s, s->places);
}

/* The best candidate of a family without a dry run so far; n: none. */
static int next_uncalibrated(const Search *s)
{
    int i = s->places;
    while (i < s->n && s->calibrated[s->found[i].c.zero == 3]) i++;
    return i;
}

static Status try_next(Search *s, int i)
{
    s->calibrated[s->found[i].c.zero == 3] = true;
    TRY(check_dry(s, i));
    return search_rank(s, s->places);
}

/* Ranks the placed candidates again: more dry-run times are known now. */
static Status rank_places(Search *s)
{
    int all = s->n;
    s->n = s->places;
    Status st = search_rank(s, 0);
    return s->n = all, st;
}

/* Makes a dry run of the first unchecked candidate and ranks again, until the first is checked. */
static Status fill_places(Search *s, int most)
{
    bool dry = s->ask.dry && search_can_build(&s->ask);
    while (s->places < most) {
        bool more = dry && s->dried < MOST_DRY;
        int  i = more || !dry ? next_layout(s, s->places) : next_checked(s);
        int  first = more ? next_uncalibrated(s) : s->n;
        if (i == s->n) break;
        if (first < s->n)                       TRY(try_next(s, first));
        else if (more && !s->found[i].dried)    TRY(try_next(s, i));
        else                                    give_place(s, i);
    }
    return OK;
}

/* The fastest of all, by its dry run as the others, takes the last place where it has none. */
static Status list_fastest(Search *s)
{
    bool dry = s->ask.dry && search_can_build(&s->ask);
    if (s->places < 2) return OK;
    int i = search_fastest(s);
    for (int tries = 0; i >= s->places && dry && !s->found[i].dried && tries < FASTEST_TRIES; tries++) {
        TRY(check_dry(s, i));
        i = search_fastest(s);
    }
    if (i < s->places || (dry && !s->found[i].dried)) return OK;
    s->places--;
    return give_place(s, i), OK;
}

/* As many are checked whatever is shown, so that the first does not depend on it. */
Status search_places(Search *s)
{
    s->places = 0;
    TRY(fill_places(s, CHECKED));
    TRY(rank_places(s));
    if (s->ask.top > CHECKED) TRY(fill_places(s, s->ask.top));
    else if (s->places > s->ask.top) s->places = s->ask.top;
    return s->ask.objective == FOR_THROUGHPUT ? list_fastest(s) : OK;
}
