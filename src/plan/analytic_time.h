/* plan/analytic_time.h -- what analytic_time.c puts together: seconds of links, and of a layer's work. */
#ifndef PLAN_ANALYTIC_TIME_H
#define PLAN_ANALYTIC_TIME_H

#include "plan/analytic_private.h"

#include <math.h>

/* Seconds of one layer and micro-batch on a rank, forward and backward apart; memory is both together. */
typedef struct LayerTime {
    double gemm[2], experts[2], attention[2], memory;
    double made[LABEL_N];                /* of gemm[0] and experts[0]: the products that make a kept value */
    double passes;                       /* dispatches and combines of tokens, replays included */
    double replay;                       /* recomputed forward work, dispatch aside */
} LayerTime;

double ep_pass(const Task *t, const Candidate *c);           /* one dispatch of one micro-batch and layer */
double tp_layer(const Task *t, const Candidate *c, LayerClass k, bool forward);
double cp_layer(const Task *t, const Candidate *c, LayerClass k, const LayerTime *l);
double pp_micro(const Task *t, const Candidate *c);
double dp_exposed(const Task *t, const Candidate *c, const StageParams *p, double forward, double backward);

void   layer_time(LayerTime *l, const Task *t, const Candidate *c, LayerClass k);
double head_time(double *memory, const Task *t, const Candidate *c);         /* products; its bytes apart */
double vision_time(double *replay, const Task *t, const Candidate *c);

#endif
