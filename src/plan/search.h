/* plan/search.h -- searches layouts for a model on a number of GPUs: every legal candidate is estimated by
 * the analytic model (analytic.h), candidates that fit are ranked, the best are checked by a dry run, and the
 * first can be written as a recipe.
 *
 * Order of preference (by_preference in search_rank.c): fits with memory to spare; exact optimizer states
 * before rounded ones, rounded ones before offload; tp and ep x etp inside a node, so that pipelines cross
 * nodes; selective recompute before full; the least tp x cp x pp, so that dp is as large as possible; whole
 * experts; little recompute; few ranks of ep. FOR_FIT ranks by this order alone, FOR_THROUGHPUT by predicted
 * time, and by this order where times are too close to tell apart: memory to spare, exact states and
 * selective recompute may cost a tenth of the step at most, and the fastest layout is always listed. FSDP
 * (zero 3) and 3-D layouts (zero 1) are ranked separately and merged by time. */
#ifndef PLAN_SEARCH_H
#define PLAN_SEARCH_H

#include "base/config.h"
#include "parallel/rules.h"
#include "plan/lora_cost.h"

typedef enum { FOR_THROUGHPUT, FOR_FIT } Objective;

/* Types of gradients, moments and master weights; a row of states_at. */
typedef struct States {
    const char *name;                    /* as in --fix */
    int         grad;                    /* bytes, see Task */
    double      moment;
    int         master;
    bool        exact;                   /* trains bit-equal to the first row */
    bool        asked;                   /* only where --fix or the recipe asks for it */
    const char *what;                    /* as text */
} States;

const States *states_at(int i);                               /* NULL past the last; each saves more */

enum { ANY = -1, RUNGS = 12, DEGREES = 64 };

/* Settings that are given; ANY: searched. */
typedef struct Fixed {
    int    tp, cp, pp, vpp, ep, etp, zero, replicas, mbs, states, dispatch, overlap, recompute;
    double offload;
} Fixed;

typedef struct SearchAsk {
    Task      task;                      /* hw.domain: ranks of a node; its state bytes are not read */
    const Config *adapters;              /* the lora and model.freeze_* of task.lora; NULL: none */
    Objective objective;
    Fixed     fix;
    int       top;                       /* entries of the ranking */
    bool      dry;                       /* the best are checked by a dry run */
} SearchAsk;

void        search_default(SearchAsk *a);                     /* nothing is fixed */
/* "tp=2,ep=8,recompute=moe_act+layernorm,states=split,offload=0.5,dispatch=deepep,overlap=0" */
MUST Status search_fix(Fixed *f, const char *text);

/* How layers are split over stages: evenly, counting embedding or loss as a layer, or by a string. */
typedef struct LayerSplit { bool embedding, loss; char string[128]; } LayerSplit;

typedef struct FoundLayout {
    Candidate c;
    int       states;                    /* states_at */
    int       rung;                      /* step on the ladder of recompute words */
    int       leaves;                    /* kinds of groups of a layer that span nodes */
    int       stage;                     /* the fullest */
    double    peak;                      /* its bytes */
    bool      tight;
    bool        unproven; /* ZeRO-3 of all experts without EP: no published run is known */
    StepTime  time;
    double    step;                      /* seconds it is ranked by: from the dry run, or scaled to it */
    bool      dried;                     /* a dry run was made: its results are below */
    double    dry_peak, dry_step;
    const char *dry_wall;                /* its bottleneck */
} FoundLayout;

/* Candidates left out: by a rule, or by their degrees if even the most frugal settings are too large. */
typedef struct Refused {
    int       rule;                      /* 0: too large by the analytic model; RULE_DRY: by a dry run */
    int       zero, tp, pp;              /* of too large ones */
    int64_t   n;
    Candidate c;                         /* the nearest miss */
    int       states;
    double    peak;                      /* its bytes */
    char      why[440];                  /* of a rule */
} Refused;

enum { REFUSALS = 128, RULE_DRY = -1 };

typedef struct Search {
    SearchAsk  ask;
    LayerTable *layers;                  /* of the model: ask.task.layers */
    RuleInput  rules;                    /* of the model and the task */
    unsigned   rung[RUNGS];              /* recompute words, each step drops more */
    int        rungs;
    FoundLayout *found;                   /* best first once ranked */
    int        n, capacity;
    Refused    refused[REFUSALS];
    int        refusals;
    int64_t    candidates;               /* refused by a rule or estimated */
    double     seconds;                  /* of that and of the ranking */
    bool       wide;                     /* nothing fits in the usual space: the wider one was searched */
    bool       fits;                     /* a candidate that is not tight was found */
    bool       first;                    /* stop at the first, and without offload */
    int        places;                   /* of the ranking: found[0 … places), distinct layouts */
    int        dried;                    /* dry runs */
    double     dry_seconds;
    double     ratio[2];                 /* dry-run time over analytic time so far: zero 1, zero 3 */
    bool       calibrated[2];            /* ratio comes from a dry run */
    double     extra;                    /* bytes that a dry run found beyond the analytic model */
} Search;

