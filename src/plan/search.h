/* plan/search.h -- layouts for a model on so many cards: every legal one is judged by formula (closed.h),
 * those that fit are ranked, the best are tried by the dry run, the winner becomes a recipe.
 *
 * What is preferred, in this order (by_preference in search_rank.c): what fits with room to spare; exact
 * states before rounded ones, rounded ones before offload; tp and ep x etp inside the domain of fast links,
 * so that pipelines cross it; selective recompute before full; the least of tp x cp x pp, so that dp is as
 * large as can be; experts whole; little recompute; few ranks of ep. FOR_FIT ranks by it alone,
 * FOR_THROUGHPUT by predicted time, and by it where times are too close to tell apart. Sharded weights (FSDP,
 * zero 3) and cut ones (3-D, zero 1) are ranked apart and merged by time: both do the same tokens. */
#ifndef PLAN_SEARCH_H
#define PLAN_SEARCH_H

#include "base/config.h"
#include "parallel/rules.h"
#include "plan/lora_cost.h"

typedef enum { FOR_THROUGHPUT, FOR_FIT } Objective;

/* Types of gradients, moments and master weights; a row of states_at. */
typedef struct States {
    const char *name;                    /* as --fix says it */
    int         grad, moment, master;    /* bytes, see Task */
    bool        exact;                   /* trains with the bits of the first row */
    const char *what;                    /* for people */
} States;

const States *states_at(int i);                               /* NULL past the last; each saves more */

enum { ANY = -1, RUNGS = 12, DEGREES = 64 };

/* What is not to be searched for; ANY: it is. */
typedef struct Fixed {
    int    tp, cp, pp, vpp, ep, etp, zero, mbs, states, dispatch, overlap, recompute;
    double offload;
} Fixed;

typedef struct SearchAsk {
    Task      task;                      /* hw.domain: ranks that fast links join; its states are not read */
    const Config *adapters;              /* whose lora and model.freeze_* task.lora is of; NULL: none */
    Objective objective;
    Fixed     fix;
    int       top;                       /* places of the ranking */
    bool      dry;                       /* the best of them are tried by the dry run */
} SearchAsk;

void        search_default(SearchAsk *a);                     /* all that can be left open is */
/* "tp=2,ep=8,recompute=moe_act+layernorm,states=split,offload=0.5,dispatch=deepep,overlap=0" */
MUST Status search_fix(Fixed *f, const char *text);

/* How a model's layers are cut: evenly, with its ends counted as layers, or by a string. */
typedef struct Cut { bool embedding, loss; char string[128]; } Cut;

typedef struct Found {
    Candidate c;
    int       states;                    /* states_at */
    int       rung;                      /* of the ladder of recompute */
    int       leaves;                    /* kinds of groups of a layer that leave the domain of fast links */
    int       stage;                     /* the fullest */
    double    peak;                      /* its bytes */
    bool      tight;
    StepTime  time;
    double    step;                      /* seconds that it is ranked by: by dry run, or as that would say */
    bool      dried;                     /* the dry run was asked: what it says is below */
    double    dry_peak, dry_step;
} Found;

/* Why others are not there: by rule, or by degrees where even the most frugal way is too large. */
typedef struct Refused {
    int       rule;                      /* 0: too large by formula; RULE_DRY: by the dry run */
    int       zero, tp, pp;              /* of those too large */
    int64_t   n;
    Candidate c;                         /* the one that came nearest */
    int       states;
    double    peak;                      /* its bytes */
    char      why[440];                  /* of a rule */
} Refused;

enum { REFUSALS = 128, RULE_DRY = -1 };

typedef struct Search {
    SearchAsk  ask;
    RuleInput  rules;                    /* of the model and the task, one rank */
    unsigned   rung[RUNGS];              /* recompute, each dropping more than the last */
    int        rungs;
    Found     *found;                    /* best first once ranked */
    int        n, room;
    Refused    refused[REFUSALS];
    int        refusals;
    int64_t    judged;                   /* candidates: refused by a rule or weighed by formula */
    double     seconds;                  /* of that, and of the ranking */
    bool       wide;                     /* nothing was found where one looks first */
    bool       fits;                     /* one was found that is not tight */
    bool       first;                    /* stop at it, and without offload */
    int        places;                   /* of the ranking: found[0 … places), each another layout */
    int        dried;                    /* dry runs */
    double     dry_seconds;
    double     ratio[2];                 /* time by dry run over that by formula so far: zero 1, zero 3 */
    bool       told[2];                  /* a dry run has said it */
    double     extra;                    /* bytes beyond the formula, as a dry run found; while settling */
} Search;

