/* model/walk.h -- a walk over a built model in the order of its forward: every parameter, product and
 * attention core, with whether something before it trains. The gradient goes down to what trains and no
 * further, so the walk says for each product which gradients its backward takes. */
#ifndef MODEL_WALK_H
#define MODEL_WALK_H

#include "model/model.h"

/* Parts of the model in the order of the walk; the last three predict further tokens, in training alone. */
typedef enum { WALK_STEM, WALK_BLOCK, WALK_MERGER, WALK_EMBED, WALK_LAYER, WALK_HEAD, WALK_MTP,
               WALK_MTP_LAYER, WALK_MTP_HEAD } WalkPart;

typedef struct WalkPlace {
    WalkPart part;
    int64_t  index;                      /* which block, merger (in the order of their features) or layer */
    double   rows;                       /* that the part has for a patch, a token or a supervised token */
} WalkPlace;

typedef struct Walker {
    /* Each step; w NULL: a core. before: something that it reads trains. */
    void (*step)(void *self, WalkPlace at, const LayerStep *s, Param *w, bool before);
    /* After the steps of a module: whether something before it, and up to its output, trains. May be NULL. */
    void (*end)(void *self, WalkPlace at, bool before, bool after);
    void *self;
} Walker;

/* pictures: the tower is part of the walk. Chunks that the model does not have are passed over. */
void model_walk(const Model *m, bool pictures, const Walker *w);

#endif
