/* tests/test_gemm.c -- gemm in all modes and dtypes, every bf16 path that this CPU has, scaled; colsum. */
#include "numlab.h"
#include "ops/cpu/gemm_bf16.h"

static const Tensor none;
static const int modes[] = { GEMM_NT, GEMM_NN, GEMM_TN };

static bool same_bits(Tensor a, Tensor b) { return !memcmp(a.data, b.data, (size_t)t_bytes(a)); }

/* op(x) as a dense matrix of doubles. */
static double *operand(Tensor x, bool transpose)
{
    double *d = malloc((size_t)(t_count(x) + 1) * sizeof *d);
    for (int64_t i = 0; i < t_count(x); i++)
        d[transpose ? i % x.n[1] * x.n[0] + i / x.n[1] : i] = get(x, i);
    return d;
}

/* The definition, in double; start is c before the call or absent. */
static Tensor reference(Tensor start, Tensor a, Tensor b, Tensor bias, int mode)
{
    int64_t M = a.n[mode == GEMM_TN], K = a.n[mode != GEMM_TN], N = b.n[mode != GEMM_NT];
    double *A = operand(a, mode == GEMM_TN), *B = operand(b, mode == GEMM_NT);
    double *row = malloc((size_t)(N + 1) * sizeof *row);
    Tensor  c = num_poison(F32, M, N);
    for (int64_t m = 0; m < M; m++) {
        for (int64_t n = 0; n < N; n++)
            row[n] = (t_has(start) ? get(start, m * N + n) : 0) + (t_has(bias) ? get(bias, n) : 0);
        for (int64_t k = 0; k < K; k++)
            for (int64_t n = 0; n < N; n++) row[n] += A[m * K + k] * B[k * N + n];
        for (int64_t n = 0; n < N; n++) put(c, m * N + n, (float)row[n]);
    }
    free(A), free(B), free(row);
    return c;
}

static Tensor left(DType d, int mode, int64_t M, int64_t K)
{
    return mode == GEMM_TN ? num_randn(d, K, M) : num_randn(d, M, K);
}
static Tensor right(DType d, int mode, int64_t N, int64_t K)
{
    return mode == GEMM_NT ? num_randn(d, N, K) : num_randn(d, K, N);
}

/* Inputs are what they are, so only sums (f32) and the last rounding (bf16) may differ. */
static double tolerance(Tensor c) { return c.dtype == F32 ? 2e-5 : 5e-3; }

static void known_values(void)
{
    Tensor a = num_vals(F32, 2, 3, (float[]){ 1, 2, 3, 4, 5, 6 });
    Tensor b = num_vals(F32, 2, 3, (float[]){ 1, 0, -1, 2, 1, 0 });
    Tensor s = num_vals(F32, 3, 2, (float[]){ 1, 2, 0, 1, -1, 0 });
    Tensor bias = num_vals(F32, 1, 2, (float[]){ 10, 20 });
    Tensor c = num_poison(F32, 2, 2), d = num_poison(F32, 3, 3);
    op_gemm(BE, c, a, b, none, GEMM_NT);
    EXPECT_CLOSE(c, num_vals(F32, 2, 2, (float[]){ -2, 4, -2, 13 }), 0);
    op_gemm(BE, c, a, b, bias, GEMM_NT | GEMM_ACC);
    EXPECT_CLOSE(c, num_vals(F32, 2, 2, (float[]){ 6, 28, 6, 46 }), 0);
    op_gemm(BE, c, a, s, bias, GEMM_NN);
    EXPECT_CLOSE(c, num_vals(F32, 2, 2, (float[]){ 8, 24, 8, 33 }), 0);
    op_gemm(BE, d, a, b, none, GEMM_TN);
    EXPECT_CLOSE(d, num_vals(F32, 3, 3, (float[]){ 9, 4, -1, 12, 5, -2, 15, 6, -3 }), 0);
    num_clear();
}

static void agrees_with_definition(void)
{
    for (int i = 0; i < 96; i++) {
        int64_t M = 1 + num_below(70), N = 1 + num_below(90), K = 1 + num_below(130);
        int     mode = modes[i % 3], acc = i / 3 % 2 ? GEMM_ACC : 0;
        DType   in = i / 6 % 2 ? BF16 : F32, out = i / 12 % 2 ? BF16 : F32;
        Tensor  a = left(in, mode, M, K), b = right(in, mode, N, K);
        Tensor  bias = i / 24 % 2 ? num_randn(i % 5 ? F32 : BF16, 1, N) : none;
        Tensor  c = acc ? num_randn(out, M, N) : num_poison(out, M, N);
        Tensor  want = reference(acc ? c : none, a, b, bias, mode);
        op_gemm(BE, c, a, b, bias, mode | acc);
        EXPECT_CLOSE(c, want, tolerance(c));
        num_clear();
    }
}

