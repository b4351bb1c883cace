/* engine/step_stats.h -- what is noticed of micro-batches besides their loss: which experts they chose,
 * and how the loss spreads over the sources of the data. Counts add up until they are cleared; room for
 * them is made at start. */
#ifndef ENGINE_STEP_STATS_H
#define ENGINE_STEP_STATS_H

#include "data/loader.h"
#include "engine/engine.h"

/* How often each expert was chosen, by layer and kind of token. */
typedef struct ExpertCounts {
    int64_t  layers, experts, slots;     /* MoE layers, experts, choices per token */
    int64_t *layer;                      /* which layer of the decoder each of them is */
    double  *text, *visual;              /* (layers, experts) since expert_counts_end_line */
    double  *past_text, *past_visual;    /* and before it, since expert_counts_reset */
    int32_t *stage;                      /* choices of one layer, on the host */
    uint8_t *kind;                       /* of each token of a stream: 0 tail, 1 text, 2 visual */
} ExpertCounts;

MUST Status expert_counts_open(ExpertCounts *r, const Engine *e);       /* a model without experts: layers = 0 */
void        expert_counts_close(ExpertCounts *r);                       /* twice is fine */
void        expert_counts_end_line(ExpertCounts *r);
void        expert_counts_reset(ExpertCounts *r);
double      expert_counts_imbalance(const ExpertCounts *r, int64_t layer); /* busiest expert over the mean; 0: none counted */

/* Summed loss and supervised tokens by channel. Sources that share a channel's name share its row. */
typedef struct SourceLoss {
    int          channels, sources;      /* 0: not asked for */
    const char **name;                   /* of channels; belong to the loader */
    int         *row;                    /* of each source */
    double      *loss;
    int64_t     *tokens;
    float       *stage;                  /* losses of the rows of one micro-batch, on the host */
} SourceLoss;

/* E must have been opened with conf.each. */
MUST Status source_loss_open(SourceLoss *b, const Engine *e, const Loader *l, int sources);
void        source_loss_close(SourceLoss *b);                    /* twice is fine */
void        source_loss_clear(SourceLoss *b);

typedef struct StepStats {                   /* either may be NULL */
    ExpertCounts                *routing;
    SourceLoss               *by;
    const LoaderDoc *const *doc;         /* where the documents of each micro-batch come from */
} StepStats;

/* After a forward of the step, of the micro-batch `s`; w may be NULL. */
void step_stats_add(const StepStats *w, Engine *e, const Stream *s, const PipeAction *a);
/* Of all ranks together: before counts are shown. */
void step_stats_sum_ranks(const StepStats *w, const Engine *e);

#endif
