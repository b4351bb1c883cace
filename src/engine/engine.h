/* engine/engine.h -- a model with its memory on one rank: what a trainer, an evaluation and a parity check
 * drive.
 *
 * engine_open first runs one step on the meta backend, with a fake communicator, to find how large each arena
 * must be, then maps exactly that. So a run that does not fit is known before anything is loaded, and a step
 * maps no memory. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "nn/dispatch.h"
#include "parallel/pipe.h"
#include "parallel/coroutine.h"
#include "engine/flops.h"
#include "engine/graph_cache.h"
#include "engine/optim.h"
#include "engine/scope_cache.h"
#include "engine/step_results.h"

/* Documents at once, and tokens that each may grow by; 0: no decoding. */
typedef struct DecodeCapacity { int64_t docs, tokens; } DecodeCapacity;

/* How ranks share the work, checked by parallel/rules.h; zeroed: one rank. */
typedef struct Ranks {
    Comm       *world;                   /* NULL: one rank */
    MeshLayout  layout;
    ContextKind context;                 /* how attention exchanges keys and values over cp */
    int         zero;
    int         micro, group;            /* micro-batches of a step on each rank; PipeShape.group */
    int         tp_chunks;               /* see Env; 0: one */
    bool        overlap;                 /* overlap a forward with a backward, see PipeShape.extra_warmup */
    Chunk       chunk[MAX_CHUNKS];       /* of this rank's stage */
    DispatchConf dispatch;
} Ranks;

/* How the optimizer's state is stored; zeroed: in f32, all of it on the device. */
typedef struct OptimStore {
    DType   moments;                     /* f32, bf16, or u8: in codes by block */
    bool    split;                       /* masters as the weight and the bits that it lacks */
    double  offload_fraction;            /* of the state that lies in host memory */
    int64_t offload_chunk;               /* elements copied at a time, see ShardConf; 0: a default */
    DType   grads;                       /* of gradients that param_rounds_grad (nn/param.h): f32 or bf16 */
} OptimStore;

typedef struct EngineConf {
    const char *backend;                 /* "cpu" "cuda" "meta" */
    const char *kernels;                 /* see backend_kernels; NULL: "auto" */
    DType       dtype;                   /* of weights and activations */
    Budget      budget;
    AuxForm     aux;
    bool        aux_over_step;           /* AUX_LAYER with the expert counts of the step so far */
    float       aux_coeff, z_coeff;
    float       mtp_weight;              /* of the loss of further tokens, where the model predicts them */
    float       bias_rate;               /* step of the routers' score biases after an update; 0: they stay */
    double      capacity;                /* factor of experts, see Moe; 0: no row is dropped */
    bool        pad, balance;            /* pad to that capacity; random even routing, for benchmarks */
    uint8_t     policy[LABEL_N];         /* see policy_default */
    FullRecompute full;                  /* layers that keep only their inputs */
    double      resident;                /* fraction of a chunk's layers that offload no activation */
    bool        frozen[GROUP_N];
    LoraConf    lora;                    /* rank 0: no adapters */
    ProductPrecision precision;          /* products that run in 8 bits */
    BaseQuant   base;                    /* frozen weights that are in codes alone; CODE_NONE: none */
    int64_t     panel_elems;             /* see Env */
    bool        fp8_dispatch;            /* tokens travel to experts in 8 bits in forward */
    bool        fp8_one_layout;          /* these have no transposed copy */
    bool        fp8_weight_cache;        /* their weights are kept in 8 bits (nn/fp8_weight.h) */
    bool        fp8_keep_wide;           /* and beside these in dtype: see ShardConf */
    bool        train, logits;           /* backward and optimizer; engine_compute_logits will be called */
    bool        deterministic;           /* equal runs give equal bits, see Backend */
    unsigned    graphs;                  /* what runs as graphs, by base/graph_scopes.h; 0: nothing */
    int         reserved_sms;            /* see Backend */
    bool        per_row_loss;            /* fill ResultBlock.row_loss */
    bool        evaluate;                /* engine_evaluate will be called on a training engine */
    DecodeCapacity decode;               /* for engine/decode.h */
    OptimStore  store;
    Ranks       ranks;
    CostListener *meter;                 /* gets the costs of the dry run of engine_plan, or NULL */
} EngineConf;

/* A_HOST is host memory; the arenas before it are on the device. */
typedef enum { A_PARAM, A_GRAD, A_OPTIM, A_BATCH, A_ACT, A_SCRATCH, A_HOST, ARENA_N } ArenaId;

const char *engine_arena_label(ArenaId a);      /* "weights": what it holds, for messages and tables */

