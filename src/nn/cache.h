/* nn/cache.h -- the cache of documents that are being decoded: keys and values, states of delta nets.
 *
 * A document owns a slot of consecutive rows, as many as it may ever fill; the first ones are filled. A pass
 * over new tokens writes their keys and values behind the filled rows, then attends from the new rows to the
 * whole document. All memory is laid out before the first pass. */
#ifndef NN_CACHE_H
#define NN_CACHE_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Cache {
    int64_t  docs, rows, tokens;          /* most documents; rows of all slots; most rows of a pass */
    Tensor   kv;                          /* (2 layers, rows, G C): keys and values of a rank's layers */
    int64_t  first_layer;                 /* layer l with keys is layer l - first_layer of kv */
    Tensor   state, tail;                 /* of delta nets: (layers docs, Hv, dk dv) f32; rows before a pass,
                                             (layers docs, conv - 1, 2 K + V); absent: there are none */
    int64_t  first_linear;                /* delta net l of the model is layer l - first_linear of these */
    Tensor   doc, kept;                   /* (docs) i32: of each segment of a pass its document, and how
                                             many of its rows the state takes up */
    Tensor   at;                          /* (tokens) i32: the row that each row of a pass fills, -1: none */
    Tensor   starts, kv_starts, used;     /* (docs + 1), (docs + 1), (docs) i32 */
    Tensor   fill;                        /* `at` of the current pass */
    Segments seg;                         /* of the current pass: its rows against the slots */
} Cache;

/* One pass on the host: n documents, document i brings rows start[i] .. start[i+1] - 1 of T and then fills
 * the first used[i] rows of its slot, which begins at slot[i]. */
typedef struct CachePass {
    int64_t n, T;
    const int32_t *start, *slot, *used, *at;
    const int32_t *doc, *kept;           /* of delta nets: see Cache */
} CachePass;

/* layers: of this rank with keys; width: G C of its kv heads. docs, rows and tokens are set. */
void cache_layout(Cache *c, Arena *a, DType d, int64_t layers, int64_t width);
/* The same for delta nets of Hv heads with states of `size`, whose convolution of so many columns looks back
 * at `rows` rows. */
void cache_layout_states(Cache *c, Arena *a, DType d, int64_t layers, int64_t heads, int64_t size,
                         int64_t rows, int64_t cols);
/* State (docs, Hv, dk dv) and rows before (docs, conv - 1, 2 K + V) of delta net l of the model. */
Tensor cache_state(const Cache *c, int64_t linear);
Tensor cache_tail(const Cache *c, int64_t linear);
void cache_upload(Cache *c, Backend *be, const CachePass *p);

/* Writes k and v (T, G C) of a layer of the model and gives the layer's whole keys and values, (rows, G C)
 * each; v may be narrower than k. */
void cache_write(const Cache *c, Backend *be, int layer, Tensor *k, Tensor *v);

#ifdef __cplusplus
}
#endif
#endif
