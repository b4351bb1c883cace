/* checkpoint/base_model.h -- identity of the base model that adapters were trained on, so that a resumed run
 * does not continue on other weights. As JSON:
 *
 *   { "path": folder or null, "preset": name or null, "seed": of random initial weights,
 *     "folder": of the tokenizer, "dtype": of the weights in memory, "hash": … }
 *
 * The hash is 128-bit XXH3 over config.json and, for a folder, over the name, type and shape of each tensor
 * and a few bytes of its data; for a preset, over the seed. It distinguishes a model from its fine-tunes and
 * those from each other; it does not prove that every weight is equal. */
#ifndef CHECKPOINT_BASE_MODEL_H
#define CHECKPOINT_BASE_MODEL_H

#include "checkpoint/model_source.h"

/* The caller releases *out with json_decref. */
MUST Status base_model_describe(Json **out, const ModelSource *s, uint64_t seed);
/* E_CONFIG names both models if their hashes or dtypes differ. */
MUST Status base_model_check(const Json *was, const Json *now);
/* Compares hashes only: *same is true whatever dtype the weights have in memory. */
MUST Status base_model_matches(bool *same, const Json *was, const ModelSource *s, uint64_t seed);
/* The folder or preset of a described base model. */
const char *base_model_name(const Json *base);

#endif
