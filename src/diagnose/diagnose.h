/* diagnose/diagnose.h -- which wall a step runs into, from a plan or from what was measured, and which
 * changes of the recipe would help by how much.
 *
 * A step is a StepProfile, whether predicted or measured, so the verdict is reached in the same way. With
 * measured numbers the hardware row is first fitted to them: compute, and the rates of links. Each fix
 * (walls.def) is the plan again with the change; its step is the given one with every part scaled as the two
 * plans scale it. The ceiling of a wall is what removing all of it would give.
 *
 *   DiagnoseAsk ask = { .recipe = &recipe, .ranks = 8, .per_node = 8, .hw = hw, .measured = &p.measured };
 *   Diagnosis  *d;
 *   TRY(diagnose_open(&d, &ask));
 *   for (int i = 0; i < d->fixes; i++) ... d->fix[i].set, d->fix[i].gain ...
 *   diagnose_close(d); */
#ifndef DIAGNOSE_DIAGNOSE_H
#define DIAGNOSE_DIAGNOSE_H

#include "engine/fit.h"
#include "profile/predict.h"
#include "train/label.h"

typedef enum {
    WALL_none,
#define WALL(id, ...) WALL_##id,
#define FIX(...)
#include "diagnose/walls.def"
#undef WALL
#undef FIX
    WALL_N
} WallId;

typedef enum { FIX_SAME, FIX_OTHER, FIX_COMMAND } FixKind;

enum { DIAGNOSE_FIXES = 64, DIAGNOSE_TRAPS = 16, DIAGNOSE_TEXT = 400 };

typedef struct DiagnoseAsk {
    const Config *recipe;                /* outlives the Diagnosis */
    int           ranks, per_node;
    Hardware      hw;
    double        limit;                 /* bytes that a rank may take; 0: fit_limit(&hw) */
    const StepProfile *measured;         /* NULL: the plan alone */
    const BatchContent *content;         /* of the run's micro-batches; NULL: content_assumed */
    double        spread;                /* of ranks of a stage, see Profile; 0: not known */
    LabelFacts    facts;                 /* of the run that was measured */
} DiagnoseAsk;

typedef struct Evidence {
    StepProfile   at;                    /* the step that is diagnosed */
    bool          measured;
    const Config *recipe;
    BatchContent  content;               /* that plans are of */
    bool          content_known;         /* false: each plan assumes what its recipe allows */
    ModelShape    shape;
    Hardware      hw;                    /* fitted to what was measured */
    int           ranks, per_node, micros;
    double        limit, bytes;          /* that a rank may take; that the plan takes */
    double        spread;
    double        larger;                /* seconds that larger micro-batches would save: compute, pauses */
    double        recomputing, repeated; /* seconds that recomputation and offload cost; of them waiting for
                                            communication that is repeated */
    LabelFacts    facts;
} Evidence;

typedef struct WallFinding {
    WallId id;
    bool   found;
    double recoverable;                  /* seconds */
    char   evidence[DIAGNOSE_TEXT];
} WallFinding;

typedef struct Fix {
    WallId      wall;
    FixKind     kind;
    char        set[FIT_SET];            /* overrides, as a command line takes them; or a command */
    const char *price, *forbids;
    double      bytes, step, gain;       /* predicted; gain: of throughput, 0.1 is 10 % */
    bool        fits;
    WallId      next;                    /* the wall after the change */
} Fix;

typedef struct Diagnosis {
    Evidence    e;
    StepProfile plan;                    /* of the same recipe */
    WallFinding wall[WALL_N];            /* wall[0] is not used */
    WallId      first;                   /* the dominant wall; WALL_none: none is found */
    double      ceiling;                 /* gain of throughput if all of it could be recovered */
    Fix         fix[DIAGNOSE_FIXES];     /* those of the dominant wall first, best first */
    int         fixes;
    char        trap[DIAGNOSE_TRAPS][DIAGNOSE_TEXT];
    int         traps;
} Diagnosis;

MUST Status diagnose_open(Diagnosis **out, const DiagnoseAsk *ask);
void        diagnose_close(Diagnosis *d);                            /* NULL is fine */

const char *wall_name(WallId id);                                    /* "communication"; "none" */
const char *wall_check(WallId id);                                   /* what to look at first */
void        diagnose_print(FILE *out, const Diagnosis *d);
MUST Status diagnose_json(Json **out, const Diagnosis *d);           /* for json_decref */

/* ---- parts in other files ---- */

/* walls.c: all walls of a step; returns the dominant one. */
WallId      walls_find(WallFinding wall[WALL_N], const Evidence *e);
/* fixes.c: plans every change that applies, and sorts. */
MUST Status fixes_find(Diagnosis *d);
/* fixes.c: what larger micro-batches would save of compute and of the step; what no recomputation and no
 * offload would. */
double      fixes_larger(const Evidence *e, const StepProfile *plan);
void        fixes_recomputing(Evidence *e, const StepProfile *plan);
void        traps_find(Diagnosis *d);
/* transfer.c: `at` after a change, as the plans before and after it scale its parts. */
StepProfile step_after(const StepProfile *at, const StepProfile *before, const StepProfile *after);
/* transfer.c: a step towards the hardware that explains what was measured; free_links: the plan over links
 * that take no time, NULL without a pipeline. */
void        fit_hardware(Hardware *hw, const StepProfile *measured, const StepProfile *plan,
                         const StepProfile *free_links);
/* plan_step.c: the plan of a recipe; bytes: of the fullest rank. */
MUST Status plan_step(StepProfile *s, const Evidence *e, const Config *recipe);

/* "63.7 ms", "4.21 s", in a buffer of the caller's block. */
enum { TIME_BYTES = 24 };
#define TIME(seconds) time_text((char[TIME_BYTES]){ 0 }, seconds)
const char *time_text(char buf[TIME_BYTES], double seconds);

static inline double known(double x) { return x == x ? x : 0; }       /* NAN: not known */

/* Waits in the calls of such a group are the bubble and nothing else. */
static inline bool joins_stages(int g) { return group_traffic((GroupId)g) == TRAFFIC_LINKS; }

#endif
