/* data/order.h -- a random permutation as a pure function: the element at position i, without a table.
 *
 * The order of a pass over any number of samples then needs no memory and no state but the position, on
 * any rank and in any thread. */
#ifndef DATA_ORDER_H
#define DATA_ORDER_H

#include <stdint.h>

/* Maps 0 … n - 1 one to one onto 0 … n - 1, for every (seed, stream). */
int64_t order_at(int64_t n, uint64_t seed, uint64_t stream, int64_t i);

#endif
