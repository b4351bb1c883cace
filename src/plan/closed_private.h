/* plan/closed_private.h -- what the formulas of memory and time share: which layers a stage has, what a layer
 * weighs on a rank, how many of its activations live at once. Nothing here allocates. */
#ifndef PLAN_CLOSED_PRIVATE_H
#define PLAN_CLOSED_PRIVATE_H

#include "plan/closed.h"

/* Layers by kind. */
typedef struct StageLayers {
    int  n[2][2];                        /* [gated delta net][experts] */
    int  all, mtp;                       /* mtp is among n[0][1] */
    int  most;                           /* layers of the largest piece: each in flight has room for it */
    bool first, last;
} StageLayers;

void   stage_layers(StageLayers *s, const ModelRow *m, const Candidate *c, int stage);

/* Parameters of a rank. A unit is the largest layer: what sharded weights are gathered by. */
typedef struct StageParams { double dense, expert, unit, frozen; } StageParams;

void   stage_params(StageParams *p, const Task *t, const Candidate *c, const StageLayers *s);

/* Of one attention (or MLA, or gated delta net): what TP cuts, and what every rank of TP has whole. */
typedef struct AttnParams { double cut, kv, whole; } AttnParams;

AttnParams attn_params(const ModelRow *m, bool gdn);
double     vision_params(const ModelRow *m);
double     core_macs(const ModelRow *m, int64_t seq, bool gdn, bool windowed);   /* of a token and a layer */

static inline double task_dp(const Task *t, const Candidate *c)
{
    return (double)t->gpus / ((double)c->tp * c->cp * c->pp);
}

static inline double task_edp(const Task *t, const Candidate *c)
{
    return (double)t->gpus / ((double)c->ep * c->etp * c->pp);
}

/* Patches that attend to each other. */
static inline double task_picture(const Task *t)
{
    int64_t one = t->picture > 0 ? t->picture : USUAL_PICTURE;
    return (double)(one < t->patches ? one : t->patches);
}

/* Micro-batches of a step; at least one. */
static inline double task_micros(const Task *t, const Candidate *c)
{
    double m = (double)t->gbs / (c->mbs * task_dp(t, c));
    return m < 1 ? 1 : m;
}

static inline double stage_weight_bytes(const Task *t)      /* of a parameter */
{
    if (!t->fp8_weights || t->precision == PREC_BF16) return 2;
    return 2 + (t->precision == PREC_MXFP8 ? 2.0 / 32 : 2.0 / 128);
}

#endif
