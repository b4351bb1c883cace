/* model/qwen3_shape.h -- config readers that the families share; their first users were the Qwen3
 * families. */
#ifndef MODEL_QWEN3_SHAPE_H
#define MODEL_QWEN3_SHAPE_H

#include "model/family.h"

/* Defaults of the transformers class that would read the file, for keys that it leaves out. */
typedef struct TextDefaults {
    int64_t hidden, layers, heads, kv_heads;
    int64_t head_dim;                    /* 0: hidden / heads */
    int64_t ffn, expert_ffn, experts, per_token;
    bool    renorm;
    int64_t vocab;                       /* 0: 151936 */
    double  eps, theta, rotary, aux_coef;    /* 0: 1e-6; none; all of a head, always; 0.001 */
    bool    no_qk_norm;                  /* queries and keys have no norm */
    int64_t mrope[3];                    /* 0 0 0: 24 20 20 */
    bool    window_always;               /* sliding_window applies without use_sliding_window */
    int64_t window;                      /* … of a file that has no such key; one with null has no window */
    bool    mixed_layers;                /* layers are of two kinds: the family reads layer_types itself */
} TextDefaults;

/* Refuses, by name, keys that change what a model computes and that no family here computes. */
MUST Status shape_refuse(const Json *o);

MUST Status shape_dim(const Json *o, const char *key, int64_t def, int64_t most, int64_t *out);
/* Reads the shape of a family whose config is flat and whose names begin with "model.". */
MUST Status shape_common(ModelShape *s, const Json *hf);

MUST Status qwen3_text(TextShape *t, const Json *o, const TextDefaults *d, bool sparse, bool multimodal);
/* deepstack: whether a file that does not say has it */
MUST Status qwen3_vision(VisionShape *v, const Json *o, bool deepstack);

/* Families with a tower: their text_config; then, after its shape is read, everything else. */
typedef struct VisualDefaults { int64_t image_token, video_token; bool deepstack; } VisualDefaults;
MUST Status qwen3_text_config(const Json *hf, const Json **text);
MUST Status qwen3_visual(ModelShape *s, const Json *hf, const VisualDefaults *d);
MUST Status qwen3_dtype(DType *d, const Json *top, const Json *text);

void qwen3_build(Model *m);              /* model/qwen3_build.c */

#endif
