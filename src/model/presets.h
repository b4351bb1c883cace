/* model/presets.h -- models by name: dimensions without weights, for random starts and for plans.
 *
 * A preset is a config.json made from a row of numbers, so it is read, checked and exported like a file. */
#ifndef MODEL_PRESETS_H
#define MODEL_PRESETS_H

#include "base/json.h"

MUST Status preset_config(Json **hf, const char *name);   /* for json_decref; unknown: lists the known ones */
bool        preset_is(const char *name);
/* The preset that the last part of a path begins with: models/Qwen3-VL-30B-A3B-Instruct; NULL: none. */
const char *preset_like(const char *path);

#endif
