/* tests/test_dw_fp8.c -- weight gradients of experts from codes: quantize_cols, swiglu_bwd_cols,
 * grouped_dw_fp8. */
#include "rowlab.h"
#include "base/num.h"
#include "ops/quant.h"

enum { EXPERTS = 4 };

static const int32_t shares[][EXPERTS + 1] = { { 0, 3, 3, 200, 210 }, { 0, 0, 0, 0, 0 }, { 0, 1, 2, 3, 400 },
                                               { 0, 128, 256, 384, 512 }, { 0, 127, 256, 385, 385 } };
enum { SHARES = sizeof shares / sizeof *shares };

static ColumnCodes columns(int64_t R, int64_t K, bool blocks)
{
    int64_t C = quant_columns(R, EXPERTS);
    return (ColumnCodes){ num_poison(E4M3, K, C), num_poison(F32, C / 128, blocks ? quant_groups(K) : K) };
}

/* Row r of an expert's, or 0 in its padding. */
static float source(Tensor x, const int32_t *off, int e, int64_t i, int64_t k)
{
    return i < off[e + 1] - off[e] ? get(x, (off[e] + i) * x.n[1] + k) : 0;
}

static uint32_t amax_of(Tensor x, const int32_t *off, int e, int64_t first, int64_t k, bool blocks)
{
    uint32_t amax = 0;
    int64_t  from = blocks ? k / 128 * 128 : k, end = blocks ? min_i64(from + 128, x.n[1]) : k + 1;
    for (int64_t i = first; i < first + 128; i++)
        for (int64_t j = from; j < end; j++) {
            uint32_t m = quant_magnitude(source(x, off, e, i, j));
            if (m > amax) amax = m;
        }
    return amax;
}

/* Every column of every expert by the definition; returns how many it has checked. */
static int64_t check_columns(ColumnCodes z, Tensor x, const int32_t *off, bool blocks, bool pow2)
{
    int64_t K = x.n[1], C = z.q.n[1], checked = 0;
    for (int e = 0; e < EXPERTS; e++)
        for (int64_t i = 0; i < (off[e + 1] - off[e] + 127) / 128 * 128; i++)
            for (int64_t k = 0; k < K; k++, checked++) {
                int64_t    at = quant_column(off[e], e) + i;
                QuantScale s = quant_scale(amax_of(x, off, e, i / 128 * 128, k, blocks), pow2);
                uint8_t    want = e4m3_from_f32(source(x, off, e, i, k) * s.inverse);
                uint8_t    got = ((uint8_t *)z.q.data)[k * C + at];
                float      scale = get(z.scale, at / 128 * z.scale.n[1] + (blocks ? k / 128 : k));
                EXPECT(got == want && scale == s.scale, "expert %d row %lld column %lld: code %d scale %g", e,
                       (long long)i, (long long)k, got, (double)scale);
            }
    return checked;
}

static int64_t poisoned(Tensor t)
{
    int64_t n = 0;
    for (int64_t i = 0; i < t_count(t); i++) n += ((uint8_t *)t.data)[i] == 0xff;
    return n;
}

static void columns_by_definition(void)
{
    DType d;
    for (int s = 0; s < SHARES; s++) for EACH_FLOAT(d) for (int form = 0; form < 4; form++) {
        int64_t     R = shares[s][EXPERTS] + num_below(5), K = s == 1 ? 3 : 100 + num_below(40);
        Tensor      x = num_randn(d, R, K), off = num_i32(EXPERTS + 1, shares[s]);
        ColumnCodes z = columns(R, K, form & 1);
        op_quantize_cols(BE, z, x, none, 1, off, form & 2);
        int64_t checked = check_columns(z, x, shares[s], form & 1, form & 2);
        EXPECT(poisoned(z.q) == t_count(z.q) - checked, "groups of no expert were written");
        num_clear();
    }
}

/* Of tokens by their places in the rows: as of the gathered rows. */
static void columns_of_tokens(void)
{
    enum { T = 70, DIV = 3, R = T * DIV, K = 130 };
    for (int blocks = 0; blocks < 2; blocks++) {
        int32_t src[R];
        for (int i = 0; i < R; i++) src[i] = i % 13 == 5 ? -1 : (i * 11) % R;
        Tensor      x = num_randn(BF16, T, K), list = num_i32(R, src), rows = num_poison(BF16, R, K);
        Tensor      off = num_i32(EXPERTS + 1, shares[0]);
        ColumnCodes z[2] = { columns(R, K, blocks), columns(R, K, blocks) };
        op_gather_rows(BE, rows, x, list, DIV);
        op_quantize_cols(BE, z[0], x, list, DIV, off, true);
        op_quantize_cols(BE, z[1], rows, none, 1, off, true);
        EXPECT(same_bits(z[0].q, z[1].q) && same_bits(z[0].scale, z[1].scale), "other bits");
        num_clear();
    }
}

