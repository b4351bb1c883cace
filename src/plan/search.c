/* plan/search.c -- see search.h: walks the space, estimates each layout, keeps candidates that fit and
 * counts the rest.
 *
 * For a layout and a micro-batch size the cheapest settings that fit are kept: no recompute first, then
 * more recompute, then smaller states, then offload. The most frugal settings are tried first: if they do
 * not fit, nothing does. */
#include "plan/search.h"

#include "base/clock.h"
#include "plan/dryrun.h"

#include <stdlib.h>
#include <string.h>

static const double offloads[] = { 0, 0.25, 0.5, 0.75, 1 };  /* shares of the optimizer state */
enum { OFFLOADS = sizeof offloads / sizeof *offloads };

/* peak includes what libraries take. */
static Fit fit(const SearchAsk *a, double peak) { return fit_of(peak - a->task.hw.fixed, &a->task.hw); }

bool search_tight(const SearchAsk *a, double peak) { return fit(a, peak) != FIT_WELL; }
bool search_fits(const SearchAsk *a, double peak)  { return fit(a, peak) != FIT_NOT; }

static Refused *refused_at(Search *s, int rule, const Candidate *c)
{
    bool large = rule <= 0;
    for (int i = 0; i < s->refusals; i++) {
        Refused *r = &s->refused[i];
        if (r->rule == rule && (!large || (r->tp == c->tp && r->pp == c->pp && r->zero == c->zero))) return r;
    }
    if (s->refusals == REFUSALS) return NULL;
    Refused *r = &s->refused[s->refusals++];
    *r = (Refused){ .rule = rule, .zero = c->zero, .tp = c->tp, .pp = c->pp, .c = *c };
    return r;
}

void search_refuse(Search *s, int rule, const Candidate *c, int states, double peak, const char *why)
{
    Refused *r = refused_at(s, rule, c);
    if (!r) return;
    if (!r->n++ || (rule <= 0 && peak < r->peak)) r->c = *c, r->states = states, r->peak = peak;
    if (r->n == 1 && why) snprintf(r->why, sizeof r->why, "%s", why);
}

bool search_any_legal(const Search *s)
{
    for (int i = 0; i < s->refusals; i++)
        if (s->refused[i].rule <= 0) return true;
    return s->n > 0;
}

static double estimate_peak(Search *s, const Candidate *c, int states, int *stage)
{
    const States *w = states_at(states);
    Task *t = &s->ask.task;
    t->grad_bytes = w->grad, t->moment_bytes = w->moment, t->master_bytes = w->master;
    s->candidates++;
    return analytic_peak(t, c, stage) + s->extra;
}

static int groups_across_nodes(const Candidate *c, int domain)
{
    return (c->tp > domain) + (c->ep * c->etp > domain);
}

static Status add_found(Search *s, const Candidate *c, int states, int rung, int stage, double peak)
{
    if (s->n == s->capacity) {
        int capacity = s->capacity ? 2 * s->capacity : 1024;
        FoundLayout *more = realloc(s->found, (size_t)capacity * sizeof *more);
        if (!more) return fail(E_FIT, "no memory for %d layouts", capacity);
        s->found = more, s->capacity = capacity;
    }
    FoundLayout *f = &s->found[s->n++];
    const Task  *t = &s->ask.task;
    s->fits |= !search_tight(&s->ask, peak);
    *f = (FoundLayout){ .c        = *c,
                        .states   = states,
                        .rung     = rung,
                        .stage    = stage,
                        .peak     = peak - s->extra,
                        .tight    = search_tight(&s->ask, peak),
                        .unproven = c->zero == 3 && c->ep * c->etp == 1 && t->model->text.E && !t->lora,
                        .leaves   = groups_across_nodes(c, s->ask.task.hw.domain) };
    analytic_time(&f->time, &s->ask.task, c);                /* with the states of the last estimate_peak */
    f->step = f->time.step * s->ratio[c->zero == 3];
    return OK;
}

/* Rungs that the rules allow with this layout, as bits. */
static unsigned rungs_allowed(Search *s, Candidate c)
{
    unsigned bits = 0;
    RuleInput x = s->rules;
    RuleViolation h;
    LayerSplit split;
    for (int i = 0; i < s->rungs; i++) {
        if (i && !c.overlap && s->ask.fix.recompute == ANY) {
            bits |= 1u << i;                                  /* only overlap restricts recompute */
            continue;
        }
        c.recompute = s->rung[i];
        space_candidate(&x, &split, &s->ask, &c);
        if (!space_breaks(&h, &x, &s->ask.task, &c)) bits |= 1u << i;
        else if (s->ask.fix.recompute != ANY) search_refuse(s, h.number, &c, 0, 0, h.why);
    }
    return bits;
}

