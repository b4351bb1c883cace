/* engine/recipe.h -- what a recipe says of ranks and of the model, as an engine wants it. */
#ifndef ENGINE_RECIPE_H
#define ENGINE_RECIPE_H

#include "base/config.h"
#include "base/log.h"
#include "engine/engine.h"

/* Checks the recipe's layout for this model on the ranks of `world` (NULL: one) against all rules, then fills
 * in this rank's part. place gets its coordinates. log hears of warnings. */
MUST Status recipe_ranks(Ranks *r, Mesh *place, const Config *c, const ModelShape *s, Comm *world,
                         const Log *log);

/* Lines for a person: meshes as this rank has them, layers by stage, schedule. */
MUST Status recipe_print_ranks(FILE *out, const Config *c, const ModelShape *s, const Comm *world,
                               const Mesh *m);

bool        recipe_has_eval(const Config *c);
/* One rank can generate by itself where all of the model's weights are with it. */
bool        recipe_can_generate(const Ranks *r, const Mesh *place);

/* Adapters as the section has them, or one that was loaded (lora.path): that goes on as it is, and what it is
 * trained with is the recipe's. a points into c and loaded. */
MUST Status recipe_lora(LoraConf *a, const struct cfg_lora *c, const LoraConf *loaded);

/* A training engine for it: losses, labels, what is frozen, adapters, evaluation; no room for answers yet.
 * loaded: what the adapter of lora.path says of itself, NULL: there is none. e points into c and loaded. */
MUST Status recipe_engine(EngineConf *e, const Config *c, const ModelShape *s, DType dtype,
                          const Ranks *ranks, const LoraConf *loaded);

#endif
