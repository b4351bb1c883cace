/* model/weights.h -- parameters from and to checkpoints in Hugging Face form.
 *
 * Reading serves any layout: a rank gets its part of every parameter, in whatever slices it is bound
 * (nn/param.h). Writing takes a model that is whole, or parameters one at a time from whoever has them.
 *
 * Reading accepts every form that is about for the Qwen3 families: experts fused in either layout under the
 * same name, or one tensor per expert; tied models with or without a copy of the head. Writing gives the
 * form hub files have, which transformers, vLLM and SGLang load. Each byte is copied once, from the mapped
 * file into the parameter. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "base/log.h"
#include "model/model.h"
#include "tensor/safetensors.h"

/* log (may be NULL) hears of tensors in the file that the model does not use. */
MUST Status weights_load(Model *m, Backend *be, const SafeTensors *st, const Log *log);

/* What weights_load asks of a file before it reads weights from it. */
MUST Status weights_check(const Model *m, const SafeTensors *st, const Log *log);

/* Writes model*.safetensors (shards of at most max_shard bytes) into folder dir. */
MUST Status weights_save(const Model *m, Backend *be, const char *dir, DType dtype, int64_t max_shard);

/* The same from another checkpoint instead of from parameters in memory, one parameter at a time: a model far
 * larger than memory passes through. The model is opened but not bound. */
MUST Status weights_convert(Model *m, Backend *be, const SafeTensors *from, const char *dir, DType dtype,
                            int64_t max_shard);

/* The same from any source: fill is called with parameter i of m bound to f32 memory, whole. */
typedef Status ParamFillFn(void *self, Model *m, Backend *be, int i);
typedef struct ParamSource { ParamFillFn *fill; void *self; } ParamSource;
MUST Status weights_assemble(Model *m, Backend *be, ParamSource from, const char *dir, DType dtype,
                             int64_t max_shard);

/* Whether the folder has model.safetensors or model.safetensors.index.json. */
bool        weights_exist(const char *folder);

/* Copies config.json from one model folder to another, with its dtype changed; or writes it from memory. */
MUST Status weights_save_config(const char *from, const char *dir, DType dtype);
MUST Status weights_write_config(const Json *hf, const char *dir, DType dtype);

/* Copies the files that make the folder a whole model for others: tokenizer, templates, processors. */
MUST Status weights_copy_companions(const char *from, const char *dir);

/* The part of a tensor shaped like parameter p (its weight, its gradient) that piece i describes. */
Tensor weights_piece_view(const Param *p, Tensor t, int i);

#endif
