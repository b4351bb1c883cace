/* parallel/dispatch.h -- what token dispatchers share: the layout of an all-to-all, the host tables of a
 * route, the exchange of counts within the group. */
#ifndef PARALLEL_DISPATCH_H
#define PARALLEL_DISPATCH_H

#include "nn/dispatch.h"

/* The layout of one all-to-all over some group. `in` rows of this rank became `sent` rows, which go to the
 * members; `received` rows arrive here. Several of them may share buffers: *_at is where the rows of this one
 * begin in each. */
typedef struct AllToAll {
    int64_t  in, sent, received, in_at, sent_at, received_at;
    int64_t *send_at, *send_n, *recv_at, *recv_n;     /* (members) ranges of the sent and the received rows */
} AllToAll;

/* Takes the arrays for a group of `members` from *memory, which moves past them. */
void   a2a_set_arrays(AllToAll *x, int64_t **memory, int members);
/* Sets offsets and totals from send_n and recv_n: the ranges follow each other without gaps. */
void   a2a_set_offsets(AllToAll *x, int members);

/* Dispatch sends rows of `out` and receives into `in`; combine returns them from `in` to `out`. */
Ticket a2a_dispatch_start(Comm *c, const AllToAll *x, Tensor in, Tensor out);
Ticket a2a_combine_start(Comm *c, const AllToAll *x, Tensor out, Tensor in);

/* The host table of a route, allocated at its first use and kept until dispatch_close. */
void  *route_table(const Pass *c, Route *r);

/* Gathers own_counts of every member into all_counts; zeros where the group has failed. */
void   dispatch_gather_counts(const Pass *c);
static inline const int32_t *counts_of_member(const Dispatcher *d, int member)
{
    return d->all_counts + member * d->counts_len;
}

/* Lengths of n sorted lists from their n + 1 offsets. */
void   counts_from_offsets(int32_t *count, const int32_t *offsets, int64_t n);
/* Whether the pass computes values: a dry run and a step that is being prepared do not. */
bool   pass_has_data(const Pass *c);
/* Whether the fetched offsets of n lists come from real data: they ascend from 0 to a total of at most
 * max_total, which is 0 where every assignment was dropped. */
bool   offsets_are_valid(const Pass *c, const int32_t *offsets, int64_t n, int64_t max_total);

/* The scratch that build_routing uses is measured: call _mark where it begins and _note before any of it is
 * released. The maximum is Dispatcher.routing_scratch. */
ArenaMark routing_scratch_mark(const Pass *c);
void      routing_scratch_note(const Pass *c);

/* The number of token chunks (2, 4, 8 …) of which each fits the buffers of every member. */
int64_t dispatch_token_chunks(const Pass *c, Tensor kept);
size_t  chunk_counts_len(const Dispatcher *d);          /* numbers that a member sends about them at a time */

#define DISPATCHER(name, two_level, pads, pipelined, maps, help)                           \
    extern const DispatchOps dispatch_##name;
DISPATCHERS(DISPATCHER)
#undef DISPATCHER

#endif
