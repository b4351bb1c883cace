/* plan/dryrun.h -- the trainer itself without data and without peers: one rank of each stage of a layout, what
 * it holds by arena and label, what it computes and says, and by a row of hardware how long that takes. */
#ifndef PLAN_DRYRUN_H
#define PLAN_DRYRUN_H

#include "base/config.h"
#include "plan/timeline.h"
#include "checkpoint/lora_source.h"
#include "engine/recipe.h"
#include "train/trainable.h"

typedef struct DryStage {
    EnginePlan plan;
    StageTime  time;
} DryStage;

typedef struct DryRun {
    Config        recipe;                /* texts are the caller's; device.backend is what is planned for */
    ModelShape    shape;
    char          model[160];            /* where the shape is from, in words */
    DType         dtype;
    int           ranks, per_node, stages;
    int           chunks, micros;        /* of a stage; of a step on each rank */
    int           plans;                 /* engines that were planned for it */
    TrainableSummary        trains;
    LoraSource    lora;                  /* of lora.path: an adapter says itself what it adapts */
    Hardware      hw;
    bool          timed;                /* hw is given: times are there */
    DryStage     *stage;                 /* (stages) */
    DryStep       step;
    StepAsk       ask;                   /* what step is of, hw its own */
    Schedule      schedule;              /* when each stage does what; timed alone */
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
