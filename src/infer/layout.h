/* infer/layout.h -- how ranks share a model that evaluates or generates: as section parallel of the recipe
 * says, or, where that leaves everything at 1, by a layout that is chosen and fits the memory.
 *
 * An evaluation shares its samples, so it takes as many replicas (dp) as fit. A single document is on one
 * replica, which is cut into as many ranks as the model allows. */
#ifndef INFER_LAYOUT_H
#define INFER_LAYOUT_H

#include "base/config.h"
#include "base/log.h"
#include "engine/engine.h"

typedef struct LayoutAsk {
    const Config     *recipe;
    const ModelShape *shape;
    Comm             *world;             /* of two ranks or more */
    bool              one_document;
    const Log        *log;               /* gets the layout */
} LayoutAsk;

/* Sets conf->ranks of an engine that does not train. Collective over the world, with the same result on all
 * ranks. */
MUST Status layout_set_ranks(EngineConf *conf, const LayoutAsk *ask);

#endif
