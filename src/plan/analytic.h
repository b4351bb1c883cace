/* plan/analytic.h -- memory, work and time of a step by formula: any model with a row in models.def, also of
 * families that cannot be built here, some microseconds a layout. The dry run (dryrun.h) is exact and of our
 * own families alone; a search asks the formulas first and the dry run last. Units: bytes, seconds, FLOPs; a
 * GB is 1e9 bytes. */
#ifndef PLAN_ANALYTIC_H
#define PLAN_ANALYTIC_H

#include "base/dispatchers.h"
#include "plan/hardware.h"

typedef struct ModelRow {
    const char *name;                    /* qwen3-30b-a3b */
    const char *preset;                  /* what model/presets.c calls it; NULL: planned by formula alone */
    const char *also;                    /* other names of the same, with commas between */
    int     L, h, nq, nkv, d;            /* of attention; MLA and GDN below */
    int     E, k, f, fs, nd, fd, V;
    int     groups, top_groups;          /* experts of a token are in so many of so many; 0: in any */
    int     q_lora, kv_lora, nope, rope, v;                      /* MLA where kv_lora > 0 */
    int     gdn_every;                   /* n: of n layers n - 1 are gated delta nets; 0: none */
    int     gdn_nk, gdn_dk, gdn_nv, gdn_dv, gdn_conv;
    int     window;                      /* of every second layer; 0: none */
    int     mtp;
    bool    gated, qk_norm, tied;        /* gated: the output of attention, and the shared expert */
    int     depth, hv, fv, vheads, taps;                         /* the tower; depth 0: none */
    int     merged;                      /* patches of a visual token */
} ModelRow;

const ModelRow *model_row(const char *name);                  /* NULL: none such; hub names are understood */
const ModelRow *model_row_at(int i);                          /* NULL past the last */

typedef enum { PREC_BF16, PREC_FP8, PREC_MXFP8 } Precision;

typedef struct LoraCost LoraCost;          /* plan/lora_cost.h */

/* What must be trained. */
typedef struct Task {
    const ModelRow *model;
    Hardware  hw;
    int       gpus;
    int64_t   seq, gbs;                  /* tokens of a sequence; sequences of a step over all ranks */
    int64_t   patches;                   /* of pictures in a sequence, 0: text */
    int64_t   picture;                   /* patches of one of them; 0: USUAL_PICTURE, or all if fewer */
    bool      frozen_vision;
    const LoraCost *lora;              /* what trains instead of all of it; NULL: all does */
    Precision precision;
    int       grad_bytes, moment_bytes;  /* 4 or 2 */
    int       master_bytes;              /* 4, or 2 beside bf16 weights */
    double    imbalance;                 /* rows of the busiest rank over the even share */
    /* What other trainers do and this one does not; published rows need it. */
    bool      foreign;                   /* nothing is counted of what this trainer's arenas add */
    bool      unfused_logits;            /* of all tokens at once, in bf16 and f32 */
    bool      keep_core;                 /* recomputed attention keeps its output */
    bool      keep_fc2;                  /* the experts' output is kept for the router's gradient */
    bool      fp8_stash;                 /* inputs of products are kept in 8 bits */
    bool      fp8_weights;               /* so are weights, with a transposed copy and scales */
    bool      thin_overlap;              /* layers are freed as the next ones fill: no second micro-batch */
    bool      keep_master;               /* offload moves the moments, the f32 weights stay */
    double    launch;                    /* seconds a kernel costs the host; 0: as hw says */
} Task;

/* Words of memory.recompute as bits. */
enum { RE_CORE = 1, RE_NORM = 2, RE_MOE_ACT = 4, RE_MLP = 8, RE_MOE = 16, RE_SHARED = 32, RE_UP_PROJ = 64,
       RE_VISION = 128, RE_FULL = 256, RE_MOE_DISPATCH = 512 };

/* One way to do it. dp = gpus / (tp cp pp); edp = gpus / (ep etp pp). */
typedef struct Candidate {
    int      tp, cp, pp, vpp, ep, etp, mbs, zero;
    int      cp_inner;                    /* ranks of cp that exchange heads before the ring; 0, 1: none */
    unsigned recompute;
    double   offload;                    /* share of the optimizer state on the host */
    DispatcherId dispatch;
    bool     overlap;                    /* of the road to the experts */
} Candidate;

/* A layer is a gated delta net or has attention, has experts or a dense product. */
typedef struct LayerKind { bool gdn, moe; const struct LoraLayer *lora; } LayerKind;

/* Bytes that one layer leaves for its backward of one micro-batch, before anything is recomputed. */
typedef struct LayerBytes {
    double residual, norm, qkv, rotated, core, lse;              /* core: the output of attention */
    double low, up, gdn;                 /* MLA: the narrow ones; q, k, v. Gated delta nets */
    double router, input, fc1, act, fc2, shared, mlp;            /* input: rows as the experts receive them */
    double pairs;                        /* inputs of experts in the columns of their adapters */
    double unread;                       /* made, and by frozen weights not wanted again */
} LayerBytes;

typedef struct StageMemory {
    double weights, grads, optimizer, activations, logits, vision;
    double buffers;                      /* of exchanges, and the one layer that is being recomputed */
    double fixed, total;
} StageMemory;

typedef struct StepTime {                /* seconds of a step on the slowest rank */
    double gemm, experts, attention, memory, vision;             /* work */
    double replay;                       /* of memory and vision: forward work that is done again */
    double tp, cp, ep, pp, dp;           /* exposed communication by group */
    double bubble, optimizer, launch;
    double step;
    double tokens_s, model_tflops, mfu;  /* tokens of all ranks; per rank */
} StepTime;

typedef struct ModelCounts { double dense, experts, embed, total, active, vision; } ModelCounts;

ModelCounts analytic_params(const ModelRow *m);
double      analytic_flops_token(const ModelRow *m, int64_t seq);              /* forward and backward */
double      analytic_flops_full(const ModelRow *m, int64_t seq);    /* all pairs, the tower on every token */
double      analytic_flops_vision(const ModelRow *m, int64_t patches, bool frozen);
void        analytic_layer(LayerBytes *b, const Task *t, const Candidate *c, LayerKind k);
double      analytic_layer_kept(const LayerBytes *b, const Task *t, unsigned recompute);
double      analytic_in_flight(const Task *t, const Candidate *c, int stage);  /* pieces, VPP a stage */
void        analytic_memory(StageMemory *s, const Task *t, const Candidate *c, int stage);
double      analytic_peak(const Task *t, const Candidate *c, int *stage);      /* of the fullest stage */
int         analytic_cp_inner(const Task *t, int tp, int cp);                   /* the best cp_inner; 1: a ring */
void        analytic_time(StepTime *s, const Task *t, const Candidate *c);

/* What the reports of Megatron-LM, or of Megatron-Bridge, would say of the fullest rank. */
typedef struct MegatronAsk {
    double params, sharers;              /* of the fullest stage; ranks that share the optimizer, 0: none */
    double tokens;                       /* of a micro-batch over TP, and in Bridge over CP too */
    double h, ffn, layers, vocabulary, pp, vpp, micros;          /* layers of the model */
} MegatronAsk;
typedef struct MegatronEstimate { double state, activations, logits, total; } MegatronEstimate;

MegatronEstimate megatron_estimate(const MegatronAsk *a);
MegatronEstimate analytic_megatron(const Task *t, const Candidate *c, bool bridge);

#endif
