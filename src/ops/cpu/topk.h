/* ops/cpu/topk.h -- the K largest of a row, in order; see topk.c. */
#ifndef OPS_CPU_TOPK_H
#define OPS_CPU_TOPK_H

#include "ops/cpu/cpu.h"

/* One row's desk, in a thread's workspace: its values, the few candidates that can be among the K and where
 * they stand, the winners. */
typedef struct Desk { float *v, *cand; int32_t *at, *best; } Desk;

/* Values are looked at some at a time: a row of E takes this many, the last ones -inf. */
enum { TOPK_LANES = 16, TOPK_BLOCK = 64 };
INLINE int64_t topk_padded(int64_t E) { return (E + TOPK_BLOCK - 1) / TOPK_BLOCK * TOPK_BLOCK; }

INLINE int64_t topk_desk_size(int64_t E) { return 4 * topk_padded(E + TOPK_LANES); }
INLINE Desk topk_desk(float *work, int64_t E)
{
    int64_t P = topk_padded(E + TOPK_LANES);
    return (Desk){ work, work + P, (int32_t *)(work + 2 * P), (int32_t *)(work + 3 * P) };
}

/* For each of some desks, TOPK_ROWS at most: best[0..K-1] = where the K largest of v[0..E-1] stand, from the
 * largest down, the lowest first among equals. No NaN among them. */
enum { TOPK_ROWS = 8 };
typedef void TopK(const Desk *d, int rows, int32_t E, int32_t K);

TopK  topk_plain;
TopK *topk_best(void);                         /* the fastest that this CPU has; same choice */

#endif
