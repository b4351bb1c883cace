/* engine/step_stats.h -- statistics of a step in addition to its loss, collected after each forward pass. */
#ifndef ENGINE_STEP_STATS_H
#define ENGINE_STEP_STATS_H

#include "engine/expert_counts.h"
#include "engine/source_loss.h"

typedef struct StepStats {               /* experts and sources may be NULL */
    ExpertCounts           *experts;
    SourceLoss             *sources;
    const LoaderDoc *const *doc;         /* doc[k]: the documents of micro-batch k */
} StepStats;

void step_stats_add(const StepStats *w, Engine *e, const Stream *s, const PipeAction *a);  /* w may be NULL */
void step_stats_mark(const StepStats *w);                    /* w may be NULL, here and in rewind */
void step_stats_rewind(const StepStats *w);                  /* removes what was added since the mark */
void step_stats_sum_ranks(const StepStats *w, const Engine *e);          /* before the counts are shown */

#endif
