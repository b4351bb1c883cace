/* plan/lora_cost.h -- a model whose weights are frozen and that has adapters beside some of them, as the
 * formulas of closed.h see it: what each layer's backward does, what trains there and how that is cut. The
 * model says it itself once its adapters are attached (model/lora.h), so that every word of
 * lora.target_modules means what it means in a run, and layers may differ. */
#ifndef PLAN_LORA_COST_H
#define PLAN_LORA_COST_H

#include "base/config.h"
#include "plan/analytic.h"
#include "checkpoint/lora_source.h"
#include "train/trainable.h"

enum { MOST_LAYERS = 128 };

/* What of a tensor a rank has: all of it; its share of tp, of kv heads, of ep, of etp; of ep and etp. */
typedef enum { CUT_WHOLE, CUT_TP, CUT_KV, CUT_EP, CUT_ETP, CUT_BOTH, CUT_N } CutOf;

/* Parameters that train: adapters, and modules of lora.modules_to_save. */
typedef struct Trained { double pairs[CUT_N], whole[CUT_N]; } Trained;

/* A weight of a linear layer in a step. */
typedef struct LoraWeight {
    double r, out;                       /* columns of all its pairs; rows that they reach. 0: none */
    bool   learns;                       /* they train */
    bool   whole;                        /* it trains itself */
    bool   input;                        /* the gradient goes on through it */
    bool   drops;                        /* lora.dropout is set */
} LoraWeight;

static inline bool weight_trains(const LoraWeight *w) { return w->learns || w->whole; }

typedef struct LoraLayer {
    LoraWeight qkv, o, router, up, down;                  /* up: gate and up as one, of experts too */
    Trained trained;
    bool    moe;
    bool    kept;                        /* what a backward would read is kept */
    bool    back;                        /* it has a backward */
    bool    core;                        /* and attention in it does */
} LoraLayer;

/* The tower with its mergers. FLOPs and values are of one patch. */
typedef struct LoraTower {
    int    blocks, mergers;              /* that keep what their backward reads: the last blocks */
    double back;                         /* FLOPs of products that backward adds */
    double core;                         /* of attention, of a pair of patches */
    double pairs;                        /* values that the pairs read and write */
} LoraTower;

struct LoraCost {
    LoraSource    source;                /* of lora.path */
    LoraConf   conf;
    TrainableSummary        trains;                /* for people */
    ModelWork     work;
    LoraLayer  kind[MOST_LAYERS];     /* no two alike */
    int           kinds;
    uint8_t       of[MOST_LAYERS];       /* the kind of a layer */
    LoraWeight head;
    Trained       first, last;           /* of the embedding and the tower; of the head and its norm */
    LoraTower  tower;
};

/* What recipe.lora makes of a model, of which recipe.model says what is frozen. pictures: there are some in a
 * micro-batch. An open one stays where it is, and recipe outlives it. Models that no family here builds are
 * refused: what their modules are called is not known. */
MUST Status lora_cost_open(LoraCost *a, const ModelRow *m, const Config *recipe, bool pictures);
void        lora_cost_close(LoraCost *a);                        /* twice is fine */

/* Values that a row moves for the pairs of a weight with `in` inputs, forward and backward; grouped: they are
 * part of the products of experts. */
typedef struct LoraTraffic { double in[2], out[2]; } LoraTraffic;
LoraTraffic  lora_traffic(const LoraWeight *w, bool grouped);        /* times in, and times out */

#endif
