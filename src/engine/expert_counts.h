/* engine/expert_counts.h -- how often the routers choose each expert, by layer and by kind of token. The
 * device counts the choices of a step (Engine.count_experts); here the counts of steps add up until they are
 * cleared. Their memory is allocated at the start. */
#ifndef ENGINE_EXPERT_COUNTS_H
#define ENGINE_EXPERT_COUNTS_H

#include "engine/engine.h"

typedef struct ExpertCounts {
    int64_t  layers, experts;            /* MoE layers, experts of each */
    int64_t *layer;                      /* the decoder layer that each MoE layer is */
    double  *text, *visual;              /* (layers, experts) since expert_counts_end_line */
    double  *past_text, *past_visual;    /* and before it, since expert_counts_reset */
} ExpertCounts;

MUST Status expert_counts_open(ExpertCounts *r, const Engine *e);    /* a model without experts: layers = 0 */
void        expert_counts_close(ExpertCounts *r);                        /* twice is fine */

void        expert_counts_add(ExpertCounts *r, const ResultBlock *b);    /* the counts of a step */
void        expert_counts_sum_ranks(ExpertCounts *r, const Engine *e);
void        expert_counts_end_line(ExpertCounts *r);                     /* moves the counts to the past */
void        expert_counts_reset(ExpertCounts *r);                        /* to zero, the past too */
double      expert_counts_imbalance(const ExpertCounts *r, int64_t layer); /* busiest / mean; 0: none */

#endif
