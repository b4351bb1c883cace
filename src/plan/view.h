/* plan/view.h -- a dry run for people and for programs: text, JSON, a page. */
#ifndef PLAN_VIEW_H
#define PLAN_VIEW_H

#include "base/json.h"
#include "plan/dryrun.h"
#include "engine/fit.h"

/* What two public estimators would say of the same layout, for comparison (planner.md, 4.5). They know no more
 * than these two terms. */
typedef struct Estimate { const char *name; double state, activations; } Estimate;
enum { ESTIMATES = 2 };
void        estimates_of(Estimate e[ESTIMATES], const DryRun *d);

typedef struct PlanView {
    const DryRun    *dry;
    const char      *title;              /* the recipe's name */
    const FitAdvice *advice;             /* NULL: it fits, or nothing says how much there is */
    const Estimate  *estimates;          /* (ESTIMATES) NULL: not asked for */
} PlanView;

MUST Status view_print(FILE *out, const PlanView *v);
MUST Status view_json(Json **out, const PlanView *v);             /* for json_decref */
MUST Status view_page(const PlanView *v, const char *path);       /* one file of HTML, no network */

/* What a rank is called on its axes, those of one place left out: "t1 d0 p2 e5". */
enum { PLACEMENT_BYTES = 64 };
const char *placement_text(char buf[PLACEMENT_BYTES], const Mesh *m);
MeshLayout      view_layout(const DryRun *d);
void        placement_print(FILE *out, const DryRun *d);          /* view_seats.c: nodes, and ranks in them */

/* The schedule of the first micro-batches of a step, at most `most` of them where it can be cut there; for
 * schedule_close. Without hardware a forward takes 1 and a backward 2. */
MUST Status view_timeline_open(Schedule *t, const DryRun *d, int most);

/* Bytes of a step that one rank of a stage sends in a group's calls: all micro-batches and what comes once. */
LedgerComm  view_comm(const DryRun *d, int stage, int group);
double      view_flops(const DryRun *d, int stage, Part p);   /* that the model needs, of a step */
extern const char *const part_words[PART_N];
static inline bool view_on_device(int arena) { return arena != A_HOST; }

#endif
