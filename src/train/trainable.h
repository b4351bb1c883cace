/* train/trainable.h -- what of a model trains, by kinds of modules: numbers in their names are no
 * difference, so "model.language_model.layers.*.self_attn.q_proj" is one kind. Beside what was asked for
 * it has what was not: linear layers that get no adapter, with the reason, so that nobody trains less than
 * they think. */
#ifndef TRAIN_TRAINABLE_H
#define TRAIN_TRAINABLE_H

#include "base/json.h"
#include "engine/flops.h"

/* A pair trains beside it; it does itself; neither, though it is linear. */
typedef enum { MODULE_ADAPTED, MODULE_TRAINED, MODULE_NOT_ADAPTED } ModuleStatus;

typedef struct ModuleKind {
    char     name[sizeof ((Piece *)0)->name];
    ModuleStatus fate;
    Group    group;
    Linear   linear;
    int      modules;
    int64_t  least, most;                /* rank of their pairs */
    int64_t  side;                       /* the smaller one of their weights: no pair needs more rank */
    int64_t  params;                     /* that train; of what is left, its own */
} ModuleKind;

typedef struct TrainableSummary {
    ModuleKind   *kind;
    int     n, cap;
    bool    lora;                        /* without adapters the parts of the model are all there is to say */
    bool    frozen[GROUP_N];             /* by the recipe */
    DType   dtype;                       /* of what is frozen */
    int64_t base, pairs, whole;          /* parameters: of the model, of adapters; of it that train */
    int64_t group[GROUP_N], experts;     /* of the model by its parts */
    bool    all_frozen[GROUP_N];              /* nothing of the part trains */
} TrainableSummary;

/* Of the whole model that a recipe makes. lora: NULL or of rank 0: none. */
MUST Status trainable_open(TrainableSummary *t, const ModelShape *s, const bool *frozen, const LoraConf *lora,
                        DType dtype);
void        trainable_close(TrainableSummary *t);                                     /* twice is fine */

/* A line at a time; loud: of what is not adapted, and of what is with more than it can use. */
void        trainable_print(const TrainableSummary *t, void (*say)(void *self, bool loud, const char *line), void *self);
Json       *trainable_json(const TrainableSummary *t);                                /* for json_decref */

#endif
