/* diagnose/fixes.c -- the fixes and traps of walls.def and traps.def that apply to a recipe, and what each
 * fix is predicted to give. */
#include "diagnose/diagnose.h"

#include "parallel/rules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The settings that walls.def and traps.def read. */
typedef struct FixTerms {
    long long world, per_node, nodes, tp, cp, pp, vpp, ep, etp, dp, zero, replicas, tp_chunks, E;
    long long tokens, patches, micros, length, max_pixels, first_layers, stage_layers;
    double    optimizer_offload, aux;
    bool      experts, dense, tower, overlap, recomputes, full, recomputes_attention, activation_offload;
    bool      freeze_vit, eager, late, cuda, fp8, bf16, narrow, rounded_grads, split_saves, hopper, nvl72;
    const char *cp_comm, *dispatcher;
    char        times_2[FIT_SET], times_4[FIT_SET], times_8[FIT_SET], times_16[FIT_SET]; /* micro-batches */
    char        half[FIT_SET];
} FixTerms;

static bool has_word(const WordList *list, const char *word)
{
    for (int i = 0; i < list->n; i++)
        if (!strcmp(list->item[i], word)) return true;
    return false;
}

static void fill_layout(FixTerms *x, const Evidence *e)
{
    const struct cfg_parallel *p = &e->recipe->parallel;
    x->world = e->ranks, x->per_node = e->per_node, x->nodes = (e->ranks + e->per_node - 1) / e->per_node;
    x->tp = p->tp, x->cp = p->cp, x->pp = p->pp, x->vpp = p->vpp, x->ep = p->ep, x->etp = p->etp;
    x->dp = e->ranks / (p->tp * p->cp * p->pp), x->zero = p->zero, x->replicas = p->replicas;
    x->tp_chunks = p->tp_chunks, x->cp_comm = p->cp_comm, x->first_layers = p->first_layers;
    x->stage_layers = e->shape.text.L / p->pp;
}

static void fill_memory(FixTerms *x, const Config *c)
{
    const WordList *list = &c->memory.recompute;
    x->recomputes = list->n > 0, x->full = has_word(list, "full");
    x->recomputes_attention = has_word(list, "core_attn");
    x->activation_offload = c->memory.activation_offload.n > 0;
    x->optimizer_offload = c->memory.optimizer_offload;
    x->narrow = !strcmp(c->model.dtype, "bfloat16");
    x->rounded_grads = !strcmp(c->optim.grad_dtype, "bfloat16");
    x->split_saves = strcmp(c->optim.master, "split") && !strcmp(c->optim.state_dtype, "float32");
}

static void fill_device(FixTerms *x, const Evidence *e)
{
    const Config   *c = e->recipe;
    const WordList *g = &c->train.cuda_graph;
    x->cuda = strcmp(e->hw.backend, "cpu") != 0, x->fp8 = e->hw.fp8 > 0;
    x->bf16 = !strcmp(c->train.precision, "bf16"), x->late = c->train.late_results;
    x->eager = !g->n || has_word(g, "none");
    x->hopper = !strncmp(e->hw.id, "h", 1), x->nvl72 = e->hw.domain == 72;
}

/* Overrides for micro-batches that are so many times as large. */
static void scale_micro(char set[FIT_SET], const Evidence *e, double times)
{
    const struct cfg_train *t = &e->recipe->train;
    int n = snprintf(set, FIT_SET, "train.micro_tokens=%.0f", times * (double)t->micro_tokens);
    if (e->shape.vision.depth)
        snprintf(set + n, FIT_SET - (size_t)n, " train.micro_patches=%.0f", times * (double)t->micro_patches);
}

static FixTerms terms_of(const Evidence *e)
{
    const Config *c = e->recipe;
    FixTerms      x = { .E = e->shape.text.E, .tokens = c->train.micro_tokens, .micros = e->micros,
                        .patches = c->train.micro_patches, .length = c->data.max_length,
                        .max_pixels = c->image.max_pixels, .aux = c->moe.aux_loss_coeff,
                        .experts = e->shape.text.E > 0, .tower = e->shape.vision.depth > 0,
                        .dense = shape_sparse_layers(&e->shape.text) < e->shape.text.L,
                        .overlap = c->moe.overlap, .freeze_vit = c->model.freeze_vit,
                        .dispatcher = c->moe.dispatcher };
    fill_layout(&x, e);
    fill_memory(&x, c);
    fill_device(&x, e);
    scale_micro(x.times_2, e, 2), scale_micro(x.times_4, e, 4), scale_micro(x.times_8, e, 8);
    scale_micro(x.times_16, e, 16), scale_micro(x.half, e, 0.5);
    return x;
}

