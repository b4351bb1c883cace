/* ops/cpu/cpu_quant.h -- quantisation of a row, for the ops that quantise what they write. */
#ifndef OPS_CPU_QUANT_H
#define OPS_CPU_QUANT_H

#include "ops/cpu/cpu_rows.h"
#include "ops/quant.h"

/* quantize.c: the largest magnitude of n numbers, by its bits; and their codes. */
uint32_t cpu_quant_amax(const float *x, int64_t n);
void     cpu_quant_encode(uint8_t *q, const float *x, float inverse, int64_t n);

/* The codes and scales of rows x, as quantize_rows has them. */
static inline bool codes_fit_rows(Tensor q, Tensor scale, Tensor x)
{
    return q.rank == 2 && q.dtype == E4M3 && q.n[0] == x.n[0] && q.n[1] == x.n[1] &&
           is_rows_f32(scale, quant_groups(x.n[1]), x.n[0]);
}

/* Of R rows of experts, transposed, as quantize_cols has them (quantize_cols.c); and the bytes of n rows. */
bool    column_codes_fit(ColumnCodes z, int64_t R, int64_t K, int64_t E);
int64_t column_codes_bytes(ColumnCodes z, int64_t n);

/* Row r of q and its scales, column r of `scale`, from x in f32 (quantize.c). */
void cpu_quantize_row(Tensor q, Tensor scale, const float *x, int64_t r, bool pow2);

#endif
