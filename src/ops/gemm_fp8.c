/* ops/gemm_fp8.c -- products of matrices in e4m3 with scales (quant.h): contract, cost, CPU.
 *
 *   gemm_fp8           c (M, N) = a b' [+ bias] [+ res]      a (M, K) of quantize_rows, b (N, K) of
 *                                                            quantize_weight; res may be c
 *   grouped_gemm_fp8   c[r,:] = a[r,:] b[e]'                 a (R, K), b (E, N, K); offsets (E + 1) i32 as in
 *                                                            grouped_gemm.c: padding rows are neither read
 *                                                            nor written
 *
 *   c[m,n] = sum over groups g of K of (sa[g,m] * sb[n/128,g]) * (sum over k of g of a[m,k] b[n,k])
 *
 * With b the transposed copy of a weight this is the gradient of its input. Codes are exact in f32; both sums
 * run in f32, the inner one by itself, so that no sum of more than 128 products is rounded before it is
 * scaled (matrix units keep fewer bits inside one). The CPU adds k and g in ascending order; other devices
 * may sum a group in another order. Bias and res are added last, and the result is rounded once.
 *
 * c and res are f32 or bf16, of one dtype; bias (1, N) is either; bias and res may be absent. sa
 * (ceil(K/128), M), sb ([E,] ceil(N/128), ceil(K/128)) f32. Rows may be strided; extents may be 0. The same
 * bits on any number of threads. */
#include "ops/cpu/coded_gemm.h"

#include <limits.h>

static Cost product_cost(int64_t M, int64_t N, int64_t K, Tensor c, Tensor b, Tensor sb)
{
    return (Cost){ .flops = 2.0 * (double)M * (double)N * (double)K,
                   .rd = M * (K + 4 * quant_groups(K)) + t_bytes(b) + t_bytes(sb),
                   .wr = M * N * (int64_t)dtype_size((DType)c.dtype) };
}

static bool operands_fit(Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb)
{
    int64_t M = a.n[0], K = a.n[1], N = b.n[b.rank - 2];
    bool stacks = b.rank == 2 ? sb.rank == 2 : b.rank == 3 && sb.rank == 3 && sb.n[0] == b.n[0];
    return stacks && a.rank == 2 && a.dtype == E4M3 && b.dtype == E4M3 && b.n[b.rank - 1] == K &&
           is_rows(c, M, N) && is_rows_f32(sa, quant_groups(K), M) && sb.dtype == F32 &&
           sb.n[sb.rank - 2] == quant_groups(N) && sb.n[sb.rank - 1] == quant_groups(K);
}

Cost gemm_fp8_cost(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor bias, Tensor res)
{
    REQUIRE(b.rank == 2 && operands_fit(c, a, sa, b, sb) &&
            (!t_has(res) || (res.dtype == c.dtype && t_same(res, c))) &&
            (!t_has(bias) || (t_count(bias) == b.n[0] && is_float(bias))),
            "gemm_fp8: c%s a%s sa%s b%s sb%s bias%s res%s", t_fmt(c), t_fmt(a), t_fmt(sa), t_fmt(b),
            t_fmt(sb), t_fmt(bias), t_fmt(res));
    Cost p = product_cost(a.n[0], b.n[0], a.n[1], c, b, sb);
    p.rd += opt_bytes(bias) + opt_bytes(res);
    return p;
}

Cost grouped_gemm_fp8_cost(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor offsets)
{
    int64_t E = offsets.n[0] - 1, n = expert_rows(be, a.n[0]);
    REQUIRE(b.rank == 3 && b.n[0] == E && operands_fit(c, a, sa, b, sb) && offsets.dtype == I32 &&
            a.n[0] < INT_MAX, "grouped_gemm_fp8: c%s a%s sa%s b%s sb%s offsets%s", t_fmt(c), t_fmt(a),
            t_fmt(sa), t_fmt(b), t_fmt(sb), t_fmt(offsets));
    Cost p = product_cost(n, b.n[1], a.n[1], c, b, sb);
    p.each = E ? (double)n / (double)E : 0;
    return p;
}

static void add_group(const CodedTile *t, const CodedTerms *x, int64_t g)
{
    float sb = ((float *)row_ptr(x->b.scale, t->n / QUANT_GROUP))[g];
    coded_add_group(t, x, g, (const float *)row_ptr(x->a.scale, g), sb);
}

static CodedTerms terms(Tensor a, Tensor sa, Tensor b, Tensor sb)
{
    return (CodedTerms){ .value = e4m3_to_f32, .add_group = add_group, .K = a.n[1],
                         .a = { .q = a, .scale = sa }, .b = { .q = b, .scale = sb }, .factor = 1 };
}

void cpu_gemm_fp8(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor bias, Tensor res)
{
    CodedTerms x = terms(a, sa, b, sb);
    x.bias = bias, x.res = res;
    cpu_coded_gemm(be, c, &x);
}

static CodedTerms of_expert(const CodedTerms *all, int64_t e)
{
    CodedTerms x = *all;
    x.b.q = t_at(all->b.q, e), x.b.scale = t_at(all->b.scale, e);
    return x;
}

void cpu_grouped_gemm_fp8(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor offsets)
{
    CodedTerms x = terms(a, sa, b, sb);
    cpu_coded_grouped(be, c, &x, offsets, of_expert);
}
