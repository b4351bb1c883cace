/* nn/dispatch.h -- the hole that moe leaves open: how rows reach experts of other ranks, and come back.
 *
 * Declared here, filled in by parallel/dispatch_*.c. A rank is a member of etp_ep; experts [e El, (e+1) El)
 * are with the ETP members of EP rank e, each of which holds a slice of their F. Whatever the road, an expert
 * gets its rows by source member and within one by token, so its inputs are the same bits.
 *
 *   claim       memory of a route for T tokens, pinned; what plan leaves in it stays.
 *   plan        who goes where: indices on the device, counts on the host. The counts are fetched and told to
 *               the group once; a replay or a backward asks nobody again. False, on every rank of the group
 *               alike: somebody has no room for its rows, and nothing has been changed.
 *   slices      then: in how many slices of everybody's tokens there is room for each.
 *   send, land  rows of tokens (T, D) -> rows of experts (R, D)
 *   combine_start, combine_finish    rows of experts -> tokens: y[t] = sum of t's rows + res[t]
 *   gate_grad_start, gate_grad_finish  the gradients of the gates (R, 1) -> (T, K)
 *
 * The gate acts inside the expert, so the backward of either road is the other one. A _send starts, a _land
 * joins; between the two the caller may do other work, and w and what is in scratch belong to the call. Once a
 * way another micro-batch may be worked on (pass_yield): on the way there before land, on the way back in
 * combine_finish, since there the longest hop is the last to set out.
 * Scratch is not given back here: the caller marks and resets around the pair.
 *
 * Nothing is dropped for want of room. Buffers are of rank_capacity times the even share, or of the worst
 * case if that is less; a layer that needs more is done in slices of its tokens (nn/moe.h), each of which is
 * planned as it comes, twice: there and back. Slice w of W is tokens [w T / W, (w + 1) T / W) of every rank.
 * A machine that has no data (a plan, a card that gets ready) answers a fetch with zeros: then rows are dealt
 * out evenly, which always fits, and memory is that of slices too. */
#ifndef NN_DISPATCH_H
#define NN_DISPATCH_H

#include "base/dispatchers.h"
#include "nn/moe.h"

enum { DISPATCH_CHUNKS = 16 };                    /* parts that an exchange may be cut in */

typedef struct MoeShape {
    int64_t E, K;
    int64_t T;                                    /* rows of a rank at most, the same number on all */
    double  capacity;                             /* of Moe; 0: none */
    bool    pad;
    int64_t row;                                  /* bytes of a token's row; 0: of no account */
} MoeShape;

typedef struct DispatchConf {
    const char *name;                             /* "auto" or a name of base/dispatchers.h */
    MoeShape    shape;
    double      rank_capacity;                    /* rows a rank has room for, in even shares; 0: of itself */
    int64_t     chunk;                            /* tokens that hybridep sends at a time; 0: a quarter */
} DispatchConf;

/* An exchange under way. */
typedef struct Exchange {
    Tensor out[2], in[2];                         /* of each hop: what is sent, what arrives */
    Ticket ticket[DISPATCH_CHUNKS];
} Exchange;

typedef struct DispatchOps {
    Status (*fits)(const Mesh *m, const DispatchConf *conf);      /* optional: says why not; there is no fallback */
    size_t (*table)(const Dispatcher *d);           /* bytes on the host that a route needs */
    int64_t (*counts)(const Dispatcher *d);         /* numbers that every member tells the others */
    void (*reserve)(const Pass *c, const Moe *m, MoeAct *a, int64_t T);
    bool (*build_routing)(const Pass *c, const Moe *m, MoeAct *a, Tensor kept);   /* kept (T, K): idx, -1 where dropped */
    int64_t (*count_token_chunks)(const Pass *c, Tensor kept);                       /* after a plan that found no room */
    void (*dispatch_start)(const Pass *c, const Route *r, Exchange *w, Tensor x);
    void (*dispatch_finish)(const Pass *c, const Route *r, Exchange *w, Tensor rows);
    void (*combine_start)(const Pass *c, const Route *r, Exchange *w, Tensor rows);
    void (*combine_finish)(const Pass *c, const Route *r, Exchange *w, Tensor y, Tensor res);
    void (*gate_grad_start)(const Pass *c, const Route *r, Exchange *w, Tensor dgate);
    void (*gate_grad_finish)(const Pass *c, const Route *r, Exchange *w, Tensor dweight);
} DispatchOps;

struct Dispatcher {
    const DispatchOps   *ops;
    const DispatcherRow *row;
    const Mesh   *mesh;
    DispatchConf  conf;
    int           n, me, etp;                     /* members of etp_ep, which of them, slices of an expert */
    int           domain_size, domains;           /* members of an NVLink domain; domains */
    int64_t       local_experts;                  /* experts of this rank */
    int64_t       row_capacity;                   /* rows that the buffers of these experts hold */
    bool          bounded;                        /* some routings need more */
    int64_t       max_rows;                       /* rows of the fullest member by the last build_routing */
    size_t        scratch_start, routing_scratch; /* scratch in use before build_routing; the most it took */
    int           exchange_chunks;                /* parts that an exchange is sent in */
    int64_t       counts_len;                     /* numbers that a member tells the others */
    int32_t      *own_counts, *all_counts;       /* (counts_len); (n, counts_len) */
    int32_t      *fetched, *chosen, *chunk_counts;  /* host copies; (T, K); per token chunk: own, then of all members */
    void         *host_tables, *spare_table;      /* tables of routes, a list; the one used after a failed allocation */
};

/* Rows that a rank may get at the worst; and those it has room for at once: as many even shares as are asked
 * for, or two of them, what a small buffer holds if that is more, and no more than the worst. The one place
 * that plans and runs have it from. */
int64_t     dispatch_max_rows(const DispatchConf *conf, int ep, int etp);
int64_t     dispatch_row_capacity(const DispatchConf *conf, int ep, int etp);

/* Opens the road that conf names over mesh, or says why it cannot be. Nothing is allocated by a step but the
 * host tables of a MoeAct at its first one. */
MUST Status dispatch_open(Dispatcher *d, const Mesh *mesh, const DispatchConf *conf);
void        dispatch_close(Dispatcher *d);                      /* zeroed or half open is fine */

#endif
