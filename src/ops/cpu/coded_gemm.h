/* ops/cpu/coded_gemm.h -- products c = a b' of matrices in codes: tiles of c of one block of columns, to
 * which the product of each group of columns of a and b is added, in ascending order, by the format's own
 * function.
 *
 * A tile's sums are multiplied by `factor`, then bias and res are added, and the result is rounded once. */
#ifndef OPS_CPU_CODED_GEMM_H
#define OPS_CPU_CODED_GEMM_H

#include "ops/cpu/cpu_rows.h"
#include "ops/quant.h"

enum { CODED_TILE = 192 };               /* rows of a tile; its columns, and those of a group, QUANT_GROUP */

/* Rows m .. and columns n .. of c. acc and part (rows, QUANT_GROUP): the sums, and scratch; a (rows, K) and b
 * (K, QUANT_GROUP): scratch for a group; value: of all codes. */
typedef struct CodedTile { int64_t m, rows, n, cols; float *acc, *part, *a, *b, *value; } CodedTile;

typedef struct CodedTerms CodedTerms;
struct CodedTerms {
    float (*value)(uint8_t code);
    void  (*add_group)(const CodedTile *t, const CodedTerms *x, int64_t g);
    int64_t    K;
    MicroCodes a, b;                     /* tensor: not read */
    float      factor;
    Tensor     bias, res;                /* or absent */
};

/* Adds the product of group g of the codes x->a.q and x->b.q, row m of c times sa[m] sb. */
void coded_add_group(const CodedTile *t, const CodedTerms *x, int64_t g, const float *sa, float sb);

void cpu_coded_gemm(Backend *be, Tensor c, const CodedTerms *x);

/* c[r,:] = a[r,:] b[e]' for the rows of each expert; `of` gives the terms of expert e from those of all. */
void cpu_coded_grouped(Backend *be, Tensor c, const CodedTerms *all, Tensor offsets,
                       CodedTerms (*of)(const CodedTerms *all, int64_t e));

#endif
