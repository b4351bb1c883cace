/* nn/cache.h -- the KV cache: keys and values of documents that are being decoded.
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
    int64_t  first_layer;                 /* layer l of the model is layer l - first_layer of kv */
    Tensor   at;                          /* (tokens) i32: the row that each row of a pass fills, -1: none */
    Tensor   starts, kv_starts, used;     /* (docs + 1), (docs + 1), (docs) i32 */
    Tensor   fill;                        /* `at` of the current pass */
    Segments seg;                         /* of the current pass: its rows against the slots */
} Cache;

/* One pass on the host: n documents, document i brings rows start[i] .. start[i+1] - 1 of T and then fills
 * the first used[i] rows of its slot, which begins at slot[i]. */
typedef struct CachePass { int64_t n, T; const int32_t *start, *slot, *used, *at; } CachePass;

/* layers: of this rank; width: G C of its kv heads. docs, rows and tokens are set. */
void cache_layout(Cache *c, Arena *a, DType d, int64_t layers, int64_t width);
void cache_upload(Cache *c, Backend *be, const CachePass *p);

/* Writes k and v (T, G C) of a layer of the model and gives the layer's whole keys and values, (rows, G C)
 * each; v may be narrower than k. */
void cache_write(const Cache *c, Backend *be, int layer, Tensor *k, Tensor *v);

#ifdef __cplusplus
}
#endif
#endif