/* This trainer sums gradients in f32; other trainers may use bf16. */
/* Whether a search tries these without being asked. Our own trainer rounds gradients only where that is
 * asked for. */
static bool states_are_tried(const SearchAsk *a, int i)
{
    const States *w = states_at(i);
    return w && !w->asked && (w->grad == 4 || !search_can_build(a));
}

/* What is left to choose for a given layout. */
typedef struct MemoryChoices {
    int    states_from, states_to;
    double offload[OFFLOADS];
    int    offloads;
} MemoryChoices;

static MemoryChoices memory_choices(const Search *s)
{
    const Fixed *f = &s->ask.fix;
    MemoryChoices r = { .states_to = -1, .offloads = OFFLOADS };
    while (states_are_tried(&s->ask, r.states_to + 1)) r.states_to++;
    if (f->states != ANY) r.states_from = r.states_to = f->states;
    memcpy(r.offload, offloads, sizeof offloads);
    if (f->offload >= 0) r.offloads = 1, r.offload[0] = f->offload;
    if (s->first) r.offloads = 1;
    return r;
}

static int last_rung(unsigned allowed)
{
    int i = RUNGS;
    while (i >= 0 && !(allowed >> i & 1)) i--;
    return i;
}

/* Finds the first step of the recompute ladder that fits with memory to spare, for these states and this
 * offload, or -1. A tight one on the way is added, too. */
static Status climb_ladder(Search *s, Candidate *c, int states, unsigned allowed, int *rung)
{
    bool tight = false;
    *rung = -1;
    for (int i = 0; i < s->rungs && *rung < 0; i++) {
        int stage = 0;
        if (!(allowed >> i & 1)) continue;
        c->recompute = s->rung[i];
        double peak = estimate_peak(s, c, states, &stage);
        bool close = search_tight(&s->ask, peak);
        if (!search_fits(&s->ask, peak) || (close && tight)) continue;
        if (close) tight = true;
        else      *rung = i;
        TRY(add_found(s, c, states, i, stage, peak));
    }
    return OK;
}

static int mbs_least(const Search *s) { return s->ask.fix.mbs == ANY ? 1 : s->ask.fix.mbs; }

/* Tries states in the order of their rows until some fit. Further exact ones are tried where recompute was
 * needed: the time decides which costs less. */
static Status choose_states(Search *s, Candidate c, unsigned allowed, const MemoryChoices *rest, bool *fits)
{
    int last = last_rung(allowed), rung = -1;
    for (int i = rest->states_from; i <= rest->states_to; i++) {
        if (*fits && (!states_at(i)->exact || rung == 0)) break;
        c.recompute = s->rung[last];
        if (!search_fits(&s->ask, estimate_peak(s, &c, i, NULL))) continue;
        TRY(climb_ladder(s, &c, i, allowed, &rung));
        *fits |= rung >= 0;
    }
    return OK;
}

/* Adds the cheapest settings with which this layout fits. */
static Status choose_memory(Search *s, Candidate c, unsigned allowed, bool *any)
{
    MemoryChoices rest = memory_choices(s);
    bool fits = false;
    REQUIRE(allowed, "no rung is allowed");
    c.recompute = s->rung[last_rung(allowed)], c.offload = rest.offload[rest.offloads - 1];
    double least = estimate_peak(s, &c, rest.states_to, NULL);
    *any = search_fits(&s->ask, least);
    if (!*any && c.mbs == mbs_least(s)) search_refuse(s, 0, &c, rest.states_to, least, NULL);
    for (int p = 0; *any && p < rest.offloads && !fits; p++) {
        c.offload = rest.offload[p];
        TRY(choose_states(s, c, allowed, &rest, &fits));
    }
    return OK;
}

Status search_settle(Search *s, Candidate c, double extra)
{
    bool any;
    s->extra = extra;
    Status st = choose_memory(s, c, rungs_allowed(s, c), &any);
    return s->extra = 0, st;
}

