/* tests/test_gemm_fp8.c -- gemm_fp8, grouped_gemm_fp8, and ops fused with quantisation. */
#include "rowlab.h"
#include "base/num.h"
#include "ops/quant.h"

/* Operands and what they were made from. */
typedef struct Case { Tensor c, a, sa, b, sb, bias, res, x, w; } Case;

static Case make(DType in, DType out, int64_t M, int64_t N, int64_t K)
{
    int64_t nb = quant_groups(N), kb = quant_groups(K);
    Case c = { .c = num_poison(out, M, N), .a = num_poison(E4M3, M, K), .sa = num_poison(F32, kb, M),
               .b = num_poison(E4M3, N, K), .sb = num_poison(F32, nb, kb), .x = num_randn(in, M, K),
               .w = num_randn(in, N, K) };
    op_quantize_rows(BE, c.a, c.sa, c.x, none, true);
    op_quantize_weight(BE, c.b, c.sb, none, none, c.w, true);
    return c;
}
static void run(Case *c) { op_gemm_fp8(BE, c->c, c->a, c->sa, c->b, c->sb, c->bias, c->res); }

/* The values of a quantised matrix. */
static float *values(Tensor q, Tensor scale, bool blocks)
{
    int64_t R = q.n[0], K = q.n[1];
    float  *v = num_poison(F32, R, K).data;
    for (int64_t i = 0; i < R * K; i++) {
        int64_t r = i / K, g = i % K / QUANT_GROUP;
        int64_t at = blocks ? r / QUANT_GROUP * scale.s[0] + g : g * scale.s[0] + r;
        v[i] = e4m3_to_f32(((uint8_t *)q.data)[i]) * ((float *)scale.data)[at];
    }
    return v;
}

static Tensor naive(const Case *c, Tensor before)
{
    int64_t M = c->c.n[0], N = c->c.n[1], K = c->a.n[1];
    Tensor  want = num_poison(F32, M, N);
    float  *a = values(c->a, c->sa, false), *b = values(c->b, c->sb, true);
    for (int64_t i = 0; i < M * N; i++) {
        double sum = t_has(c->bias) ? get(c->bias, i % N) : 0;
        for (int64_t k = 0; k < K; k++) sum += (double)a[i / N * K + k] * b[i % N * K + k];
        put(want, i, (float)(t_has(c->res) ? sum + get(before, i) : sum));
    }
    return want;
}

static void agrees_with_double(void)
{
    static const int64_t sizes[][3] = { { 1, 1, 1 }, { 5, 3, 130 }, { 200, 129, 257 }, { 33, 260, 128 },
                                        { 193, 7, 65 } };
    DType d;
    for (int i = 0; i < 5; i++) for EACH_FLOAT(d) for (int more = 0; more < 6; more++) {
        Case c = make(BF16, d, sizes[i][0], sizes[i][1], sizes[i][2]);
        if (more & 1) c.bias = num_randn(more & 2 ? F32 : BF16, 1, sizes[i][1]);
        if (more & 6) c.res = num_randn(d, sizes[i][0], sizes[i][1]);
        if (more & 4) c.c = c.res;
        Tensor want = naive(&c, t_has(c.res) ? num_copy(c.res, F32) : none);
        run(&c);
        EXPECT_CLOSE_AT(1, c.c, want, tolerance(d));
        num_clear();
    }
}

/* Powers of two and small integers have exact codes: the product is exact. */
static void known_values(void)
{
    Case c = make(F32, F32, 2, 2, 256);
    for (int64_t i = 0; i < 512; i++) put(c.x, i, i < 256 ? 1 : 2), put(c.w, i, i % 2 ? 3 : -1);
    op_quantize_rows(BE, c.a, c.sa, c.x, none, true);
    op_quantize_weight(BE, c.b, c.sb, none, none, c.w, true);
    run(&c);
    for (int64_t i = 0; i < 4; i++) EXPECT(get(c.c, i) == (i < 2 ? 256 : 512), "%g", get(c.c, i));
    num_clear();
}

static double cosine(Tensor a, Tensor b)
{
    return num_dot(a, b) / sqrt(num_dot(a, a) * num_dot(b, b));
}

/* Against the product that was not quantised. */
static void near_the_bf16_product(void)
{
    for (int i = 0; i < 6; i++) {
        Case   c = make(BF16, BF16, 64 + num_below(100), 64 + num_below(200), 128 + num_below(600));
        Tensor plain = num_poison(BF16, c.c.n[0], c.c.n[1]);
        run(&c);
        op_gemm(BE, plain, c.x, c.w, none, GEMM_NT);
        EXPECT(cosine(c.c, plain) >= 0.999, "cosine %.6f of %s", cosine(c.c, plain), t_fmt(c.a));
        num_clear();
    }
}