enum { MAX_SLOTS = 512 };                /* micro-batches in flight on a stage */
enum { MICRO_COUNTS = 6 };               /* counts of a micro-batch that data-parallel ranks exchange */

typedef struct PlanLabel { const char *name; size_t bytes; } PlanLabel;

typedef struct EnginePlan {
    size_t  bytes[ARENA_N];              /* A_ACT: all slots and staging buffers; A_SCRATCH: both arenas */
    PlanLabel label[ARENA_N][ARENA_LABELS];      /* what these peaks consist of, largest first; ends with 0 */
    size_t  slot[MAX_SLOTS];             /* activations of each slot */
    size_t  offloaded[MAX_SLOTS], offloaded_bytes;   /* part of A_HOST: of each slot; of all slots */
    size_t  staging;                     /* part of A_ACT: one staging buffer of offloaded activations */
    size_t  graphs;                      /* device memory that graphs may take */
    size_t  workspace;                   /* the most that one op takes of a GPU while it runs */
    size_t  overlap_scratch;             /* part of A_SCRATCH: of a backward that overlaps with a forward */
    int     slots;
    PipeBackwardStop backward_stop;      /* of this stage, for a timeline of all stages */
    bool    slots_by_chunk;              /* each chunk has slots of its own (pipe_split_slots) */
    ArenaId eval_scratch;                /* the arena whose peak grows least by evaluation's scratch */
    Ledger  ledger;                      /* of one forward and backward */
    Ledger  step_ledger;                 /* of a step beyond its micro-batches: gradient sums, the update */
} EnginePlan;

/* Weights of a micro-batch in its step: factors of its summed cross entropies and of its auxiliary losses,
 * and how its expert counts join those of the step (Aux.keep, Aux.part). */
typedef struct LossScales { float ce, mtp, aux, z, carry, weight; uint64_t dropout_seed; } LossScales;

/* What the host's structs of a slot describe: the forward that the host's code ran last. A forward that is
 * launched as a graph fills the same memory without that code. */
typedef enum { VIEW_NONE, VIEW_TEXT, VIEW_MEDIA } ViewLayout;
typedef struct SlotView {
    ViewLayout layout;
    int        batch;                    /* its place in the ring */
    ArenaMark  end;                      /* of its activations */
    LossScales scales;                   /* of the forward that ran last, in either way */
} SlotView;

typedef struct Engine {
    EngineConf conf;
    Backend    be;
    Comm      *fake;                     /* the world of a dry run, and of a run without one */
    Mesh       mesh;
    Model      model;
    ModelWork  work;                     /* of the whole model */
    Shard      shard;
    Dispatcher dispatch;                 /* ops NULL: all experts are on this rank */
    Pipe       pipe;
    ModelAct  *act;                      /* one per slot */
    Arena      arena[ARENA_N];
    Arena     *slot_act;                 /* activations of slots 1 …; those of slot 0 are in arena[A_ACT] */
    Arena      overlap_scratch;          /* see EnginePlan */
    OffloadEngine offload;               /* buffers 0: no activation is offloaded */
    Arena     *host_act;                 /* offloaded activations, one arena per slot, or NULL */
    Batch     *batch;                    /* a ring: micro-batches in flight, and one to prefetch into */
    int        batches, at;              /* of the ring; index of the last upload */
    const Stream *prefetched;            /* uploaded by engine_prefetch, or NULL */
    int64_t    prefetched_fill;          /* its Stream.fills at that time */
    Tensor    *recv[2];                  /* Pipe.window buffers per direction; (rows of a boundary, D) */
    Tensor     send_grad;                /* a gradient for the stage before */
    Env        env;
    Pass       forward, backward;        /* the pass begun last in each direction */
    Tensor     row_loss;                 /* (supervised, 1) of results; absent unless conf.per_row_loss */
    Coroutine  coroutine;
    Yielder    yielder;
    int64_t   *counts;                   /* MICRO_COUNTS of all dp ranks, then of this one: pipeline_run.c */
    const AdamStep *adam_step;           /* (GROUP_N), on the device: of the update at hand */
    StepResults results;
    bool       count_experts;            /* forwards add the choices of the routers to the results */
    bool       measure_codes;            /* products in 8 bits add what their codes lose to the results */
    double     waited;                   /* seconds that the host waited for the device in pipeline_run */
    Tensor     bias_counts;              /* (L, E) I32: choices of a step on all ranks; with conf.bias_rate */
    Tensor     step_counts;              /* (L, 1, E): expert counts of the step, with conf.aux_over_step */
    GraphCache graphs;                   /* not open: nothing runs as graphs */
    ScopeCache scopes;                   /* not open: scopes run as the phase that they are in */
    SlotView   view[MAX_SLOTS];
    int        backwards;                /* passes that this step has begun */
    uint64_t   dropout_seed;             /* of the step, set by the trainer; 0: no dropout */
    EnginePlan plan;
    bool       byte_pixels;              /* its streams have 8-bit pixels */
    bool       opened;                   /* all ranks have mapped what a step needs */
} Engine;


