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
