/* ops/cpu/topk.h -- the K largest of a row, in order; see topk.c. */
#ifndef OPS_CPU_TOPK_H
#define OPS_CPU_TOPK_H

#include "ops/cpu/cpu.h"

/* The workspace of one row: its values, the candidates for the K largest and their indices, the result. */
typedef struct TopKRow { float *v, *cand; int32_t *at, *best; } TopKRow;

/* Values are read in blocks: a row of E takes this many, the last ones -inf. */
enum { TOPK_LANES = 16, TOPK_BLOCK = 64 };
INLINE int64_t topk_padded(int64_t E) { return (E + TOPK_BLOCK - 1) / TOPK_BLOCK * TOPK_BLOCK; }

INLINE int64_t topk_desk_size(int64_t E) { return 4 * topk_padded(E + TOPK_LANES); }
INLINE TopKRow topk_desk(float *work, int64_t E)
{
    int64_t P = topk_padded(E + TOPK_LANES);
    return (TopKRow){ work, work + P, (int32_t *)(work + 2 * P), (int32_t *)(work + 3 * P) };
}

/* For each of up to TOPK_ROWS rows: best[0..K-1] = indices of the K largest of v[0..E-1], from the largest
 * down, the lowest first among equals. v has no NaN. */
enum { TOPK_ROWS = 8 };
typedef void TopK(const TopKRow *d, int rows, int32_t E, int32_t K);

TopK  topk_plain;
TopK *topk_best(void);                         /* the fastest on this CPU; all give the same result */

#endif
