/* engine/batching.h -- the micro-batches of a recipe and a model: budgets, their number, patches. */
#ifndef ENGINE_BATCHING_H
#define ENGINE_BATCHING_H

#include "base/config.h"
#include "data/image.h"
#include "model/shape.h"

Budget      batching_budget(const Config *c, const ModelShape *s);
PatchShape  batching_patches(const Config *c, const VisionShape *v);
/* Micro-batches of a step on each rank. */
MUST Status batching_micro(int *out, const struct cfg_train *c, int ranks);

#endif
