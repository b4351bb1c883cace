/* data/order.h -- a random permutation as a pure function: who stands at place i, without a table.
 *
 * The order of a pass over any number of samples then needs no memory and no state: a position is enough
 * to go on from, on any rank and in any thread. */
#ifndef DATA_ORDER_H
#define DATA_ORDER_H

#include <stdint.h>

/* 0 … n - 1 to 0 … n - 1, one to one, for every (seed, stream). */
int64_t order_at(int64_t n, uint64_t seed, uint64_t stream, int64_t i);

#endif
