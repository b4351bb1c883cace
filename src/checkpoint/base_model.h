/* checkpoint/base_model.h -- what adapters were trained on, so that a run does not go on beside other weights.
 *
 *   { "path": a folder or null, "preset": a name or null, "seed": of its draw, "folder": of the tokenizer,
 *     "dtype": that weights are held in, "hash": … }
 *
 * The hash is XXH3's 128 bits over config.json and, of a folder, names, types and shapes of its tensors with
 * a few bytes of each; of a preset, over its seed. It tells fine-tunes of a model apart from it and from each
 * other; it does not prove that every weight is the same. */
#ifndef CHECKPOINT_BASE_MODEL_H
#define CHECKPOINT_BASE_MODEL_H

#include "checkpoint/model_source.h"

MUST Status base_model_describe(Json **out, const ModelSource *s, uint64_t seed);      /* for json_decref */
/* E_CONFIG names both where they are not the same. */
MUST Status base_model_check(const Json *was, const Json *now);
/* Whether it is this one, held in whatever type. */
MUST Status base_model_matches(bool *same, const Json *was, const ModelSource *s, uint64_t seed);
/* Its folder or its preset, for messages and for whoever looks for it. */
const char *base_model_name(const Json *base);

#endif
