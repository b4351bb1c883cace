/* model/shape.h -- a model in numbers: what a config.json says, checked, under our names. */
#ifndef MODEL_SHAPE_H
#define MODEL_SHAPE_H

#include "nn/batch.h"
#include "nn/vision.h"

typedef struct TextShape {
    int64_t V, D, L;                     /* vocabulary, width, layers */
    int64_t H, G, C;                     /* query heads, kv heads, head width */
    int64_t F;                           /* width of dense feed-forwards */
    int64_t E, K, I;                     /* experts, per token, their width; E = 0: none */
    int64_t sparse_step;
    int64_t dense_only[128];             /* layers that stay dense */
    int     dense_onlys;
    bool    renorm, bias, tied;
    double  eps, theta, init_std, aux_coef;
    int64_t mrope[3];                    /* frequencies per axis (time, row, column); 0 0 0: plain RoPE */
    int64_t pad_id;                      /* embedding row without gradient, or -1 */
} TextShape;

typedef struct VisionShape {
    int64_t depth, D, F, H;              /* depth 0: no tower */
    int64_t channels, patch, frames, merge;
    int64_t grid, out;                   /* side of the learned position table; width of its output */
    int     deepstacks;
    int64_t deepstack[MAX_DEEPSTACK];
    Gelu    gelu;
    double  theta;
} VisionShape;

typedef struct ModelShape {
    const char *family;
    const char *text_prefix;             /* "model." or "model.language_model." */
    bool        fused_experts;           /* how this family's hub files store experts */
    TextShape   text;
    VisionShape vision;
    int64_t     image_token, video_token;
    DType       dtype;                   /* as the file says its weights are */
} ModelShape;

bool        shape_is_sparse(const TextShape *t, int64_t layer);
int64_t     shape_sparse_layers(const TextShape *t);
StreamShape shape_stream(const ModelShape *s);

#endif
