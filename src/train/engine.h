/* train/engine.h -- a model with its memory: what a trainer, an evaluation and a parity check all drive.
 *
 * engine_open first runs one step on the meta backend to learn how large each arena must be, then maps
 * exactly that: whether it fits is known before anything is loaded, and a step maps nothing. */
#ifndef TRAIN_ENGINE_H
#define TRAIN_ENGINE_H

#include "train/optim.h"

typedef struct DecodeRoom { int64_t docs, tokens; } DecodeRoom;  /* at once; that each may grow by; 0: none */

typedef struct EngineConf {
    const char *backend;                 /* "cpu" "cuda" "meta" */
    DType       dtype;                   /* of weights and activations */
    Budget      budget;
    AuxForm     aux;
    bool        aux_over_step;           /* AUX_LAYER with the counts of all micro-batches of a step so far */
    float       aux_coeff, z_coeff;
    uint8_t     policy[LABEL_N];         /* see policy_default */
    bool        frozen[GROUP_N];
    bool        train, logits;           /* backward and optimizer; engine_logits will be called */
    bool        repeat;                  /* equal bits from equal runs, see Backend */
    bool        each;                    /* the loss of every supervised row is wanted: Engine.ctx.each */
    bool        evaluate;                /* a training engine on which engine_evaluate will be called too */
    DecodeRoom  decode;                  /* room for train/decode.h */
} EngineConf;

typedef enum { A_PARAM, A_GRAD, A_OPTIM, A_BATCH, A_ACT, A_SCRATCH, ARENA_N } ArenaId;

typedef struct EnginePlan {
    size_t  bytes[ARENA_N];
    ArenaId eval_scratch;                /* the arena that takes evaluation's scratch with the least to add */
    Ledger  ledger;                      /* of one forward and backward */
} EnginePlan;

typedef struct Engine {
    EngineConf conf;
    Backend    be;
    Model      model;
    ModelAct   act;
    Arena      arena[ARENA_N];
    Batch      batch, spare;             /* spare: where the next one goes while this one is computed */
    const Stream *ahead;                 /* whose upload went there, and which filling of it */
    int64_t    ahead_fill;
    Ctx        ctx;
    Tensor     sumsq;                    /* (1) F64 */
    Tensor     so_far;                   /* (L, 1, E): expert counts of the step, when the loss spans it */
    EnginePlan plan;
    bool       bytes;                    /* the pixels of its streams are 8-bit levels */
} Engine;

/* What a micro-batch counts for in its step: factors of its summed cross entropy and of its auxiliary losses,
 * and how its expert counts join those of the step (so_far = keep so_far + add count). */
typedef struct Micro { float ce, aux, z, keep, add; } Micro;

typedef struct Losses { double total, ce, aux, z; } Losses;     /* total = ce + coeff aux + z_coeff z */

/* What one step over this stream would take: no data, no weights. */
MUST Status engine_plan(EnginePlan *p, const ModelShape *s, const EngineConf *conf, const Stream *stream);

/* stream: a batch of the budget's full size, which fixes the plan. Weights are undefined until loaded. */
MUST Status engine_open(Engine *e, const ModelShape *s, const EngineConf *conf, const Stream *stream);
void        engine_close(Engine *e);

/* Gets a machine that prepares ready for batches like this one; engine_open does so for its own. */
MUST Status engine_ready(Engine *e, const Stream *stream);

void        engine_upload(Engine *e, const Stream *s);
void        engine_prefetch(Engine *e, const Stream *s);         /* the next one meanwhile; NULL: none */
void        engine_forward(Engine *e, float scale);              /* in training leaves what backward reads */
void        engine_forward_micro(Engine *e, const Micro *m);     /* the same as one of several of a step */
void        engine_backward(Engine *e);
void        engine_evaluate(Engine *e, float scale);            /* a forward that leaves nothing but losses */
void        engine_norm(Engine *e);                              /* of all gradients, for engine_grad_norm */
void        engine_apply(Engine *e, const OptimConf *conf);      /* clip by that norm, AdamW */
void        engine_update(Engine *e, const OptimConf *conf);     /* both */
void        engine_logits(Engine *e, Tensor y, int64_t from);    /* after a forward */
MUST Status engine_losses(Engine *e, Losses *l);                 /* waits for the device */
MUST Status engine_grad_norm(Engine *e, double *norm);

#endif