/* NaN in one row of x reaches that row of c alone. */
static void not_finite_shows(void)
{
    Case c = make(F32, F32, 3, 5, 200);
    put(c.x, 200 + 150, INFINITY);
    op_quantize_rows(BE, c.a, c.sa, c.x, none, true);
    run(&c);
    for (int64_t i = 0; i < 15; i++) EXPECT(isnan(get(c.c, i)) == (i / 5 == 1), "[%lld]", (long long)i);
    num_clear();
}

/* ---- experts ---- */

enum { EXPERTS = 4 };
typedef struct Group { Tensor c, a, sa, b, sb, offsets, x, w; } Group;

static Group experts(DType out, const int32_t *off, int64_t spare, int64_t N, int64_t K, bool transposed)
{
    int64_t R = off[EXPERTS] + spare, nb = quant_groups(N), kb = quant_groups(K);
    Group g = { .c = num_poison(out, R, N), .a = num_poison(E4M3, R, K), .sa = num_poison(F32, kb, R),
                .b = t_as3(num_poison(E4M3, EXPERTS * N, K), EXPERTS, N, K),
                .sb = t_as3(num_poison(F32, EXPERTS * nb, kb), EXPERTS, nb, kb),
                .offsets = num_i32(EXPERTS + 1, off), .x = num_randn(BF16, R, K) };
    int64_t rows = transposed ? K : N, cols = transposed ? N : K;
    g.w = t_as3(num_randn(BF16, EXPERTS * rows, cols), EXPERTS, rows, cols);
    op_quantize_rows(BE, g.a, g.sa, g.x, g.offsets, true);
    if (transposed) op_quantize_weight(BE, none, none, g.b, g.sb, g.w, true);
    else            op_quantize_weight(BE, g.b, g.sb, none, none, g.w, true);
    return g;
}
static void run_experts(Group *g) { op_grouped_gemm_fp8(BE, g->c, g->a, g->sa, g->b, g->sb, g->offsets); }

static const int32_t shares[][EXPERTS + 1] = { { 0, 3, 3, 200, 210 }, { 0, 0, 0, 0, 0 }, { 0, 1, 2, 3, 400 },
                                               { 0, 64, 128, 192, 256 } };

/* Each expert's rows have the bits of a product by themselves; padding rows stay. */
static void experts_are_products(void)
{
    for (int s = 0; s < 4; s++) {
        Group g = experts(s % 2 ? BF16 : F32, shares[s], 5, 130, 260, s > 1);
        run_experts(&g);
        for (int e = 0; e < EXPERTS; e++) {
            int64_t at = shares[s][e], n = shares[s][e + 1] - at;
            Tensor  one = num_poison((DType)g.c.dtype, n, 130);
            op_gemm_fp8(BE, one, t_rows(g.a, at, n), t_cols(g.sa, at, n), t_at(g.b, e), t_at(g.sb, e), none,
                        none);
            EXPECT(same_bits(one, num_copy(t_rows(g.c, at, n), (DType)g.c.dtype)), "share %d expert %d", s,
                   e);
        }
        for (int64_t i = shares[s][EXPERTS] * 130; i < t_count(g.c); i++)
            EXPECT(isnan(get(g.c, i)), "padding row was written");
        num_clear();
    }
}

static void experts_near_bf16(void)
{
    for (int t = 0; t < 2; t++) {
        Group  g = experts(BF16, shares[3], 0, 192, 256, t);
        Tensor plain = num_poison(BF16, g.c.n[0], 192);
        run_experts(&g);
        op_grouped_gemm(BE, plain, g.x, g.w, g.offsets, (LoraTerm){ 0 }, t ? GEMM_NN : GEMM_NT);
        EXPECT(cosine(g.c, plain) >= 0.999, "cosine %.6f, transposed %d", cosine(g.c, plain), t);
        num_clear();
    }
}

/* The fused product has the bits of product, activation and quantisation by themselves; padding rows stay. */
static void fused_is_separate(void)
{
    enum { F = 130 };
    Group   g = experts(BF16, shares[0], 5, 2 * F, 260, false);
    int64_t R = g.c.n[0], used = shares[0][EXPERTS];
    Tensor  gate = num_randn(F32, R, 1), gu = num_poison(BF16, R, 2 * F);
    Tensor  h[2] = { num_poison(BF16, R, F), num_poison(BF16, R, F) };
    Tensor  q[2] = { num_poison(E4M3, R, F), num_poison(E4M3, R, F) };
    Tensor  s[2] = { num_poison(F32, 2, R), num_poison(F32, 2, R) };
    op_grouped_swiglu_fp8(BE, gu, h[0], q[0], s[0], g.a, g.sa, g.b, g.sb, g.offsets, gate, true);
    run_experts(&g);
    op_swiglu_fwd(BE, h[1], g.c, gate, g.offsets);
    op_quantize_rows(BE, q[1], s[1], h[1], g.offsets, true);
    EXPECT(same_bits(gu, g.c) && same_bits(h[0], h[1]) && same_bits(q[0], q[1]) && same_bits(s[0], s[1]),
           "other bits");
    EXPECT(!isnan(get(h[0], 0)) && isnan(get(h[0], used * F)) && isnan(get(q[0], used * F)), "rows written");
    num_clear();
}

