/* nn/dispatch.h -- the token dispatcher: how rows reach experts of other ranks, and come back.
 *
 * Declared here, implemented in parallel/dispatch_*.c. A rank is a member of etp_ep; experts [e El, (e+1) El)
 * are with the ETP members of EP rank e, each of which holds a part of their F. With every dispatcher an
 * expert gets its rows by source member and within a member by token, so its inputs are the same bits.
 *
 *   reserve        memory of a route for T tokens, always kept; build_routing fills it.
 *   build_routing  indices on the device, counts on the host. The counts are fetched and exchanged within the
 *                  group once; a replay or a backward exchanges no counts. False, on every rank of the group
 *                  alike: some rank's buffers do not hold its rows, and nothing has changed. A dispatcher
 *                  whose counts stay on the device sets R to all rows of the buffers, of which the first
 *                  offsets[last] are used.
 *   count_token_chunks        then: in how many chunks of every rank's tokens each chunk fits.
 *   dispatch_start, _finish   rows of tokens (T, D) -> rows of experts (R, D), which the caller names at the
 *                  start already: a dispatcher may have them written there from then on
 *   combine_start, _finish    rows of experts -> tokens: y[t] = sum of t's rows + res[t]
 *   gate_grad_start, _finish  the gradients of the gates (R, 1) -> (T, K)
 *
 * The gate acts inside the expert, so the backward of dispatch is combine and the other way round. A _start
 * begins an exchange, its _finish waits for it; between the two the caller may do other work, and the
 * Exchange and its scratch belong to the call. Once in each direction another micro-batch may run
 * (pass_yield): before dispatch_finish, and inside combine_finish, where the longest hop is the last to
 * start. A dispatcher that waits for counts may yield once more in a forward and in a backward; in chunks too
 * as often as at once. Scratch is not reset here: the caller marks and resets around start and finish.
 *
 * No row is dropped because a buffer is too small. Buffers hold rank_capacity times the even share, or the
 * worst case if that is less; a layer that needs more runs in chunks of its tokens (nn/moe_chunked.c), each
 * of which has its routing built twice: in forward and in backward. Where the counts stay on the device, a
 * layer that needs more computes nothing of use, and dispatch_overflowed says so at the end of the step,
 * which is then discarded and run again with host_counts; the steps after it have them too, since one
 * overflow is seldom the last. Chunk w of W is tokens [w T / W, (w + 1) T / W) of every rank. A device
 * without data (a dry run, a GPU that warms up) answers a fetch with zeros: then rows are dealt out evenly,
 * which always fits, and memory is that of chunks too. */
#ifndef NN_DISPATCH_H
#define NN_DISPATCH_H

#include "base/dispatchers.h"
#include "nn/moe.h"

enum { DISPATCH_CHUNKS = 16 };                    /* most parts that an exchange is sent in */
enum { DISPATCH_COUNTED_STEPS = 32 };             /* steps with host_counts, from one that overflowed on */

typedef struct MoeShape {
    int64_t E, K;
    int64_t T;                                    /* most tokens of a rank, the same number on all */
    double  capacity;                             /* factor, of Moe; 0: none */
    bool    pad;
    int64_t row;                                  /* bytes of a token's row; 0: unknown */
} MoeShape;

typedef struct DispatchConf {
    const char *name;                             /* "auto" or a name of base/dispatchers.h */
    MoeShape    shape;
    double      rank_capacity;                    /* rows of a rank's buffers in even shares; 0: chosen */
    int64_t     chunk;                            /* tokens that hybridep sends at a time; 0: T / 4 */
    bool        overlap;                          /* a backward may run beside a forward (Pass.lane) */
    double      timeout;                          /* seconds that a kernel waits for a peer; 0: 600 */
    bool        on_gpu;                           /* of the run, of which this may be the dry run */
    char        unmapped[200];                    /* why memory could not be mapped; empty: not tried */
} DispatchConf;

/* An exchange that has started. */
typedef struct Exchange {
    Tensor out[2], in[2];                         /* by hop: rows sent, rows received */
    Ticket ticket[DISPATCH_CHUNKS];
    bool   at_once;                               /* the caller does nothing between start and finish */
} Exchange;

/* Arenas that a dispatcher may use: device memory that lasts as long as it, host memory that kernels reach,
 * and all the arenas that activations and scratch come from. */
typedef struct DispatchArenas { Arena *lasting, *host, *const *mapped; int n; } DispatchArenas;

