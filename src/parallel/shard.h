/* parallel/shard.h -- weights, gradients and optimizer state, sharded over the ranks that hold the same
 * parameters (ZeRO, FSDP).
 *
 * Parameters are grouped by unit (Param.unit: parameters that are used together, such as a decoder layer) and
 * within a unit by bucket: one for each group over which gradients are summed (Param.grad_group). A bucket is
 * one block of memory: its tensors are aligned to ARENA_ALIGN bytes, its size is padded to a multiple of the
 * group, and member i of the group owns slice i of it. A rank updates what lies in its slice: shard.len
 * elements from shard.offset on (ParamShard of nn/param.h); master, m and v are flat tensors of as many.
 * Where moments are in codes, tensors and slices begin at multiples of MOMENT_BLOCK: a block has elements of
 * one parameter, the same ones in any sharding over these ranks.
 *
 *   level 0   nothing is sharded: gradients are all-reduced (zero 0, or a group of one rank)
 *         1   state is sharded: gradients are reduce-scattered once a step, weights gathered after it
 *         2   gradients too: a full gradient exists during its unit's backward, its sum goes to the slice
 *         3   weights too: gathered into a buffer around each use, those of the next unit meanwhile. Units of
 *             equal shape share two buffers for each pass that runs at once: the one in use and the next
 *
 * Weights that are only read by products in 8 bits (ShardConf.fp8) have buckets of their own: on levels 1 to
 * 3 codes are gathered in place of weights, and shard.fp8 is full where shard.w would be; shard.w is the
 * slice. A frozen base (base, base_codes) is in codes on level 0 too, and has no shard.w: it has shard.codes,
 * in fp8 also shard.fp8. On level 0 codes are made from f32 masters and replace shard.w (shard_masters.c);
 * keep_wide leaves shard.w beside them.
 *
 * With MeshLayout.replicas > 1 slices are made inside a replica (groups shard_*) and summed across replicas
 * (groups copy_*).
 *
 * Outside its unit's use shard.w (level 3) and shard.g (levels 2, 3) are the flat slice of shard.len
 * elements; between begin and end of the unit they are full and shaped. On lower levels they are always full.
 * shard_slice() gives the slice of either.
 *
 * One step:
 *
 *   shard_begin_step(s, micro)         no parameter has a gradient; every unit will run `micro` backwards
 *   per micro-batch, all passes        hooks around the use of every unit (below)
 *   shard_finish_grads(s)              all sums are complete; has_grad is the same on all ranks
 *   optim_grad_norm, optim_step        over slices, by shard_step
 *   shard_wait_weights(s)              before shard.w is read outside of hooks (levels 1, 2)
 *
 * Hooks (UnitHooks of nn/module.h). Collectives follow from them, so all ranks of a stage make the same hook
 * calls in the same order, ranks without an image too (levels 0 and 1 are lenient: units without a backward
 * are summed in shard_finish_grads):
 *
 *   begin(u, false) … end(u, false)    a forward or an evaluation
 *   begin(u, true)  … end(u, true)     a backward: recompute and gradients; `end` starts their reduction. The
 *                                      head computes its gradients in its forward: in training it has this
 *                                      pair alone.
 *   Pairs of one unit may nest or overlap: the last end counts. A tied embedding has begin(true) at the head
 *   and end(true) after the embedding's backward, with no pair of its own there.
 *
 * Offloaded state: of the first buckets, up to a fraction of all state, master, m and v are in host memory. A
 * step moves them through a ring of buffers on the device, in chunks: one is copied in while another is
 * updated and a third is copied out. The first copies start while the step's passes still run (gradients do
 * not change state), the last ones overlap with the next step.
 *
 * Nothing here allocates after shard_open. A group of one rank communicates nothing. */
#ifndef PARALLEL_SHARD_H
#define PARALLEL_SHARD_H

#include "model/model.h"
#include "nn/base_quant.h"

