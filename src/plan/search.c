/* plan/search.c -- see search.h: walks the space, weighs each layout, keeps what fits and counts the rest.
 *
 * Of a layout and a size of micro-batch the cheapest ways that fit are kept: no recompute first, then more of
 * it, then smaller states, then offload. Whether there is any is asked first, of the most frugal of all. */
#include "plan/search.h"

#include "base/clock.h"
#include "base/str.h"
#include "plan/dryrun.h"

#include <stdlib.h>
#include <string.h>

static const double parked[] = { 0, 0.25, 0.5, 0.75, 1 };    /* shares of the optimizer state */
enum { PARKED = sizeof parked / sizeof *parked };

/* What libraries take is in peak already. */
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

static double weigh(Search *s, const Candidate *c, int states, int *stage)
{
    const States *w = states_at(states);
    Task *t = &s->ask.task;
    t->grad_bytes = w->grad, t->moment_bytes = w->moment, t->master_bytes = w->master;
    s->judged++;
    return analytic_peak(t, c, stage) + s->extra;
}

static int leaves(const Candidate *c, int domain) { return (c->tp > domain) + (c->ep * c->etp > domain); }

static Status keep(Search *s, const Candidate *c, int states, int rung, int stage, double peak)
{
    if (s->n == s->room) {
        int room = s->room ? 2 * s->room : 1024;
        Found *more = realloc(s->found, (size_t)room * sizeof *more);
        if (!more) return fail(E_FIT, "no memory for %d layouts", room);
        s->found = more, s->room = room;
    }
    Found *f = &s->found[s->n++];
    s->fits |= !search_tight(&s->ask, peak);
    *f = (Found){ .c = *c, .states = states, .rung = rung, .stage = stage, .peak = peak - s->extra,
                  .tight = search_tight(&s->ask, peak), .leaves = leaves(c, s->ask.task.hw.domain) };
    analytic_time(&f->time, &s->ask.task, c);                   /* the states are those of the last weigh */
    f->step = f->time.step * s->ratio[c->zero == 3];
    return OK;
}

/* Rungs that the rules allow with this layout, as bits. */
static unsigned rungs_allowed(Search *s, Candidate c)
{
    unsigned bits = 0;
    RuleInput x = s->rules;
    RuleViolation h;
    Cut cut;
    for (int i = 0; i < s->rungs; i++) {
        if (i && !c.overlap && s->ask.fix.recompute == ANY) {
            bits |= 1u << i;                                  /* nothing but overlap minds what is dropped */
            continue;
        }
        c.recompute = s->rung[i];
        space_candidate(&x, &cut, &s->ask, &c);
        if (!space_breaks(&h, &x, s->ask.task.model, &c)) bits |= 1u << i;
        else if (s->ask.fix.recompute != ANY) search_refuse(s, h.number, &c, 0, 0, h.why);
    }
    return bits;
}

/* Gradients are summed in f32 here; other trainers can do with less. */
static bool states_work(const SearchAsk *a, int i)
{
    const States *w = states_at(i);
    return w && (w->grad == 4 || !search_can_build(a));
}

typedef struct Rest { int states_from, states_to; double parks[PARKED]; int parked; } Rest;

/* What is left to choose once a layout stands. */
static Rest rest_of(const Search *s)
{
    const Fixed *f = &s->ask.fix;
    Rest r = { .states_to = -1, .parked = PARKED };
    while (states_work(&s->ask, r.states_to + 1)) r.states_to++;
    if (f->states != ANY) r.states_from = r.states_to = f->states;
    memcpy(r.parks, parked, sizeof parked);
    if (f->offload >= 0) r.parked = 1, r.parks[0] = f->offload;
    if (s->first) r.parked = 1;
    return r;
}

static int last_rung(unsigned allowed)
{
    int i = RUNGS;
    while (i >= 0 && !(allowed >> i & 1)) i--;
    return i;
}

/* Up the ladder with these states and this share parked, to the first rung that fits with room to spare, or
 * -1; perhaps past one that is tight, which is kept too. */
static Status climb(Search *s, Candidate *c, int states, unsigned allowed, int *rung)
{
    bool tight = false;
    *rung = -1;
    for (int i = 0; i < s->rungs && *rung < 0; i++) {
        int stage = 0;
        if (!(allowed >> i & 1)) continue;
        c->recompute = s->rung[i];
        double peak = weigh(s, c, states, &stage);
        bool near = search_tight(&s->ask, peak);
        if (!search_fits(&s->ask, peak) || (near && tight)) continue;
        if (near) tight = true;
        else      *rung = i;
        TRY(keep(s, c, states, i, stage, peak));
    }
    return OK;
}

static int mbs_least(const Search *s) { return s->ask.fix.mbs == ANY ? 1 : s->ask.fix.mbs; }

/* States in the order of their rows, until some do. Further exact ones are tried where recompute was needed:
 * which of the two costs less is told by time. */
static Status settle_states(Search *s, Candidate c, unsigned allowed, const Rest *rest, bool *fits)
{
    int last = last_rung(allowed), rung = -1;
    for (int i = rest->states_from; i <= rest->states_to; i++) {
        if (*fits && (!states_at(i)->exact || rung == 0)) break;
        c.recompute = s->rung[last];
        if (!search_fits(&s->ask, weigh(s, &c, i, NULL))) continue;
        TRY(climb(s, &c, i, allowed, &rung));
        *fits |= rung >= 0;
    }
    return OK;
}

