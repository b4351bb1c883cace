/* ops/quantize.c -- matrices to e4m3 codes and scales (quant.h): contract, cost, CPU.
 *
 *   quantize_rows     x (R, K) to q (R, K) e4m3 in groups of 128 along a row; scale (ceil(K/128), R) f32: the
 *                     scales of all rows for one group of columns lie together, as matrix units read them
 *   quantize_weight   w (N, K), or a stack (E, N, K), to q of the same shape in blocks of 128 x 128 with
 *                     scale ([E,] ceil(N/128), ceil(K/128)) f32, and to the transposed qt ([E,] K, N) with
 *                     scale_t ([E,] ceil(K/128), ceil(N/128)): the same codes and scales in the other order
 *
 * x and w are f32 or bf16. Rows may be strided. pow2: scales are powers of two. offsets (E + 1) i32 of rows
 * of experts, as in grouped_gemm.c: rows past the last are padding, neither read nor written; absent: there
 * is no padding. Either output of quantize_weight, codes and scales, may be absent. Extents may be 0. Every
 * device gives the same bits. */
#include "ops/cpu/cpu_quant.h"
#include "ops/cpu/cpu_rows.h"

static bool holds(Tensor t, DType d, Tensor like, int64_t rows, int64_t cols)
{
    return t.rank == like.rank && t.dtype == d && t.n[t.rank - 2] == rows && t.n[t.rank - 1] == cols &&
           (t.rank == 2 || t.n[0] == like.n[0]);
}

Cost quantize_rows_cost(Backend *be, Tensor q, Tensor scale, Tensor x, Tensor offsets, bool pow2)
{
    int64_t R = x.n[0], K = x.n[1];
    REQUIRE(is_rows(x, R, K) && codes_fit_rows(q, scale, x) && (!t_has(offsets) || offsets.dtype == I32),
            "quantize_rows: q %s scale %s x %s offsets %s", t_fmt(q), t_fmt(scale), t_fmt(x), t_fmt(offsets));
    int64_t n = t_has(offsets) ? expert_rows(be, R) : R;
    return (Cost){ .flops = 2.0 * (double)(n * K), .rd = n * K * (int64_t)dtype_size((DType)x.dtype),
                   .wr = n * (K + 4 * scale.n[0]) };
}

static bool copy_fits(Tensor q, Tensor scale, Tensor w, int64_t N, int64_t K)
{
    return !t_has(q) || (holds(q, E4M3, w, N, K) &&
                         holds(scale, F32, w, quant_groups(N), quant_groups(K)));
}

Cost quantize_weight_cost(Backend *be, Tensor q, Tensor scale, Tensor qt, Tensor scale_t, Tensor w, bool pow2)
{
    int64_t N = w.n[w.rank - 2], K = w.n[w.rank - 1];
    REQUIRE((w.rank == 2 || w.rank == 3) && is_float(w) && copy_fits(q, scale, w, N, K) &&
            copy_fits(qt, scale_t, w, K, N), "quantize_weight: q %s scale %s qt %s scale_t %s w %s", t_fmt(q),
            t_fmt(scale), t_fmt(qt), t_fmt(scale_t), t_fmt(w));
    return (Cost){ .flops = 2.0 * (double)t_count(w), .rd = t_bytes(w),
                   .wr = opt_bytes(q) + opt_bytes(scale) + opt_bytes(qt) + opt_bytes(scale_t) };
}

HOT uint32_t cpu_quant_amax(const float *x, int64_t n)
{
    uint32_t amax = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t m = quant_magnitude(x[i]);
        amax = m > amax ? m : amax;
    }
    return amax;
}

HOT void cpu_quant_encode(uint8_t *q, const float *x, float inverse, int64_t n)
{
    for (int64_t i = 0; i < n; i++) q[i] = e4m3_from_f32(x[i] * inverse);
}