/* NaN in one row shows in the groups of that row alone. */
static void not_finite_shows(void)
{
    Tensor      x = num_randn(F32, 512, 2), off = num_i32(EXPERTS + 1, shares[3]);
    ColumnCodes z = columns(512, 2, false);
    put(x, 2 * 130 + 1, INFINITY);
    op_quantize_cols(BE, z, x, none, 1, off, true);
    for (int64_t g = 0; g < 7; g += 2)                      /* of expert g / 2 */
        for (int k = 0; k < 2; k++)
            EXPECT(isnan(get(z.scale, g * 2 + k)) == (g == 2 && k == 1), "group %lld, column %d",
                   (long long)g, k);
    num_clear();
}

/* ---- the backward of SwiGLU ---- */

static void backward_is_separate(void)
{
    enum { R = 215, F = 130 };
    Tensor  off = num_i32(EXPERTS + 1, shares[0]), gate = num_randn(F32, R, 1);
    Tensor  gu = num_randn(BF16, R, 2 * F);
    Tensor  d[2], dg[2], q[2], s[2], h = num_poison(BF16, R, F), dh[2];
    ColumnCodes g[2], a[2];
    int64_t used = shares[0][EXPERTS];
    for (int i = 0; i < 2; i++) {
        d[i] = num_poison(BF16, R, 2 * F), dg[i] = num_poison(F32, R, 1), q[i] = num_poison(E4M3, R, 2 * F);
        s[i] = num_poison(F32, 3, R), g[i] = columns(R, 2 * F, false), a[i] = columns(R, F, true);
        dh[i] = t_cols(d[i], 0, F);                         /* it may lie over dgu */
        for (int64_t r = 0; r < used; r++)
            for (int64_t k = 0; k < F; k++) put(dh[i], r * F + k, (float)((r * 7 + k * 3) % 19) / 8 - 1);
    }
    op_swiglu_bwd_cols(BE, d[0], q[0], s[0], g[0], a[0], dg[0], dh[0], gu, gate, off, true);
    op_swiglu_bwd_fp8(BE, d[1], q[1], s[1], dg[1], dh[1], gu, gate, off, true);
    op_swiglu_fwd(BE, h, gu, gate, off);
    op_quantize_cols(BE, g[1], d[1], none, 1, off, true);
    op_quantize_cols(BE, a[1], h, none, 1, off, true);
    EXPECT(same_bits(t_rows(d[0], 0, used), t_rows(d[1], 0, used)) && same_bits(dg[0], dg[1]), "values");
    EXPECT(same_bits(q[0], q[1]) && same_bits(s[0], s[1]), "codes of rows");
    EXPECT(same_bits(g[0].q, g[1].q) && same_bits(g[0].scale, g[1].scale), "columns of dgu");
    EXPECT(same_bits(a[0].q, a[1].q) && same_bits(a[0].scale, a[1].scale), "columns of h");
    num_clear();
}

/* ---- the product ---- */

typedef struct Case { Tensor c, squares, off, dy, x; ColumnCodes a, b; int64_t R; int flags; } Case;

static Case make(DType out, const int32_t *shares_of, int64_t M, int64_t N, bool squares, int flags)
{
    int64_t R = shares_of[EXPERTS] + 3, n[] = { EXPERTS, M, N };
    Case c = { .c = t_as3(num_poison(out, EXPERTS * M, N), EXPERTS, M, N),
               .off = num_i32(EXPERTS + 1, shares_of),
               .dy = num_randn(BF16, R, M), .x = num_randn(BF16, R, N), .a = columns(R, M, false),
               .b = columns(R, N, true), .R = R, .flags = flags };
    int64_t parts = grouped_squares_parts(n);
    if (squares) c.squares = t_wrap(num_poison(F32, 1, parts).data, F32, 1, &parts);
    op_quantize_cols(BE, c.a, c.dy, none, 1, c.off, true);
    op_quantize_cols(BE, c.b, c.x, none, 1, c.off, true);
    return c;
}

