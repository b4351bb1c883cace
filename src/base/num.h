/* base/num.h -- smaller, larger, division rounded up. */
#ifndef BASE_NUM_H
#define BASE_NUM_H

#include "base/hot.h"
#include <stddef.h>
#include <stdint.h>

INLINE int     min_int(int a, int b)          { return a < b ? a : b; }
INLINE int     max_int(int a, int b)          { return a > b ? a : b; }
INLINE int64_t min_i64(int64_t a, int64_t b)  { return a < b ? a : b; }
INLINE int64_t max_i64(int64_t a, int64_t b)  { return a > b ? a : b; }
INLINE size_t  min_size(size_t a, size_t b)   { return a < b ? a : b; }
INLINE size_t  max_size(size_t a, size_t b)   { return a > b ? a : b; }
INLINE double  min_f64(double a, double b)    { return a < b ? a : b; }
INLINE double  max_f64(double a, double b)    { return a > b ? a : b; }

INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }           /* a >= 0, b > 0 */
INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }    /* to a multiple of b */

#endif