/* ---- one change ---- */

/* The plan with a change; false: the rules refuse it, or it cannot be planned. */
static bool plan_changed(StepProfile *plan, const Evidence *e, const char *set)
{
    Config c = *e->recipe;
    c.keep = (MemPool){ 0 };                                /* only texts of the overrides are freed below */
    bool ok = !config_set_all(&c, set);
    RuleInput x = rules_input(&c, &e->shape, e->ranks, e->per_node);
    ok = ok && rules_legal(&x) && !plan_step(plan, e, &c);
    mem_pool_close(&c.keep);
    return ok;
}

static WallId next_wall(const Evidence *e, const StepProfile *after)
{
    WallFinding wall[WALL_N];
    Evidence    next = *e;
    next.at = *after, next.bytes = after->memory_peak, next.larger = 0;
    next.recomputing = fmin(e->recomputing, known(after->recompute) + known(after->copies));
    next.repeated = fmin(e->repeated, next.recomputing);
    return walls_find(wall, &next);
}

static void fill_fix(Fix *f, const Diagnosis *d, const StepProfile *after)
{
    f->step = after->step, f->gain = d->e.at.step / after->step - 1;
    f->bytes = after->memory_peak, f->fits = f->bytes <= d->e.limit;
    f->next = next_wall(&d->e, after);
}

/* A command changes no plan: it removes the wait for data. */
static void try_command(Fix *f, const Diagnosis *d)
{
    StepProfile after = d->e.at;
    after.step -= known(after.data_wait), after.data_wait = 0, after.memory_peak = d->e.bytes;
    fill_fix(f, d, &after);
}

static const double LEAST = 0.01;                           /* gain of throughput that is worth a line */

/* Whether the change is worth listing: it helps and fits, or it makes a run fit that does not. */
static bool try_fix(Fix *f, const Diagnosis *d)
{
    StepProfile plan, after;
    bool        unfit = d->e.bytes > d->e.limit;
    if (f->kind == FIX_COMMAND) {
        try_command(f, d);
    } else {
        if (!plan_changed(&plan, &d->e, f->set)) return false;
        after = step_after(&d->e.at, &d->plan, &plan);
        fill_fix(f, d, &after);
    }
    return f->fits && (unfit || f->gain >= LEAST);
}

/* ---- the list ---- */

static bool is_listed(const Diagnosis *d, const char *set)
{
    for (int i = 0; i < d->fixes; i++)
        if (!strcmp(d->fix[i].set, set)) return true;
    return false;
}

static int overrides_of(const char *set)
{
    int n = 1;
    for (; *set; set++) n += *set == ' ';
    return n;
}

/* What trains the same comes first; of gains within 2 % fewer overrides do. */
static int by_use(const void *a, const void *b)
{
    const Fix *x = a, *y = b;
    long gain = lround(50 * y->gain) - lround(50 * x->gain);
    int  more = overrides_of(x->set) - overrides_of(y->set);
    if ((x->kind == FIX_OTHER) != (y->kind == FIX_OTHER)) return x->kind == FIX_OTHER ? 1 : -1;
    if (gain) return gain > 0 ? 1 : -1;
    return more ? more : (x->gain < y->gain) - (x->gain > y->gain);
}

/* A row: the wall's fixes of one pass over walls.def. */
static void add_fix(Diagnosis *d, Fix f)
{
    if (d->fixes == DIAGNOSE_FIXES || is_listed(d, f.set) || !try_fix(&f, d)) return;
    d->fix[d->fixes++] = f;
}

