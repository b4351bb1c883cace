/* engine/engine.h -- a model with its memory on one rank: what a trainer, an evaluation and a parity check
 * all drive.
 *
 * engine_open first runs one step on the meta backend, with nobody at the other ends, to learn how large
 * each arena must be, then maps exactly that: whether it fits is known before anything is loaded, and a
 * step maps nothing. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "nn/dispatch.h"
#include "parallel/pipe.h"
#include "parallel/coroutine.h"
#include "engine/flops.h"
#include "engine/optim.h"

typedef struct DecodeCapacity { int64_t docs, tokens; } DecodeCapacity;  /* at once; that each may grow by; 0: none */

/* How ranks share the work; zeroed: there is one. The numbers have been checked (parallel/rules.h). */
typedef struct Ranks {
    Comm       *world;                   /* NULL: one rank */
    MeshLayout      layout;
    ContextKind context;                 /* how attention crosses cp */
    int         zero;
    int         micro, group;            /* micro-batches of a step on each rank; PipeShape.group */
    bool        overlap;                 /* a forward beside a backward, see PipeShape.extra_warmup */
    Chunk       chunk[MAX_CHUNKS];       /* of this rank's stage */
    DispatchConf dispatch;
} Ranks;

/* How the optimizer's state is kept, see ShardConf; zeroed: in f32, all of it on the device. */
typedef struct OptimStore { DType moments; bool split; double away; int64_t parcel; } OptimStore;

typedef struct EngineConf {
    const char *backend;                 /* "cpu" "cuda" "meta" */
    DType       dtype;                   /* of weights and activations */
    Budget      budget;
    AuxForm     aux;
    bool        aux_over_step;           /* AUX_LAYER with the counts of all micro-batches of a step so far */
    float       aux_coeff, z_coeff;
    double      capacity;                /* of experts, see Moe; 0: no row is dropped */
    bool        pad, balance;            /* to that capacity; random routing, for benchmarks */
    uint8_t     policy[LABEL_N];         /* see policy_default */
    FullRecompute        full;                    /* layers that keep their inputs alone */
    double      resident;                /* fraction of a chunk's layers that offload no activation */
    bool        frozen[GROUP_N];
    LoraConf lora;                    /* rank 0: no adapters */
    bool        train, logits;           /* backward and optimizer; engine_compute_logits will be called */
    bool        repeat;                  /* equal bits from equal runs, see Backend */
    bool        each;                    /* the loss of every supervised row is wanted: Engine.row_loss */
    bool        evaluate;                /* a training engine on which engine_evaluate will be called too */
    DecodeCapacity  decode;                  /* room for engine/decode.h */
    OptimStore  store;
    Ranks       ranks;
    CostListener      *meter;                   /* listens to the dry run of engine_plan, or NULL */
} EngineConf;

/* A_HOST is memory of the host beside a card, all before it of the device. */
typedef enum { A_PARAM, A_GRAD, A_OPTIM, A_BATCH, A_ACT, A_SCRATCH, A_HOST, ARENA_N } ArenaId;

const char *engine_arena_label(ArenaId a);               /* "weights": what it holds, for messages and tables */

enum { MAX_SLOTS = 512 };                /* micro-batches in flight on a stage */
enum { MICRO_COUNTS = 5 };               /* numbers that ranks tell each other of a micro-batch */

typedef struct PlanLabel { const char *name; size_t bytes; } PlanLabel;

typedef struct EnginePlan {
    size_t  bytes[ARENA_N];              /* A_ACT: of all slots and berths; A_SCRATCH: of both */
    PlanLabel label[ARENA_N][ARENA_LABELS];      /* of what those peaks are made, largest first; ends with 0 */
    size_t  slot[MAX_SLOTS];
    size_t  parked[MAX_SLOTS], waiting;  /* of A_HOST: what each has waiting there; all of them */
    size_t  berth;                       /* of A_ACT: one of the berths that values are parked from */
    size_t  beside;                      /* scratch of a backward that has a forward beside it */
    int     slots;
    PipeBackwardStop floor;                     /* of this stage, for whoever lays stages beside each other */
    bool    split;                       /* slots are dealt out by chunk (pipe_split_slots) */
    ArenaId eval_scratch;                /* the arena that takes evaluation's scratch with the least to add */
    Ledger  ledger;                      /* of one forward and backward */
    Ledger  once;                        /* of what a step has beyond its micro-batches: sums, the update */
} EnginePlan;

