/* ops/cpu/cpu_rows.c -- sums of rows; see cpu_rows.h. */
#include "ops/cpu/cpu_rows.h"

HOT void rows_add(float *y, const float *a, const float *b, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

/* Adds columns from .. from + count - 1 of the parts, each `width` wide, to dw. */
void rows_gather(Backend *be, float *dw, int64_t rows, int64_t width, int64_t from, int64_t count)
{
    for (int c = 0; c < CPU_CHUNKS; c++)
        if (chunk_begin(rows, c) < chunk_begin(rows, c + 1))
            rows_add(dw, dw, chunk_part(be, c, width) + from, count);
}

static HOT void add_f32(float *acc, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) acc[i] += x[i];
}
static HOT void add_bf16(float *acc, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) acc[i] += bf16_to_f32(x[i]);
}

void piece_add(float *acc, Tensor x, int64_t row, int64_t col, int64_t n)
{
    if (x.dtype == F32) add_f32(acc, (const float *)row_ptr(x, row) + col, n);
    else                add_bf16(acc, (const uint16_t *)row_ptr(x, row) + col, n);
}

void piece_store(Tensor y, int64_t row, int64_t col, const float *acc, int64_t n)
{
    if (y.dtype == F32) memcpy((float *)row_ptr(y, row) + col, acc, (size_t)n * sizeof *acc);
    else                cpu_narrow((uint16_t *)row_ptr(y, row) + col, acc, n);
}
