/* plan/dryrun.h -- runs the trainer's engine without data and without peers, for one rank of each pipeline
 * stage: memory by arena and label, FLOPs, bytes sent, and with a hardware row the time of a step. */
#ifndef PLAN_DRYRUN_H
#define PLAN_DRYRUN_H

#include "base/config.h"
#include "comm/communicators.h"
#include "plan/content.h"
#include "plan/timeline.h"
#include "checkpoint/lora_source.h"
#include "engine/recipe.h"
#include "train/trainable.h"

typedef struct DryStage {
    EnginePlan plan;                     /* memory of full micro-batches; ledgers of those that d->content
                                            describes */
    StageTime  time;
} DryStage;

typedef struct DryRun {
    Config        recipe;                /* strings are the caller's; device.backend is the planned one */
    ModelShape    shape;
    char          model[160];            /* where the shape comes from, as text */
    DType         dtype;
    int           ranks, per_node, stages;
    int           chunks, micros;        /* per stage; per step and rank */
    int           plans;                 /* engines that were planned */
    int           reserved_sms;          /* EngineConf.reserved_sms */
    Communicators communicators;         /* of the rank whose communicators take most; zero on CPUs; an
                                            estimate to show, not part of what must fit */
    TrainableSummary        trains;
    LoraSource    lora;                  /* from lora.path: the adapter lists its targets */
    Hardware      hw;
    double        uneven;                /* rows of the busiest rank over the even share */
    BatchContent  content;               /* what times are of */
    bool          content_known;         /* DryConf.content was given */
    bool          timed;                /* hw is given: step and schedule are filled */
    DryStage     *stage;                 /* (stages) */
    DryStep       step;
    StepAsk       ask;                   /* the workload of step */
    Schedule      schedule;              /* only with hw */
} DryRun;

typedef struct DryConf {
    const Config       *recipe;          /* may be closed afterwards, its strings not */
    int                 ranks, per_node;
    const Hardware     *hw;              /* NULL: memory and messages only, for the recipe's backend */
    double              uneven;          /* USUAL_UNEVEN unless something else is known */
    const BatchContent *content;         /* NULL: content_assumed */
} DryConf;

/* An error names the violated rule; warnings of rules are not logged (see rules_check). */
MUST Status dryrun_open_conf(DryRun *d, const DryConf *conf);
/* The same with USUAL_UNEVEN and content_assumed. */
MUST Status dryrun_open(DryRun *d, const Config *recipe, int ranks, int per_node, const Hardware *hw);
void        dryrun_close(DryRun *d);                           /* twice is fine */
size_t      dryrun_peak(const DryRun *d, int *stage);          /* device bytes of the fullest stage */
size_t      dryrun_device(const DryRun *d, int stage);         /* of a stage */

/* The shape of the model: a preset, a config.json, or, if model.path does not exist, the preset that its last
 * component names. from: its origin as text. Needs neither weights nor a tokenizer. */
MUST Status dryrun_shape(ModelShape *s, char *from, size_t n, const struct cfg_model *c);
/* The least number of ranks of the layout. */
int         dryrun_ranks(const struct cfg_parallel *p);

/* Whether so many bytes fit, beside what libraries take. */
#define FIT_WELL_SHARE 0.92              /* of a rank's memory: what takes more is tight */
typedef enum { FIT_WELL, FIT_TIGHT, FIT_NOT } Fit;
Fit         fit_of(double bytes, const Hardware *hw);
double      fit_limit(const Hardware *hw);                     /* the most bytes that fit, tight */
const char *fit_word(Fit f);             /* "fits" "tight" "does not fit" */

#endif
