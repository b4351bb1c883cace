/* tensor/tensor.h -- a view: it owns nothing, so it is passed by value.
 *
 * Extents run outermost first, the innermost stride is always 1. A tensor with data == NULL is absent:
 * no bias, the gradient of a frozen weight, an output that is not needed. On the meta backend data points
 * into inaccessible pages; only backends dereference it. */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include "base/arena.h"
#include "tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MAXDIM 4

typedef struct Tensor {
    void   *data;             /* NULL = absent                                       */
    int64_t n[MAXDIM];        /* extents, outermost first; unused are 1              */
    int64_t s[MAXDIM];        /* strides in elements; the innermost is always 1      */
    uint8_t rank, dtype;
} Tensor;

/* Tensors allocated from an arena, contents undefined. The label names them in the arena's peak. */
Tensor t_new(Arena *a, const char *label, DType d, int rank, const int64_t *n);
Tensor t1(Arena *a, const char *label, DType d, int64_t n0);
Tensor t2(Arena *a, const char *label, DType d, int64_t n0, int64_t n1);
Tensor t3(Arena *a, const char *label, DType d, int64_t n0, int64_t n1, int64_t n2);

/* Views. */
Tensor t_wrap(void *data, DType d, int rank, const int64_t *n);         /* dense, over the caller's memory */
Tensor t_rows(Tensor t, int64_t from, int64_t rows);                    /* slice of dim 0 */
Tensor t_cols(Tensor t, int64_t from, int64_t cols);                    /* slice of a matrix's last dim */
Tensor t_at(Tensor t, int64_t i);                                       /* t[i], one rank less */
Tensor t_heads(Tensor t, int64_t from, int64_t heads, int64_t width);   /* columns as (T, heads, width) */
Tensor t_as2(Tensor t, int64_t n0, int64_t n1);                         /* dense tensor seen as a matrix */
Tensor t_as3(Tensor t, int64_t n0, int64_t n1, int64_t n2);

static inline bool t_has(Tensor t) { return t.data != NULL; }
bool        t_dense(Tensor t);                /* no gaps between rows */
bool        t_same(Tensor a, Tensor b);       /* dtype and extents; strides may differ */
int64_t     t_count(Tensor t);
int64_t     t_bytes(Tensor t);                /* of the elements, without gaps */
const char *t_fmt(Tensor t);                  /* "bf16(12, 64)", from a small ring of buffers */

#ifdef __cplusplus
}
#endif
#endif
