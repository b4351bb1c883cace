/* train/trainable.h -- what of a model trains, by kind of module. Numbers in module names become stars, so
 * "model.language_model.layers.*.self_attn.q_proj" is one kind. Linear layers that get no adapter are listed
 * too, with the reason, so that no one trains less than intended. */
#ifndef TRAIN_TRAINABLE_H
#define TRAIN_TRAINABLE_H

#include "base/json.h"
#include "engine/flops.h"

/* A module has an adapter that trains; it trains itself; it is linear and does neither. */
typedef enum { MODULE_ADAPTED, MODULE_TRAINED, MODULE_NOT_ADAPTED } ModuleStatus;

typedef struct ModuleKind {
    char     name[sizeof ((Piece *)0)->name];
    ModuleStatus status;
    Group    group;
    Linear   linear;
    int      modules;
    int64_t  least, most;                /* rank of their adapters */
    int64_t  side;                       /* smaller dimension of their weights: the highest useful rank */
    int64_t  params;                     /* that train; of MODULE_NOT_ADAPTED its own */
} ModuleKind;

typedef struct TrainableSummary {
    ModuleKind   *kind;
    int     n, cap;
    bool    lora;                        /* without adapters only groups are listed, not kinds */
    bool    frozen[GROUP_N];             /* by the recipe */
    int64_t base, adapters, whole;       /* parameters: of the model; of adapters; of the model that train */
    int64_t group[GROUP_N], experts;     /* parameters of the model by group; in experts */
    bool    all_frozen[GROUP_N];              /* nothing in the group trains */
} TrainableSummary;

/* Summarizes the whole model that a recipe makes. lora: NULL or of rank 0: no adapters. */
MUST Status trainable_open(TrainableSummary *t, const ModelShape *s, const bool *frozen,
                           const LoraConf *lora);
void        trainable_close(TrainableSummary *t);                                     /* twice is fine */

/* Calls print for each line; warning: modules that are not adapted, ranks above what a module can use. */
typedef void TrainablePrint(void *self, bool warning, const char *line);
void        trainable_print(const TrainableSummary *t, TrainablePrint *print, void *self);
Json       *trainable_json(const TrainableSummary *t);                                /* for json_decref */

#endif
