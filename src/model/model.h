/* model/model.h -- a model: its parameters, its modules, forward and backward of one micro-batch.
 *
 * Life of a model: model_open declares everything from a shape; the caller sizes and opens arenas from
 * model_sizes, binds parameters with model_bind and fills them (model/weights.h or model_init); a step is
 * model_forward, then model_backward. Nothing here allocates after model_open. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "model/family.h"
#include "nn/decoder.h"
#include "nn/head.h"
#include "nn/vision.h"

struct Model {
    ModelShape  shape;
    ParamSet    params;
    Vision      vision;                  /* depth 0: none */
    Param      *embed;                   /* (V, D) */
    Decoder    *layer;                   /* L of them */
    Head        head;
    Tensor      inv, axis;               /* rotary frequencies (C/2) and the position axis each reads */
    bool        frozen[GROUP_N];
};

/* Everything forward leaves for backward. The rows of per-layer structs are made at start. */
typedef struct ModelAct {
    VisionAct   vision;
    DecoderAct *layer;
    Tensor     *x;                       /* L + 1 inputs of layers; the last is the head's input. In
                                            evaluation two buffers take turns */
    Tensor      cs;                      /* (T, C) */
    Tensor      loss;                    /* (1) F64: cross entropy */
    Aux         aux;
    Tensor      dx;                      /* (T, D): gradient stream */
} ModelAct;

typedef struct ModelSizes { size_t param, grad, optim; } ModelSizes;

/* dtype: of weights and activations. frozen may be NULL. */
MUST Status model_open(Model *m, const ModelShape *s, const bool *frozen);
void        model_close(Model *m);
ModelSizes  model_sizes(const Model *m, DType dtype);      /* bytes of the three arenas, alignment included */
void        model_bind(Model *m, DType dtype, Arena *param, Arena *grad, Arena *optim);
void        model_constants(Model *m, Backend *be);          /* fills inv and axis tables; after model_bind */
/* Random weights, as training from scratch starts. */
MUST Status model_init(Model *m, Backend *be, uint64_t seed);
void        model_zero_grad(Model *m, Backend *be);

MUST Status model_act_open(ModelAct *a, const Model *m);     /* host rows only */
void        model_act_close(ModelAct *a);

/* Forward with the loss: cross entropy summed times `scale`, auxiliary losses by a->aux. In training the
 * gradient of the head is taken in the same pass and left in a->dx, which is absent when nothing that trains
 * would hear of it. c->pass is FORWARD or EVAL. */
void model_forward(Ctx *c, const Model *m, ModelAct *a, float scale);
void model_backward(Ctx *c, const Model *m, ModelAct *a);
/* The forward without losses: hidden states up to the head's input a->x[L], for decoding. c->pass is EVAL. */
void model_hidden(Ctx *c, const Model *m, ModelAct *a);
/* Logits of rows [from, from + n) after a forward. */
void model_logits(Ctx *c, const Model *m, ModelAct *a, Tensor y, int64_t from);

#endif
