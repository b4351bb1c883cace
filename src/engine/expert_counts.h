/* engine/expert_counts.h -- how often the routers choose each expert, by layer and by kind of token. Counts
 * add up until they are cleared; their memory is allocated at the start. */
#ifndef ENGINE_EXPERT_COUNTS_H
#define ENGINE_EXPERT_COUNTS_H

#include "engine/engine.h"

typedef struct ExpertCounts {
    int64_t  layers, experts, top_k;     /* MoE layers, experts, experts per token */
    int64_t *layer;                      /* the decoder layer that each MoE layer is */
    double  *text, *visual;              /* (layers, experts) since expert_counts_end_line */
    double  *past_text, *past_visual;    /* and before it, since expert_counts_reset */
    double  *marked;                     /* text and visual at the last mark */
    int32_t *chosen;                     /* the experts of one layer's tokens, copied to the host */
    uint8_t *kind;                       /* of each token of a stream: 0 padding, 1 text, 2 visual */
} ExpertCounts;

MUST Status expert_counts_open(ExpertCounts *r, const Engine *e);    /* a model without experts: layers = 0 */
void        expert_counts_close(ExpertCounts *r);                        /* twice is fine */

/* Adds the choices of a forward pass; they stay in the slot's activations until its next forward pass. */
void        expert_counts_add(ExpertCounts *r, Engine *e, const Stream *s, const PipeAction *a);
void        expert_counts_mark(ExpertCounts *r);
void        expert_counts_rewind(ExpertCounts *r);                       /* to the counts at the mark */
void        expert_counts_sum_ranks(ExpertCounts *r, const Engine *e);
void        expert_counts_end_line(ExpertCounts *r);                     /* moves the counts to the past */
void        expert_counts_reset(ExpertCounts *r);                        /* to zero, the past too */
double      expert_counts_imbalance(const ExpertCounts *r, int64_t layer); /* busiest / mean; 0: none */

#endif
