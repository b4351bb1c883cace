/* model/model.h -- a model: its parameters, its modules, forward and backward of one micro-batch.
 *
 * Life of a model: model_open declares everything from a shape; the caller binds parameters to arenas
 * (parallel/shard.h) and fills them (model/weights.h or model_init); a step is model_forward, then
 * model_backward. Nothing here allocates after model_open. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "model/lora.h"
#include "model/family.h"
#include "nn/decoder.h"
#include "nn/head.h"
#include "nn/vision.h"

/* Layers from … to - 1 that one rank computes without a break. Where it embeds, the vision tower and the token
 * embedding come before them; where it heads, final norm, output projection and loss after. */
typedef struct Chunk { int64_t from, to; bool embeds, heads; } Chunk;

enum { MAX_CHUNKS = 64 };

struct Model {
    ModelShape  shape;
    Chunk       chunk[MAX_CHUNKS];       /* of this rank: one, the whole model, unless a pipeline cuts it */
    int         chunks;
    ParamSet    params;
    Vision      vision;                  /* depth 0: none */
    Param      *embed;                   /* (V, D) */
    Decoder    *layer;                   /* L of them */
    Head        head;
    Tensor      inv, axis;               /* rotary frequencies (C/2) and the position axis each reads */
    bool        frozen[GROUP_N];         /* nothing of the group is trained, in the whole model */
    int64_t     first_trainable;         /* layer below which nothing of the decoder trains; -1: the
                                            embedding does; L: the head alone; L + 1: nothing */
    const LoraConf *lora;             /* NULL: no adapters */
};

/* Everything forward leaves for backward. The rows of per-layer structs are made at start. */
typedef struct ModelAct {
    VisionAct   vision;
    Tensor      feature[MAX_DEEPSTACK];  /* (M, D) visual rows that join after layer i, until they do */
    Tensor      dfeature[MAX_DEEPSTACK];
    DecoderAct *layer;                   /* a row for each layer of the model */
    int64_t     layers;
    OffloadRecord     *parked;                  /* (L) by the first layer of what is parked together */
    Tensor     *x;                       /* L + 1 inputs of layers; the last is the head's input. In
                                            evaluation two buffers take turns */
    Tensor      cs;                      /* (T, C) */
    Tensor      loss;                    /* (1) F64: cross entropy */
    Aux         aux;
    uint64_t    chance;                  /* that what is dropped goes by; 0: nothing is dropped */
    Tensor      dx;                      /* (T, D): gradient stream */
} ModelAct;

/* The whole model on one rank. frozen may be NULL. lora: outlives m; NULL or of rank 0: none. */
MUST Status model_open_whole(Model *m, const ModelShape *s, const bool *frozen, const LoraConf *lora);
MUST Status model_open(Model *m, const ModelShape *s, const bool *frozen);       /* without adapters */
/* The part of a rank: its slices by the mesh, its chunks of the pipeline. */
MUST Status model_open_part(Model *m, const ModelShape *s, const bool *frozen, const LoraConf *lora,
                            const Mesh *mesh, const Chunk *chunk, int chunks);
MUST Status model_open_whole_of(Model *m, const Model *part);         /* the model that it is a part of */
void        model_close(Model *m);
void        model_tables(Model *m, Arena *param);            /* of positions: room for them */
void        model_constants(Model *m, Backend *be);          /* fills them */
/* Random weights, as training from scratch starts. */
MUST Status model_init(Model *m, Backend *be, uint64_t seed);

MUST Status model_act_open(ModelAct *a, const Model *m);     /* host rows only */
void        model_act_close(ModelAct *a);

/* What crosses the border before `layer`: T rows of the residual stream, then M visual rows for each feature
 * that joins further on; in backward their gradients. */
int64_t model_boundary_rows(const Batch *b, const Model *m, int64_t layer);

/* One chunk of the forward. `in` is what crosses the border before it, absent where it embeds. The chunk that
 * heads takes the loss: cross entropy summed times `scale`; auxiliary losses are by a->aux. In training the
 * gradient of the head is taken in the same pass and left in a->dx, which is absent when nothing that trains
 * would hear of it. c->mode is FORWARD or EVAL. */
void   model_forward(const Pass *c, const Model *m, int chunk, ModelAct *a, float scale, Tensor in);
Tensor model_output(const Pass *c, const Model *m, int chunk, ModelAct *a);   /* what then crosses the one behind */
/* din: gradient of what crossed the border behind it, absent where it heads. */
void   model_backward(const Pass *c, const Model *m, int chunk, ModelAct *a, Tensor din);
/* And then of the one before it. */
void   model_input_grad(const Pass *c, const Model *m, int chunk, const ModelAct *a, Tensor dout);
/* Whether this micro-batch has a backward at all: text through a frozen decoder teaches nobody. Where it has
 * one it goes down to the lowest thing that trains and no further, on all stages: what is below keeps nothing
 * in forward. */
bool model_has_backward(const Pass *c, const Model *m);
/* Whether a chunk ever has a backward, and whether the chunk before it then wants its gradient: by what
 * trains of the whole model, so that the stages on both sides of a border say the same. */
bool model_chunk_has_backward(const Model *m, int chunk);
bool model_chunk_sends_grad(const Model *m, int chunk);

/* The forward of a whole model without losses: hidden states up to the head's input a->x[L], for decoding.
 * c->mode is EVAL. */
void model_hidden_states(const Pass *c, const Model *m, ModelAct *a);
/* Logits of rows [from, from + n) of x (any rows, D), or of the hidden states after a forward. */
void model_rows_logits(const Pass *c, const Model *m, Tensor y, Tensor x, int64_t from);
void model_logits(const Pass *c, const Model *m, ModelAct *a, Tensor y, int64_t from);

#endif