static void run(Case *c) { op_grouped_dw_fp8(BE, c->c, c->squares, c->a, c->b, c->off, c->R, c->flags); }

static double naive(const Case *c, int e, int64_t m, int64_t n)
{
    const int32_t *off = c->off.data;
    int64_t C = c->a.q.n[1], first = quant_column(off[e], e), M = c->a.q.n[0];
    double  sum = 0;
    for (int64_t i = first; i < first + off[e + 1] - off[e]; i++)
        sum += (double)get(c->a.q, m * C + i) * get(c->a.scale, i / 128 * M + m) * get(c->b.q, n * C + i) *
               get(c->b.scale, i / 128 * c->b.scale.n[1] + n / 128);
    return sum;
}

static void agrees_with_double(void)
{
    DType d;
    for (int s = 0; s < SHARES; s++) for EACH_FLOAT(d) for (int add = 0; add < 2; add++) {
        int64_t M = 30 + num_below(120), N = 30 + num_below(120);
        Case    c = make(d, shares[s], M, N, false, add ? GEMM_ACC : 0);
        Tensor  want = num_poison(F32, EXPERTS * M, N);
        if (add) for (int64_t i = 0; i < t_count(c.c); i++) put(c.c, i, (float)(i % 7));
        for (int64_t i = 0; i < t_count(c.c); i++)
            put(want, i, (float)naive(&c, (int)(i / (M * N)), i / N % M, i % N) + (add ? (float)(i % 7) : 0));
        run(&c);
        EXPECT_CLOSE_AT(1, t_as2(c.c, EXPERTS * M, N), want, tolerance(d));
        num_clear();
    }
}

/* Powers of two have exact codes: the gradient is exact. */
static void known_values(void)
{
    Case c = make(F32, shares[3], 2, 3, false, 0);
    for (int64_t i = 0; i < t_count(c.dy); i++) put(c.dy, i, i % 2 ? 2 : -1);
    for (int64_t i = 0; i < t_count(c.x); i++) put(c.x, i, (float)(1 << i % 3));
    op_quantize_cols(BE, c.a, c.dy, none, 1, c.off, true);
    op_quantize_cols(BE, c.b, c.x, none, 1, c.off, true);
    run(&c);
    for (int64_t i = 0; i < t_count(c.c); i++) {
        float want = 128 * (i / 3 % 2 ? 2.0f : -1.0f) * (float)(1 << i % 3);
        EXPECT(get(c.c, i) == want, "[%lld] %g for %g", (long long)i, (double)get(c.c, i), (double)want);
    }
    num_clear();
}

static void squares_of_strips(void)
{
    DType d;
    for EACH_FLOAT(d) {
        Case   c = make(d, shares[0], 140, 300, true, 0);
        double sum = 0, all = 0;
        run(&c);
        for (int64_t i = 0; i < t_count(c.c); i++) sum += (double)get(c.c, i) * get(c.c, i);
        for (int64_t i = 0; i < t_count(c.squares); i++) all += get(c.squares, i);
        EXPECT(fabs(sum - all) <= 1e-5 * sum && sum > 0, "%g, of c %g", all, sum);
        num_clear();
    }
}

/* Against the gradient that was not quantised. */
static void near_the_bf16_product(void)
{
    Case   c = make(BF16, shares[3], 192, 256, false, 0);
    Tensor plain = t_as3(num_poison(BF16, EXPERTS * 192, 256), EXPERTS, 192, 256);
    run(&c);
    op_grouped_gemm(BE, plain, c.dy, c.x, c.off, (LoraTerm){ 0 }, GEMM_TN);
    double cosine = num_dot(c.c, plain) / sqrt(num_dot(c.c, c.c) * num_dot(plain, plain));
    EXPECT(cosine >= 0.998, "cosine %.6f", cosine);
    num_clear();
}

static void threads_agree(void)
{
    Case c = make(BF16, shares[2], 200, 260, false, 0);
    EXPECT_THREADS_AGREE(run, &c, &c.c, 1);
    num_clear();
}

int main(void)
{
    rowlab_open();
    RUN(columns_by_definition);
    RUN(columns_of_tokens);
    RUN(not_finite_shows);
    RUN(backward_is_separate);
    RUN(agrees_with_double);
    RUN(known_values);
    RUN(squares_of_strips);
    RUN(near_the_bf16_product);
    RUN(threads_agree);
    return numlab_report();
}
