/* plan/view.h -- a dry run as text and as JSON; report/plan_page.h has the page. */
#ifndef PLAN_VIEW_H
#define PLAN_VIEW_H

#include "base/json.h"
#include "plan/dryrun.h"
#include "engine/fit.h"

/* Estimates of two public estimators for the same layout, for comparison; they have only these two terms. */
typedef struct Estimate { const char *name; double state, activations; } Estimate;
enum { ESTIMATES = 2 };
void        estimates_of(Estimate e[ESTIMATES], const DryRun *d);

typedef struct PlanView {
    const DryRun    *dry;
    const char      *title;              /* the recipe's name */
    const FitAdvice *advice;             /* NULL: it fits, or no hardware is given */
    const Estimate  *estimates;          /* (ESTIMATES) NULL: not asked for */
} PlanView;

MUST Status view_print(FILE *out, const PlanView *v);
MUST Status view_json(Json **out, const PlanView *v);             /* for json_decref */

/* The index of a rank on each axis, without axes of size 1: "t1 d0 p2 e5". */
enum { PLACEMENT_BYTES = 64 };
const char *placement_text(char buf[PLACEMENT_BYTES], const Mesh *m);
MeshLayout      view_layout(const DryRun *d);
void        placement_print(FILE *out, const DryRun *d);      /* view_placement.c: nodes and their ranks */

/* The schedule of the first micro-batches of a step, about `most` of them; for schedule_close. Without
 * hardware a forward takes 1 and a backward 2. */
MUST Status view_timeline_open(Schedule *t, const DryRun *d, int most);

/* Calls and bytes of a group in a step, for one rank of a stage. */
LedgerComm  view_comm(const DryRun *d, int stage, int group);
double      view_flops(const DryRun *d, int stage, Part p);   /* of the model, per step */
extern const char *const part_words[PART_N];
static inline bool view_on_device(int arena) { return arena != A_HOST; }

#endif
