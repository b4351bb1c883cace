/* ops/cpu/few_rows.c -- products of a few rows with a large matrix, for decoding.
 *
 * Packing the matrix would cost more than multiplying it by so few rows, so it is read in place, once: FAN of
 * its rows at a time are multiplied by every row of a while they are in L1. Each element is one sum over the
 * inner dim in vector lanes; its bits do not depend on the number of rows or columns. */
#include "ops/cpu/few_rows.h"

enum { FAN = 4 };

/* out[j] = a . b[j] for FAN rows of b. */
HOT static void dots_f32(float *out, const float *a, const float *b, int64_t ld, int64_t K)
{
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    const float *b1 = b + ld, *b2 = b1 + ld, *b3 = b2 + ld;
    #pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t k = 0; k < K; k++)
        s0 += a[k] * b[k], s1 += a[k] * b1[k], s2 += a[k] * b2[k], s3 += a[k] * b3[k];
    out[0] = s0, out[1] = s1, out[2] = s2, out[3] = s3;
}

HOT static void dots_bf16(float *out, const float *a, const uint16_t *b, int64_t ld, int64_t K)
{
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    const uint16_t *b1 = b + ld, *b2 = b1 + ld, *b3 = b2 + ld;
    #pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t k = 0; k < K; k++) {
        s0 += a[k] * bf16_to_f32(b[k]),  s1 += a[k] * bf16_to_f32(b1[k]);
        s2 += a[k] * bf16_to_f32(b2[k]), s3 += a[k] * bf16_to_f32(b3[k]);
    }
    out[0] = s0, out[1] = s1, out[2] = s2, out[3] = s3;
}

static float element(Tensor t, int64_t row, int64_t col)
{
    const char *p = row_ptr(t, row);
    return t.dtype == F32 ? ((const float *)p)[col] : bf16_to_f32(((const uint16_t *)p)[col]);
}

/* out[j] = a . row `from` + j of b. */
static void dots(float *out, const float *a, Tensor b, int64_t from, int64_t ld, int64_t K)
{
    if (b.dtype == F32) dots_f32(out, a, (const float *)row_ptr(b, from), ld, K);
    else                dots_bf16(out, a, (const uint16_t *)row_ptr(b, from), ld, K);
}

/* Stores c[m, n ..] from its sums, plus bias and c. */
static void store(Tensor c, int64_t m, int64_t n, int64_t count, const float *sum, const Terms *t)
{
    for (int64_t j = 0; j < count; j++) {
        float v = sum[j];
        if (t_has(t->bias)) v += element(t->bias, 0, n + j);
        v *= t->scale;
        if (t->flags & GEMM_ACC) v += element(c, m, n + j);
        if (c.dtype == F32) ((float *)row_ptr(c, m))[n + j] = v;
        else                ((uint16_t *)row_ptr(c, m))[n + j] = bf16_from_f32(v);
    }
}

void few_rows_tile(float *ws, Tensor c, Terms t)
{
    bool    lora = t_has(t.lora.low_rank);
    int64_t M = c.n[0], N = c.n[1], K = t.a.n[1], r = lora ? t.lora.low_rank.n[1] : 0;
    int64_t step = N < FAN ? 1 : FAN;
    const float *rows[FEW_ROWS], *low[FEW_ROWS];
    REQUIRE(M <= FEW_ROWS && (size_t)(M * (K + r)) * sizeof *ws <= CPU_OWN, "few rows: a%s", t_fmt(t.a));
    for (int64_t m = 0; m < M; m++) {
        rows[m] = row_read(t.a, m, ws + m * K);
        low[m]  = lora ? row_read(t.lora.low_rank, m, ws + M * K + m * r) : NULL;
    }
    for (int64_t n = 0; n < N; n += step) {
        int64_t from = n + step <= N ? n : N - step;         /* the last step overlaps the one before */
        for (int64_t m = 0; m < M; m++) {
            float sum[FAN], more[FAN];
            dots(sum, rows[m], t.b, from, N < FAN ? 0 : t.b.s[0], K);
            if (lora) {
                dots(more, low[m], t.lora.w, from, N < FAN ? 0 : t.lora.w.s[0], r);
                for (int j = 0; j < FAN; j++) sum[j] += more[j];
            }
            store(c, m, n, N - n < step ? N - n : step, sum + n - from, &t);
        }
    }
}
