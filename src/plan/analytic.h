/* plan/analytic.h -- the analytic model: memory, FLOPs and time of a step for any model with a row in
 * models.def, also of families that cannot be trained here, in some microseconds a layout. It evaluates the
 * descriptions of layer kinds (nn/layer_kind.h). The dry run (dryrun.h) is exact and knows trainable families
 * alone; a search asks the analytic model first and the dry run last. Units: bytes, seconds, FLOPs; a GB is
 * 1e9 bytes. */
#ifndef PLAN_ANALYTIC_H
#define PLAN_ANALYTIC_H

#include "base/dispatchers.h"
#include "nn/layer_kind.h"
#include "plan/engines.h"
#include "plan/hardware.h"

typedef struct ModelRow {
    const char *name;                    /* qwen3-30b-a3b */
    const char *preset;                  /* its name in model/presets.c; NULL: it can only be planned */
    const char *also;                    /* other names of the same, with commas between */
    const char *path; /* of its config.json, if a family here builds it; NULL: not by path */
    bool        mtp_asked;               /* text.mtp is not what the model has */
    bool        vision_unread;           /* config.json has a vision tower that no family here describes */
    TextShape   text;
    VisionShape vision;
} ModelRow;

const ModelRow *model_row(const char *name);                  /* NULL: none such; hub names are understood */
const ModelRow *model_row_at(int i);                          /* NULL past the last */
/* A model from a folder with config.json, or from the file; the row keeps the path. */
MUST Status     model_row_load(ModelRow *m, const char *path);

/* Whether it trains here; a layer that predicts further tokens may be left out, but not added. */
static inline bool model_builds(const ModelRow *m)
{
    return (m->preset || m->path) && !(m->mtp_asked && m->text.mtp);
}

typedef struct LoraCost LoraCost;        /* plan/lora_cost.h */
typedef struct LayerTable LayerTable;    /* plan/analytic_private.h */

/* What must be trained. */
typedef struct Task {
    const ModelRow *model;
    Hardware  hw;
    int       gpus;
    int64_t   seq, gbs;                  /* tokens of a sequence; sequences of a step over all ranks */
    int64_t   patches;                   /* of pictures in a sequence, 0: text */
    int64_t   picture;                   /* patches of one of them; 0: USUAL_PICTURE, or all if fewer */
    bool      frozen_vision;
    const LoraCost *lora;                /* what trains with adapters; NULL: the whole model does */
    double            base_bytes; /* of a frozen weight under adapters (model.base_quant); 0: as others */
    const LayerTable *layers;            /* of the model (layer_table_open); NULL: made anew in each call */
    Precision precision;
    int       grad_bytes;                /* 4 or 2 */
    double    moment_bytes;              /* 4, 2, or in codes by block a little more than 1 */
    int       master_bytes;              /* 4, or 2 beside bf16 weights */
    double    imbalance;                 /* rows of the busiest rank over the even share */
    const EngineRow  *engine;                    /* NULL: this trainer */
    Graphs            graphs;                    /* what is captured into CUDA graphs */
    /* What other trainers do and this one does not; published measurements need it. */
    bool      foreign;                   /* another trainer: what the arenas here add is not counted */
    bool      unfused_logits;            /* of all tokens at once, in bf16 and f32 */
    bool      keep_core;                 /* recomputed attention keeps its output */
    bool      keep_fc2;                  /* the experts' output is kept for the router's gradient */
    bool      fp8_stash;                 /* inputs of products are kept in 8 bits */
    bool      fp8_weights;               /* so are weights, with a transposed copy and scales */
    bool      thin_overlap;              /* layers are freed as the next ones fill: no second micro-batch */
    bool              keep_master;               /* offload moves the moments, the f32 weights stay */
} Task;

static inline const char *task_engine_name(const Task *t)
{
    return t->engine ? t->engine->help : engine_row_at(0)->help;
}

/* Makes the task one of another trainer: its costs, and what it keeps in memory. */
static inline void task_set_engine(Task *t, const EngineRow *e)
{
    t->engine  = e;
    t->foreign = t->unfused_logits = t->keep_core = t->thin_overlap = e != engine_row_at(0);
}

