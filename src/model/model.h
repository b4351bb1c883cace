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

/* A pipeline chunk: layers from … to - 1. With `embeds` the vision tower and the token embedding come before
 * them, with `heads` final norm, output projection and loss after. */
typedef struct Chunk { int64_t from, to; bool embeds, heads; } Chunk;

enum { MAX_CHUNKS = 64 };

/* Beside the decoder layer behind the last: what predicts one token further (model/step_mtp.c). */
typedef struct Mtp {
    Param *enorm, *hnorm, *norm;         /* (D): of embeddings, of hidden states, before the head */
    Param *w;                            /* (D, 2D); NULL: not on this rank */
    Param *embed;                        /* (V, D): the embedding, or its copy on another stage */
} Mtp;

struct Model {
    ModelShape  shape;
    Chunk       chunk[MAX_CHUNKS];       /* of this rank; without a pipeline one, the whole model */
    int         chunks;
    ParamSet    params;
    Vision      vision;                  /* depth 0: none */
    Param      *embed;                   /* (V, D) */
    Decoder    *layer;                   /* L of them, then those that predict further tokens */
    Head        head;
    Mtp         mtp;
    Tensor      inv, axis;               /* rotary frequencies (C/2) and the position axis each reads */
    bool        frozen[GROUP_N];         /* by group: nothing of it trains, in the whole model */
    int64_t     first_trainable;         /* layer below which nothing of the decoder trains; -1: the
                                            embedding does; L: the head alone; L + 1: nothing */
    const LoraConf *lora;                /* NULL: no adapters */
};

/* What the layer that predicts a further token keeps until its backward, the end of its chunk's forward. */
typedef struct MtpAct {
    Tensor h, e;                         /* (T, D): hidden states after the final norm; embeddings */
    Tensor joined;                       /* (T, 2D): both after their norms, embeddings first */
    Tensor x, y;                         /* (T, D): input and output of the layer */
    Tensor rstd[3];                      /* (T, 1): of the final norm, of enorm, of hnorm */
    ArenaMark mark;                      /* of the activations, below all of these */
} MtpAct;

/* Everything forward leaves for backward. The arrays over layers are allocated by model_act_open. */
typedef struct ModelAct {
    VisionAct   vision;
    Tensor      deepstack[MAX_DEEPSTACK];    /* (M, D): feature that is added after layer i, until it is */
    Tensor      d_deepstack[MAX_DEEPSTACK];  /* its gradient */
    DecoderAct *layer;                   /* a row for each layer of the model */
    int64_t     layers;
    MtpAct      mtp;
    OffloadRecord *offload;              /* (L) by the first layer of a recompute group */
    Tensor     *x;                       /* (L + 1) inputs of layers, then of the head; in evaluation they
                                            alternate between two buffers */
    Tensor      cs;                      /* (T, C): cosines and sines of the positions */
    Tensor      loss;                    /* (2) F64: cross entropy; that of further tokens */
    Aux         aux;
    Factor      mtp_scale;               /* of the cross entropy of further tokens */
    const uint64_t *dropout_seed;        /* of the micro-batch, on the device; NULL: no dropout */
    Tensor      dx;                      /* (T, D): gradient of the residual stream */
} ModelAct;

/* The whole model on one rank. frozen: by group, or NULL: all train. lora outlives m; NULL or rank 0: no
 * adapters. */
MUST Status model_open_whole(Model *m, const ModelShape *s, const bool *frozen, const LoraConf *lora);
MUST Status model_open(Model *m, const ModelShape *s, const bool *frozen);       /* without adapters */
/* What one rank holds: its shards by the mesh, its pipeline chunks. */
MUST Status model_open_part(Model *m, const ModelShape *s, const bool *frozen, const LoraConf *lora,
                            const Mesh *mesh, const Chunk *chunk, int chunks);
MUST Status model_open_whole_of(Model *m, const Model *part);         /* the whole model of a part */
void        model_close(Model *m);
void        model_tables(Model *m, Arena *param);            /* memory for the tables of positions */
void        model_constants(Model *m, Backend *be);          /* fills these tables */
/* Random weights for training from scratch. */
MUST Status model_init(Model *m, Backend *be, uint64_t seed);

MUST Status model_act_open(ModelAct *a, const Model *m);     /* host arrays only */
void        model_act_close(ModelAct *a);

/* Rows that cross the pipeline boundary before `layer`: T of the residual stream, then M visual rows for each
 * deepstack feature that is added further on; in backward their gradients. */
int64_t model_boundary_rows(const Batch *b, const Model *m, int64_t layer);

/* Forward of one chunk. `in` crossed the boundary before it, absent where the chunk embeds. The chunk with
 * the head takes the loss: summed cross entropy times `scale`; a->aux describes the auxiliary losses. In
 * training the gradient of the head is made in the same pass and left in a->dx, which is absent when nothing
 * below the head trains. c->mode is FORWARD or EVAL. */
void   model_forward(const Pass *c, const Model *m, int chunk, ModelAct *a, Factor scale, Tensor in);
/* What crosses the boundary behind the chunk. */
Tensor model_output(const Pass *c, const Model *m, int chunk, ModelAct *a);
/* din: gradient of model_output, absent where the chunk has the head. */
void   model_backward(const Pass *c, const Model *m, int chunk, ModelAct *a, Tensor din);
/* Then: gradient of the chunk's input, for the stage before. */
void   model_input_grad(const Pass *c, const Model *m, int chunk, const ModelAct *a, Tensor dout);
/* Whether this micro-batch has a backward: a batch of text through a frozen decoder gives no gradient to
 * anything. A backward goes down to the lowest trainable layer and no further, on all stages; layers below it
 * keep nothing in forward. */
bool model_has_backward(const Pass *c, const Model *m);
/* Whether a chunk ever has a backward, and whether it then sends a gradient to the chunk before: by what
 * trains in the whole model, so that the stages on both sides of a boundary agree. */
bool model_chunk_has_backward(const Model *m, int chunk);
bool model_chunk_sends_grad(const Model *m, int chunk);

/* Forward of one chunk without losses: hidden states up to its output or the head's input a->x[L], for
 * decoding. c->mode is EVAL; in: as for model_forward. */
void model_hidden_states(const Pass *c, const Model *m, int chunk, ModelAct *a, Tensor in);
/* Around the use of the head's parameters without a backward; pairs may nest. */
void model_head_begin(const Pass *c, const Model *m);
void model_head_end(const Pass *c, const Model *m);
/* Logits of rows [from, from + n) of the hidden states after a forward. */
void model_logits(const Pass *c, const Model *m, ModelAct *a, Tensor y, int64_t from);

#endif
