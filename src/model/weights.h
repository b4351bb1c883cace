/* model/weights.h -- reads and writes model weights in Hugging Face form.
 *
 * Reading works for any layout: each rank reads its part of every parameter (nn/param.h). Writing takes a
 * whole model, or its parameters one at a time from a ParamSource.
 *
 * Reading accepts every published form of the Qwen3 families: experts fused in either layout under the same
 * name, or one tensor per expert; tied models with or without a copy of the head. Writing produces the form
 * of hub files, which transformers, vLLM and SGLang load. Each byte is copied once, from the mapped file into
 * the parameter. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "base/log.h"
#include "base/meter.h"
#include "model/model.h"
#include "tensor/safetensors.h"

/* Warns on log (may be NULL) of tensors in the file that the model does not use. */
MUST Status weights_load(Model *m, Backend *be, const SafeTensors *st, const Log *log);

/* The checks that weights_load makes before it reads weights. */
MUST Status weights_check(const Model *m, const SafeTensors *st, const Log *log);

/* s->text.mtp = 0 where the files have no layer that predicts further tokens, whatever config.json says. */
MUST Status weights_find_mtp(ModelShape *s, const char *folder);

/* Writes model*.safetensors (shards of at most max_shard bytes) into folder dir. */
/* dtype E4M3: linear weights of the decoder in 8 bits with scales of blocks, the others in bf16. */
MUST Status weights_save(const Model *m, Backend *be, const char *dir, DType dtype, int64_t max_shard);

/* The same with weights from other files instead of memory, one parameter at a time, so the model may be far
 * larger than memory. m is opened but not bound. */
MUST Status weights_convert(Model *m, Backend *be, const SafeTensors *from, const char *dir, DType dtype,
                            int64_t max_shard);

/* The same from any source: fill is called with parameter i of m, bound whole to f32 memory, and writes its
 * values. */
typedef Status ParamFillFn(void *self, Model *m, Backend *be, int i);
/* meter: counts bytes of parameters as they are filled; or NULL. */
typedef struct ParamSource {
    ParamFillFn *fill;
    void        *self;
    Meter       *meter;
} ParamSource;
MUST Status weights_assemble(Model *m, Backend *be, ParamSource from, const char *dir, DType dtype,
                             int64_t max_shard);

/* Whether the folder has model.safetensors or model.safetensors.index.json. */
bool        weights_exist(const char *folder);

/* Copies config.json from one model folder to another, or writes it from memory, with the given dtype. */
MUST Status weights_save_config(const char *from, const char *dir, DType dtype);
MUST Status weights_write_config(const Json *hf, const char *dir, DType dtype);

/* Copies the companion files of a model: tokenizer, chat template, processor configurations. */
MUST Status weights_copy_companions(const char *from, const char *dir);

/* The part of t that belongs to piece i; t has the shape of p (its weight, its gradient). */
Tensor weights_piece_view(const Param *p, Tensor t, int i);

#endif