/* Words of memory.recompute as bits. */
enum { RE_CORE = 1, RE_NORM = 2, RE_MOE_ACT = 4, RE_MLP = 8, RE_MOE = 16, RE_SHARED = 32, RE_UP_PROJ = 64,
       RE_VISION = 128, RE_FULL = 256, RE_MOE_DISPATCH = 512, RE_BITS = 10 };

typedef struct RecomputeBit { unsigned bit; const char *word; } RecomputeBit;
extern const RecomputeBit recompute_bits[RE_BITS];            /* for people the widest first */

/* One way to do it. dp = gpus / (tp cp pp); edp = gpus / (ep etp pp). */
typedef struct Candidate {
    int      tp, cp, pp, vpp, ep, etp, mbs, zero;
    int      cp_inner;                    /* ranks of cp that exchange heads before the ring; 0, 1: none */
    int          replicas;                    /* complete sets of shards (HSDP); 0, 1: one */
    unsigned recompute;
    double   offload;                    /* share of the optimizer state on the host */
    DispatcherId dispatch;
    bool     overlap;                    /* of token dispatch with another micro-batch */
} Candidate;

/* Layers that cost the same. */
typedef struct LayerClass { LayerKinds kinds; const struct LoraLayer *lora; } LayerClass;

/* Bytes that one layer keeps for the backward of one micro-batch, before anything is recomputed. */
typedef struct LayerBytes {
    double of[LABEL_N];                  /* by label */
    double inputs[LABEL_N];              /* of those, inputs of products */
    double fc2;                          /* output of the experts (Task.keep_fc2) */
    double unread;                       /* made but not kept: the weight that would read it is frozen */
} LayerBytes;

typedef struct StageMemory {
    double weights, grads, optimizer, activations, logits, vision;
    double buffers;                      /* of communication, and of the layer that is being recomputed */
    double fixed, total;
} StageMemory;

typedef struct StepTime {                /* seconds of a step on the slowest rank */
    double gemm, experts, attention, memory, vision;             /* work */
    double replay;                       /* of memory and vision: recomputed forward work */
    double tp, cp, ep, pp, dp;           /* exposed communication by group */
    double bubble, optimizer, launch;
    double step;
    double tokens_s, model_tflops, mfu;  /* tokens of all ranks; per rank */
} StepTime;

typedef struct ModelCounts { double dense, experts, embed, total, active, vision; } ModelCounts;

/* For Task.layers: a search evaluates many layouts of one model. Its memory is freed by free(). */
MUST Status layer_table_open(LayerTable **t, const ModelRow *m);
ModelCounts analytic_params(const ModelRow *m);
double      analytic_flops_token(const ModelRow *m, int64_t seq);              /* forward and backward */
double      analytic_flops_full(const ModelRow *m, int64_t seq);    /* all pairs, the tower on every token */
double      analytic_flops_vision(const ModelRow *m, int64_t patches, bool frozen);
void        analytic_layer(LayerBytes *b, const Task *t, const Candidate *c, LayerClass k);
double      analytic_layer_kept(const LayerBytes *b, const Task *t, unsigned recompute);
double      analytic_in_flight(const Task *t, const Candidate *c, int stage);  /* pieces, VPP a stage */
void        analytic_memory(StageMemory *s, const Task *t, const Candidate *c, int stage);
double      analytic_peak(const Task *t, const Candidate *c, int *stage);      /* of the fullest stage */
int         analytic_cp_inner(const Task *t, int tp, int cp);               /* the best cp_inner; 1: a ring */
void        analytic_time(StepTime *s, const Task *t, const Candidate *c);

/* What Megatron-LM, or Megatron-Bridge, would report for the fullest rank. */
typedef struct MegatronAsk {
    double params, sharers;              /* of the fullest stage; ranks that share the optimizer, 0: none */
    double tokens;                       /* of a micro-batch over TP, and in Bridge over CP too */
    double h, ffn, layers, vocabulary, pp, vpp, micros;          /* layers of the model */
} MegatronAsk;
typedef struct MegatronEstimate { double state, activations, logits, total; } MegatronEstimate;

MegatronEstimate megatron_estimate(const MegatronAsk *a);
MegatronEstimate analytic_megatron(const Task *t, const Candidate *c, bool bridge);

#endif
