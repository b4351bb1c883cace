/* parallel/shard_private.h -- shared by the files of shard.h. For src/parallel/shard*.c alone. */
#ifndef PARALLEL_SHARD_PRIVATE_H
#define PARALLEL_SHARD_PRIVATE_H

#include "parallel/shard.h"

static inline int     comm_size(const Comm *c) { return c ? c->size : 1; }
static inline ShardBucket *buckets_of(const Shard *s, int unit) { return s->bucket + s->unit[unit].first; }

#define EACH_BUCKET(b, s)       for (ShardBucket *b = (s)->bucket; b < (s)->bucket + (s)->buckets; b++)
#define EACH_IN_UNIT(b, s, u) \
    for (ShardBucket *b = buckets_of(s, u); b < buckets_of(s, u) + (s)->unit[u].n; b++)
#define EACH_ITEM(i, s, b) \
    for (ShardItem *i = (s)->item + (b)->first; i < (s)->item + (b)->first + (b)->n; i++)

/* shard_layout.c: points shard.w or shard.g of the bucket at the full tensor (of the unit's slot) or at the
 * slice. */
void weights_point(Shard *s, ShardBucket *b, bool whole);
void grads_point(Shard *s, ShardBucket *b, bool whole);
Tensor      slice_view(const ShardItem *i, const ShardBucket *b, Tensor slice);  /* part of the item */
const char *label_of(const Shard *s, const ShardBucket *b);
size_t      arena_bytes(int64_t n, DType d);           /* bytes of n elements in an arena */

/* shard_reduce.c */
void grads_open(Shard *s, int unit);              /* before a backward; levels 2 and 3 get an empty buffer */
void grads_close(Shard *s, int unit);              /* after it: starts the sums that are complete */
void sum_join(Shard *s, ShardBucket *b);

/* shard_gather.c */
void weights_take(Shard *s, int unit);             /* complete when it returns */
void weights_prefetch(Shard *s, int unit, bool backward);       /* starts the gather of the next unit */
void gather_join(Shard *s, ShardBucket *b);

/* shard_codes.c */
bool   codes_replace(const ShardConf *c, const Param *p, int level);  /* p belongs in a coded bucket */
size_t codes_bytes(const Shard *s);                /* of codes and scales that codes_bind allocates */
void   codes_bind(Shard *s, Arena *param);
void   codes_point(Shard *s, ShardBucket *b, bool whole);             /* weights_point of a coded bucket */
void   codes_find_amax(Shard *s, ShardBucket *b);  /* the slice has changed: amax of its blocks as scales */
void   codes_agree_scales(Shard *s, bool frozen);  /* over all ranks: scales of amax; or of a base */
void   codes_quantize(Shard *s, ShardBucket *b);   /* then: the slice */
CodeFormat codes_format(const ShardConf *c, bool frozen);            /* of coded buckets */
DType  codes_dtype(CodeFormat f);                  /* of codes, as elements of a tensor: shard_base.c */
size_t base_bytes(const Shard *s, const ShardBucket *b);              /* of tables beside the codes */
void   base_bind(const Shard *s, ShardBucket *b, Arena *param);
void   base_point(Shard *s, ShardBucket *b, bool whole);
void   codes_transpose(Shard *s, const ShardBucket *b);               /* codes were gathered */

/* shard_masters.c */
bool   masters_replace(const ShardConf *c, const Param *p, int level);  /* p belongs in such a bucket */
void   masters_open(Shard *s);                     /* sets stage_elems */
void   masters_stage(Shard *s, ArenaMark *mark);   /* takes `stage` from scratch; masters_unstage frees it */
void   masters_unstage(Shard *s, ArenaMark mark);
void   masters_refresh(Shard *s, const Param *p);  /* codes of masters that have changed */
int64_t masters_matrix(const Param *p);            /* elements of a matrix */
/* Matrices [e, e + n) of a parameter, as many as `stage` holds, and their codes. From zeros masters_next goes
 * through all of them; false: there are no more. */
typedef struct MasterPart { int64_t e, n; QuantizedWeight codes; } MasterPart;
bool   masters_next(const Shard *s, const Param *p, MasterPart *x);

/* shard_state.c */
Status state_open(Shard *s);                       /* chooses the offloaded buckets and their chunks */
void   state_sizes(const Shard *s, ShardSizes *z);
void   state_bind(Shard *s, Arena *optim, Arena *host);
void   state_prefetch(Shard *s);                      /* a step begins: starts the first copies */
void   state_discard(Shard *s);        /* the state in host memory has changed: prefetched chunks are stale */

/* shard_state.c: shard_step makes the codes of a parameter with its update, which is decided here alone; or
 * it has changed the weight and leaves them to a pass of their own. */
bool   codes_in_step(const Shard *s, const ShardBucket *b, const Param *p);
bool   codes_after_step(const Shard *s, const ShardBucket *b, const Param *p);

/* shard_gather.c: the weights of a unit have changed, `stepped`: by shard_step; those of all units have,
 * after weights_changed. */
void weights_changed(Shard *s, int unit, bool stepped);
void weights_publish(Shard *s);

/* shard.c: joins the oldest pending calls on c before another one is started. */
void limit_pending(Shard *s, const Comm *c);
UnitHooks unit_hooks(Shard *s);

#endif
