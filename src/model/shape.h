/* model/shape.h -- the shape of a whole model: what its config.json says, checked, under our letters. */
#ifndef MODEL_SHAPE_H
#define MODEL_SHAPE_H

#include "nn/batch.h"
#include "nn/shape.h"

/* What families call the parts of a layer; names that differ between files and transformers' memory. */
typedef struct ModelNames {
    const char *router, *shared, *shared_gate;
    const char *in_memory, *in_files;    /* a part of names, as ".mlp."; NULL: the same in both */
    const char *expert_part[3];          /* gate, up, down of a file with a tensor per expert */
} ModelNames;

typedef struct ModelShape {
    const char *family;
    const char *text_prefix;             /* "model." or "model.language_model." */
    const ModelNames *names;             /* NULL: names_usual */
    bool        fused_experts;           /* how this family's hub files store experts */
    bool        output_major;            /* … fused experts as (E, out, in) */
    bool        input_major;             /* transformers holds them (E, in, out) too */
    TextShape   text;
    VisionShape vision;
    int64_t     image_token, video_token;
    DType       dtype;                   /* as the file says its weights are */
} ModelShape;

extern const ModelNames names_usual;
const ModelNames *shape_names(const ModelShape *s);
/* Whether a tensor is of shared experts of width 0: transformers saves them without elements, and their gate;
 * a model here has none of them. */
bool shape_is_empty_shared(const ModelShape *s, const char *tensor);

bool        shape_is_sparse(const TextShape *t, int64_t layer);       /* whether a layer is MoE */
int64_t     shape_sparse_layers(const TextShape *t);                  /* of the L layers */
int64_t     shape_routers(const TextShape *t);       /* with those of layers that predict further tokens */
StreamShape shape_stream(const ModelShape *s);

#endif
