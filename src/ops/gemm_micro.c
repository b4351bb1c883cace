/* ops/gemm_micro.c -- products of matrices in microscaled codes (quant_micro.h): contract, cost, CPU.
 *
 *   gemm_micro           c (M, N) = a b' [+ bias] [+ res]    a (M, K), b (N, K) of quantize_micro, of one
 *                                                            format; res may be c
 *   grouped_gemm_micro   c[r,:] = a[r,:] b[e]'               a (R, K), b (E, N, K); offsets (E + 1) i32 as in
 *                                                            grouped_gemm.c: padding rows are neither read
 *                                                            nor written
 *
 *   c[m,n] = ta tb * sum over k of (sa[m,k/G] a[m,k]) * (sb[n,k/G] b[n,k])
 *
 * G is the group of the format; ta and tb are the tensor scales of NVFP4, 1 for MXFP8. With b the codes of a
 * transposed weight this is the gradient of its input. A code times its scale is exact in f32, and so is the
 * product of two of them, within the range of f32; the CPU adds them in f32, k ascending, other
 * devices may add in another order. The tensor scales multiply the sum. Bias and res are added last, and the
 * result is rounded once.
 *
 * c and res are f32 or bf16, of one dtype; bias (1, N) is either; bias and res may be absent. Rows may be
 * strided; extents may be 0. The same bits on any number of threads. */
#include "ops/cpu/coded_gemm.h"
#include "ops/cpu/tile.h"
#include "ops/quant_micro.h"

#include <limits.h>

/* Columns that codes have: of NVFP4 always an even number, the last one being 0 where K is odd. */
static int64_t columns(MicroCodes z) { return z.q.n[z.q.rank - 1] * (z.format == PREC_MXFP8 ? 1 : 2); }

static bool is_coded(MicroCodes z)
{
    int rows = z.q.rank - 2;
    return z.q.dtype == micro_code_type(z.format) && z.scale.dtype == micro_scale_type(z.format) &&
           z.scale.rank == z.q.rank && z.scale.n[rows] == z.q.n[rows] &&
           z.scale.n[rows + 1] == micro_groups(z.format, columns(z)) && (!rows || z.scale.n[0] == z.q.n[0]) &&
           (z.format == PREC_MXFP8 || (z.tensor.dtype == F32 && t_count(z.tensor) == (rows ? z.q.n[0] : 1)));
}

static bool operands_fit(Tensor c, MicroCodes a, MicroCodes b)
{
    return a.format == b.format && (a.format == PREC_MXFP8 || a.format == PREC_NVFP4) && a.q.rank == 2 &&
           is_coded(a) && is_coded(b) && columns(a) == columns(b) &&
           is_rows(c, a.q.n[0], b.q.n[b.q.rank - 2]);
}

static Cost product_cost(int64_t M, Tensor c, MicroCodes a, MicroCodes b)
{
    return (Cost){ .flops = 2.0 * (double)M * (double)c.n[1] * (double)columns(a),
                   .rd = M * (a.q.n[1] + a.scale.n[1]) + t_bytes(b.q) + t_bytes(b.scale),
                   .wr = M * c.n[1] * (int64_t)dtype_size((DType)c.dtype) };
}

Cost gemm_micro_cost(Backend *be, Tensor c, MicroCodes a, MicroCodes b, Tensor bias, Tensor res)
{
    REQUIRE(b.q.rank == 2 && operands_fit(c, a, b) &&
            (!t_has(res) || (res.dtype == c.dtype && t_same(res, c))) &&
            (!t_has(bias) || (t_count(bias) == c.n[1] && is_float(bias))),
            "gemm_micro: c%s a%s %s b%s %s bias%s res%s", t_fmt(c), t_fmt(a.q), t_fmt(a.scale), t_fmt(b.q),
            t_fmt(b.scale), t_fmt(bias), t_fmt(res));
    Cost p = product_cost(a.q.n[0], c, a, b);
    p.rd += opt_bytes(bias) + opt_bytes(res);
    return p;
}