/* Expansion with codes has the bits of expansion, then quantisation; without y the same codes. */
static void expand_is_separate(void)
{
    enum { T = 37, K = 3, R = T * K, D = 200 };
    int32_t to[R];
    for (int i = 0; i < R; i++) to[i] = i % 11 == 5 ? -1 : (i * 7) % R;
    Tensor x = num_randn(BF16, T, D), rows = t_as2(num_i32(R, to), T, K);
    Tensor y[2] = { num_poison(BF16, R, D), num_poison(BF16, R, D) }, s[3], q[3];
    for (int i = 0; i < 3; i++) q[i] = num_poison(E4M3, R, D), s[i] = num_poison(F32, 2, R);
    op_expand_rows_fp8(BE, y[0], q[0], s[0], x, rows, true);
    op_expand_rows_fp8(BE, none, q[1], s[1], x, rows, true);
    op_expand_rows(BE, y[1], x, rows);
    EXPECT(same_bits(y[0], y[1]) && same_bits(q[0], q[1]) && same_bits(s[0], s[1]), "other bits");
    op_quantize_rows(BE, q[2], s[2], y[1], none, true);
    for (int i = 0; i < R; i++)
        EXPECT(to[i] < 0 || (same_bits(num_copy(t_rows(q[0], to[i], 1), E4M3),
                                       num_copy(t_rows(q[2], to[i], 1), E4M3)) &&
                             get(s[0], to[i]) == get(s[2], to[i])), "row %d", to[i]);
    num_clear();
}

static void swiglu_bwd_is_separate(void)
{
    enum { R = 40, USED = 33, F = 130 };
    Tensor off = num_i32(3, (int32_t[]){ 0, 20, USED }), dh = num_randn(BF16, R, F);
    Tensor gate = num_randn(F32, R, 1);
    Tensor gu = num_randn(BF16, R, 2 * F), d[2], dg[2], q[2], s[2];
    for (int i = 0; i < 2; i++)
        d[i] = num_poison(BF16, R, 2 * F), dg[i] = num_poison(F32, R, 1), q[i] = num_poison(E4M3, R, 2 * F),
        s[i] = num_poison(F32, 3, R);
    op_swiglu_bwd_fp8(BE, d[0], q[0], s[0], dg[0], dh, gu, gate, off, true);
    op_swiglu_bwd(BE, t_rows(d[1], 0, USED), t_rows(dg[1], 0, USED), t_rows(dh, 0, USED),
                  t_rows(gu, 0, USED), t_rows(gate, 0, USED));
    op_quantize_rows(BE, q[1], s[1], d[1], off, true);
    EXPECT(same_bits(d[0], d[1]) && same_bits(dg[0], dg[1]) && same_bits(q[0], q[1]) && same_bits(s[0], s[1]),
           "other bits");
    num_clear();
}

static void threads_agree(void)
{
    Case  c = make(BF16, BF16, 300, 260, 200);
    Group g = experts(BF16, shares[2], 0, 260, 200, false);
    EXPECT_THREADS_AGREE(run, &c, &c.c, 1);
    EXPECT_THREADS_AGREE(run_experts, &g, &g.c, 1);
    num_clear();
}

static void nothing_to_sum(void)
{
    Case none_of_k = make(F32, F32, 3, 4, 0), no_rows = make(F32, BF16, 0, 4, 130);
    none_of_k.bias = num_randn(F32, 1, 4);
    run(&none_of_k), run(&no_rows);
    for (int64_t i = 0; i < 12; i++)
        EXPECT(get(none_of_k.c, i) == get(none_of_k.bias, i % 4), "the bias alone");
    num_clear();
}

int main(void)
{
    rowlab_open();
    RUN(known_values);
    RUN(agrees_with_double);
    RUN(near_the_bf16_product);
    RUN(not_finite_shows);
    RUN(experts_are_products);
    RUN(experts_near_bf16);
    RUN(fused_is_separate);
    RUN(expand_is_separate);
    RUN(swiglu_bwd_is_separate);
    RUN(threads_agree);
    RUN(nothing_to_sum);
    return numlab_report();
}