/* Walks the space and ranks all candidates that fit. Finding none is no error: n is 0. */
MUST Status search_open(Search *s, const SearchAsk *a);
void        search_close(Search *s);                          /* twice is fine */

/* Moves the best candidates of ask.top layouts to the front, and the fastest. With ask.dry the first CHECKED
 * are checked by a dry run whatever ask.top is, which
 * decides: a candidate that is too large is replaced by a more frugal one of the same layout, and times of
 * dry runs are used for the ranking. */
MUST Status search_places(Search *s);
bool        search_can_build(const SearchAsk *a);             /* a family of this trainer can build it */
bool        search_any_legal(const Search *s);                /* some layout satisfies the rules */

/* Bytes of a frozen weight under model.base_quant, its scales included; 0: as others. */
double      search_base_bytes(const Config *recipe);

/* Makes the search plan for the adapters of `recipe`; its model section is ignored. x and recipe must
 * outlive a. */
MUST Status search_adapt(SearchAsk *a, LoraCost *x, const Config *recipe);

/* The least number of GPUs that fits without offload, 0: none up to `most`. */
MUST Status search_least(const SearchAsk *a, int most, int *gpus);
/* The hardware row with the least memory that fits with the same number of GPUs; "": none. */
MUST Status search_gpu(const SearchAsk *a, char *id, size_t n);

MUST Status search_config(Config *c, const SearchAsk *a, const FoundLayout *f);      /* as a recipe */
MUST Status search_recipe(FILE *out, const Search *s, const FoundLayout *f, const char *command);

MUST Status search_print(FILE *out, const Search *s);
MUST Status search_json(FILE *out, const Search *s);

/* --- parts in other files ----------------------------------------------------------------------------- */

typedef struct TextLines { int n; char at[16][240]; } TextLines;
void        lines_add(TextLines *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* search_space.c: the candidates. fn is called once per layout, with mbs 1. */
typedef Status SpaceFn(Search *s, const Candidate *layout);
MUST Status space_walk(Search *s, SpaceFn *fn);
int         space_mbs(const SearchAsk *a, int list[DEGREES]);
void        space_rules(RuleInput *x, const SearchAsk *a);                     /* of the model */
void        space_candidate(RuleInput *x, LayerSplit *split, const SearchAsk *a, const Candidate *c);
bool        space_breaks(RuleViolation *h, const RuleInput *x, const Task *t, const Candidate *c);
void        space_split(LayerSplit *split, int layers, int pp, int vpp);
int         space_rungs(unsigned list[RUNGS], const SearchAsk *a);

/* search_words.c: names of settings. */
const char *found_bottleneck(const FoundLayout *f);           /* by the dry run, or by the analytic model */
const char *dispatch_word(DispatcherId id);
int         search_words(const char *list[RULE_LABELS], unsigned bits);
void        search_words_text(char *text, size_t n, unsigned bits, const char *between);
void        layout_text(char *text, size_t n, const SearchAsk *a, const Candidate *c);
void        trains_text(char *text, size_t n, const LoraCost *x); /* how many adapters and parameters */

/* search.c */
MUST Status search_settle(Search *s, Candidate c, double extra); /* adds the cheapest settings that fit */
void        search_refuse(Search *s, int rule, const Candidate *c, int states, double peak, const char *why);
bool        search_tight(const SearchAsk *a, double peak);
bool        search_fits(const SearchAsk *a, double peak);                      /* perhaps tight */

/* search_rank.c: the order regardless of time; below 0: a comes first. */
int         search_class(const FoundLayout *a, const FoundLayout *b);
MUST Status search_rank(Search *s, int from);                                  /* found[from … n) */
int         search_fastest(const Search *s); /* index of the least time of all; n > 0 */

/* search_why.c: reasons as text. */
void        search_reasons(TextLines *l, const Search *s, const FoundLayout *f);
void        search_warnings(TextLines *l, const Search *s, const FoundLayout *f);

static inline int found_parallel(const Candidate *c) { return c->tp * c->cp * c->pp; }

static inline int64_t found_dp(const SearchAsk *a, const Candidate *c)
{
    return a->task.gpus / found_parallel(c);
}

/* 0: the layout takes more GPUs than there are. */
static inline int64_t found_micros(const SearchAsk *a, const Candidate *c)
{
    int64_t dp = found_dp(a, c);
    return dp ? a->task.gbs / (c->mbs * dp) : 0;
}

/* Per GPU, by the time it is ranked by. */
static inline double found_tokens_s(const SearchAsk *a, const FoundLayout *f)
{
    return (double)(a->task.seq * a->task.gbs) / f->step / a->task.gpus;
}

static inline double found_tflops(const FoundLayout *f)
{
    return f->time.model_tflops * f->time.step / f->step;
}
static inline double found_mfu(const FoundLayout *f)    { return f->time.mfu * f->time.step / f->step; }

#endif
