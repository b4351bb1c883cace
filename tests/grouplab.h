/* tests/grouplab.h -- rows sorted by expert for GPU tests: many distributions, with padding rows. */
#ifndef TESTS_GROUPLAB_H
#define TESTS_GROUPLAB_H

#include "gpulab.h"

/* How many rows each expert gets. */
typedef enum { EVEN, ANY, ZIPF, ONE_TAKES_ALL, ONE_EACH, EDGES, SHARES } Share;
enum { EDGE_SIZES = 13 };

static inline int64_t share_of(Share s, int64_t e, int64_t E, int64_t most)
{
    static const int64_t edges[EDGE_SIZES] = { 1, 63, 64, 65, 0, 127, 128, 129, 191, 192, 193, 256, 257 };
    switch (s) {
    case EVEN:          return most;
    case ANY:           return num_below(4) ? num_below(2 * most + 1) : 0;
    case ZIPF:          return most * 2 / (e + 1);
    case ONE_TAKES_ALL: return e == E / 2 ? most * E : 0;
    case ONE_EACH:      return 1;
    default:            return edges[e % EDGE_SIZES];
    }
}

/* Offsets of E experts; ZIPF and EDGES shuffle the sizes. */
static inline Tensor offsets_of(Share s, int64_t E, int64_t most)
{
    Tensor   t = int1(E + 1);
    int32_t *off = t.data;
    int64_t  sizes = s == EDGES ? EDGE_SIZES : E, turn = num_below(sizes);
    off[0] = 0;
    for (int64_t e = 0; e < E; e++) off[e + 1] = off[e] + (int32_t)share_of(s, (e + turn) % sizes, E, most);
    return t;
}
static inline int64_t rows_used(Tensor offsets) { return ((int32_t *)offsets.data)[offsets.n[0] - 1]; }

/* Rows past the last expert's are padding and hold NaN, so that a read of them shows. */
static inline Tensor routed(DType d, int64_t used, int64_t spare, int64_t width, Layout l)
{
    Tensor t = in2(d, used + spare, width, l);
    for (int64_t r = used; r < used + spare; r++) memset(gpu_row(t, r), 0xff, (size_t)width * dtype_size(d));
    return t;
}

typedef struct Shape { int64_t E, most, N, K, spare; } Shape;

/* A large shape with a quarter of its experts and widths, where no GPU multiplies it (gpu_size). */
static inline Shape sized(Shape x)
{
    if (x.E * x.N * x.K > gpu_size(INT64_MAX, 1 << 20)) x.E = (x.E + 3) / 4, x.N /= 4, x.K /= 4;
    return x;
}

#endif
