/* plan/dryrun.h -- the trainer itself without data and without peers: one rank of each stage of a layout, what it
 * holds by arena and label, what it computes and says, and by a row of hardware how long that takes. */
#ifndef PLAN_DRYRUN_H
#define PLAN_DRYRUN_H

#include "base/config.h"
#include "plan/hardware.h"
#include "train/recipe.h"

/* Seconds of one micro-batch there and back on a stage, by formula over every op that the dry run charged. */
typedef struct StageTime {
    double part[PART_N];                 /* work of the model's parts */
    double op[LEDGER_OPS];               /* the same by op */
    double replay;                       /* of it, forward work done again */
    double launch;                       /* what the host needs to say all of it; hidden if the work takes longer */
    double comm[LEDGER_GROUPS];          /* by GroupId, each call alone */
    double forward, backward;            /* compute and what of communication nothing hides */
} StageTime;

typedef struct DryStage {
    EnginePlan plan;
    StageTime  time;
} DryStage;

typedef struct DryStep {                 /* of the slowest rank, seconds */
    double compute, exposed[LEDGER_GROUPS], bubble, optimizer, launch, step;
    double tokens_s, model_tflops, mfu, hfu, error;              /* error: of step, as a share of it */
    const char *wall;                    /* "memory" "communication" "compute" "host": what holds it up */
} DryStep;

typedef struct DryRun {
    Config        recipe;                /* texts are the caller's; device.backend is what is planned for */
    ModelShape    shape;
    char          model[160];            /* where the shape is from, in words */
    DType         dtype;
    int           ranks, per_node, stages;
    int           chunks, micros;        /* of a stage; of a step on each rank */
    int           plans;                 /* engines that were planned for it */
    Hardware      hw;
    bool          priced;                /* hw is given: times are there */
    DryStage     *stage;                 /* (stages) */
    DryStep       step;
} DryRun;

/* hw NULL: memory and messages alone, of the recipe's own backend. Refusals carry the rule. What the rules
 * only warn of is not said here: see rules_check. The recipe may be closed afterwards, its texts not. */
MUST Status dryrun_open(DryRun *d, const Config *recipe, int ranks, int per_node, const Hardware *hw);
void        dryrun_close(DryRun *d);                           /* twice is fine */
size_t      dryrun_peak(const DryRun *d, int *stage);          /* device bytes of the fullest stage */
size_t      dryrun_device(const DryRun *d, int stage);         /* of one of them */

/* The model in numbers: a preset, a config.json, or where model.path is not there the preset that its last
 * part is called after. from: in words. Neither weights nor a tokenizer are wanted. */
MUST Status dryrun_shape(ModelShape *s, char *from, size_t n, const struct cfg_model *c);
/* Ranks that the layout takes at least. */
int         dryrun_ranks(const struct cfg_parallel *p);

/* Whether so much fits hardware, with what libraries take beside it. */
typedef enum { FIT_WELL, FIT_TIGHT, FIT_NOT } Fit;
Fit         fit_of(double bytes, const Hardware *hw);
const char *fit_word(Fit f);             /* "fits" "tight" "does not fit" */

#endif
