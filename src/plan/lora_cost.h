/* plan/lora_cost.h -- a model with adapters (LoRA) for the analytic model (plan/analytic.h): which gradients
 * the backward of each layer takes, what trains there and what divides it. Adapters are attached as in a run
 * (model/lora.h) and the built model is walked (model/walk.h), so every word of lora.target_modules means
 * what it means in a run, and layers may differ. */
#ifndef PLAN_LORA_COST_H
#define PLAN_LORA_COST_H

#include "base/config.h"
#include "plan/analytic.h"
#include "checkpoint/lora_source.h"
#include "train/trainable.h"

enum { MOST_LAYERS = 128 };

/* Parameters that train, by what divides them: adapters, and modules of lora.modules_to_save. */
typedef struct Trained { double adapters[CUT_N], whole[CUT_N]; } Trained;

/* A weight of a linear layer in a step. */
typedef struct LoraWeight {
    double r, out;                       /* rank of all its adapters; rows that they reach. 0: none */
    bool   learns;                       /* the adapters train */
    bool   whole;                        /* the weight itself trains */
    bool   input;                        /* the gradient goes on through it */
    bool   drops;                        /* lora.dropout is set */
} LoraWeight;

static inline bool weight_trains(const LoraWeight *w) { return w->learns || w->whole; }

typedef struct LoraLayer {
    LayerKinds kinds;
    LoraWeight weight[MAX_STEPS];        /* of the products among the steps of decoder_describe */
    double     expert_rank;              /* rank of all adapters of experts together */
    Trained    trained;
    bool       kept;                     /* what a backward would read is kept */
    bool       back;                     /* it has a backward */
    bool       core;                     /* and attention in it does */
} LoraLayer;

/* The tower with its mergers. FLOPs and values are of one patch. */
typedef struct LoraTower {
    int    blocks, mergers;              /* that keep what their backward reads: the last blocks */
    double back;                         /* FLOPs of products that backward adds */
    double core;                         /* of attention, of a pair of patches */
    double values;                       /* that the adapters read and write */
} LoraTower;

struct LoraCost {
    ModelRow         model;              /* without the layer that predicts further tokens */
    LoraSource       source;             /* of lora.path */
    LoraConf         conf;
    TrainableSummary trains;             /* for people */
    ModelWork        work;
    LoraLayer        layer[MOST_LAYERS]; /* a layer of each class; no two alike */
    int              classes;
    uint8_t          of[MOST_LAYERS];    /* class of a layer */
    LoraWeight       head;
    Trained          first, last;        /* of the embedding and the tower; of the head and its norm */
    LoraTower        tower;
};

/* Attaches recipe.lora to a model with what recipe.model freezes. pictures: a micro-batch has some. An open
 * LoraCost must not move, and recipe outlives it. Models that no family here builds are refused, since the
 * names of their modules are not known. */
MUST Status lora_cost_open(LoraCost *a, const ModelRow *m, const Config *recipe, bool pictures);
void        lora_cost_close(LoraCost *a);              /* twice is fine */

/* Values that a row moves for the adapters of a weight, forward and backward: in times its inputs, out times
 * the rows that they reach; grouped: they are part of the products of experts. */
typedef struct LoraTraffic { double in[2], out[2]; } LoraTraffic;
LoraTraffic lora_traffic(const LoraWeight *w, bool grouped);

#endif
