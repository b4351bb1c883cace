/* ops/quantize_micro.c -- matrices to microscaled codes (quant_micro.h): contract, cost, CPU.
 *
 *   quantize_micro   x ([E,] R, K), f32 or bf16, to the codes and scales z of MicroCodes (ops.h), in groups
 *                    along K; of NVFP4 also to the tensor scale of each matrix
 *
 * By MicroRule: `transposed`: x is ([E,] K, R), and z are the codes of x transposed. `blocks`, NVFP4 alone: a
 * group is a block of 16 rows and 16 columns, and each of its rows has the scale, so that x and x transposed
 * have the same codes and scales. `seed`, NVFP4 alone: codes are rounded at random, by the numbers of
 * (*seed, stream, row, column), rows of a stack counted through.
 *
 * offsets (E + 1) i32 of rows of experts, as in grouped_gemm.c: rows past the last are padding, neither read
 * nor written; absent: there is no padding. Rows may be strided. Groups and blocks at an edge are smaller;
 * the half of a byte past an odd K is 0. Extents may be 0. The same bits on any number of threads. */
#include "ops/cpu/cpu_quant.h"
#include "ops/quant_micro.h"

static int64_t matrices_in(Tensor t) { return t.rank == 3 ? t.n[0] : 1; }

static bool is_stack(Tensor t, DType d, Tensor x, int64_t rows, int64_t cols)
{
    return t.rank == x.rank && t.dtype == d && matrices_in(t) == matrices_in(x) && t.n[t.rank - 2] == rows &&
           t.n[t.rank - 1] == cols;
}

static bool has_tensor_scale(MicroCodes z, Tensor x)
{
    return z.format == PREC_NVFP4 && z.tensor.dtype == F32 && t_dense(z.tensor) &&
           t_count(z.tensor) == matrices_in(x);
}

Cost quantize_micro_cost(Backend *be, MicroCodes z, Tensor x, Tensor offsets, MicroRule rule)
{
    bool    four = z.format == PREC_NVFP4;
    int64_t R = x.n[x.rank - (rule.transposed ? 1 : 2)], K = x.n[x.rank - (rule.transposed ? 2 : 1)];
    REQUIRE((x.rank == 2 || x.rank == 3) && is_float(x) && (four || z.format == PREC_MXFP8) &&
            is_stack(z.q, micro_code_type(z.format), x, R, micro_bytes(z.format, K)) &&
            is_stack(z.scale, micro_scale_type(z.format), x, R, micro_groups(z.format, K)) &&
            (four ? has_tensor_scale(z, x) : !t_has(z.tensor) && !rule.blocks && !rule.seed) &&
            (!t_has(offsets) || (offsets.dtype == I32 && x.rank == 2 && !rule.transposed)),
            "quantize_micro: %s q %s scale %s tensor %s x %s offsets %s", precision_word(z.format),
            t_fmt(z.q), t_fmt(z.scale), t_fmt(z.tensor), t_fmt(x), t_fmt(offsets));
    int64_t n = t_has(offsets) ? expert_rows(be, R) : matrices_in(x) * R;
    return (Cost){ .flops = 2.0 * (double)(n * K), .rd = n * K * (int64_t)dtype_size((DType)x.dtype),
                   .wr = n * (micro_bytes(z.format, K) + micro_groups(z.format, K)) + opt_bytes(z.tensor) };
}

/* One matrix (R, K) and its codes; row0: its first row among those of the stack. */
typedef struct MicroMatrix {
    MicroCodes z;
    Tensor     x;
    MicroRule  rule;
    int64_t    R, K, row0;
    float      tensor;
} MicroMatrix;

static Tensor matrix(Tensor t, int64_t e) { return t_has(t) && t.rank == 3 ? t_at(t, e) : t; }

static float element(Tensor x, int64_t row, int64_t col)
{
    const char *p = row_ptr(x, row);
    return x.dtype == F32 ? ((const float *)p)[col] : bf16_to_f32(((const uint16_t *)p)[col]);
}

