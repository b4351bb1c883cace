/* parallel/shard_private.h -- what the files of shard.h share. For src/parallel/shard*.c alone. */
#ifndef PARALLEL_SHARD_PRIVATE_H
#define PARALLEL_SHARD_PRIVATE_H

#include "parallel/shard.h"

static inline int     comm_size(const Comm *c) { return c ? c->size : 1; }
static inline Bucket *buckets_of(const Shard *s, int unit) { return s->bucket + s->unit[unit].first; }

#define EACH_BUCKET(b, s)       for (Bucket *b = (s)->bucket; b < (s)->bucket + (s)->buckets; b++)
#define EACH_IN_UNIT(b, s, u)   for (Bucket *b = buckets_of(s, u); b < buckets_of(s, u) + (s)->unit[u].n; b++)
#define EACH_ITEM(i, s, b)      for (Item *i = (s)->item + (b)->first; i < (s)->item + (b)->first + (b)->n; i++)

/* shard_layout.c: whether p->w and p->g of the bucket are whole (of the unit's slot) or the slice. */
void weights_point(Shard *s, Bucket *b, bool whole);
void grads_point(Shard *s, Bucket *b, bool whole);

/* shard_reduce.c */
void grads_open(Shard *s, int unit);               /* a backward begins; levels 2 and 3 find an empty buffer */
void grads_close(Shard *s, int unit);              /* it has ended: what is complete sets out */
void sum_join(Shard *s, Bucket *b);

/* shard_gather.c */
void weights_take(Shard *s, int unit);             /* they are here when it returns */
void weights_ahead(Shard *s, int unit, bool backward);       /* and the next one's are on their way */
void gather_join(Bucket *b);

/* shard.c: before another call on c, none that is out on it may be too long ago. */
void make_room(Shard *s, const Comm *c);
UnitHooks unit_hooks(Shard *s);

#endif
