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
 *   back_send, back_land    rows of experts -> tokens: y[t] = sum of t's rows + res[t]
 *   gates_send, gates_land  the gradients of the gates (R, 1) -> (T, K)
 *
 * The gate acts inside the expert, so the backward of either road is the other one. A _send starts, a _land
 * joins; between the two the caller may do other work, and w and what is in scratch belong to the call. Once a
 * way another micro-batch may be worked on (give_way): on the way there before land, on the way back in
 * back_land, since there the longest hop is the last to set out.
 * Scratch is not given back here: the caller marks and resets around the pair.
 *
 * Nothing is dropped for want of room. Buffers are of rank_capacity times the even share, or of the worst
 * case if that is less; a layer that needs more is done in slices of its tokens (nn/moe.h), each of which is
 * planned as it comes, twice: there and back. Slice w of W is tokens [w T / W, (w + 1) T / W) of every rank.
 * A machine that has no data (a plan, a card that gets ready) answers a fetch with zeros: then rows are dealt
 * out evenly, which always fits, and memory is that of slices too. */
#ifndef NN_DISPATCH_H
#define NN_DISPATCH_H

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
    const char *name;                             /* "auto" or of the table in parallel/dispatchers.c */
    MoeShape    shape;
    double      rank_capacity;                    /* rows a rank has room for, in even shares; 0: of itself */
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
    bool   forwards;                              /* members hand on what came for their domain */
    Status (*fits)(const Mesh *m, const DispatchConf *conf);      /* says why not; there is no fallback */
    size_t (*table)(const Dispatch *d);           /* bytes on the host that a route needs */
    int64_t (*counts)(const Dispatch *d);         /* numbers that every member tells the others */
    void (*claim)(Ctx *c, const Moe *m, MoeAct *a, int64_t T);
    bool (*plan)(Ctx *c, const Moe *m, MoeAct *a, Tensor kept);   /* kept (T, K): idx, -1 where dropped */
    int64_t (*slices)(Ctx *c, Tensor kept);                       /* after a plan that found no room */
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
    int64_t       room;                           /* rows for them at once */
    bool          bounded;                        /* some routings need more */
    int64_t       most;                           /* rows of the fullest member by the last plan */
    size_t        began, brief;                   /* scratch before a plan; the most that one took */
    int           chunks;
    int64_t       told;                           /* numbers of ops->counts */
    int32_t      *mine, *all, *stage;             /* (told); (n, told); what was fetched */
    int32_t      *choice, *cells;                 /* of slices: (T, K); counts of mine, of all */
    void         *tables, *spare;                 /* of routes on the host, a list; one for a failure */
};

/* Rows that a rank may get at the worst; and those it has room for at once: as many even shares as are asked
 * for, or two of them, what a small buffer holds if that is more, and no more than the worst. The one place
 * that plans and runs have it from. */
int64_t     dispatch_worst(const DispatchConf *conf, int ep, int etp);
int64_t     dispatch_room(const DispatchConf *conf, int ep, int etp);

/* Opens the road that conf names over mesh, or says why it cannot be. Nothing is allocated by a step but the
 * host tables of a MoeAct at its first one. */
MUST Status dispatch_open(Dispatch *d, const Mesh *mesh, const DispatchConf *conf);
void        dispatch_close(Dispatch *d);                      /* zeroed or half open is fine */
const char *dispatch_names(void);

#endif
