/* ops/code_stats.c -- what e4m3 codes lose of the rows they stand for: contract, cost, CPU.
 *
 *   code_stats   cell (CODE_CELLS) i64 += of rows 0, every, 2 every, ... of x (R, K), whose codes are q and
 *                scale (quantize_rows of quantize.c):
 *                  CODE_AMAX        the largest finite magnitude, as the bits of an f32: the larger counts
 *                  CODE_ELEMENTS    elements, without those of groups that are not finite
 *                  CODE_FLUSHED     of these, not zero, with a code that is
 *                  CODE_SATURATED   of these, above 448 scales in magnitude
 *                  CODE_GROUPS      groups
 *                  CODE_NOT_FINITE  of these, with a scale that is NaN
 *
 * x is f32 or bf16. offsets as in quantize.c: rows past the last are padding, not read; may be absent. Sums
 * are of integers: every device gives the same bits. */
#include "ops/cpu/cpu_quant.h"

#include <math.h>

Cost code_stats_cost(Backend *be, Tensor cell, Tensor x, Tensor q, Tensor scale, Tensor offsets,
                     int64_t every)
{
    int64_t R = x.n[0], K = x.n[1];
    REQUIRE(cell.dtype == I64 && t_dense(cell) && t_count(cell) == CODE_CELLS && is_rows(x, R, K) &&
            codes_fit_rows(q, scale, x) && (!t_has(offsets) || offsets.dtype == I32) && every >= 1,
            "code_stats: cell %s x %s q %s scale %s offsets %s, every %lld", t_fmt(cell), t_fmt(x), t_fmt(q),
            t_fmt(scale), t_fmt(offsets), (long long)every);
    int64_t n = ((t_has(offsets) ? expert_rows(be, R) : R) + every - 1) / every;
    return (Cost){ .flops = 3.0 * (double)(n * K), .rd = n * (K * (int64_t)dtype_size((DType)x.dtype) + K),
                   .wr = t_bytes(cell) };
}

static HOT void count_group(int64_t *cell, const float *x, const uint8_t *q, float scale, int64_t n)
{
    uint32_t amax = cpu_quant_amax(x, n);
    float    most = 448.0f * scale;
    cell[CODE_GROUPS]++;
    if (isnan(scale)) {
        cell[CODE_NOT_FINITE]++;
        return;
    }
    if (amax < 0x7f800000u && amax > cell[CODE_AMAX]) cell[CODE_AMAX] = amax;
    cell[CODE_ELEMENTS] += n;
    for (int64_t i = 0; i < n; i++) {
        cell[CODE_FLUSHED]   += (q[i] & 0x7f) == 0 && x[i] != 0;
        cell[CODE_SATURATED] += fabsf(x[i]) > most;
    }
}

static void count_row(int64_t *cell, Tensor q, Tensor scale, const float *x, int64_t r)
{
    for (int64_t k = 0; k < q.n[1]; k += QUANT_GROUP)
        count_group(cell, x + k, (const uint8_t *)row_ptr(q, r) + k,
                    ((const float *)row_ptr(scale, k / QUANT_GROUP))[r], min_i64(q.n[1] - k, QUANT_GROUP));
}

static void add_cells(int64_t *cell, const int64_t *part)
{
    int64_t amax = cell[CODE_AMAX] > part[CODE_AMAX] ? cell[CODE_AMAX] : part[CODE_AMAX];
    for (int i = 0; i < CODE_CELLS; i++) cell[i] += part[i];
    cell[CODE_AMAX] = amax;
}

void cpu_code_stats(Backend *be, Tensor cell, Tensor x, Tensor q, Tensor scale, Tensor offsets, int64_t every)
{
    int64_t R = t_has(offsets) ? ((int32_t *)offsets.data)[t_count(offsets) - 1] : x.n[0];
    REQUIRE((size_t)x.n[1] * 4 <= CPU_OWN, "code_stats: rows of %lld", (long long)x.n[1]);
    #pragma omp parallel if (worth_threads(t_count(x) / every))
    {
        int64_t part[CODE_CELLS] = { 0 };
        #pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < R; r += every) count_row(part, q, scale, row_read(x, r, cpu_own(be)), r);
        #pragma omp critical
        add_cells(cell.data, part);
    }
}