/* Larger than a tile in every direction. */
static void crosses_tiles(void)
{
    for (int i = 0; i < 3; i++) {
        Tensor a = left(BF16, modes[i], TILE_M + 37, 600), b = right(BF16, modes[i], TILE_N + 45, 600);
        Tensor c = num_poison(F32, TILE_M + 37, TILE_N + 45), h = num_poison(BF16, TILE_M + 37, TILE_N + 45);
        Tensor want = reference(none, a, b, none, modes[i]);
        op_gemm(BE, c, a, b, none, modes[i]);
        op_gemm(BE, h, a, b, none, modes[i]);
        EXPECT_CLOSE(c, want, tolerance(c));
        EXPECT_CLOSE(h, want, tolerance(h));
        num_clear();
    }
}

/* Operands cut out of wider matrices; the frame around c stays as it was. */
static void keeps_to_its_view(void)
{
    for (int i = 0; i < 12; i++) {
        int     mode = modes[i % 3];
        DType   in = i / 3 % 2 ? BF16 : F32, out = i / 6 % 2 ? BF16 : F32;
        int64_t M = 33, N = 41, K = 29;
        Tensor  a = left(in, mode, M + 5, K + 5), b = right(in, mode, N + 9, K + 9);
        Tensor  frame = num_poison(out, M + 2, N + 7);
        a = mode == GEMM_TN ? t_cols(t_rows(a, 2, K), 3, M) : t_cols(t_rows(a, 2, M), 3, K);
        b = mode == GEMM_NT ? t_cols(t_rows(b, 1, N), 4, K) : t_cols(t_rows(b, 1, K), 4, N);
        Tensor c = t_cols(t_rows(frame, 1, M), 3, N);
        op_gemm(BE, c, a, b, none, mode);
        EXPECT_CLOSE(c, reference(none, a, b, none, mode), tolerance(c));
        for (int64_t r = 0; r < M + 2; r++)
            for (int64_t n = 0; n < N + 7; n++)
                if (r < 1 || r > M || n < 3 || n >= N + 3)
                    EXPECT(isnan(get(frame, r * (N + 7) + n)), "(%d, %d) was written", (int)r, (int)n);
        num_clear();
    }
}

static void empty_extents(void)
{
    for (int i = 0; i < 12; i++) {
        int    mode = modes[i % 3];
        DType  in = i / 3 % 2 ? BF16 : F32, out = i / 6 ? BF16 : F32;
        Tensor bias = num_randn(F32, 1, 4), c = num_poison(out, 3, 4), zero = num_zeros(F32, 3, 4);
        op_gemm(BE, c, left(in, mode, 3, 0), right(in, mode, 4, 0), none, mode);
        EXPECT_CLOSE(c, zero, 0);
        op_gemm(BE, c, left(in, mode, 3, 0), right(in, mode, 4, 0), bias, mode | GEMM_ACC);
        EXPECT_CLOSE(t_rows(c, 2, 1), bias, tolerance(c));
        op_gemm(BE, num_poison(out, 0, 4), left(in, mode, 0, 5), right(in, mode, 4, 5), bias, mode);
        op_gemm(BE, num_poison(out, 3, 0), left(in, mode, 3, 5), right(in, mode, 0, 5), none, mode);
        num_clear();
    }
}

static void bf16_follows_f32(void)
{
    Tensor a = num_randn(F32, 65, 200), b = num_randn(F32, 50, 200);
    Tensor c = num_poison(F32, 65, 50), h = num_poison(BF16, 65, 50);
    op_gemm(BE, c, a, b, none, GEMM_NT);
    op_gemm(BE, h, num_copy(a, BF16), num_copy(b, BF16), none, GEMM_NT);
    EXPECT_CLOSE(h, c, 2e-2);
    num_clear();
}