/* total = ce + mtp + coeff aux + z_coeff z; mtp is weighted. */
typedef struct Losses { double total, ce, mtp, aux, z; } Losses;

/* Peak bytes that a run has used of an arena and of those counted with it in EnginePlan.bytes. */
size_t      engine_arena_peak(const Engine *e, ArenaId a);
/* Bytes of a plan on the backend's device; with the CPU backend host memory counts too. */
size_t      engine_device_bytes(const EnginePlan *p, const char *backend);

/* The memory of one step over a stream of this size; needs no data and no weights. */
MUST Status engine_plan(EnginePlan *p, const ModelShape *s, const EngineConf *conf, const Stream *stream);

/* stream: a batch of the budget's full size, which the plan is made for. Weights are undefined until they are
 * loaded; after that call engine_publish_weights, which refreshes sharded and low-precision copies. */
MUST Status engine_open(Engine *e, const ModelShape *s, const EngineConf *conf, const Stream *stream);
void        engine_close(Engine *e);
void        engine_publish_weights(Engine *e);

/* On a device that prepares for shapes (cuBLASLt, cuDNN): does so for batches of this size. engine_open does
 * it for the full budget. */
MUST Status engine_warm_up(Engine *e, const Stream *stream);

/* Between steps of an engine that was opened with graphs: what runs as graphs from now on. Graphs so far are
 * gone. */
MUST Status engine_use_graphs(Engine *e, unsigned graphs);

static inline Batch *engine_batch(Engine *e) { return &e->batch[e->at]; }       /* uploaded last */

/* Before the first forward of a step, which has `micro` micro-batches: gradients start unset, results at
 * zero. */
void        engine_begin_step(Engine *e, int micro);
void        engine_upload(Engine *e, const Stream *s);
void        engine_prefetch(Engine *e, const Stream *s);         /* uploads s meanwhile; s may be NULL */
void        engine_drop_prefetched(Engine *e);                   /* other batches are uploaded first */

/* A pass over a batch of the ring whose activations go to a slot. */
Pass        engine_pass(Engine *e, PassMode mode, int batch, int slot, Arena *scratch);
/* One chunk of a pipeline stage, by batch and slot (pipeline_run.c); the whole model: below. */
void        engine_run_forward(Engine *e, PassMode mode, int batch, int chunk, int slot, const LossScales *m,
                               Tensor input);
Tensor      engine_output(Engine *e, int chunk, int slot);       /* for the next chunk */
/* With ranks.overlap the forward of another slot may run too: the two alternate in e->coroutine. */
void        engine_run_backward(Engine *e, int batch, int chunk, int slot, Tensor gradient);
Tensor      engine_gradient(Engine *e, int chunk, int slot);     /* for the chunk before; in e->send_grad */
/* Receive buffer of direction `way`, cut to the rows that cross the boundary before `layer`. */
Tensor      engine_recv_buffer(const Engine *e, int way, int buffer, int64_t layer);
/* Adds the losses of a slot's forward to the results of the step. aux: those of its routers too. */
void        engine_add_slot_losses(Engine *e, int slot, const LossScales *m, bool aux);

void        engine_forward(Engine *e, float scale);              /* in training keeps what backward reads */
void        engine_forward_micro(Engine *e, const LossScales *m);        /* one of several of a step */
void        engine_backward(Engine *e);
void        engine_evaluate(Engine *e, float scale);            /* a forward that keeps only the losses */
void        engine_compute_grad_norm(Engine *e);
/* The verdict on the step by its losses on this rank, its norm and the highest loss so far, for
 * conf.adam.verdict of the update. */
void        engine_decide_update(Engine *e, double spike, bool supervised);
void        engine_apply_update(Engine *e, const OptimConf *conf);       /* clip by that norm, AdamW */
void        engine_update(Engine *e, const OptimConf *conf);             /* norm, then update */
void        engine_compute_logits(Engine *e, Tensor y, int64_t from);    /* after a forward */
MUST Status engine_read_losses(Engine *e, Losses *l);            /* of this rank; waits for the device */
/* Waits for the device where its kernels wait for other ranks: a call to the watchdog. */
MUST Status engine_wait_for_peers(Engine *e);
/* Waits for the device after passes that are not run again: an MoE layer whose rows did not fit, or whose
 * kernels failed, is an error. */
MUST Status engine_finish_eval(Engine *e);
MUST Status engine_read_grad_norm(Engine *e, double *norm);

#endif
