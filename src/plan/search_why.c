/* plan/search_why.c -- reasons for a candidate and warnings about it, as text. */
#include "plan/search.h"

enum { MANY_MICROS = 64 };               /* more micro-batches in a step need no larger batch */

static bool same_family(const FoundLayout *a, const FoundLayout *b)
{
    return (a->c.zero == 3) == (b->c.zero == 3);
}

/* The best candidate with less model parallelism: of the same class, or of a worse one. */
static const FoundLayout *simpler(const Search *s, const FoundLayout *f, bool concede)
{
    for (int i = 0; i < s->n; i++) {
        const FoundLayout *g = &s->found[i];
        bool less = found_parallel(&g->c) < found_parallel(&f->c);
        if (less && same_family(f, g) && (search_class(g, f) > 0) == concede) return g;
    }
    return NULL;
}

static const char *conceded(const FoundLayout *f)
{
    if (f->tight) return "leaves little memory";
    return f->c.offload > 0 ? "needs the host for a part of the optimizer" : "needs rounded states";
}

/* What the first layout's exactness, memory and recompute cost over the fastest. */
static void say_price(TextLines *l, const Search *s, const FoundLayout *f)
{
    const FoundLayout *g = &s->found[search_fastest(s)];
    bool               dry = s->ask.dry && search_can_build(&s->ask);
    char               text[96], words[96];
    if (g->step >= 0.995 * f->step || (dry && !g->dried)) return;
    layout_text(text, sizeof text, &s->ask, &g->c);
    search_words_text(words, sizeof words, g->c.recompute, "+");
    lines_add(l, "the fastest that fits takes %.3g s, %+.1f %%: %s, mbs %d%s%s, %s states%s%s", g->step,
              100 * (g->step / f->step - 1), text, g->c.mbs, *words ? ", " : "", words,
              states_at(g->states)->name, g->c.offload > 0 ? ", offloaded" : "", g->tight ? ", tight" : "");
    if (g->unproven && !f->unproven)
        lines_add(l, "  all experts gathered on every rank: no published run is known that trains so");
}

/* The best of the other family. */
static void say_other(TextLines *l, const Search *s, const FoundLayout *f)
{
    int i = 0;
    char text[96], words[96];
    while (i < s->n && same_family(&s->found[i], f)) i++;
    if (i == s->n) return;
    const FoundLayout *g = &s->found[i];
    layout_text(text, sizeof text, &s->ask, &g->c);
    search_words_text(words, sizeof words, g->c.recompute, "+");
    lines_add(l, "%s would take %.3g s for the same tokens, %+.0f %%: %s, mbs %d%s%s%s",
              g->c.zero == 3 ? "FSDP" : "3-D", g->step, 100 * (g->step / f->step - 1), text, g->c.mbs,
              *words ? ", " : "", words, g->tight ? ", tight" : "");
}

/* The nearest miss with less model parallelism. */
static const Refused *too_large(const Search *s, const FoundLayout *f)
{
    const Refused *best = NULL;
    for (int i = 0; i < s->refusals; i++) {
        const Refused *r = &s->refused[i];
        bool less = found_parallel(&r->c) < found_parallel(&f->c);
        if (less && r->rule <= 0 && r->peak > 0 && (!best || r->peak < best->peak)) best = r;
    }
    return best;
}

static void say_parallel(TextLines *l, const Search *s, const FoundLayout *f)
{
    const SearchAsk *a = &s->ask;
    const FoundLayout *less = simpler(s, f, false), *other = simpler(s, f, true);
    const Refused *large = too_large(s, f);
    char text[96], words[96];
    if (found_parallel(&f->c) == 1)
        lines_add(l, "no tensor, context or pipeline parallel is needed: dp is %lld, as large as can be",
                  (long long)found_dp(a, &f->c));
    else if (less) {
        layout_text(text, sizeof text, a, &less->c);
        search_words_text(words, sizeof words, less->c.recompute, "+");
        bool full = less->c.recompute & RE_FULL && !(f->c.recompute & RE_FULL);
        lines_add(l, "tp x cp x pp = %d though %d is enough: %s, mbs %d%s%s, takes %.3g s a step, %+.0f %%%s",
                  found_parallel(&f->c), found_parallel(&less->c), text, less->c.mbs, *words ? ", " : "",
                  words, less->step, 100 * (less->step / f->step - 1),
                  full ? "; selective recompute is preferred to full" : "");
    } else if (other) {
        layout_text(text, sizeof text, a, &other->c);
        lines_add(l, "tp x cp x pp = %d: less of it, such as %s, %s", found_parallel(&f->c), text,
                  conceded(other));
    } else if (large) {
        layout_text(text, sizeof text, a, &large->c);
        lines_add(l, "tp x cp x pp = %d is the least that fits: %s takes at least %.1f GB of %.1f",
                  found_parallel(&f->c), text, large->peak / 1e9, a->task.hw.capacity / 1e9);
    } else lines_add(l, "tp x cp x pp = %d is the least that is legal", found_parallel(&f->c));
}

static void say_experts(TextLines *l, const SearchAsk *a, const Candidate *c)
{
    int domain = a->task.hw.domain, n = c->ep * c->etp;
    if (!a->task.model->text.E) return;
    if (n == 1) lines_add(l, "every rank has all experts: no dispatch between ranks");
    else if (n <= domain)
        lines_add(l, "ep %d%s: tokens are dispatched over intra-node links, %d ranks per node", c->ep,
                  c->etp > 1 ? " with expert tensor parallelism" : "", domain);
    else
        lines_add(l, "ep %d spans nodes of %d ranks: fewer experts per rank are worth it; %s%s", n, domain,
                  dispatch_word(c->dispatch),
                  dispatcher_rows[c->dispatch].two_level ? " sends a token to a node once" : "");
}