/* Tries all micro-batch sizes of a layout, until one is too large. */
static Status try_layout(Search *s, const Candidate *layout)
{
    Candidate c = *layout;
    RuleInput x = s->rules;
    RuleViolation   h;
    LayerSplit split;
    int       mbs[DEGREES], n = space_mbs(&s->ask, mbs);
    unsigned  allowed = 0;
    bool      any = true;
    for (int i = 0; i < n && any && !(s->first && s->fits); i++) {
        c.mbs = mbs[i];
        space_candidate(&x, &split, &s->ask, &c);
        if (space_breaks(&h, &x, &s->ask.task, &c)) {
            s->candidates++;
            search_refuse(s, h.number, &c, 0, 0, h.why);
            continue;
        }
        if (!allowed && !(allowed = rungs_allowed(s, c))) return OK;
        TRY(choose_memory(s, c, allowed, &any));
    }
    return OK;
}

static double degree(int fixed) { return fixed == ANY ? 1 : fixed; }

/* Products of degrees are ints. */
static Status check_degrees(const Fixed *f)
{
    const double most = 1 << 20, pp = degree(f->pp);
    if (pp * degree(f->tp) * degree(f->cp) <= most && pp * degree(f->ep) * degree(f->etp) <= most &&
        pp * degree(f->vpp) <= most)
        return OK;
    return fail(E_CONFIG, "--fix: none of tp x cp x pp, etp x ep x pp and pp x vpp may be above %.0f", most);
}

static Status check_ask(const SearchAsk *a)
{
    const Task *t = &a->task;
    TRY(check_degrees(&a->fix));
    if (t->patches && !t->model->vision.depth)
        return fail(E_CONFIG, "--images: %s has no vision encoder%s", t->model->name,
                    t->model->vision_unread ? " that a family here describes" : "");
    if (hardware_peak(&t->hw, t->precision) > 0) return OK;
    return fail(E_CONFIG, "--precision %s: %s has no such matrix products; use %s",
                precision_plan_word(t->precision), t->hw.id, t->hw.fp8 > 0 ? "fp8" : "bf16");
}

static Status walk_space(Search *s)
{
    double from = clock_now();
    space_rules(&s->rules, &s->ask);
    s->rungs = space_rungs(s->rung, &s->ask);
    Status st = space_walk(s, try_layout);
    if (!st && !s->n) s->wide = true, st = space_walk(s, try_layout);
    if (!st) st = search_rank(s, 0);
    s->seconds = clock_now() - from;
    return st;
}

static Status open(Search *s, const SearchAsk *a, bool first)
{
    *s = (Search){ .ask = *a, .first = first, .ratio = { 1, 1 } };
    TRY(check_ask(a));
    TRY(layer_table_open(&s->layers, a->task.model));
    s->ask.task.layers = s->layers;
    Status st = walk_space(s);
    if (st) search_close(s);
    return st;
}

Status search_open(Search *s, const SearchAsk *a) { return open(s, a, false); }

void search_close(Search *s)
{
    free(s->found), free(s->layers);
    s->found = NULL, s->layers = NULL, s->ask.task.layers = NULL;
    s->n = s->capacity = 0;
}

static Status check_fit(const SearchAsk *a, bool *fits)
{
    Search *s = malloc(sizeof *s);
    if (!s) return fail(E_FIT, "no memory for a search");
    Status st = open(s, a, true);
    *fits = !st && s->fits;
    if (!st) search_close(s);
    free(s);
    return st;
}

/* Doubles from one GPU; numbers between are rarely useful. */
Status search_least(const SearchAsk *a, int most, int *gpus)
{
    SearchAsk b = *a;
    *gpus = 0;
    for (int64_t n = 1; n <= most && !*gpus; n *= 2) {
        bool fits = false;
        b.task.gpus = (int)n;
        TRY(check_fit(&b, &fits));
        if (fits) *gpus = (int)n;
    }
    return OK;
}

Status search_gpu(const SearchAsk *a, char *id, size_t n)
{
    double least = 0;
    *id = 0;
    for (int i = 0; hardware_at(i); i++) {
        SearchAsk b = *a;
        bool fits = false;
        TRY(hardware_find(&b.task.hw, hardware_at(i)));
        double capacity = b.task.hw.capacity;
        if (capacity <= a->task.hw.capacity || (least > 0 && capacity >= least)) continue;
        if (hardware_peak(&b.task.hw, b.task.precision) <= 0) continue;
        TRY(check_fit(&b, &fits));
        if (fits) least = capacity, snprintf(id, n, "%s", b.task.hw.id);
    }
    return OK;
}