/* One way of multiplying bf16, with odd sizes, views and all modes; PLAIN models what the units are given. */
static void path_agrees(Bf16Path path)
{
    for (int i = 0; i < 30; i++) {
        int64_t M = 1 + num_below(i < 27 ? 80 : 300), N = 1 + num_below(i < 27 ? 90 : 600);
        int64_t K = 1 + num_below(150);
        int     mode = modes[i % 3], acc = i / 3 % 2 ? GEMM_ACC : 0;
        if (i == 9) K = 1100;                               /* more than one block of terms */
        Tensor  a = left(BF16, mode, M + 1, K + 3), b = right(BF16, mode, N + 1, K + 3);
        a = mode == GEMM_TN ? t_cols(t_rows(a, 3, K), 1, M) : t_cols(t_rows(a, 1, M), 3, K);
        b = mode == GEMM_NT ? t_cols(t_rows(b, 1, N), 3, K) : t_cols(t_rows(b, 3, K), 1, N);
        Tensor  bias = i / 6 % 2 ? num_randn(BF16, 1, N) : none;
        Tensor  frame = num_randn(i / 12 % 2 ? BF16 : F32, M, N + 2), c = t_cols(frame, 1, N);
        Tensor  edge = num_copy(t_cols(frame, N + 1, 1), F32);
        Tensor  want = reference(acc ? c : none, a, b, bias, mode);
        gemm_with(path, BE, c, a, b, bias, mode | acc);
        EXPECT_CLOSE(c, want, tolerance(c));
        EXPECT_CLOSE(t_cols(frame, N + 1, 1), edge, 0);
        num_clear();
    }
}
static void path_widen(void) { path_agrees(BF16_WIDEN); }
static void path_plain(void) { path_agrees(BF16_PLAIN); }
static void path_dot(void)
{
    if (!gemm_bf16_has(BF16_DOT)) SKIP("this CPU has no AVX512-BF16");
    path_agrees(BF16_DOT);
}
static void path_amx(void)
{
    if (!gemm_bf16_has(BF16_AMX)) SKIP("this CPU has no AMX-BF16");
    path_agrees(BF16_AMX);
}

static void equal_bits(void)
{
    int threads = omp_get_max_threads();
    for (int i = 0; i < 6; i++) {
        int    mode = modes[i % 3];
        Tensor a = left(BF16, mode, 130, 333), b = right(BF16, mode, 150, 333);
        Tensor c = num_poison(i / 3 ? BF16 : F32, 130, 150), d = num_poison(i / 3 ? BF16 : F32, 130, 150);
        Tensor f = num_poison(F32, 130, 150), g = num_poison(F32, 130, 150);
        Tensor x = num_copy(a, F32), y = num_copy(b, F32);
        op_gemm(BE, c, a, b, none, mode);
        op_gemm(BE, f, x, y, none, mode);
        op_gemm(BE, g, x, y, none, mode);
        omp_set_num_threads(1);
        op_gemm(BE, d, a, b, none, mode);
        omp_set_num_threads(threads);
        EXPECT(same_bits(c, d), "bf16 %d: threads change the bits", mode);
        EXPECT(same_bits(f, g), "f32 %d: two runs differ", mode);
        num_clear();
    }
}

static void colsum_known(void)
{
    Tensor y = num_vals(F32, 1, 3, (float[]){ 1, 1, 1 });
    op_colsum(BE, y, num_vals(BF16, 2, 3, (float[]){ 1, 2, 3, 4, 5, 6 }));
    EXPECT_CLOSE(y, num_vals(F32, 1, 3, (float[]){ 6, 8, 10 }), 0);
    op_colsum(BE, y, num_zeros(F32, 0, 3));
    EXPECT_CLOSE(y, num_vals(F32, 1, 3, (float[]){ 6, 8, 10 }), 0);
    op_colsum(BE, num_zeros(F32, 1, 0), num_zeros(F32, 5, 0));
    num_clear();
}

static void colsum_agrees(void)
{
    int threads = omp_get_max_threads();
    for (int i = 0; i < 12; i++) {
        int64_t T = 1 + num_below(200), N = i == 7 ? 4111 : 1 + num_below(300);
        Tensor  x = t_cols(num_randn(i % 2 ? BF16 : F32, T, N + 3), 2, N), y = num_randn(F32, 1, N);
        Tensor  again = num_copy(y, F32), want = num_copy(y, F32);
        for (int64_t n = 0; n < N; n++) {
            double sum = get(y, n);
            for (int64_t t = 0; t < T; t++) sum += get(x, t * N + n);
            put(want, n, (float)sum);
        }
        op_colsum(BE, y, x);
        omp_set_num_threads(1);
        op_colsum(BE, again, x);
        omp_set_num_threads(threads);
        EXPECT_CLOSE(y, want, 1e-5);
        EXPECT(same_bits(y, again), "threads change the bits");
        num_clear();
    }
}

