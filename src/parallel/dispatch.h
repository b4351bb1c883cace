/* parallel/dispatch.h -- what dispatchers share: legs of an exchange, host tables, counts of the group. */
#ifndef PARALLEL_DISPATCH_H
#define PARALLEL_DISPATCH_H

#include "nn/dispatch.h"

/* One all-to-all of a plan, over some group: `in` rows of the sender became `sent`, of which `came` arrived
 * here. at_*: where they begin in buffers that several legs share. */
typedef struct Leg {
    int64_t  in, sent, came, at_in, at_sent, at_came;
    int64_t *give_at, *give_n, *get_at, *get_n;            /* (members) */
} Leg;

size_t leg_bytes(int members);
/* Arrays for a leg of a group from *memory, which moves on. */
void   leg_place(Leg *l, int64_t **memory, int members);
/* From give_n and get_n: where ranges begin when they lie behind each other, and the sums. */
void   leg_sum(Leg *l, int members);

/* Rows there: from out (sent) to in (came); and back: from in to out. Buffers are the shared ones. */
Ticket leg_start(Comm *c, const Leg *l, Tensor in, Tensor out);
Ticket leg_back(Comm *c, const Leg *l, Tensor out, Tensor in);

/* The host table of a route, made at its first use and kept until dispatch_close. */
void  *route_table(Ctx *c, Route *r);

/* Everybody's `mine` into `all`; zeros where the group has failed. */
void   dispatch_tell(Ctx *c);
static inline const int32_t *dispatch_of(const Dispatcher *d, int member) { return d->all_counts + member * d->counts_len; }

/* counts of n sorted lists from their n + 1 borders. */
void   counts_of(int32_t *count, const int32_t *borders, int64_t n);
/* Whether borders of n lists are of real data: they ascend from 0 to something up to `most`. */
bool   borders_real(const int32_t *borders, int64_t n, int64_t most);

/* Around a plan's use of scratch, the most of which is remembered: marked where it begins, noted wherever
 * some is given back. */
ArenaMark brief_mark(Ctx *c);
void      brief_note(Ctx *c);

/* Slices of everybody's tokens for which all have room: 2, 4, 8 … */
int64_t dispatch_token_chunks(Ctx *c, Tensor kept);
size_t  slices_counted(const Dispatcher *d);                 /* numbers that a member tells of them at once */

MUST Status dispatch_init(Dispatcher *d, const DispatchOps *ops, const Mesh *mesh, const DispatchConf *conf);

extern const DispatchOps dispatch_alltoall, dispatch_deepep, dispatch_hybridep;

#endif
