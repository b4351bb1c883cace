/* model/shape.h -- the shape of a whole model: what its config.json says, checked, under our letters. */
#ifndef MODEL_SHAPE_H
#define MODEL_SHAPE_H

#include "nn/batch.h"
#include "nn/shape.h"

typedef struct ModelShape {
    const char *family;
    const char *text_prefix;             /* "model." or "model.language_model." */
    bool        fused_experts;           /* how this family's hub files store experts */
    TextShape   text;
    VisionShape vision;
    int64_t     image_token, video_token;
    DType       dtype;                   /* as the file says its weights are */
} ModelShape;

bool        shape_is_sparse(const TextShape *t, int64_t layer);       /* whether a layer is MoE */
int64_t     shape_sparse_layers(const TextShape *t);
StreamShape shape_stream(const ModelShape *s);

#endif