/* Walks the space and ranks all of it. Finding nothing is no error: n is 0. */
MUST Status search_open(Search *s, const SearchAsk *a);
void        search_close(Search *s);                          /* twice is fine */

/* Puts the best ways of ask.top layouts first. With ask.dry each is tried by the dry run, whose word is the
 * last: what it finds too large gives way to a more frugal way of the same layout, and its time decides. */
MUST Status search_places(Search *s);
bool        search_can_build(const SearchAsk *a);             /* a family here trains it so */

/* From here on the ask is of adapters as `recipe` has them, whose model is not looked at. Both outlive it. */
MUST Status search_adapt(SearchAsk *a, LoraCost *x, const Config *recipe);

/* The least number of cards that trains it without offload, 0: none up to `most`. */
MUST Status search_least(const SearchAsk *a, int most, int *gpus);
/* The card with the least memory, of all rows, that does with this number of them; "": none. */
MUST Status search_card(const SearchAsk *a, char *id, size_t n);

MUST Status search_config(Config *c, const SearchAsk *a, const Found *f);      /* as a trainer wants it */
MUST Status search_recipe(FILE *out, const Search *s, const Found *f, const char *command);

MUST Status search_print(FILE *out, const Search *s);
MUST Status search_json(FILE *out, const Search *s);

/* --- parts with files of their own ------------------------------------------------------------------- */

typedef struct Lines { int n; char at[16][240]; } Lines;
void        lines_add(Lines *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* search_space.c: what there is. layout has mbs 1; each calls fn once. */
typedef Status SpaceFn(Search *s, const Candidate *layout);
MUST Status space_walk(Search *s, SpaceFn *fn);
int         space_mbs(const SearchAsk *a, int list[DEGREES]);
void        space_rules(RuleInput *x, const SearchAsk *a);                     /* of the model, one rank */
void        space_candidate(RuleInput *x, Cut *cut, const SearchAsk *a, const Candidate *c);
bool        space_breaks(RuleViolation *h, const RuleInput *x, const ModelRow *m, const Candidate *c);
void        space_cut(Cut *cut, int layers, int pp, int vpp);
int         space_rungs(unsigned list[RUNGS], const SearchAsk *a);

/* search_words.c: what knobs are called. */
const char *dispatch_word(DispatcherId id);
int         search_words(const char *list[RULE_LABELS], unsigned bits);
void        search_words_text(char *text, size_t n, unsigned bits, const char *between);
void        layout_text(char *text, size_t n, const SearchAsk *a, const Candidate *c);
void        trains_text(char *text, size_t n, const LoraCost *x);              /* how many pairs, what share */

/* search.c */
MUST Status search_settle(Search *s, Candidate c, double extra); /* adds the cheapest way that fits */
void        search_refuse(Search *s, int rule, const Candidate *c, int states, double peak, const char *why);
bool        search_tight(const SearchAsk *a, double peak);
bool        search_fits(const SearchAsk *a, double peak);                      /* perhaps tightly */

/* search_rank.c: the order; which of two comes first whatever their times, below 0: a. */
int         search_class(const Found *a, const Found *b);
MUST Status search_rank(Search *s, int from);                                  /* found[from … n) */

/* search_why.c: the words for it. */
void        search_reasons(Lines *l, const Search *s, const Found *f);
void        search_warnings(Lines *l, const Search *s, const Found *f);

static inline int found_parallel(const Candidate *c) { return c->tp * c->cp * c->pp; }

static inline int64_t found_dp(const SearchAsk *a, const Candidate *c)
{
    return a->task.gpus / found_parallel(c);
}

static inline int64_t found_micros(const SearchAsk *a, const Candidate *c)
{
    return a->task.gbs / (c->mbs * found_dp(a, c));
}

/* Of a card, by the time that it is ranked by. */
static inline double found_tokens_s(const SearchAsk *a, const Found *f)
{
    return (double)(a->task.seq * a->task.gbs) / f->step / a->task.gpus;
}

static inline double found_tflops(const Found *f) { return f->time.model_tflops * f->time.step / f->step; }
static inline double found_mfu(const Found *f)    { return f->time.mfu * f->time.step / f->step; }

#endif