typedef struct ShardConf {
    ParamSet   *params;                  /* a mesh of NULL: one rank */
    const int  *order;                  /* (units) in the order of a forward; NULL: ascending; read at open */
    const Param *table[2];               /* embeddings: gradients are added by row, so they start from zero */
    Param      *tied;                    /* the tied embedding if another stage has it too; or NULL */
    int         zero;                    /* 0 … 3 */
    DType       dtype;                   /* of weights */
    const BaseQuant *base;               /* frozen weights in codes alone; NULL: those of base_codes */
    const ProductPrecision *fp8;         /* products whose weights are kept in 8 bits; NULL: none are */
    bool        one_layout;              /* they have no transposed copy */
    bool        keep_wide;               /* weights in dtype stay beside their codes on level 0 */
    bool        base_codes;              /* frozen weights of such products are in 8 bits alone */
    bool        overlap;               /* collectives overlap with compute; off: each is waited for at once */
    bool        two_passes;              /* a forward and a backward take turns inside layers (moe.overlap) */
    DType       state;                   /* of m and v; u8: in codes by block (ops/moment_code.h) */
    DType       grads;                   /* of gradients that param_rounds_grad; others are f32 */
    bool        split;                   /* the master of a bf16 weight is the 16 bits it lacks, not f32 */
    double      offload_fraction;        /* fraction of the state that is offloaded to host memory */
    int64_t     offload_chunk;           /* elements of a chunk at most; 0: chosen for a GPU's link */
} ShardConf;

/* Master weights and moments of a range; m and v in u8 have a scale for each of their blocks. */
typedef struct StateBuffers { Tensor master, m, v, m_scale, v_scale; } StateBuffers;

typedef struct ShardBucket {
    int     unit, first, n;              /* its parameters are Shard.item[first … first + n) */
    GroupId sums;
    bool    frozen;
    bool    coded;                       /* its weights are used in 8 bits alone (shard_codes.c) */
    CodeFormat format;                   /* of these codes */
    DType   grads;                       /* of its gradients */
    bool    from_master;                 /* level 0: its weights are codes that masters make, without w */
    bool    buffers;                     /* frozen, f32, whole on every rank (Param.buffer) */
    int     level;
    Comm   *sum_comm, *shard_comm, *copy_comm;   /* all that sum; whose slices make the bucket; same slice */
    int64_t elems, slice, at;            /* elements; elements of a slice; where this rank's slice begins */
    Tensor  w, g;                        /* (elems) for the run, or of the buffers that the unit has */
    Tensor  buffer;                      /* (elems) of the unit's weight buffer, if it owns one */
    Tensor  own_w, own_g;                /* (slice) a view of them, or for the run where they are in a slot */
    /* Where coded: codes as w and own_w above, which is then a slice that no rank gathers, or absent (of a
     * base); codes transposed (levels 1, 2); scales of all blocks, and transposed. */
    Tensor  q, own_q, qt, scale, scale_t;
    Tensor  row_first, group;            /* with int8 and nf4 (WeightCodes), as scale: of all its weights */
    Ticket  sum, gather;                 /* pending calls */
    int64_t sum_nr, gather_nr;           /* their numbers in their groups, from 1; 0: none is pending */
    bool    begun, adds;               /* own_g has a sum of this step; `sum` must be added to it when done */
    StateBuffers state;                  /* (slice) */
    bool    offloaded;                   /* master, m and v are in host memory */
    int     first_chunk, chunks;         /* its offload chunks */
} ShardBucket;

typedef struct StateChunk { int64_t at, n; } StateChunk;          /* a range of a bucket's slice */

enum { STATE_RING = 3 };

typedef struct ShardItem { Param *p; int64_t at; bool product; } ShardItem;     /* at: offset in its bucket */

typedef struct ShardUnit {
    int first, n;                        /* its buckets */
    int place;                           /* position in the order */
    int shape;                           /* units of equal shape have the same; -1: whole for the run */
    int held;                            /* the weight buffer that has its weights, -1: none */
    int slot;                            /* its gradient buffer, -1: it needs none */
    int users, writers, backs;           /* open begins; open backward begins; backward ends of this step */
} ShardUnit;

/* A buffer for gathered weights of units of one shape. */
typedef struct WeightBuffer {
    int     owner, unit;                 /* in whose buckets its memory is; whose weights it has, -1: none */
    int64_t used;                        /* Shard.uses when the unit was last gathered or used */
} WeightBuffer;

/* The scales of coded buckets that one call agrees on. */
typedef struct CodeScales { Comm *comm; bool frozen; Tensor t; } CodeScales;