/* The cheapest ways in which this layout fits. */
static Status settle(Search *s, Candidate c, unsigned allowed, bool *any)
{
    Rest rest = rest_of(s);
    bool fits = false;
    REQUIRE(allowed, "no rung is allowed");
    c.recompute = s->rung[last_rung(allowed)], c.offload = rest.parks[rest.parked - 1];
    double least = weigh(s, &c, rest.states_to, NULL);
    *any = search_fits(&s->ask, least);
    if (!*any && c.mbs == mbs_least(s)) search_refuse(s, 0, &c, rest.states_to, least, NULL);
    for (int p = 0; *any && p < rest.parked && !fits; p++) {
        c.offload = rest.parks[p];
        TRY(settle_states(s, c, allowed, &rest, &fits));
    }
    return OK;
}

Status search_settle(Search *s, Candidate c, double extra)
{
    bool any;
    s->extra = extra;
    Status st = settle(s, c, rungs_allowed(s, c), &any);
    return s->extra = 0, st;
}

/* All sizes of micro-batch of a layout, until one is too large. */
static Status judge(Search *s, const Candidate *layout)
{
    Candidate c = *layout;
    RuleInput x = s->rules;
    RuleViolation   h;
    Cut       cut;
    int       mbs[DEGREES], n = space_mbs(&s->ask, mbs);
    unsigned  allowed = 0;
    bool      any = true;
    for (int i = 0; i < n && any && !(s->first && s->fits); i++) {
        c.mbs = mbs[i];
        space_candidate(&x, &cut, &s->ask, &c);
        if (space_breaks(&h, &x, s->ask.task.model, &c)) {
            s->judged++;
            search_refuse(s, h.number, &c, 0, 0, h.why);
            continue;
        }
        if (!allowed && !(allowed = rungs_allowed(s, c))) return OK;
        TRY(settle(s, c, allowed, &any));
    }
    return OK;
}

static Status check_ask(const SearchAsk *a)
{
    const Task *t = &a->task;
    if (t->patches && !t->model->depth)
        return fail(E_CONFIG, "--images: %s sees no pictures", t->model->name);
    if (a->fix.states != ANY && !states_work(a, a->fix.states))
        return fail(E_CONFIG,
                    "--fix states=%s: gradients are summed in f32 here; there are f32, split, moments",
                    states_at(a->fix.states)->name);
    if (t->precision != PREC_BF16 && t->hw.fp8 <= 0)
        return fail(E_CONFIG, "--precision: %s has no 8-bit products; ask for bf16", t->hw.id);
    return OK;
}

static Status walk(Search *s)
{
    double from = clock_now();
    space_rules(&s->rules, &s->ask);
    s->rungs = space_rungs(s->rung, &s->ask);
    Status st = space_walk(s, judge);
    if (!st && !s->n) s->wide = true, st = space_walk(s, judge);
    if (!st) st = search_rank(s, 0);
    s->seconds = clock_now() - from;
    return st;
}

static Status open(Search *s, const SearchAsk *a, bool first)
{
    *s = (Search){ .ask = *a, .first = first, .ratio = { 1, 1 } };
    TRY(check_ask(a));
    Status st = walk(s);
    if (st) search_close(s);
    return st;
}

Status search_open(Search *s, const SearchAsk *a) { return open(s, a, false); }

void search_close(Search *s)
{
    free(s->found);
    s->found = NULL;
    s->n = s->room = 0;
}

static Status does(const SearchAsk *a, bool *fits)
{
    Search *s = malloc(sizeof *s);
    if (!s) return fail(E_FIT, "no memory for a search");
    Status st = open(s, a, true);
    *fits = !st && s->fits;
    if (!st) search_close(s);
    free(s);
    return st;
}

/* Up by doubling from one; between whole domains there is little to gain. */
Status search_least(const SearchAsk *a, int most, int *gpus)
{
    SearchAsk b = *a;
    *gpus = 0;
    for (int64_t n = 1; n <= most && !*gpus; n *= 2) {
        bool fits = false;
        b.task.gpus = (int)n;
        TRY(does(&b, &fits));
        if (fits) *gpus = (int)n;
    }
    return OK;
}

Status search_card(const SearchAsk *a, char *id, size_t n)
{
    const char *rest = hardware_names(), *name;
    double least = 0;
    size_t len;
    *id = 0;
    while ((name = str_item(&rest, ',', &len))) {
        SearchAsk b = *a;
        char one[32];
        bool fits = false;
        while (len && *name == ' ') name++, len--;
        if (memchr(name, ' ', len)) continue;                 /* "or this" ends the list */
        snprintf(one, sizeof one, "%.*s", (int)len, name);
        TRY(hardware_find(&b.task.hw, one));
        if (b.task.hw.capacity <= a->task.hw.capacity || (least > 0 && b.task.hw.capacity >= least)) continue;
        if (b.task.precision != PREC_BF16 && b.task.hw.fp8 <= 0) continue;
        TRY(does(&b, &fits));
        if (fits) least = b.task.hw.capacity, snprintf(id, n, "%s", b.task.hw.id);
    }
    return OK;
}
