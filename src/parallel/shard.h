/* parallel/shard.h -- weights, gradients and optimizer state over the ranks that hold the same piece.
 *
 * Parameters are laid out by unit (Param.unit: what is used together, a decoder layer) and inside a unit by
 * bucket: one per group whose sum their gradients are (Param.sums). A bucket is one stretch of memory, its
 * tensors on a grid of ARENA_ALIGN bytes, padded to divide by the group; member i has slice i of it. What is
 * in a rank's slice it steps: Param.own_at, own_n; master, m and v are flat tensors of own_n elements.
 *
 *   level 0   all of it on every rank, gradients are summed on every rank (zero 0, or nobody to share with)
 *         1   state in slices: gradients reduce-scattered once a step, weights gathered after it
 *         2   and gradients: a whole one exists while its unit goes back, its sum is added to the slice
 *         3   and weights: gathered into one of two buffers around each use, the next unit's meanwhile
 *
 * With MeshLayout.replicas > 1 slices are made inside a replica (shard_*) and summed across them (copy_*).
 *
 * At rest p->w (level 3) and p->g (2, 3) are the flat slice of own_n elements; between begin and end of its
 * unit they are whole and shaped. On lower levels they are always whole. shard_slice() gives the slice of
 * both.
 *
 * One step, for whoever drives it:
 *
 *   shard_begin_step(s, micro)         nothing has a gradient; every unit will go back `micro` times
 *   per micro-batch, all passes        hooks around the use of every unit (below)
 *   shard_finish_grads(s)                    all sums are complete and `live` is the same on all ranks
 *   optim_grad_norm, optim_step             over slices, by shard_step
 *   shard_wait_weights(s)                   before p->w is read outside of hooks (levels 1, 2)
 *
 * Hooks, by UnitHooks of nn/module.h; collectives follow from them, so all ranks of a stage make the same
 * calls in the same order, also those that have no picture (levels 0 and 1 forgive them: what did not go back
 * is summed in shard_finish_grads):
 *
 *   begin(u, false) … end(u, false)    a forward, an evaluation
 *   begin(u, true)  … end(u, true)     a backward: replay, gradients; at `end` they are on their way. The
 *                                      head's are made in its forward: in training it has this pair alone.
 *   Pairs of one unit may nest or overlap: it goes at the last end. A tied table has begin(true) at the head
 *   and end(true) after the embedding's backward, with no pair of its own there.
 *
 * State away: of the first buckets, up to a share of all, master, m and v are in host memory. A step takes
 * them through a ring of buffers on the device, a parcel of a bucket at a time: one comes in while another is
 * stepped and a third goes out again. The first ones come in while the step's passes still run (gradients do
 * not change state), the last ones go out beside the next step.
 *
 * Nothing here allocates after shard_open. A group of one rank says nothing and changes nothing. */
#ifndef PARALLEL_SHARD_H
#define PARALLEL_SHARD_H

#include "model/model.h"

typedef struct ShardConf {
    ParamSet   *params;                  /* its mesh may be NULL: one rank */
    const int  *order;                   /* (units) as a forward uses them, NULL: ascending; read at open */
    const Param *table[2];               /* their gradients are added up by rows: they start from zero */
    Param      *tied;                    /* a table that the other end of the pipeline has too; or NULL */
    int         zero;                    /* 0 … 3 */
    DType       dtype;                   /* of weights */
    bool        overlap;                 /* sums and gathers go on beside the work; off: waited for at once */
    DType       state;                   /* of m and v */
    bool        split;                   /* a bf16 weight's master is the rest it lacks, not f32 */
    double      away;                    /* share of the state that is in host memory */
    int64_t     parcel;                  /* elements of one at most; 0: what suits a card's link */
} ShardConf;

