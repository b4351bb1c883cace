/* checkpoint/shards.h -- state/ of a checkpoint: tensors of masters and moments, whole or in parts.
 *
 *   state/model*.safetensors              one rank: every tensor whole, under
 *     master.NAME, m.NAME, v.NAME         of what trains; NAME as in checkpoints in HF form. Masters are f32,
 *                                         however they are held; moments are as they are held, f32 or bf16
 *     w.NAME                              of what is frozen, as it is held; nothing of a base of adapters,
 *                                         which is where it came from (adapter.json, see checkpoint.h)
 *   state/rank-R/model*.safetensors       several: rank R's elements of them, flat
 *   state/rank-R/runs.json                and which they are
 *     { "format": 1, "rank": R, "ranks": N, "tensors": {
 *         "master.NAME": { "shape": [of the whole], "runs": [[at, len, stride, count], …] }, … } }
 *
 * A run list says, in order of the stored elements: count stretches of len, the i-th at at + i stride of the
 * whole tensor, flat. Nothing of the layout that wrote it is in it but this, so any other can read it. A bf16
 * weight is its master, rounded, so it is not stored.
 *
 * These files may come from anywhere: every number of a description is checked before it is used. */
#ifndef CHECKPOINT_SHARDS_H
#define CHECKPOINT_SHARDS_H

#include "base/folder.h"
#include "base/json.h"
#include "model/peft.h"
#include "model/sink.h"
#include "tensor/safetensors.h"

/* Whether it has no place in the state: a base's weight has none. What is the adapter's has, though a freeze
 * keep it still: nothing else has it once the run goes on. */
static inline bool shards_excludes(const Model *m, const Param *p)
{
    return m->lora && p->frozen && !p->adapter_of && !lora_trains_in_full(m, p);
}

enum { SHARD_RUNS = 3 };                /* the end of one stretch, whole ones, the beginning of another */

/* ---- writing: shards_write.c ---- */

typedef struct LocalShard {                    /* what this rank writes of one tensor */
    char    name[160];
    int     rank;
    int64_t shape[PIECE_DIM];            /* of the whole */
    StridedRange    run[SHARD_RUNS];
    int     runs;
    Tensor  t;                           /* flat, the elements in order */
    Tensor  rest;                        /* not absent: t are weights, and both are the f32 that is written */
    size_t  at;                          /* of them in a copy of all */
} LocalShard;

typedef struct LocalShards { LocalShard *item; int n, room; size_t bytes, most; } LocalShards; /* of all; the largest */

MUST Status shards_list_local(LocalShards *l, const Model *m);
void        shards_free_local(LocalShards *l);
MUST Status shards_copy_local(const LocalShards *l, Backend *be, void *host);           /* l->bytes */
/* Into folder/state. copy: what shards_copy_local made, or NULL: tensors are fetched one at a time from be. stop: not
 * NULL: given up when it is not 0 any more. */
MUST Status shards_write(const char *folder, const LocalShards *l, int rank, int ranks, Backend *be,
                         const void *copy, const int *stop);
MUST Status shards_path(Path out, const char *folder, int rank, const char *name);   /* of a file of rank's */

/* ---- reading: shards.c ---- */

typedef struct StoredShard {
    const char     *name;
    int             rank;
    int64_t         shape[PIECE_DIM];
    const StTensor *t;
    StridedRange            run[SHARD_RUNS];    /* `local` counts elements of t */
    int             runs;
} StoredShard;

typedef struct Shards {
    SafeTensors *file;                   /* one, or one per rank */
    int          files;
    StoredShard      *item;                   /* sorted by name */
    int          n, room;
    int          names;                  /* different ones */
} Shards;

MUST Status shards_open(Shards *s, const char *folder);       /* folder/state */
void        shards_close(Shards *s);                          /* half-open is fine, twice too */
/* What one description says of one file's tensors, appended; for shards_open and for tests. */
MUST Status shards_add_description(Shards *s, const SafeTensors *st, const Json *runs);
void        shards_sort(Shards *s);                           /* after the last one */

int         shards_find(const Shards *s, const char *name, const StoredShard **first);  /* how many, 0: none */
/* The elements that `need` (n combs of the whole tensor, their `local` one after the other) asks for, from
 * whichever files have them, to where `local` says. Each must be stored once. */
MUST Status shards_read(const Shards *s, const char *name, const StridedRange *need, int n, Sink *out);

#endif