typedef struct Engine {
    EngineConf conf;
    Backend    be;
    Comm      *fake;                     /* a plan's world */
    Mesh       mesh;
    Model      model;
    ModelWork  work;                     /* of the whole of it */
    Shard      shard;
    Dispatcher   dispatch;                 /* ops NULL: experts are here */
    Pipe       pipe;
    ModelAct  *act;                      /* one per slot */
    Arena      arena[ARENA_N];
    Arena     *more;                     /* activations of slots 1 …; those of slot 0 are arena[A_ACT] */
    Arena      beside;                   /* see EnginePlan */
    OffloadEngine offload;              /* buffers 0: no activation is offloaded */
    Arena     *parked;                   /* on the host, one per slot, where something is */
    Batch     *batch;                    /* a ring: of micro-batches in flight, one more to fill ahead */
    int        batches, at;              /* in it; the one uploaded last */
    const Stream *ahead;                 /* whose upload went ahead, and which filling of it */
    int64_t    ahead_fill;
    Tensor    *wire[2];                  /* received by way, Pipe.window of them; (rows of a border, D) */
    Tensor     back;                     /* a gradient on its way to the stage before */
    Env        env;
    Pass       forward, backward;        /* the pass begun last in each direction */
    Tensor     row_loss;                 /* (supervised, 1): loss of every supervised row; absent unless conf.each */
    Coroutine  coroutine;
    Yielder    yielder;
    int64_t   *counts;                   /* of all dp ranks, then of this one; see accumulate.c */
    Tensor     sumsq, each;              /* (1) F64; (params_tensors) F64 behind it, see optim_grad_norm */
    Tensor     so_far;                   /* (L, 1, E): expert counts of the step, when the loss spans it */
    uint64_t   chance;                   /* of the step at hand, by whoever trains; 0: nothing is dropped */
    EnginePlan plan;
    bool       bytes;                    /* the pixels of its streams are 8-bit levels */
} Engine;

/* What a micro-batch counts for in its step: factors of its summed cross entropy and of its auxiliary losses,
 * and how its expert counts join those of the step (Aux.keep, part); what it drops goes by chance. */
typedef struct LossScales { float ce, aux, z, keep, part; uint64_t chance; } LossScales;

typedef struct Losses { double total, ce, aux, z; } Losses;     /* total = ce + coeff aux + z_coeff z */

/* What a run has used of an arena at most, with all that is beside it; EnginePlan.bytes was planned. */
size_t      engine_arena_peak(const Engine *e, ArenaId a);
/* What of a plan is memory of the backend's own device: all of it where that is the host. */
size_t      engine_device_bytes(const EnginePlan *p, const char *backend);

/* What one step over this stream would take: no data, no weights. */
MUST Status engine_plan(EnginePlan *p, const ModelShape *s, const EngineConf *conf, const Stream *stream);

/* stream: a batch of the budget's full size, which fixes the plan. Weights are undefined until loaded, and
 * engine_publish_weights must follow. */
MUST Status engine_open(Engine *e, const ModelShape *s, const EngineConf *conf, const Stream *stream);
void        engine_close(Engine *e);
void        engine_publish_weights(Engine *e);

/* Gets a machine that prepares ready for batches like this one; engine_open does so for its own. */
MUST Status engine_warm_up(Engine *e, const Stream *stream);

static inline Batch *engine_batch(Engine *e) { return &e->batch[e->at]; }       /* uploaded last */
static inline bool   engine_has_whole_model(const Engine *e)                   /* all of the model is on this rank */
{
    const MeshLayout *l = &e->mesh.layout;
    return l->tp * l->cp * l->pp * l->ep * l->etp == 1;
}

/* Before the first forward of a step: no gradient is there, and `micro` backward passes will come. */
void        engine_begin_step(Engine *e, int micro);
void        engine_upload(Engine *e, const Stream *s);
void        engine_prefetch(Engine *e, const Stream *s);         /* the next one meanwhile; NULL: none */

/* A pass over a batch of the ring whose activations go to a slot. */
Pass        engine_pass(Engine *e, PassMode mode, int batch, int slot, Arena *scratch);
/* Runs of one chunk by batch and slot, for whoever walks a pipeline; a whole model's are below. */
void        engine_run_forward(Engine *e, PassMode mode, int batch, int chunk, int slot, const LossScales *m,
                               Tensor input);
Tensor      engine_output(Engine *e, int chunk, int slot);       /* what the next chunk wants of it */
/* With ranks.overlap a forward of another slot may be under way, the two taking turns in e->coroutine. */
void        engine_run_backward(Engine *e, int batch, int chunk, int slot, Tensor gradient);
Tensor      engine_gradient(Engine *e, int chunk, int slot);     /* what the one before wants, in e->back */
/* Buffer number `buffer` of messages that way, for what crosses the border before `layer`. */
Tensor      engine_recv_buffer(const Engine *e, int way, int buffer, int64_t layer);
MUST Status engine_read_slot_losses(Engine *e, int slot, Losses *l);

void        engine_forward(Engine *e, float scale);              /* in training leaves what backward reads */
void        engine_forward_micro(Engine *e, const LossScales *m);     /* the same as one of several of a step */
void        engine_backward(Engine *e);
void        engine_evaluate(Engine *e, float scale);            /* a forward that leaves nothing but losses */
void        engine_compute_grad_norm(Engine *e);                              /* of all gradients, for engine_read_grad_norm */
void        engine_apply_update(Engine *e, const OptimConf *conf);      /* clip by that norm, AdamW */
void        engine_update(Engine *e, const OptimConf *conf);     /* both */
void        engine_compute_logits(Engine *e, Tensor y, int64_t from);    /* after a forward */
MUST Status engine_read_losses(Engine *e, Losses *l);                 /* of this rank; waits for the device */
MUST Status engine_read_grad_norm(Engine *e, double *norm);
/* And of every tensor what this rank has of its square, behind that of all: (1 + params_tensors). */
MUST Status engine_read_grad_squares(Engine *e, double *squares);

#endif
