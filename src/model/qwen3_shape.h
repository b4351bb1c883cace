/* model/qwen3_shape.h -- config readers that the Qwen3 families share. */
#ifndef MODEL_QWEN3_SHAPE_H
#define MODEL_QWEN3_SHAPE_H

#include "model/family.h"

/* Defaults of the transformers class that would read the file, for keys that it leaves out. */
typedef struct TextDefaults {
    int64_t hidden, layers, heads, kv_heads;
    int64_t head_dim;                    /* 0: hidden / heads */
    int64_t ffn, expert_ffn, experts, per_token;
    bool    renorm;
} TextDefaults;

MUST Status qwen3_text(TextShape *t, const Json *o, const TextDefaults *d, bool sparse, bool multimodal);
MUST Status qwen3_vision(VisionShape *v, const Json *o);
MUST Status qwen3_dtype(DType *d, const Json *top, const Json *text);

void qwen3_build(Model *m);              /* model/qwen3_build.c */

#endif