/* scale op(a) op(b) [+ c] into columns of a wider matrix, which stays as it was beside them. */
static void scaled(void)
{
    for (int i = 0; i < 48; i++) {
        int     mode = modes[i % 2];
        bool    add = i & 2;
        DType   in = i & 4 ? BF16 : F32, out = i & 8 ? BF16 : F32;
        int64_t M = i & 16 ? 1 + num_below(8) : 1 + num_below(90), N = 1 + num_below(70), K = num_below(90);
        float   scale = i % 3 ? 0.125f : -3.0f;
        Tensor  a = left(in, mode, M, K), b = right(in, mode, N, K), wide = num_poison(out, M, N + 5);
        Tensor  c = t_cols(wide, 2, N), want;
        for (int64_t k = 0; k < M * N && add; k++) put(c, k, (float)(k % 5));
        want = reference(none, a, b, none, mode);
        for (int64_t k = 0; k < M * N; k++) put(want, k, scale * get(want, k) + (add ? get(c, k) : 0));
        op_gemm_scaled(BE, c, a, b, scale, (Dropout){ 0 }, mode | (add ? GEMM_ACC : 0));
        EXPECT_CLOSE(c, want, tolerance(c));
        for (int64_t k = 0; k < M * (N + 5); k++) {
            bool beside = k % (N + 5) < 2 || k % (N + 5) >= N + 2;
            EXPECT(!beside || isnan(get(wide, k)), "a neighbour was written");
        }
        num_clear();
    }
    Tensor a = num_randn(F32, 70, 20), b = num_randn(F32, 30, 20);
    Tensor c = num_poison(F32, 70, 30), d = num_poison(F32, 70, 30);
    op_gemm(BE, c, a, b, none, GEMM_NT);
    op_gemm_scaled(BE, d, a, b, 1, (Dropout){ 0 }, GEMM_NT);
    EXPECT(same_bits(c, d), "a factor of 1 changes bits");
    num_clear();
}

static void priced(void)
{
    Tensor a = num_randn(BF16, 3, 5), b = num_randn(BF16, 7, 5), c = num_zeros(F32, 3, 7);
    Cost   cost = gemm_cost(BE, c, a, b, none, GEMM_NT | GEMM_ACC);
    EXPECT(cost.flops == 2 * 3 * 5 * 7 && cost.rd == 2 * (15 + 35) + 4 * 21 && cost.wr == 4 * 21,
           "%g flops, %d, %d", cost.flops, (int)cost.rd, (int)cost.wr);
    num_clear();
}

/* The fused forms are the ops they are made of. */
static void fused_is_separate(void)
{
    for (int i = 0; i < 12; i++) {
        DType   d = i % 2 ? BF16 : F32;
        Gelu    kind = i % 4 < 2 ? GELU_TANH : GELU_ERF;
        int64_t M = 1 + 7 * i, N = 3 + 5 * i, K = 2 + 9 * i;
        Tensor  a = num_randn(d, M, K), b = num_randn(d, N, K), bias = num_randn(d, 1, N),
                res = num_randn(d, M, N);
        Tensor  y = num_poison(d, M, N), z = num_poison(d, M, N), pre = num_poison(d, M, N),
                pre2 = num_poison(d, M, N);
        op_gemm_residual(BE, y, res, a, b, bias);
        op_copy(BE, z, res);
        op_gemm(BE, z, a, b, bias, GEMM_NT | GEMM_ACC);
        EXPECT(same_bits(y, z), "gemm_residual %s", t_fmt(y));
        op_gemm_gelu(BE, y, pre, a, b, bias, kind);
        op_gemm(BE, pre2, a, b, bias, GEMM_NT);
        op_gelu_fwd(BE, z, pre2, kind);
        EXPECT(same_bits(y, z) && same_bits(pre, pre2), "gemm_gelu %s", t_fmt(y));
        Tensor dy = num_randn(d, M, K), w = num_randn(d, K, N);
        op_gemm_dgelu(BE, y, dy, w, pre, kind);
        op_gemm(BE, z, dy, w, none, GEMM_NN);
        op_gelu_bwd(BE, z, z, pre, kind);
        EXPECT(same_bits(y, z), "gemm_dgelu %s", t_fmt(y));
        num_clear();
    }
}

int main(void)
{
    numlab_open();
    RUN(known_values);
    RUN(agrees_with_definition);
    RUN(crosses_tiles);
    RUN(keeps_to_its_view);
    RUN(empty_extents);
    RUN(bf16_follows_f32);
    RUN(path_widen);
    RUN(path_plain);
    RUN(path_dot);
    RUN(path_amx);
    RUN(equal_bits);
    RUN(colsum_known);
    RUN(colsum_agrees);
    RUN(fused_is_separate);
    RUN(scaled);
    RUN(priced);
    return numlab_report();
}
