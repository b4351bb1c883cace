/* nn/dispatch.h -- the hole that moe leaves open: how rows reach experts of other ranks, and come back.
 *
 * Declared here, filled in by parallel/dispatch_*.c. A rank is a member of etp_ep; experts [e El, (e+1) El)
 * are with the ETP members of EP rank e, each of which holds a slice of their F. Whatever the road, an expert
 * gets its rows by source member and within one by token, so its inputs are the same bits.
 *
 *   plan        who goes where: indices on the device, counts on the host. The counts are fetched and told to
 *               the group once; what plan leaves is pinned, a replay or a backward asks nobody again.
 *   send, land  rows of tokens (T, D) -> rows of experts (R, D)
 *   back_send, back_land    rows of experts -> tokens: y[t] = sum of t's rows + res[t]
 *   gates_send, gates_land  the gradients of the gates (R, 1) -> (T, K)
 *
 * The gate acts inside the expert, so the backward of either road is the other one. A _send starts, a _land
 * joins; between the two the caller may do other work, and w and what is in scratch belong to the call. Once a
 * way another micro-batch may be worked on (give_way): on the way there before land, on the way back in
 * back_land, since there the longest hop is the last to set out.
 * Scratch is not given back here: the caller marks and resets around the pair.
 *
 * Nothing is dropped for want of room, so buffers are of the worst case, or of rank_capacity times the even
 * share: then a step that needs more stops with E_FIT on every rank of the group before a row has moved. A
 * machine that has no data (a plan, a card that gets ready) answers a fetch with zeros: then rows are dealt
 * out evenly, and room is that of any routing. */
#ifndef NN_DISPATCH_H
#define NN_DISPATCH_H

#include "nn/moe.h"

enum { DISPATCH_CHUNKS = 16 };                    /* parts that an exchange may be cut in */

typedef struct MoeShape {
    int64_t E, K;
    int64_t T;                                    /* rows of a rank at most, the same number on all */
    double  capacity;                             /* of Moe; 0: none */
    bool    pad;
} MoeShape;

typedef struct DispatchConf {
    const char *name;                             /* "auto" or of the table in parallel/dispatchers.c */
    MoeShape    shape;
    double      rank_capacity;                    /* rows a rank has room for, in even shares; 0: any */
    int64_t     chunk;                            /* tokens that hybridep sends at a time; 0: a quarter */
} DispatchConf;

/* An exchange under way. */
typedef struct Wire {
    Tensor out[2], in[2];                         /* of each hop: what is sent, what arrives */
    Ticket ticket[DISPATCH_CHUNKS];
} Wire;

typedef struct DispatchOps {
    const char *name;
    bool   chunked;                               /* exchanges are cut in d->chunks, which overlap */
    Status (*fits)(const Mesh *m, const DispatchConf *conf);      /* says why not; there is no fallback */
    size_t (*table)(const Dispatch *d);           /* bytes on the host that a route needs */
    int64_t (*counts)(const Dispatch *d);         /* numbers that every member tells the others */
    void (*plan)(Ctx *c, const Moe *m, MoeAct *a, Tensor kept);   /* kept (T, K): idx, -1 where dropped */
    void (*send)(Ctx *c, const Route *r, Wire *w, Tensor x);
    void (*land)(Ctx *c, const Route *r, Wire *w, Tensor rows);
    void (*back_send)(Ctx *c, const Route *r, Wire *w, Tensor rows);
    void (*back_land)(Ctx *c, const Route *r, Wire *w, Tensor y, Tensor res);
    void (*gates_send)(Ctx *c, const Route *r, Wire *w, Tensor dgate);
    void (*gates_land)(Ctx *c, const Route *r, Wire *w, Tensor dweight);
} DispatchOps;

struct Dispatch {
    const DispatchOps *ops;
    const Mesh   *mesh;
    DispatchConf  conf;
    int           n, me, etp;                     /* members of etp_ep, which of them, slices of an expert */
    int           near, nodes;                    /* members of a domain; domains */
    int64_t       local;                          /* experts here */
    int64_t       room;                           /* rows for them at most */
    int           chunks;
    int64_t       told;                           /* numbers of ops->counts */
    int32_t      *mine, *all, *stage;             /* (told); (n, told); what was fetched */
    void         *tables, *spare;                 /* of routes on the host, a list; one for a failure */
};

/* Opens the road that conf names over mesh, or says why it cannot be. Nothing is allocated by a step but the
 * host tables of a MoeAct at its first one. */
MUST Status dispatch_open(Dispatch *d, const Mesh *mesh, const DispatchConf *conf);
void        dispatch_close(Dispatch *d);                      /* zeroed or half open is fine */
const char *dispatch_names(void);

#endif
