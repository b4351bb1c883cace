/* nn/cache.h -- the cache of documents that are being decoded: keys and values, latents of latent attention,
 * states of delta nets.
 *
 * A document owns a slot of consecutive rows of each kind of layer. Where attention has no window the slot
 * has as many rows as the document may ever have, and the first ones are filled. Where it has one the slot
 * has no more rows than the window, and the row of token t is t modulo their number: a query sees all of
 * them, in any order, since keys are rotated before they are written.
 *
 * A pass over prompts attends within its own rows where the cache does not have the keys of all of them
 * (windows, latents); a pass over further tokens writes a row for each document, then attends to the
 * document's slot. All memory is laid out before the first pass. */
#ifndef NN_CACHE_H
#define NN_CACHE_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of the layers of one kind. */
typedef struct CacheRows {
    int64_t  rows;                        /* of all slots; 0: there is nothing of the kind */
    Tensor   kv;                          /* (2 layers, rows, G C): keys and values of a rank's layers; of
                                             latents (layers, rows, kv_rank + rope) */
    int64_t  first;                       /* layer l of the kind is layer l - first of kv */
    Tensor   at;                          /* (tokens) i32: the row that each row of a pass fills, -1: none */
    Tensor   starts, used;                /* (docs + 1), (docs) i32: slots, and how much of them is filled */
    Tensor   fill;                        /* `at` of the current pass */
    Segments seg;                         /* of the current pass: its rows against the slots */
} CacheRows;

typedef struct Cache {
    int64_t   docs, tokens;               /* most documents; most rows of a pass */
    bool      latent;                     /* full.kv has latents */
    bool      prompts;                    /* the current pass brings whole documents */
    CacheRows full, window;               /* of layers without and with a window */
    Tensor    starts;                     /* (docs + 1) i32: rows of a pass */
    Tensor    state, tail;                /* of delta nets: (layers docs, Hv, dk dv) f32; rows before a pass,
                                             (layers docs, conv - 1, 2 K + V); absent: there are none */
    int64_t   first_linear;               /* delta net l of the model is layer l - first_linear of these */
    Tensor    doc, kept;                  /* (docs) i32: of each segment of a pass its document, and how
                                             many of its rows the state takes up */
} Cache;

/* Of one pass on the host: document i fills the first used[i] rows of its slot, which begins at slot[i];
 * at (T): the row that each row of the pass fills, or -1. */
typedef struct CacheSlots { const int32_t *slot, *used, *at; } CacheSlots;

/* One pass on the host: n documents, document i brings rows start[i] .. start[i+1] - 1 of T. */
typedef struct CachePass {
    int64_t        n, T;
    bool           prompts;              /* see Cache */
    const int32_t *start;                /* NULL: a dry run */
    CacheSlots     full, window;
    const int32_t *doc, *kept;           /* of delta nets: see Cache */
} CachePass;

/* docs, tokens and the numbers of rows are set. */
void cache_layout(Cache *c, Arena *a);
/* Memory for `layers` matrices of `width` columns: keys and values of half as many layers, or latents. */
void cache_layout_rows(const Cache *c, CacheRows *r, Arena *a, DType d, int64_t layers, int64_t width);
/* The same for delta nets of Hv heads with states of `size`, whose convolution of so many columns looks back
 * at `rows` rows. */
void cache_layout_states(Cache *c, Arena *a, DType d, int64_t layers, int64_t heads, int64_t size,
                         int64_t rows, int64_t cols);
/* State (docs, Hv, dk dv) and rows before (docs, conv - 1, 2 K + V) of delta net l of the model. */
Tensor cache_state(const Cache *c, int64_t linear);
Tensor cache_tail(const Cache *c, int64_t linear);
void cache_upload(Cache *c, Backend *be, const CachePass *p);

/* Writes k and v (T, G C) of a layer of the kind and gives the layer's whole keys and values, (rows, G C)
 * each; v may be narrower than k. */
void cache_write(const CacheRows *r, Backend *be, int layer, Tensor *k, Tensor *v);
/* The same for latents x (T, kv_rank + rope): gives those of the layer, (rows, kv_rank + rope). */
Tensor cache_write_latents(const CacheRows *r, Backend *be, int layer, Tensor x);

#ifdef __cplusplus
}
#endif
#endif