/* The fixes of the dominant wall (others false) or of the others. */
static void add_rows(Diagnosis *d, const FixTerms *x, bool others)
{
    const bool experts = x->experts, dense = x->dense, tower = x->tower;
    Fix f;
#define WALL(...)
#define FIX(which, what, when, in_words, what_not, ...)                                           \
    if ((WALL_##which == d->first) != others && (when)) {                                         \
        f = (Fix){ .wall = WALL_##which, .kind = FIX_##what, .price = in_words, .forbids = what_not }; \
        snprintf(f.set, FIT_SET, __VA_ARGS__);                                                    \
        add_fix(d, f);                                                                            \
    }
#define RECOMPUTE_SET(class, swept, when, list, in_words, what_not) \
    FIX(memory, SAME, x->full && (when), in_words, what_not, "memory.recompute=[" list "]")
#include "engine/recompute_sets.def"
#include "diagnose/walls.def"
#undef RECOMPUTE_SET
#undef WALL
#undef FIX
}

static void sort_fixes(Diagnosis *d, int from)
{
    qsort(d->fix + from, (size_t)(d->fixes - from), sizeof *d->fix, by_use);
}

/* What makes a run fit that does not: the rows of fit.def that are enough, with their seconds. */
static Status plan_bytes(void *self, const Config *c, double *bytes)
{
    StepProfile s;
    TRY(plan_step(&s, self, c));
    *bytes = s.memory_peak;
    return OK;
}

static Status add_memory_changes(Diagnosis *d)
{
    Evidence  *e = &d->e;
    FitAdvice *a = calloc(1, sizeof *a);
    FitRequest ask = { .recipe = e->recipe, .shape = &e->shape, .ranks = e->ranks, .per_node = e->per_node,
                       .bytes = e->bytes, .available = e->limit, .plan = plan_bytes, .self = e };
    if (!a) return fail(E_FIT, "no host memory for advice");
    Status st = fit_advise(a, &ask);
    for (int i = 0; i < a->n && !st; i++) {
        const FitRow *r = &a->row[i];
        bool other = r->cost == 6 || r->cost > 7;            /* rounded moments, adapters, frozen parts */
        Fix  f = { .wall = WALL_memory, .kind = other ? FIX_OTHER : FIX_SAME, .price = r->price,
                   .forbids = "" };
        memcpy(f.set, r->set, sizeof f.set);
        if (fit_row_fits(a, i)) add_fix(d, f);
    }
    free(a);
    return st;
}

Status fixes_find(Diagnosis *d)
{
    FixTerms x = terms_of(&d->e);
    if (d->e.bytes > d->e.limit) TRY(add_memory_changes(d));
    else                         add_rows(d, &x, false);
    sort_fixes(d, 0);
    int own = d->fixes;
    add_rows(d, &x, true);
    sort_fixes(d, own);
    return OK;
}

/* ---- larger micro-batches ---- */

/* What compute takes less, as far as the step does: fewer micro-batches make a longer bubble. */
static double larger_saves(const Evidence *e, const StepProfile *plan, int times)
{
    StepProfile s;
    char        set[FIT_SET];
    scale_micro(set, e, times);
    if (!plan_changed(&s, e, set) || s.memory_peak > e->limit) return 0;
    s = step_after(&e->at, plan, &s);
    return fmin(known(e->at.compute) - s.compute + known(e->at.dependency) - s.dependency,
                e->at.step - s.step);
}

double fixes_larger(const Evidence *e, const StepProfile *plan)
{
    double most = 0;
    for (int k = 16; k > 1; k /= 2)
        if (e->micros % k == 0) most = fmax(most, larger_saves(e, plan, k));
    return most;
}

/* ---- memory ---- */

/* As if memory were without limit. */
void fixes_recomputing(Evidence *e, const StepProfile *plan)
{
    const struct cfg_memory *m = &e->recipe->memory;
    StepProfile s, after;
    bool saves = m->recompute.n > 0 || m->activation_offload.n > 0 || m->optimizer_offload > 0;
    if (!saves || !plan_changed(&s, e, "memory.recompute=[] memory.recompute_method=uniform "
                                "memory.recompute_layers=1 memory.activation_offload=[] "
                                "memory.activation_offload_fraction=1 memory.optimizer_offload=0")) return;
    after = step_after(&e->at, plan, &s);
    e->recomputing = fmax(0, e->at.step - after.step);
    e->repeated = fmax(0, known(e->at.exposed) - known(after.exposed));
}

/* ---- traps ---- */

void traps_find(Diagnosis *d)
{
    const Evidence *e = &d->e;
    FixTerms        terms = terms_of(e), *x = &terms;
#define UNPACK(...) __VA_ARGS__
#define TRAP(id, condition, text)                                                                 \
    if ((condition) && d->traps < DIAGNOSE_TRAPS)                                                 \
        snprintf(d->trap[d->traps++], DIAGNOSE_TEXT, UNPACK text);
#include "diagnose/traps.def"
#undef TRAP
#undef UNPACK
}
