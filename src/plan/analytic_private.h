/* plan/analytic_private.h -- what the analytic model of memory and the one of time share: which layers a
 * stage has, what a layer weighs on a rank, how many of its activations live at once. Nothing here
 * allocates. */
#ifndef PLAN_ANALYTIC_PRIVATE_H
#define PLAN_ANALYTIC_PRIVATE_H

#include "plan/lora_cost.h"

/* Layers that cost the same are of one class: an attention kind and an FFN kind; with adapters, a class of
 * plan/lora_cost.h. */
enum { PLAIN_CLASSES = ATTENTION_KINDS * FFN_KINDS };

static inline int plain_class(LayerKinds k) { return (int)k.attention * FFN_KINDS + (int)k.ffn; }

/* Parameters of a layer by what divides them. */
typedef struct LayerParams { double whole, tp, kv, experts; } LayerParams;

/* Multiply-adds of the tower with its mergers: of a patch, and of a pair of patches. */
typedef struct VisionMacs { double patch, pair; } VisionMacs;

/* What of a model does not depend on the layout. */
struct LayerTable {
    bool        has[PLAIN_CLASSES];
    Description layer[PLAIN_CLASSES];    /* of classes that the model has */
    LayerParams params[PLAIN_CLASSES];
    int16_t     below[MOST_LAYERS + 1][PLAIN_CLASSES];       /* layers [0, l) of a class */
    int         last;                    /* class of the last layer, and so of MTP layers */
    Description block;                   /* of the tower */
    VisionMacs  tower;
    double      tower_params, tower_gathered;
    uint32_t    dropped[RE_BITS];        /* labels that a word of memory.recompute drops, a bit each */
};

uint32_t dropped_labels(const LayerTable *t, unsigned recompute);
Task     task_with_layers(const Task *t, LayerTable *table);     /* t; without layers it gets them in table */

typedef struct StageLayers {
    int  n[MOST_LAYERS];                 /* by class */
    int  all, mtp;                       /* mtp layers are among n */
    bool first, last;
} StageLayers;

void   stage_layers(StageLayers *s, const Task *t, const Candidate *c, int stage);
void   chunk_layers(StageLayers *s, const Task *t, const Candidate *c, int stage, int v);   /* of its v-th */

static inline const EngineRow *task_engine(const Task *t) { return t->engine ? t->engine : engine_row_at(0); }

static inline int task_classes(const Task *t) { return t->lora ? t->lora->classes : PLAIN_CLASSES; }

static inline LayerClass task_class(const Task *t, int i)
{
    if (t->lora) return (LayerClass){ .kinds = t->lora->layer[i].kinds, .lora = &t->lora->layer[i] };
    return (LayerClass){ .kinds = { (AttentionId)(i / FFN_KINDS), (FfnId)(i % FFN_KINDS) } };
}

/* Whether a gradient comes to layers of a class, and to their attention. */
static inline bool class_has_backward(LayerClass k)      { return !k.lora || k.lora->back; }
static inline bool class_core_has_backward(LayerClass k) { return !k.lora || k.lora->core; }

/* Whether any layer of the model is of it. */
static inline bool task_has_class(const Task *t, LayerClass k)
{
    return k.lora || t->layers->has[plain_class(k.kinds)];
}

static inline const Description *class_description(const Task *t, LayerClass k)
{
    return &t->layers->layer[plain_class(k.kinds)];
}

/* analytic_layer and analytic_layer_kept of a task that has its layers. */
void   layer_bytes(LayerBytes *b, const Task *t, const Candidate *c, LayerClass k);
double layer_kept(const LayerBytes *b, const Task *t, unsigned recompute);

/* Ranks that share a part of a parameter, of one set of shards: of what tp does not cut all of a stage, of
 * what it does those of dp and cp, of experts those of edp. */
enum { BY_STAGE, BY_DP, BY_EDP, SHARERS };

/* Parameters of a rank: trained and frozen. Sharded ones are gathered by units, and gradients are reduced so:
 * layers take turns in two buffers, the tables of the first and the last stage have one each. */
typedef struct StageParams {
    double trained[SHARERS], frozen[SHARERS];
    double gathered, summed;             /* in those buffers */
    double again;                        /* share of the layers that backward gathers once more */
} StageParams;

void   stage_params(StageParams *p, const Task *t, const Candidate *c, const StageLayers *s);

double     vision_params(const VisionShape *v);
double     vision_gathered(const VisionShape *v);            /* of those, what ZeRO-3 gathers at a time */
VisionMacs vision_macs(const VisionShape *v);
double     vision_block_bytes(const Task *t, unsigned recompute);     /* that a block keeps of a patch */

/* Numbers of a rank that descriptions are evaluated with. */
/* kv: ranks that cut kv heads. coded_dw: weight gradients of experts are computed from codes, and so their
 * rows are not kept (nn/moe_experts.c). */
typedef struct RankShape { double tp, kv, ep, etp, rows[ROWS_N]; bool coded_dw; } RankShape;

static inline double rank_cut(const RankShape *r, CutBy by)
{
    return by == CUT_TP ? r->tp : by == CUT_ETP ? r->etp : by == CUT_KV ? r->kv : 1;
}

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
    double sets = c->replicas > 1 ? c->replicas : 1, dp = task_dp(t, c) * c->cp / sets;
    return by == BY_EDP ? task_edp(t, c) / sets : by == BY_STAGE && !t->foreign ? dp * c->tp : dp;
}

static inline double params_here(const double n[SHARERS]) { return n[BY_STAGE] + n[BY_DP] + n[BY_EDP]; }

/* The slices of them that are this rank's. */
static inline double params_owned(const double n[SHARERS], const Task *t, const Candidate *c)
{
    double sum = 0;
    for (int i = 0; i < SHARERS; i++) sum += n[i] / task_sharers(t, c, i);
    return sum;
}

/* Rows of the busiest rank over the even share: 1 where all experts are on every rank. */
static inline double task_imbalance(const Task *t, const Candidate *c)
{
    return c->ep * c->etp > 1 ? t->imbalance : 1;
}

/* Tokens of a micro-batch on a rank, where tp does not divide them. */
static inline double task_tokens(const Task *t, const Candidate *c)
{
    return (double)t->seq * c->mbs / c->cp;
}

static inline RankShape task_rank(const Task *t, const Candidate *c)
{
    const TextShape *s = &t->model->text;
    double T = task_tokens(t, c), G = (double)s->G;
    RankShape r = { .tp = c->tp, .kv = c->tp < G ? c->tp : G, .ep = c->ep, .etp = c->etp };
    r.rows[ROWS_TOKENS]   = T / c->tp;
    r.rows[ROWS_GATHERED] = T;
    r.rows[ROWS_EXPERTS]  = T / c->tp * (double)s->K * c->etp * task_imbalance(t, c);
    r.rows[ROWS_CHUNKS]   = c->cp > 1 && !t->foreign ? 2 : 0;
    r.coded_dw = t->precision == PREC_FP8 && !t->foreign && !t->lora && c->ep * c->etp == 1 &&
                 s->act == ACTIVATION_SWIGLU;
    return r;
}

static inline int64_t merged_patches(const VisionShape *v) { return v->merge * v->merge; }   /* of a token */

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
    if (t->precision == PREC_NVFP4) return 2 * (0.5 + 1.0 / 16);
    return 2 + (t->precision == PREC_MXFP8 ? 2.0 / 32 : 2.0 / 128);
}

#endif
