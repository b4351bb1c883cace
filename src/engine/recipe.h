/* engine/recipe.h -- the ranks and the engine that a recipe describes. */
#ifndef ENGINE_RECIPE_H
#define ENGINE_RECIPE_H

#include "base/config.h"
#include "base/log.h"
#include "engine/engine.h"

/* What the recipe trains of the model: without its layer that predicts further tokens (model.mtp), where it
 * is dropped or not the whole decoder trains. */
MUST Status recipe_shape(ModelShape *s, const Config *c);

/* Checks the recipe's layout for this model on the ranks of `world` (NULL: one) against all rules, then fills
 * in this rank's part. place gets its coordinates; warnings go to log. */
MUST Status recipe_ranks(Ranks *r, Mesh *place, const Config *c, const ModelShape *s, Comm *world,
                         const Log *log);

/* Prints the meshes of this rank, the layers of each stage and the schedule. */
MUST Status recipe_print_ranks(FILE *out, const Config *c, const ModelShape *s, const Comm *world,
                               const Mesh *m);

/* The loss is shown by source when there are several, or when the only one has a channel name. */
bool        recipe_by_source(const SourceList *s);
bool        recipe_has_eval(const Config *c);
/* Whether an engine on this layout can decode: not where cp cuts sequences. */
bool        recipe_can_decode(const Ranks *r);

/* The adapters of section lora, or the loaded adapter of lora.path with the recipe's dropout. a points into c
 * and loaded. */
MUST Status recipe_lora(LoraConf *a, const struct cfg_lora *c, const LoraConf *loaded);

/* The weights that model.base_quant keeps in codes, where they are frozen. */
MUST Status recipe_base(BaseQuant *b, const Config *c);

/* The training engine of the recipe, without capacity for decoding. loaded: the adapter of lora.path, or
 * NULL. e points into c and loaded. */
MUST Status recipe_engine(EngineConf *e, const Config *c, const ModelShape *s, DType dtype,
                          const Ranks *ranks, const LoraConf *loaded);

#endif