typedef struct ShardBucket {
    int     unit, first, n;              /* its parameters are Shard.item[first … first + n) */
    GroupId sums;
    bool    frozen;
    int     level;
    Comm   *all, *near, *far;            /* that sum; whose slices make the whole; of the same slice */
    int64_t room, slice, at;             /* elements, of one member, where this rank's begin */
    Tensor  w, g;                        /* (room): of the run, or of the unit's slot */
    Tensor  own_w, own_g;                /* (slice): a part of them, or of the run where they are not */
    Ticket  sum, gather;                 /* under way */
    int64_t sum_nr, gather_nr;           /* which calls of their groups, from 1; 0: none is out */
    bool    begun, adds;                 /* own_g holds something of this step; `sum` has yet to be added */
    Tensor  master, m, v;                /* (slice) */
    bool    away;                        /* these are in host memory */
    int     parcel, parcels;             /* its first; how many */
} ShardBucket;

typedef struct StateChunk { int64_t at, n; } StateChunk;          /* elements of a bucket's slice */

enum { STATE_RING = 3 };
typedef struct StateBuffers { Tensor master, m, v; } StateBuffers;

typedef struct ShardItem { Param *p; int64_t at; bool product; } ShardItem;   /* where it begins in its bucket */

typedef struct ShardUnit {
    int first, n;                        /* its buckets */
    int place, slot;                     /* in the order; whose buffers it takes, -1: it needs none */
    int users, writers, backs;           /* begins without end; backward ones of them; ends of this step */
} ShardUnit;

typedef struct ShardSlot { int weights, grads; } ShardSlot;         /* unit each is of, -1: none */

typedef struct Shard {
    ShardConf conf;
    Backend  *be;
    ShardBucket   *bucket;
    ShardItem     *item;
    ShardUnit     *unit;
    ShardSlot     *slot;
    int      *order;
    double   *live;                      /* (params) */
    StateChunk   *parcel;                    /* of all buckets that are away, in order */
    StateBuffers ring[STATE_RING];       /* parcel k goes through k % STATE_RING */
    int64_t   most;                      /* elements of the largest parcel */
    int       parcels, asked, done;      /* of this step: on the way or here; stepped */
    int       buckets, units, slots, micro;
    UnitHooks hooks;
} Shard;

typedef struct ShardSizes { size_t param, grad, optim, host; } ShardSizes;

/* A stretch of what this rank steps, flat, with its state on the device: of p, or of several neighbours that
 * are stepped alike, and of the padding between them, which is nobody's. */
typedef struct ShardRange { const Param *p; Tensor w, g, master, m, v; } ShardRange;
typedef void ShardRangeFn(void *self, const ShardRange *x);

/* What a model says of itself: params, tables, the tied copy, and the order of its units into `order`
 * (room for m->params.units), which conf points to. */
void        shard_conf_from_model(ShardConf *conf, Model *m, int *order);

MUST Status shard_open(Shard *s, const ShardConf *conf);
void        shard_close(Shard *s);
ShardSizes  shard_sizes(const Shard *s);                      /* bytes that shard_bind takes */
/* Lays everything out and points every Param at its part. s stays where it is from here on. host: of the
 * machine's host memory, for state that is away; may be NULL where none is. */
void        shard_bind(Shard *s, Backend *be, Arena *param, Arena *grad, Arena *optim, Arena *host);
/* Weights were loaded or drawn: into param_load_view(p) where there is one, else into shard_slice(p->w).
 * Makes the rest. */
void        shard_refresh_weights(Shard *s);

/* Of t = p->w or p->g, whole or at rest: the elements that this rank steps, flat. */
Tensor      shard_slice(const Param *p, Tensor t);

const UnitHooks *shard_hooks(const Shard *s);
void        shard_begin_step(Shard *s, int micro);
void        shard_finish_grads(Shard *s);
/* Calls `step` for all that is live and this rank's to step, unit by unit; the weights of each are on their
 * way to the other ranks while the next is stepped. */
void        shard_step(Shard *s, ShardRangeFn *step, void *self);
void        shard_wait_weights(Shard *s);                        /* waits for weights that are on their way */

#endif
