/* nn/moe_sort.h -- assignments of tokens to experts, sorted by expert; for the MoE layer and its
 * dispatchers. */
#ifndef NN_MOE_SORT_H
#define NN_MOE_SORT_H

#include "nn/module.h"

/* Rows of one rank that an expert takes: ceil(factor T K / E); 0 with factor 0: all of them. */
int64_t moe_expert_capacity(double factor, int64_t T, int64_t K, int64_t E);

/* Sorts the assignments `kept` (T, K), -1 where dropped, by expert: offsets (E+1), rows (T, K) the row of
 * each assignment, src the assignment of each row, as many as src holds. With capacity > 0 every expert
 * begins at a multiple of it and the rows between are padding. Scratch is used and not reset. */
void moe_sort(const Pass *c, Tensor offsets, Tensor rows, Tensor src, Tensor kept, int64_t capacity);

#endif
