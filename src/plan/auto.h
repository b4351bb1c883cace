/* plan/auto.h -- chooses the sections parallel and memory of a recipe that leaves them to the planner: it has
 * no such section, or says `parallel: auto`.
 *
 * What a step computes stays: train.micro_tokens, and the tokens of a step that data parallelism over all
 * ranks would have. The recipe's defaults are kept where they are legal and fit. Otherwise the layouts of the
 * search are tried in the order of their predicted times, each with the least recompute and offload that
 * fits, by dry runs of the recipe itself; the one with the least predicted time is taken. A recipe that says
 * `parallel: auto` also gets a layout that is predicted to be faster than the defaults by more than the error
 * of predictions. Finding none is no error: the recipe stays as it is, and the run says what does not fit. */
#ifndef PLAN_AUTO_H
#define PLAN_AUTO_H

#include "comm/comm.h"
#include "plan/layout_keys.h"
#include "plan/search.h"

enum { AUTO_YAML = 4096 };

typedef struct AutoAsk {
    const Config *recipe;
    int           ranks, per_node;
    Hardware      hw;                    /* for times; its memory is not read */
    double        available;             /* bytes that a rank may take */
} AutoAsk;

typedef struct AutoChoice {
    LayoutKeys keys;                     /* overrides; none: the recipe stays as it is */
    TextLines  lines;                    /* the choice and why; none: there is nothing to say */
    char       yaml[AUTO_YAML];          /* in place of keys: sections of the run that is resumed */
} AutoChoice;

MUST Status auto_find(AutoChoice *a, const AutoAsk *ask);

/* For a run on the ranks of `world`: the first rank chooses for what the ranks have free, all of them change
 * their recipe. A run that is resumed on as many ranks keeps its choice. */
MUST Status auto_choose(AutoChoice *a, Config *recipe, Comm *world);

#endif
