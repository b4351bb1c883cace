/* ops/cpu/delta_tile.h -- one tile of a gated delta rule, of one value head: the math of ops/delta_rule.c in
 * f32. All matrices are dense, of TILE rows at most. */
#ifndef OPS_CPU_DELTA_TILE_H
#define OPS_CPU_DELTA_TILE_H

#include "ops/cpu/segment.h"

enum { DELTA_TILE = 64, DELTA_WIDTH = 256 };              /* rows; most columns of a head */

typedef float DeltaSquare[DELTA_TILE][DELTA_TILE];

/* Rows of a tile and their segments. `live` rows belong to the segment that the incoming state is of; `last`
 * rows to the segment of the tile's last row. */
typedef struct DeltaRows {
    int     n;
    int64_t segment[DELTA_TILE];         /* -1: none */
    bool    live[DELTA_TILE], last[DELTA_TILE];
    bool    enters, through;             /* a state enters; it leaves too */
} DeltaRows;

/* Inputs of a tile, what follows from them alone, and with a state: the new values. */
typedef struct DeltaTile {
    DeltaRows rows;
    int   dk, dv;
    float g[DELTA_TILE], beta[DELTA_TILE];
    double sum[DELTA_TILE];              /* of g from the segment's first row in the tile on */
    float in[DELTA_TILE], out[DELTA_TILE];   /* decay since the state entered; until it leaves; or 0 */
    float through;                       /* decay of the state, 0 where it does not pass */
    float *q, *k, *v;                    /* (n, dk), (n, dk), (n, dv); q is scaled */
    float *u, *w, *fresh;                /* (n, dv), (n, dk), (n, dv): U, W, N = U - W S */
    DeltaSquare decay, keys, m, p;       /* D, k k' D below the diagonal, M, P */
} DeltaTile;

/* Memory of a tile and of its gradients, in floats. */
typedef struct DeltaGrads {
    float *dout;                         /* (n, dv): given */
    float *dq, *dk, *dv;                 /* dq and dk add, of all value heads of a key head */
    float *dfresh, *y;                   /* (n, dv), (n, dk) */
    float dg[DELTA_TILE], dbeta[DELTA_TILE];
    DeltaSquare dp, dm;
} DeltaGrads;

void delta_rows(DeltaRows *r, Segments seg, int64_t from, int64_t n, bool has_first);

/* From g, beta, k and v (and q for the output): decays, M, U, W. */
void delta_prepare(DeltaTile *t);
/* fresh and, where `next` is not NULL, the state that leaves. next may be s. */
void delta_scan(DeltaTile *t, const float *s, float *next);
/* o (n, dv); P. After delta_scan. */
void delta_output(DeltaTile *t, float *o, const float *s);

/* After delta_scan and delta_output with the state s that entered: ds is the gradient of the state that
 * leaves and becomes that of the one that enters. */
void delta_tile_bwd(DeltaTile *t, DeltaGrads *g, const float *s, float *ds, float *buf);

#endif
