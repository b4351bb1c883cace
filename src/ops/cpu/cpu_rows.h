/* ops/cpu/cpu_rows.h -- what the row-wise CPU ops share: when to use threads, long rows in pieces, sums over
 * rows. */
#ifndef OPS_CPU_CPU_ROWS_H
#define OPS_CPU_CPU_ROWS_H

#include "ops/cpu/cpu.h"

/* Waking the threads costs some microseconds, as much as this many elements. */
INLINE bool worth_threads(int64_t elements) { return elements >= 1 << 15; }

/* For contracts: a matrix of floats, one of f32, and the bytes of a tensor that may be absent. */
INLINE bool is_rows(Tensor t, int64_t rows, int64_t cols)
{
    return t.rank == 2 && t.n[0] == rows && t.n[1] == cols && is_float(t);
}
INLINE bool is_rows_f32(Tensor t, int64_t rows, int64_t cols)
{
    return is_rows(t, rows, cols) && t.dtype == F32;
}
/* Heads of floats, and the statistic of head r of such a tensor in stat (T, H) f32. */
INLINE bool is_heads(Tensor t, int64_t T, int64_t H, int64_t C)
{
    return t.rank == 3 && t.n[0] == T && t.n[1] == H && t.n[2] == C && is_float(t);
}
INLINE bool heads_or_absent(Tensor t, int64_t T, int64_t H, int64_t C)
{
    return !t_has(t) || is_heads(t, T, H, C);
}
INLINE bool is_heads_like(Tensor t, Tensor x) { return is_heads(t, x.n[0], x.n[1], x.n[2]); }
INLINE float *head_stat(Tensor stat, int64_t r)
{
    return (float *)row_ptr(stat, r / stat.n[1]) + r % stat.n[1];
}
INLINE int64_t opt_bytes(Tensor t) { return t_has(t) ? t_bytes(t) : 0; }

/* Rows of experts that a call is charged with, of the R rows of its buffers, and bytes of a tensor of such
 * rows, which may be absent. */
INLINE int64_t expert_rows(const Backend *be, int64_t R)
{
    return be->ledger.expert_rows ? be->ledger.expert_rows : R;
}
INLINE int64_t expert_bytes(const Backend *be, Tensor t)
{
    return t_has(t) && t.n[0] ? t_bytes(t) / t.n[0] * expert_rows(be, t.n[0]) : 0;
}

/* Rows of x before the padding: the last of the offsets of its experts; all R where there are none. */
INLINE int64_t used_rows(Tensor offsets, int64_t R)
{
    return t_has(offsets) ? ((const int32_t *)offsets.data)[t_count(offsets) - 1] : R;
}

/* An elementwise op walks pieces, PIECE columns of one row at most, so that one long row keeps all threads
 * busy and its f32 copies stay in L1. A dense tensor is walked as a single row: see flat. */
enum { PIECE = 2048 };
typedef struct Pieces { int64_t count, per_row; } Pieces;

INLINE Tensor flat(Tensor t)
{
    int64_t n = t_count(t);
    return t_wrap(t.data, (DType)t.dtype, 1, &n);
}
INLINE Pieces pieces_of(Tensor t)
{
    int64_t per_row = (row_width(t) + PIECE - 1) / PIECE;
    return (Pieces){ row_count(t) * per_row, per_row };
}
INLINE Tensor piece(Tensor t, Pieces p, int64_t i)                              /* a vector */
{
    int64_t from = i % p.per_row * PIECE, left = row_width(t) - from, n = left < PIECE ? left : PIECE;
    char *at = row_ptr(t, i / p.per_row) + (size_t)from * dtype_size((DType)t.dtype);
    return t_wrap(at, (DType)t.dtype, 1, &n);
}

/* A loop over a row in its storage dtype goes by batches in registers, so that loads overlap with compute.
 * Callers pass constants for d and, for all but the last batch of a row, for m = BATCH, so that each copy has
 * one kind of load. Lanes past m read 0. */
enum { BATCH = 32 };
INLINE void batch_get(float *v, const void *row, DType d, int64_t i, int m)
{
    const float    *f = (const float *)row + i;
    const uint16_t *h = (const uint16_t *)row + i;
    for (int j = 0; j < m; j++) v[j] = d == F32 ? f[j] : bf16_to_f32(h[j]);
    for (int j = m; j < BATCH; j++) v[j] = 0.0f;
}
INLINE void batch_put(void *row, DType d, int64_t i, const float *v, int m)
{
    float    *f = (float *)row + i;
    uint16_t *h = (uint16_t *)row + i;
    if (d == F32) for (int j = 0; j < m; j++) f[j] = v[j];
    else          for (int j = 0; j < m; j++) h[j] = bf16_from_f32(v[j]);
}

void rows_add(float *y, const float *a, const float *b, int64_t n);             /* y may be a or b */

/* Sums of rows of a storage dtype are formed by pieces: acc += columns col .. col + n - 1 of a row of x; and
 * these columns of a row of y become acc. */
void piece_add(float *acc, Tensor x, int64_t row, int64_t col, int64_t n);
void piece_store(Tensor y, int64_t row, int64_t col, const float *acc, int64_t n);

/* Weight gradients sum over rows: each chunk (chunk_begin) writes its sum to its own part of the shared
 * workspace, and rows_gather adds the parts to dw in order. Chunks without rows have no part. */
INLINE float *chunk_part(Backend *be, int chunk, int64_t width) { return cpu_shared(be) + chunk * width; }
INLINE void cpu_check_parts(const char *op, int64_t width)
{
    REQUIRE((size_t)(width * CPU_CHUNKS) * sizeof(float) <= CPU_SHARED,
            "%s: sums over rows of %lld floats in the shared workspace", op, (long long)width);
}
void rows_gather(Backend *be, float *dw, int64_t rows, int64_t width, int64_t from, int64_t count);

/* grouped_gemm.c: the contract of `squares` beside a stack c of weight gradients, and its CPU. */
bool squares_fit(Tensor squares, Tensor c);
void cpu_strip_squares(Tensor squares, Tensor c);

/* Columns per thread of scattered row sums (embeddings), where each thread walks all rows in order. */
INLINE int64_t slice_columns(int64_t width)
{
    int64_t each = (width + omp_get_max_threads() - 1) / omp_get_max_threads(), line = 16;
    return each < 4 * line ? 4 * line : (each + line - 1) / line * line;
}

#endif
