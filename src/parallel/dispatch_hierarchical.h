/* parallel/dispatch_hierarchical.h -- the steps of a hierarchical dispatch and the layout of their
 * all-to-alls, for dispatch_hierarchical*.c.
 *
 * Notation
 *   n             members of the group etp_ep; `me` is this one
 *   domain_size   members of an NVLink domain; domains = n / domain_size
 *   domain        me / domain_size; the local index is me % domain_size
 *   s             step of the dispatch, 0 or 1; the last one delivers to the experts' ranks
 *   peers         members of a step's all-to-all: `domains` inter-node, `domain_size` intra-node
 *   k             exchange chunk: tokens [T k / chunks, T (k + 1) / chunks)
 *   A             rows that arrive with the last step, one for each token that has an expert here
 *   index[s]      (rows before step s, peers): row of the send buffer for each peer; -1: not sent to it
 *   index[FINAL]  (A, K): row of the experts' input for each of the K choices; -1: another rank's */
#ifndef PARALLEL_DISPATCH_HIERARCHICAL_H
#define PARALLEL_DISPATCH_HIERARCHICAL_H

#include "parallel/dispatch.h"

enum { FINAL = 2 };

typedef struct HierTable { AllToAll exchange[DISPATCH_CHUNKS][2]; } HierTable;     /* by chunk and step */

static inline int  steps(const Dispatcher *d)     { return (d->domains > 1) + (d->domain_size > 1); }
static inline int  last_step(const Dispatcher *d) { return steps(d) - 1; }
static inline bool is_inter_node(const Dispatcher *d, int s) { return d->domains > 1 && s == 0; }
static inline int  domain_of(const Dispatcher *d, int m)     { return m / d->domain_size; }
static inline int  local_index(const Dispatcher *d, int m)   { return m % d->domain_size; }
static inline int  member_at(const Dispatcher *d, int domain, int local)
{
    return domain * d->domain_size + local;
}
static inline int  peers(const Dispatcher *d, int s)
{
    return is_inter_node(d, s) ? d->domains : d->domain_size;
}

static inline Comm *step_comm(const Dispatcher *d, int s)
{
    return d->mesh->comm[is_inter_node(d, s) ? GR_ep_inter_node : GR_ep_intra_node];
}

static inline const AllToAll *exchange_of(const Route *r, int k, int s)
{
    return &((const HierTable *)r->table)->exchange[k][s];
}

/* A of the notation. */
static inline int64_t arrived_rows(const Dispatcher *d, const Route *r)
{
    const AllToAll *x = exchange_of(r, d->exchange_chunks - 1, last_step(d));
    return x->received_at + x->received;
}

/* Numbers that members exchange. */
int64_t hier_counts(const Dispatcher *d);
/* Rows that member `from` has for the experts of member `to`. */
int64_t hier_rows_for_experts(const Dispatcher *d, int from, int to);

/* Expected tokens of T that choose at least one of `experts` experts when all sets of K are equally
 * likely. */
int32_t hier_expected_tokens(const Dispatcher *d, int64_t T, int64_t experts);

/* How keys map to destinations: `experts` keys belong to a member, destination g is `size` members from
 * `first` + g size on. */
typedef struct Destinations { int64_t experts, first, size; } Destinations;

/* Sorts rows by destination: rows (A, G) gets the row of the send buffer for each of G destinations, offsets
 * (G + 1) where each destination begins. Scratch has the size for max_rows rows. */
void hier_sort_by_destination(const Pass *c, Tensor offsets, Tensor rows, Tensor key, int64_t max_rows,
                              Destinations to);

/* Makes the index of the first step and exchanges the counts of all members: one fetch, one host gather. */
void hier_exchange_counts(const Pass *c, Tensor index, Tensor kept);
/* Sets max_rows; whether the buffers of every member hold what it gets. */
bool hier_all_fit(Dispatcher *d);

size_t hier_table_bytes(const Dispatcher *d);
/* Chunks of a step share its buffers: the rows of a chunk follow those of the chunk before. */
void   hier_set_layout(const Pass *c, Route *r, int64_t T);

#endif