void cpu_quantize_row(Tensor q, Tensor scale, const float *x, int64_t r, bool pow2)
{
    int64_t  K = q.n[1];
    uint8_t *codes = (uint8_t *)row_ptr(q, r);
    for (int64_t k = 0; k < K; k += QUANT_GROUP) {
        int64_t    n = min_i64(K - k, QUANT_GROUP);
        QuantScale s = quant_scale(cpu_quant_amax(x + k, n), pow2);
        cpu_quant_encode(codes + k, x + k, s.inverse, n);
        ((float *)row_ptr(scale, k / QUANT_GROUP))[r] = s.scale;
    }
}

void cpu_quantize_rows(Backend *be, Tensor q, Tensor scale, Tensor x, Tensor offsets, bool pow2)
{
    int64_t R = used_rows(offsets, x.n[0]);
    cpu_check_own("quantize_rows", 1, x.n[1]);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t r = 0; r < R; r++) cpu_quantize_row(q, scale, row_read(x, r, cpu_own(be)), r, pow2);
}

/* A block of a weight as f32, `rows` of QUANT_GROUP, and its codes. */
typedef struct Block { int64_t n, k, rows, cols; float x[QUANT_GROUP * QUANT_GROUP]; } Block;

static void block_read(Block *b, Tensor w)
{
    for (int64_t i = 0; i < b->rows; i++) {
        const char *row = row_ptr(w, b->n + i);
        float      *to = b->x + i * b->cols;
        if (w.dtype == F32) memcpy(to, (const float *)row + b->k, (size_t)b->cols * sizeof *to);
        else                cpu_widen(to, (const uint16_t *)row + b->k, b->cols);
    }
}

static void block_store(const Block *b, const uint8_t *code, Tensor q, Tensor scale, float s)
{
    if (!t_has(q)) return;
    for (int64_t i = 0; i < b->rows; i++)
        memcpy(row_ptr(q, b->n + i) + b->k, code + i * b->cols, (size_t)b->cols);
    ((float *)row_ptr(scale, b->n / QUANT_GROUP))[b->k / QUANT_GROUP] = s;
}

static void block_store_transposed(const Block *b, const uint8_t *code, Tensor qt, Tensor scale_t, float s)
{
    if (!t_has(qt)) return;
    for (int64_t j = 0; j < b->cols; j++) {
        uint8_t *to = (uint8_t *)row_ptr(qt, b->k + j) + b->n;
        for (int64_t i = 0; i < b->rows; i++) to[i] = code[i * b->cols + j];
    }
    ((float *)row_ptr(scale_t, b->k / QUANT_GROUP))[b->n / QUANT_GROUP] = s;
}

static Tensor matrix(Tensor t, int64_t e) { return t_has(t) && t.rank == 3 ? t_at(t, e) : t; }

void cpu_quantize_weight(Backend *be, Tensor q, Tensor scale, Tensor qt, Tensor scale_t, Tensor w, bool pow2)
{
    int64_t E = w.rank == 3 ? w.n[0] : 1, N = w.n[w.rank - 2], K = w.n[w.rank - 1];
    int64_t down = quant_groups(N), across = quant_groups(K);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(w)))
    for (int64_t i = 0; i < E * down * across; i++) {
        Block   *b = (Block *)cpu_own(be);
        uint8_t *code = (uint8_t *)(b + 1);
        int64_t  e = i / (down * across);
        b->n = i / across % down * QUANT_GROUP, b->k = i % across * QUANT_GROUP;
        b->rows = min_i64(N - b->n, QUANT_GROUP), b->cols = min_i64(K - b->k, QUANT_GROUP);
        block_read(b, matrix(w, e));
        QuantScale s = quant_scale(cpu_quant_amax(b->x, b->rows * b->cols), pow2);
        cpu_quant_encode(code, b->x, s.inverse, b->rows * b->cols);
        block_store(b, code, matrix(q, e), matrix(scale, e), s.scale);
        block_store_transposed(b, code, matrix(qt, e), matrix(scale_t, e), s.scale);
    }
}
