/* plan/analytic_time.h -- what analytic_time.c puts together: seconds of links, and of a layer's work. */
#ifndef PLAN_ANALYTIC_TIME_H
#define PLAN_ANALYTIC_TIME_H

#include "plan/analytic_private.h"

#include <math.h>

double ep_pass(const Task *t, const Candidate *c);           /* one way of one micro-batch and layer */
double tp_layer(const Task *t, const Candidate *c, LayerKind k, bool forward);
double cp_layer(const Task *t, const Candidate *c, double forward, double backward);
double pp_micro(const Task *t, const Candidate *c);
double dp_exposed(const Task *t, const Candidate *c, const StageParams *p, double forward, double backward);

/* Seconds of one layer and micro-batch on a rank, forward and backward apart; memory is both together. */
typedef struct LayerTime {
    double gemm[2], experts[2], attention[2], memory;
    double up, mlp, shared;              /* of gemm[0]: what can be recomputed by itself */
    double passes;                       /* on the road to the experts, replays with them */
    double replay;                       /* forward work done again, road aside */
} LayerTime;

void   layer_time(LayerTime *l, const Task *t, const Candidate *c, LayerKind k);
double head_time(double *memory, const Task *t, const Candidate *c);         /* products; its bytes apart */
double vision_time(double *replay, const Task *t, const Candidate *c);

#endif
