/* plan/relayout.h -- another layout for the recipe of a run, when the number of ranks has changed.
 *
 * What a step computes stays: train.global_tokens, train.micro_tokens and with them the order of the data.
 * The search (plan/search.h) ranks the layouts by predicted time; the first one that the rules allow and that
 * fits by a dry run of the recipe is taken. Fewer ranks are used if no layout is legal on all of them, or if
 * a step would be faster by more than the error of the prediction: 12 ranks can beat 15. */
#ifndef PLAN_RELAYOUT_H
#define PLAN_RELAYOUT_H

#include "plan/layout_keys.h"

typedef struct RelayoutAsk {
    const char  *recipe;                 /* file */
    char *const *override;               /* section.key=value */
    int          overrides;
    int          was;                    /* ranks that the recipe's layout is for */
    int          most, least;            /* ranks that may be used */
    int          per_node;
} RelayoutAsk;

typedef struct Relayout {
    int  ranks;
    LayoutKeys keys;                     /* what differs from the recipe */
    double step;                         /* predicted seconds */
    char layout[96];                     /* "tp2 ep4 dp2" */
    char reason[240];
} Relayout;

/* E_FIT: no number of ranks has a layout that is legal and fits; the error says why the largest does not. */
MUST Status relayout_find(Relayout *r, const RelayoutAsk *ask);

#endif
