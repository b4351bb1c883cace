/* plan/analytic_private.h -- what the formulas of memory and time share: which layers a stage has, what a layer
 * weighs on a rank, how many of its activations live at once. Nothing here allocates. */
#ifndef PLAN_ANALYTIC_PRIVATE_H
#define PLAN_ANALYTIC_PRIVATE_H

#include "plan/lora_cost.h"

/* Layers by kind: two bits, gated delta net and experts; with adapters, those that are lora alike. */
enum { KIND_MOE = 1, KIND_GDN = 2, PLAIN_KINDS = 4 };

enum { PATCH_IN = 3 * 2 * 16 * 16 };     /* values of a patch, of every tower here */

typedef struct StageLayers {
    int  n[MOST_LAYERS];
    int  all, mtp;                       /* mtp is among n[KIND_MOE] */
    bool first, last;
} StageLayers;

void   stage_layers(StageLayers *s, const Task *t, const Candidate *c, int stage);
void   chunk_layers(StageLayers *s, const Task *t, const Candidate *c, int stage, int v);   /* of its v-th */

static inline int task_kinds(const Task *t) { return t->lora ? t->lora->kinds : PLAIN_KINDS; }

static inline LayerKind task_kind(const Task *t, int i)
{
    if (t->lora) return (LayerKind){ .moe = t->lora->kind[i].moe, .lora = &t->lora->kind[i] };
    return (LayerKind){ .gdn = i & KIND_GDN, .moe = i & KIND_MOE };
}

/* Whether any layer of the model is of it. */
static inline bool task_has_kind(const Task *t, LayerKind k)
{
    const ModelRow *m = t->model;
    return k.lora || ((!k.gdn || m->gdn_every) && (k.moe ? m->E > 0 : m->nd > 0));
}

/* Ranks that have the same part of a parameter: of what tp does not cut all of a stage, of what it does those
 * of dp and cp, of experts those of edp. */
enum { BY_STAGE, BY_DP, BY_EDP, SHARERS };

/* Parameters of a rank: what trains, and what does not. Sharded ones are gathered by units, and gradients
 * made so: layers take turns in two buffers, the tables of the ends have one each. */
typedef struct StageParams {
    double trained[SHARERS], still[SHARERS];
    double gathered, summed;             /* in those buffers */
    double again;                        /* share of the layers that backward asks for once more */
} StageParams;

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

static inline double task_sharers(const Task *t, const Candidate *c, int by)
{
    double dp = task_dp(t, c) * c->cp;
    return by == BY_EDP ? task_edp(t, c) : by == BY_STAGE && !t->foreign ? dp * c->tp : dp;
}

static inline double params_here(const double n[SHARERS]) { return n[BY_STAGE] + n[BY_DP] + n[BY_EDP]; }

/* The slices of them that are this rank's. */
static inline double params_owned(const double n[SHARERS], const Task *t, const Candidate *c)
{
    double sum = 0;
    for (int i = 0; i < SHARERS; i++) sum += n[i] / task_sharers(t, c, i);
    return sum;
}

/* Rows of the busiest rank over the even share: where all experts are on every rank none is busier. */
static inline double task_uneven(const Task *t, const Candidate *c)
{
    return c->ep * c->etp > 1 ? t->imbalance : 1;
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
