/* ops/pack_rows.c -- rows as they travel to experts in 8 bits: contract, cost, CPU.
 *
 *   pack_rows     y (R, quant_packed_width(K)) bf16, whose bytes are a record for each row of x (R, K): K
 *                 codes, then from the next multiple of 4 bytes on the f32 scales of its groups of 128,
 *                 powers of two (quant.h), then zeros. y is bf16 because ops that move rows take it.
 *   unpack_rows   x = code times scale of the records y, rounded to x's type: exact but for numbers too small
 *                 for it; q (R, K) and scale (ceil(K/128), R), as quantize_rows has them: the codes and
 *                 scales themselves, or absent. Records of zeros give zeros. offsets (E + 1) i32 as in
 *                 quantize_rows: rows past the last are neither read nor written; absent: all are used
 *
 * x is f32 or bf16; its rows may be strided, y is dense. To quantise an unpacked row once more gives the same
 * numbers. Every device gives the same bits. */
#include "ops/cpu/cpu_quant.h"

static bool packed_fits(Tensor y, Tensor x)
{
    return is_rows(x, x.n[0], x.n[1]) && y.rank == 2 && y.dtype == BF16 && t_dense(y) && y.n[0] == x.n[0] &&
           y.n[1] == quant_packed_width(x.n[1]);
}

Cost pack_rows_cost(Backend *be, Tensor y, Tensor x)
{
    REQUIRE(packed_fits(y, x), "pack_rows: y %s x %s", t_fmt(y), t_fmt(x));
    return (Cost){ .flops = 2.0 * (double)t_count(x), .rd = t_bytes(x), .wr = t_bytes(y) };
}

Cost unpack_rows_cost(Backend *be, Tensor x, Tensor q, Tensor scale, Tensor y, Tensor offsets)
{
    REQUIRE(packed_fits(y, x) && (!t_has(q) || codes_fit_rows(q, scale, x)) &&
            (!t_has(offsets) || offsets.dtype == I32),
            "unpack_rows: x %s q %s scale %s y %s offsets %s", t_fmt(x), t_fmt(q), t_fmt(scale), t_fmt(y),
            t_fmt(offsets));
    int64_t codes = t_has(q) ? expert_bytes(be, q) + 4 * scale.n[0] * expert_rows(be, x.n[0]) : 0;
    return (Cost){ .flops = (double)(expert_rows(be, x.n[0]) * x.n[1]), .rd = expert_bytes(be, y),
                   .wr = expert_bytes(be, x) + codes };
}

HOT static void decode(float *x, const uint8_t *q, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = e4m3_to_f32(q[i]) * scale;
}

static void pack_row(uint8_t *record, const float *x, int64_t K)
{
    float *scale = (float *)(void *)(record + quant_scales_at(K));
    memset(record, 0, (size_t)quant_packed_width(K) * 2);
    for (int64_t k = 0; k < K; k += QUANT_GROUP) {
        int64_t    n = min_i64(K - k, QUANT_GROUP);
        QuantScale s = quant_scale(cpu_quant_amax(x + k, n), true);
        cpu_quant_encode(record + k, x + k, s.inverse, n);
        scale[k / QUANT_GROUP] = s.scale;
    }
}

void cpu_pack_rows(Backend *be, Tensor y, Tensor x)
{
    int64_t R = x.n[0], K = x.n[1];
    cpu_check_own("pack_rows", 1, K);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t r = 0; r < R; r++) pack_row((uint8_t *)row_ptr(y, r), row_read(x, r, cpu_own(be)), K);
}

static void unpack_row(float *x, const uint8_t *record, int64_t K)
{
    const float *scale = (const float *)(const void *)(record + quant_scales_at(K));
    for (int64_t k = 0; k < K; k += QUANT_GROUP)
        decode(x + k, record + k, scale[k / QUANT_GROUP], min_i64(K - k, QUANT_GROUP));
}

static void copy_codes(Tensor q, Tensor scale, const uint8_t *record, int64_t r)
{
    const float *s = (const float *)(const void *)(record + quant_scales_at(q.n[1]));
    memcpy(row_ptr(q, r), record, (size_t)q.n[1]);
    for (int64_t g = 0; g < scale.n[0]; g++) ((float *)row_ptr(scale, g))[r] = s[g];
}

void cpu_unpack_rows(Backend *be, Tensor x, Tensor q, Tensor scale, Tensor y, Tensor offsets)
{
    int64_t R = used_rows(offsets, x.n[0]), K = x.n[1];
    cpu_check_own("unpack_rows", 1, K);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t r = 0; r < R; r++) {
        float *wide = x.dtype == F32 ? (float *)(void *)row_ptr(x, r) : (float *)cpu_own(be);
        unpack_row(wide, (const uint8_t *)row_ptr(y, r), K);
        if (x.dtype != F32) piece_store(x, r, 0, wide, K);
        if (t_has(q)) copy_codes(q, scale, (const uint8_t *)row_ptr(y, r), r);
    }
}
