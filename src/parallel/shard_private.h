/* parallel/shard_private.h -- what the files of shard.h share. For src/parallel/shard*.c alone. */
#ifndef PARALLEL_SHARD_PRIVATE_H
#define PARALLEL_SHARD_PRIVATE_H

#include "parallel/shard.h"

static inline int     comm_size(const Comm *c) { return c ? c->size : 1; }
static inline ShardBucket *buckets_of(const Shard *s, int unit) { return s->bucket + s->unit[unit].first; }

#define EACH_BUCKET(b, s)       for (ShardBucket *b = (s)->bucket; b < (s)->bucket + (s)->buckets; b++)
#define EACH_IN_UNIT(b, s, u)   for (ShardBucket *b = buckets_of(s, u); b < buckets_of(s, u) + (s)->unit[u].n; b++)
#define EACH_ITEM(i, s, b)      for (ShardItem *i = (s)->item + (b)->first; i < (s)->item + (b)->first + (b)->n; i++)

/* shard_layout.c: whether p->w and p->g of the bucket are whole (of the unit's slot) or the slice. */
void weights_point(Shard *s, ShardBucket *b, bool whole);
void grads_point(Shard *s, ShardBucket *b, bool whole);
Tensor      slice_view(const ShardItem *i, const ShardBucket *b, Tensor slice);  /* what is the parameter's */
const char *label_of(const Shard *s, const ShardBucket *b);
size_t      room_of(int64_t n, DType d);           /* bytes that n elements take in an arena */

/* shard_reduce.c */
void grads_open(Shard *s, int unit);              /* a backward begins; levels 2 and 3 find an empty buffer */
void grads_close(Shard *s, int unit);              /* it has ended: what is complete sets out */
void sum_join(Shard *s, ShardBucket *b);

/* shard_gather.c */
void weights_take(Shard *s, int unit);             /* they are here when it returns */
void weights_ahead(Shard *s, int unit, bool backward);       /* and the next one's are on their way */
void gather_join(ShardBucket *b);

/* shard_state.c */
Status state_open(Shard *s);                       /* which buckets are away, and their parcels */
void   state_sizes(const Shard *s, ShardSizes *z);
void   state_bind(Shard *s, Arena *optim, Arena *host);
void   state_ahead(Shard *s);                      /* a step begins: the first parcels set out */
void   state_forget(Shard *s);                     /* those that are here are not the state any more */

/* shard_gather.c: a unit's weights have changed. */
void weights_changed(Shard *s, int unit);

/* shard.c: before another call on c, none that is out on it may be too long ago. */
void make_room(Shard *s, const Comm *c);
UnitHooks unit_hooks(Shard *s);

#endif
