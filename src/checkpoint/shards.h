/* checkpoint/shards.h -- state/ of a checkpoint: master weights and moments, as whole tensors or as shards.
 *
 *   state/model*.safetensors              one rank: every tensor whole, under
 *     master.NAME, m.NAME, v.NAME         of trainable parameters; NAME as in HF form. Masters are f32,
 *     however
 *                                         they are stored in memory; moments f32 or bf16, as in memory, those
 *                                         in codes decoded to f32, which coding again returns to the bit
 *     w.NAME                              of frozen parameters, as in memory; not of a base model with
 *     adapters,
 *                                         which is loaded from its source (adapter.json, see checkpoint.h)
 *   state/rank-R/model*.safetensors       several ranks: rank R's elements of these tensors, flat
 *   state/rank-R/runs.json                which elements they are
 *     { "format": 1, "rank": R, "ranks": N, "tensors": {
 *         "master.NAME": { "shape": [of the whole], "runs": [[at, len, stride, count], …] }, … } }
 *
 * A run [at, len, stride, count] is, in the order of the stored elements, count ranges of len elements, the
 * i-th at offset at + i stride of the whole tensor, flat. The files record nothing else of the layout that
 * wrote them, so any other layout can read them. A bf16 weight is its rounded master and is not stored.
 *
 * These files may come from anywhere: every number of a description is checked before it is used. */
#ifndef CHECKPOINT_SHARDS_H
#define CHECKPOINT_SHARDS_H

#include "base/folder.h"
#include "base/json.h"
#include "model/peft.h"
#include "model/sink.h"
#include "ops/moment_code.h"
#include "tensor/safetensors.h"

/* Whether the state leaves p out, as it does the weights of a base model with adapters. Adapters and modules
 * trained in full are in the state even when they are frozen: no other file of the run has them. */
static inline bool shards_excludes(const Model *m, const Param *p)
{
    return m->lora && p->frozen && !p->adapter_of && !lora_trains_in_full(m, p);
}

enum { SHARD_RUNS = 3 * PIECE_SECTIONS };    /* end of one range, whole ranges, beginning of another */

/* ---- writing: shards_write.c ---- */

typedef struct LocalShard {              /* the elements of one tensor that this rank writes */
    char    name[160];
    int     rank;
    int64_t shape[PIECE_DIM];            /* of the whole tensor */
    StridedRange    run[SHARD_RUNS];
    int     runs;
    Tensor  t;                           /* flat, the elements in order */
    Tensor  rest;                        /* if present, t holds the upper and rest the lower 16 bits of f32 */
    Tensor  scale;                       /* if present, t holds codes of a moment, scale that of its blocks */
    Moment  which;                       /* of these codes */
    int64_t lead;                        /* elements of the first block before t */
    size_t  at;                          /* offset in a copy of all shards */
} LocalShard;

typedef struct LocalShards {
    LocalShard *item;
    int         n, capacity;
    size_t      bytes, largest;          /* of a copy of all shards; of the largest shard */
} LocalShards;

/* only_weights: without moments. */
MUST Status shards_list_local(LocalShards *l, const Model *m, bool only_weights);
void        shards_free_local(LocalShards *l);
MUST Status shards_copy_local(const LocalShards *l, Backend *be, void *host);    /* host: l->bytes */
/* Writes into folder/state. copy: from shards_copy_local; NULL: tensors are fetched from be one at a time.
 * stop: NULL, or the write is abandoned with E_COMM once *stop is set. */
MUST Status shards_write(const char *folder, const LocalShards *l, int rank, int ranks, Backend *be,
                         const void *copy, const int *stop);
/* folder/state/rank-R/name */
MUST Status shards_path(Path out, const char *folder, int rank, const char *name);

/* ---- reading: shards.c ---- */

typedef struct StoredShard {
    const char     *name;
    int             rank;
    int64_t         shape[PIECE_DIM];    /* of the whole tensor */
    const StTensor *t;
    StridedRange            run[SHARD_RUNS];     /* `local` counts elements of t */
    int             runs;
} StoredShard;

typedef struct Shards {
    SafeTensors *file;                   /* one, or one per rank */
    int          files;
    StoredShard *item;                   /* sorted by name */
    int          n, capacity;
    int          names;                  /* distinct names */
} Shards;

MUST Status shards_open(Shards *s, const char *folder);       /* folder/state */
void        shards_close(Shards *s);                          /* after a failed shards_open too, and twice */
/* Appends the tensors of one file by its description (runs.json); for shards_open and for tests. */
MUST Status shards_add_description(Shards *s, const SafeTensors *st, const Json *runs);
void        shards_sort(Shards *s);                           /* after the last description */

/* Number of shards of that tensor, contiguous from *first; 0: none. */
int         shards_find(const Shards *s, const char *name, const StoredShard **first);
/* Reads the elements that `need` asks for (n runs of the whole tensor, their `local` consecutive) from
 * whichever files have them to offset `local` of out. Each element must be stored exactly once. */
MUST Status shards_read(const Shards *s, const char *name, const StridedRange *need, int n, Sink *out);

#endif
