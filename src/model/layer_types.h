/* model/layer_types.h -- layer_types of a config.json, for the families that have layers of two kinds and for
 * those that have one. */
#ifndef MODEL_LAYER_TYPES_H
#define MODEL_LAYER_TYPES_H

#include "model/family.h"

/* Reads the list, which must be there, into full_layers and full_count: each layer has full_attention or
 * `other`. */
MUST Status layer_types_read(TextShape *t, const Json *o, const char *other);
/* Whether the layers with full_attention are every n-th one, the last of each n. */
bool layer_types_are_every(const TextShape *t, int64_t n);

/* Refuses a list, where there is one, with another name than `wanted`. */
MUST Status layer_types_refuse(const Json *o, const char *wanted);

#endif
