/* ops/cpu/few_rows.h -- c = a b' for a few rows of a; see few_rows.c. */
#ifndef OPS_CPU_FEW_ROWS_H
#define OPS_CPU_FEW_ROWS_H

#include "ops/cpu/gemm_bf16.h"

enum { FEW_ROWS = 8 };

/* Multiplications from which other threads help: the matrix comes from memory, not from a cache. */
#define FEW_SMALL 1e5

/* c of M <= FEW_ROWS rows, GEMM_NT, by the calling thread; ws has CPU_OWN bytes. */
void few_rows_tile(float *ws, Tensor c, Terms t);

#endif
