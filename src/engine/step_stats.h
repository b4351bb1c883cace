/* engine/step_stats.h -- statistics of a step in addition to its loss, from its results. */
#ifndef ENGINE_STEP_STATS_H
#define ENGINE_STEP_STATS_H

#include "engine/code_losses.h"
#include "engine/expert_counts.h"
#include "engine/source_loss.h"

typedef struct StepStats {               /* experts, codes and sources may be NULL */
    ExpertCounts           *experts;
    CodeLosses             *codes;
    SourceLoss             *sources;
    const LoaderDoc *const *doc;         /* doc[k]: the documents of micro-batch k */
} StepStats;

/* Whether this rank has losses of rows that no other rank counts. */
bool step_stats_has_rows(const Engine *e);
bool step_stats_count_experts(const StepStats *w);           /* their choices are wanted; w may be NULL */
/* Adds what a slot of e->results has of a step of n micro-batches; w may be NULL. */
void step_stats_add(const StepStats *w, const Engine *e, int slot, Stream *const *micro, int n);
void step_stats_sum_ranks(const StepStats *w, const Engine *e);          /* before the counts are shown */

#endif