/* Rows r .. and columns k .. of the matrix, n in a row. */
HOT static void read_group(float *to, const MicroMatrix *m, int64_t r, int64_t rows, int64_t k, int64_t n)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++)
            to[i * n + j] = m->rule.transposed ? element(m->x, k + j, r + i) : element(m->x, r + i, k + j);
}

static uint32_t matrix_amax(const MicroMatrix *m)
{
    int64_t  rows = m->rule.transposed ? m->K : m->R, cols = m->rule.transposed ? m->R : m->K;
    uint32_t amax = 0;
    #pragma omp parallel for schedule(static) reduction(max : amax) if (worth_threads(rows * cols))
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            uint32_t x = quant_magnitude(element(m->x, r, i));
            amax = x > amax ? x : amax;
        }
    return amax;
}

static void encode_e2m1(const MicroMatrix *m, const float *x, float inverse, int64_t r, int64_t k, int64_t n)
{
    uint8_t *q = (uint8_t *)row_ptr(m->z.q, r) + k / 2;
    Rng4     draw = { { 0 } };
    memset(q, 0, (size_t)(n + 1) / 2);
    for (int64_t j = 0; j < n; j++) {
        if (m->rule.seed && j % NVFP4_RANDOM == 0)
            draw = nvfp4_random(*m->rule.seed, m->rule.stream, m->row0 + r, k + j);
        uint32_t random = draw.v[j % NVFP4_RANDOM / 2] >> j % 2 * 16 & 0xffff;
        uint8_t  code = m->rule.seed ? e2m1_at_random(x[j] * inverse, random) : e2m1_from_f32(x[j] * inverse);
        q[j / 2] |= (uint8_t)(code << j % 2 * 4);
    }
}

/* The groups that begin in column k, of `rows` rows from r on, which share one scale. */
static void quantize_group(const MicroMatrix *m, int64_t r, int64_t rows, int64_t k)
{
    float    x[NVFP4_GROUP * NVFP4_GROUP];   /* or one row of MXFP8_GROUP, which is less */
    bool     eight = m->z.format == PREC_MXFP8;
    int64_t  group = micro_group(m->z.format), n = min_i64(m->K - k, group);
    x[0] = 0;                                /* rows and n are never 0, which no compiler can see */
    read_group(x, m, r, rows, k, n);
    uint32_t amax = cpu_quant_amax(x, rows * n);
    uint8_t  scale = eight ? e8m0_scale(amax) : nvfp4_scale(amax, m->tensor);
    float    inverse = eight ? e8m0_inverse(scale) : nvfp4_inverse(scale, m->tensor);
    for (int64_t i = 0; i < rows; i++) {
        ((uint8_t *)row_ptr(m->z.scale, r + i))[k / group] = scale;
        if (eight) cpu_quant_encode((uint8_t *)row_ptr(m->z.q, r + i) + k, x + i * n, inverse, n);
        else       encode_e2m1(m, x + i * n, inverse, r + i, k, n);
    }
}

static void quantize_matrix(const MicroMatrix *m)
{
    int64_t high = m->rule.blocks ? NVFP4_GROUP : 1, group = micro_group(m->z.format);
    #pragma omp parallel for schedule(static) if (worth_threads(m->R * m->K))
    for (int64_t r = 0; r < m->R; r += high)
        for (int64_t k = 0; k < m->K; k += group) quantize_group(m, r, min_i64(m->R - r, high), k);
}

void cpu_quantize_micro(Backend *be, MicroCodes z, Tensor x, Tensor offsets, MicroRule rule)
{
    int64_t R = x.n[x.rank - (rule.transposed ? 1 : 2)], K = x.n[x.rank - (rule.transposed ? 2 : 1)];
    for (int64_t e = 0; e < matrices_in(x); e++) {
        MicroMatrix m = { { z.format, matrix(z.q, e), matrix(z.scale, e), { 0 } }, matrix(x, e), rule,
                          used_rows(offsets, R), K, e * R, 1 };
        if (z.format == PREC_NVFP4)
            m.tensor = ((float *)z.tensor.data)[e] = nvfp4_tensor_scale(matrix_amax(&m));
        quantize_matrix(&m);
    }
}
