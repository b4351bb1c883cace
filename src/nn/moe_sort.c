/* nn/moe_sort.c -- see moe_sort.h. */
#include "nn/moe_sort.h"

#include <math.h>

int64_t moe_expert_capacity(double factor, int64_t T, int64_t K, int64_t E)
{
    return factor > 0 ? (int64_t)ceil(factor * (double)(T * K) / (double)E) : 0;
}

void moe_sort(const Pass *c, Tensor offsets, Tensor rows, Tensor src, Tensor kept, int64_t capacity)
{
    if (!capacity) {
        op_sort_by_expert(c->be, offsets, rows, src, kept);
        return;
    }
    Tensor tight = scratch2(c, I32, offsets.n[0], 1), slot = scratch2(c, I32, t_count(kept), 1);
    op_sort_by_expert(c->be, tight, rows, slot, kept);
    op_moe_pad(c->be, offsets, rows, src, tight, slot, capacity);
}