typedef struct DispatchOps {
    Status (*fits)(const Mesh *m, const DispatchConf *conf);      /* optional: an error that says why not */
    size_t (*table)(const Dispatcher *d);         /* bytes of a route on the host */
    int64_t (*counts)(const Dispatcher *d);       /* numbers that every member sends to the others */
    void (*reserve)(const Pass *c, const Moe *m, MoeAct *a, int64_t T);
    /* kept (T, K): idx, -1 where dropped. count_token_chunks follows a build_routing that was false. */
    bool (*build_routing)(const Pass *c, const Moe *m, MoeAct *a, Tensor kept);
    int64_t (*count_token_chunks)(const Pass *c, Tensor kept);
    void (*dispatch_start)(const Pass *c, const Route *r, Exchange *w, Tensor x, Tensor rows);
    void (*dispatch_finish)(const Pass *c, const Route *r, Exchange *w, Tensor rows);
    void (*combine_start)(const Pass *c, const Route *r, Exchange *w, Tensor rows);
    void (*combine_finish)(const Pass *c, const Route *r, Exchange *w, Tensor y, Tensor res);
    void (*gate_grad_start)(const Pass *c, const Route *r, Exchange *w, Tensor dgate);
    void (*gate_grad_finish)(const Pass *c, const Route *r, Exchange *w, Tensor dweight);
    /* Optional; see dispatch_bind, dispatch_unbind, dispatch_overflowed. */
    Status (*bind)(Dispatcher *d, Backend *be, const DispatchArenas *arenas);
    void   (*unbind)(Dispatcher *d, bool agreed);
    Status (*overflowed)(Dispatcher *d, bool *overflow);
} DispatchOps;

struct Dispatcher {
    const DispatchOps   *ops;
    const DispatcherRow *row;
    const Mesh   *mesh;
    DispatchConf  conf;
    int           n, me, etp;                     /* members of etp_ep; this one; parts of an expert */
    int           domain_size, domains;           /* members of an NVLink domain; domains */
    int64_t       local_experts;                  /* experts of this rank */
    int64_t       row_capacity;                   /* rows that the buffers of these experts hold */
    bool          bounded;                        /* some routings have more rows than that */
    int           host_counts;                    /* steps that fetch counts with every dispatcher */
    int64_t       max_rows;                       /* rows of the fullest member by the last build_routing */
    size_t        scratch_start, routing_scratch; /* scratch in use before build_routing; the most it took */
    int           exchange_chunks;                /* parts that an exchange is sent in */
    int64_t       counts_len;                     /* numbers that a member sends to the others */
    int32_t      *own_counts, *all_counts;        /* (counts_len); (n, counts_len) */
    int32_t      *fetched, *chosen;               /* copies on the host: counts; kept (T, K) */
    int32_t      *chunk_counts;                   /* per token chunk: of this member, then of all */
    void         *host_tables, *spare_table;      /* of routes, a list; for a failed allocation */
    void         *bound;                          /* what bind has opened */
    bool          unmapped;                       /* bind could not map memory, on any rank of the world */
    bool          automatic;                      /* auto has chosen it, because of `why` */
    char          why[300];
};

/* Rows that the buffers of a rank hold: rank_capacity even shares, by default two of them or what 64 MiB hold
 * if that is more, and never more than the worst case. */
int64_t     dispatch_row_capacity(const DispatchConf *conf, int ep, int etp);

/* Opens the dispatcher that conf names over mesh, or fails with the reason. A step allocates nothing but the
 * host table of a MoeAct, at its first use. */
MUST Status dispatch_open(Dispatcher *d, const Mesh *mesh, const DispatchConf *conf);
void        dispatch_close(Dispatcher *d);                    /* of a zeroed or half open one too */

/* Collective, after dispatch_open and before the first step: takes memory from the arenas and maps those of
 * the other ranks, for dispatchers that do. A dry run takes the same memory. */
MUST Status dispatch_bind(Dispatcher *d, Backend *be, const DispatchArenas *arenas);
/* Before the arenas are closed. agreed: every rank does so, and they wait for each other. */
void        dispatch_unbind(Dispatcher *d, bool agreed);
/* After a sync of the backend: whether a layer since the last call had more rows than a buffer holds, and
 * what its kernels have failed with. */
MUST Status dispatch_overflowed(Dispatcher *d, bool *overflow);

#endif