Cost grouped_gemm_micro_cost(Backend *be, Tensor c, MicroCodes a, MicroCodes b, Tensor offsets)
{
    int64_t E = offsets.n[0] - 1, n = expert_rows(be, a.q.n[0]);
    REQUIRE(b.q.rank == 3 && b.q.n[0] == E && operands_fit(c, a, b) && offsets.dtype == I32 &&
            a.q.n[0] < INT_MAX, "grouped_gemm_micro: c%s a%s %s b%s %s offsets%s", t_fmt(c), t_fmt(a.q),
            t_fmt(a.scale), t_fmt(b.q), t_fmt(b.scale), t_fmt(offsets));
    Cost p = product_cost(n, c, a, b);
    p.each = E ? (double)n / (double)E : 0;
    return p;
}

static float e2m1_value(uint8_t code) { return e2m1_to_f32(code & 15); }

/* Columns k .. k + n of a row of codes, times their scales, to to[0], to[step], ... */
HOT static void decode(float *to, int64_t step, MicroCodes z, int64_t r, int64_t k, int64_t n,
                       const float *value)
{
    bool           eight = z.format == PREC_MXFP8;
    int64_t        group = micro_group(z.format);
    const uint8_t *q = (const uint8_t *)row_ptr(z.q, r), *scale = (const uint8_t *)row_ptr(z.scale, r);
    for (int64_t g = k / group; g * group < k + n; g++) {
        float   s = eight ? e8m0_to_f32(scale[g]) : e4m3_to_f32(scale[g]);
        int64_t end = min_i64(k + n, (g + 1) * group);
        for (int64_t j = g * group; j < end; j++)
            to[(j - k) * step] = s * value[eight ? q[j] : q[j / 2] >> j % 2 * 4 & 15];
    }
}

static void add_group(const CodedTile *t, const CodedTerms *x, int64_t g)
{
    int64_t k = g * QUANT_GROUP, K = min_i64(x->K - k, QUANT_GROUP);
    for (int64_t r = 0; r < t->rows; r++) decode(t->a + r * K, 1, x->a, t->m + r, k, K, t->value);
    for (int64_t n = 0; n < t->cols; n++) decode(t->b + n, QUANT_GROUP, x->b, t->n + n, k, K, t->value);
    tile_mul(true, t->acc, QUANT_GROUP, t->a, K, 1, t->b, QUANT_GROUP, t->rows, t->cols, K);
}

static float tensor_scale(MicroCodes z, int64_t e)
{
    return z.format == PREC_MXFP8 ? 1.0f : ((const float *)z.tensor.data)[e];
}

static CodedTerms terms(MicroCodes a, MicroCodes b)
{
    return (CodedTerms){ .value = a.format == PREC_MXFP8 ? e4m3_to_f32 : e2m1_value, .add_group = add_group,
                         .K = columns(a), .a = a, .b = b };
}

void cpu_gemm_micro(Backend *be, Tensor c, MicroCodes a, MicroCodes b, Tensor bias, Tensor res)
{
    CodedTerms x = terms(a, b);
    x.factor = tensor_scale(a, 0) * tensor_scale(b, 0);
    x.bias = bias, x.res = res;
    cpu_coded_gemm(be, c, &x);
}

static CodedTerms of_expert(const CodedTerms *all, int64_t e)
{
    CodedTerms x = *all;
    x.b.q = t_at(all->b.q, e), x.b.scale = t_at(all->b.scale, e);
    x.factor = tensor_scale(all->a, 0) * tensor_scale(all->b, e);
    return x;
}

void cpu_grouped_gemm_micro(Backend *be, Tensor c, MicroCodes a, MicroCodes b, Tensor offsets)
{
    CodedTerms x = terms(a, b);
    cpu_coded_grouped(be, c, &x, offsets, of_expert);
}