static void say_memory(TextLines *l, const Search *s, const FoundLayout *f)
{
    Task t = s->ask.task;
    const States *w = states_at(f->states), *plain = states_at(0);
    Candidate c = f->c;
    char text[128];
    c.recompute = 0, c.offload = 0;
    t.grad_bytes = plain->grad, t.moment_bytes = plain->moment, t.master_bytes = plain->master;
    double most = analytic_peak(&t, &c, NULL);
    search_words_text(text, sizeof text, f->c.recompute, ", ");
    if (!f->c.recompute && !f->states && f->c.offload == 0) {
        lines_add(l, "nothing is recomputed or offloaded, states are f32");
        return;
    }
    lines_add(l, "with f32 states and no recompute it would take %.0f GB of %.0f", most / 1e9,
              t.hw.capacity / 1e9);
    if (f->c.recompute) lines_add(l, "recomputed in backward: %s", text);
    if (f->states) lines_add(l, "%s", w->what);
    if (f->c.offload > 0)
        lines_add(l, "%.0f %% of the optimizer state on the host: nothing less fits", 100 * f->c.offload);
}

static void say_batch(TextLines *l, const SearchAsk *a, const FoundLayout *f)
{
    const Candidate *c = &f->c;
    double M = (double)found_micros(a, c), idle = c->pp - 1;
    lines_add(l, "dp %lld x %.0f micro-batches of %d make %lld sequences", (long long)found_dp(a, c), M,
              c->mbs, (long long)a->task.gbs);
    if (c->pp == 1) return;
    lines_add(l, "%d stages with %d chunk%s each: %.1f %% of the step is bubble%s", c->pp, c->vpp,
              c->vpp > 1 ? "s" : "", 100 * idle / (c->vpp * M + idle),
              c->vpp > 1 ? "" : "; interleaving did not pay");
}

void search_reasons(TextLines *l, const Search *s, const FoundLayout *f)
{
    *l = (TextLines){ 0 };
    if (f->c.zero == 3)
        lines_add(l, "everything is sharded over dp (FSDP): weights are gathered layer by layer");
    say_parallel(l, s, f);
    say_experts(l, &s->ask, &f->c);
    say_memory(l, s, f);
    say_batch(l, &s->ask, f);
    say_price(l, s, f);
    say_other(l, s, f);
}

/* Rule 34 refused candidates: the batch has too few micro-batches for their dp. */
static bool batch_is_short(const Search *s)
{
    for (int i = 0; i < s->refusals; i++)
        if (s->refused[i].rule == 34) return true;
    return false;
}

static void warn_batch(TextLines *l, const SearchAsk *a, const Candidate *c, bool batch_binds)
{
    int64_t dp = found_dp(a, c), M = found_micros(a, c), most = (int64_t)MANY_MICROS * c->mbs * dp;
    if (dp == 1 && a->task.gpus > 1)
        lines_add(l, "dp is 1: any failure stops the run, and the %lld micro-batches of a step run one after "
                  "the other", (long long)M);
    if (M > MANY_MICROS && dp < 8)
        lines_add(l, "%lld micro-batches a step on %lld data-parallel rank%s: a batch of %lld or less keeps "
                  "it to %d", (long long)M, (long long)dp, dp > 1 ? "s" : "", (long long)most, MANY_MICROS);
    if (M == 1 && batch_binds)
        lines_add(l, "the batch of %lld sequences limits dp to %lld: a larger one would allow less tp x cp "
                  "x pp", (long long)a->task.gbs, (long long)dp);
    if (c->pp > 1 && M < 2 * c->pp)
        lines_add(l, "%lld micro-batches over %d stages: %lld or more, a batch of %lld, would fill the "
                  "pipeline",
                  (long long)M, c->pp, 2LL * c->pp, 2LL * c->pp * c->mbs * dp);
}

void search_warnings(TextLines *l, const Search *s, const FoundLayout *f)
{
    const Task *t = &s->ask.task;
    const Candidate *c = &f->c;
    *l = (TextLines){ 0 };
    if (f->tight) lines_add(l, "tight: the plan takes %.0f %% of the memory", 100 * f->peak / t->hw.capacity);
    warn_batch(l, &s->ask, c, found_parallel(c) > 1 && batch_is_short(s));
    if (!states_at(f->states)->exact) lines_add(l, "%s", states_at(f->states)->what);
    if (c->tp > t->hw.domain)
        lines_add(l, "tp %d spans nodes: every layer waits for the network", c->tp);
    if (c->zero == 3 && c->tp * c->cp > 1)
        lines_add(l, "weights and activations are gathered over the same links: compare with tp x cp = 1");
    if (t->model->vision.depth && !t->patches)
        lines_add(l, "%s without images: give --images PATCHES, a step with images takes far longer",
                  t->model->name);
    if (t->model->vision_unread)
        lines_add(l, "the vision tower of %s is not planned: no family here describes it", t->model->name);
    if (t->foreign)
        lines_add(l, "of %s, not of this trainer: only the analytic model plans it", task_engine_name(t));
    else if (!model_builds(t->model))
        lines_add(l, "this trainer cannot build %s%s: only the analytic model plans it", t->model->name,
                  t->model->text.mtp ? " with layers that predict further tokens" : "");
    else if (t->precision == PREC_MXFP8 || t->precision == PREC_NVFP4)
        lines_add(l, "train.precision=%s runs on CPUs alone, in emulation: there are no kernels of it yet",
                  precision_word(t->precision));
}