typedef struct Shard {
    ShardConf conf;
    Backend  *be;
    ShardBucket *bucket;
    ShardItem   *item;
    ShardUnit   *unit;
    WeightBuffer *weights;
    int      *grads;                     /* (slots) the unit that each gradient buffer has, -1: none */
    int      *order;
    double   *live;                      /* (params) */
    StateChunk *chunk;                   /* of all offloaded buckets, in order */
    StateBuffers ring[STATE_RING];       /* chunk k uses buffer k % STATE_RING */
    int64_t   most;                      /* elements of the largest offload chunk */
    int       chunks, asked, done;       /* offload chunks; of this step: copies started, chunks updated */
    int       buckets, units, slots, weight_buffers, micro;
    Arena    *scratch;                   /* free between passes; holds `stage` while codes are made */
    Tensor    stage;                     /* weights of some matrices of buckets that are from_master */
    int64_t   stage_elems;
    CodeScales scales[2 * GR_N];
    int       scale_groups;
    int64_t   uses;                      /* counts gathers and uses of weights */
    UnitHooks hooks;
} Shard;

typedef struct ShardSizes { size_t param, grad, optim, host; } ShardSizes;

/* A flat range of what this rank updates, with its state on the device: of p, or of several adjacent
 * parameters with equal hyperparameters and the padding between them. codes: w is whole matrices, whose codes
 * the step makes too (op_adamw_fp8); NULL: it does not. */
typedef struct ShardRange {
    const Param *p;
    Tensor       w, g;
    StateBuffers state;
    const QuantizedWeight *codes;
} ShardRange;
typedef void ShardRangeFn(void *self, const ShardRange *x);

/* Sets params, tables, the tied embedding and the order of the units, which is written to `order`
 * (m->params.units entries) and pointed to by conf. */
void        shard_conf_from_model(ShardConf *conf, Model *m, int *order);

MUST Status shard_open(Shard *s, const ShardConf *conf);
void        shard_close(Shard *s);
ShardSizes  shard_sizes(const Shard *s);                      /* bytes that shard_bind allocates */
/* Allocates everything and points every Param at its part. s must not move afterwards. host: pinned host
 * memory for offloaded state; may be NULL if there is none. */
void        shard_bind(Shard *s, Backend *be, Arena *param, Arena *grad, Arena *optim, Arena *host);
/* After shard_bind: places codes of the other weights that ShardConf.fp8 has products for (nn/fp8_weight.h)
 * where all of a weight stays on this rank: in place of the weight, or with keep_wide beside it; each change
 * of weights remakes them. scratch is an arena that no pass uses while weights change. */
void        shard_keep_fp8(Shard *s, Arena *param, Arena *scratch);
/* To be called after weights were loaded or initialized, into param_load_view(p) where there is one, else
 * into shard_slice(p->w): rounds f32 masters to weights, and gathers the weights. */
void        shard_refresh_weights(Shard *s);

/* The elements of t = p->w or p->g, full or sliced, that this rank updates, as a vector. */
Tensor      shard_slice(const Param *p, Tensor t);

/* The host's bookkeeping of a step as numbers: who uses a unit, which gradients are set. A pass that is
 * replayed without its host code (engine/graph_cache.h) takes it from `before` to `after`. Marks whose first
 * shard_marks_key numbers agree lead to the same work. */
void        shard_marks_clear(Shard *s, int micro);          /* as a step of so many micro-batches begins */
int         shard_marks_count(const Shard *s);
int         shard_marks_key(const Shard *s);
void        shard_marks_read(const Shard *s, int32_t *out);
void        shard_marks_advance(Shard *s, const int32_t *before, const int32_t *after);
void        shard_marks_restore(Shard *s, const int32_t *marks);         /* as they were read */

const UnitHooks *shard_hooks(const Shard *s);
void        shard_begin_step(Shard *s, int micro);
void        shard_finish_grads(Shard *s);
/* Calls `step` for every range of parameters with a gradient that this rank updates, unit by unit; the
 * weights of a unit are gathered while the next one is updated. */
void        shard_step(Shard *s, ShardRangeFn *step, void *self);
void        shard_wait_weights(Shard *s);                        /* waits for pending gathers of weights */
void        shard_prefetch_first(Shard *s);   /* level 3: the first unit of the next step; ends shard_step */

#endif
