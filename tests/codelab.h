/* tests/codelab.h -- weights in random codes for GPU tests. */
#ifndef TESTS_CODELAB_H
#define TESTS_CODELAB_H

#include "grouplab.h"
#include "ops/weight_code.h"

static inline Tensor flat_in(DType d, int64_t n)
{
    return gpu_normal(gpu_new(d, 1, &n, DENSE, 0xff), 0, 1.0f);
}

static inline Tensor any_bytes(DType d, int rank, const int64_t *n)
{
    Tensor t = gpu_new(d, rank, n, DENSE, 0);
    for (int64_t i = 0; i < t_bytes(t); i++) ((uint8_t *)t.data)[i] = (uint8_t)num_below(256);
    return t;
}

static inline WeightCodes random_codes(CodeFormat f, int64_t E, int64_t N, int64_t K)
{
    int64_t     n[3] = { E, N, code_bytes(f, K) }, rows = E * N, blocks = rows * K / 64;
    DType       d = f == CODE_NF4 ? U8 : f == CODE_INT8 ? I8 : E4M3;
    WeightCodes z = { .format = f, .q = any_bytes(d, 3, n) };
    if (f == CODE_FP8) z.scale = in3(F32, E, quant_groups(N), quant_groups(K), DENSE);
    if (f == CODE_INT8) z.scale = flat_in(F32, rows);
    if (f != CODE_NF4) return z;
    z.scale = any_bytes(U8, 1, &blocks), z.group = in2(F32, E * nf4_groups(N * K), 2, DENSE);
    z.first = gpu_new(I32, 1, &rows, DENSE, 0);
    for (int64_t r = 0; r < rows; r++)
        ((int32_t *)z.first.data)[r] =
            (int32_t)((r / N * nf4_groups(N * K) * NF4_GROUP_ELEMS + r % N * K) / 2);
    return z;
}

/* As quantisation makes them: scales of fp8 are powers of two, and where an element is not finite the scale
 * is NaN and all codes of the block are 0x7f. */
static inline WeightCodes usual_codes(CodeFormat f, int64_t E, int64_t N, int64_t K)
{
    WeightCodes z = random_codes(f, E, N, K);
    uint8_t    *q = z.q.data;
    float      *scale = z.scale.data;
    if (f == CODE_INT8) for (int64_t i = 0; i < E * N; i++) scale[i] *= 0.01f;
    if (f != CODE_FP8) return z;
    for (int64_t i = 0; i < t_count(z.scale); i++)
        scale[i] = ldexpf(1.0f, num_below(9) ? -(int)num_below(12) : (int)num_below(14));
    if (num_below(3) == 0) scale[num_below(t_count(z.scale))] = NAN;
    for (int64_t i = 0; i < t_count(z.q); i++) {
        int64_t band = i / K / N * quant_groups(N) + i / K % N / QUANT_GROUP;
        if (isnan(scale[band * quant_groups(K) + i % K / QUANT_GROUP])) q[i] = 0x7f;
        else if ((q[i] & 0x7f) == 0x7f) q[i] ^= 1;
    }
    return z;
}

#endif
