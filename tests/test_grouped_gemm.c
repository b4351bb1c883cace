/* tests/test_grouped_gemm.c -- products per expert: uneven, empty and single experts, padding rows, bits; and
 * fused with their activation. */
#include "numlab.h"

#include <omp.h>

static const LoraTerm none = { 0 };
static const int modes[] = { GEMM_NT, GEMM_NN, GEMM_TN };

static Tensor poison3(DType d, int64_t n0, int64_t n1, int64_t n2)
{
    return t_as3(num_poison(d, n0 * n1, n2), n0, n1, n2);
}

/* x read by expert, row and column; a rank-2 x is the same for all experts. */
static double at3(Tensor x, int64_t e, int64_t i, int64_t j)
{
    return get(x, x.rank == 3 ? (e * x.n[1] + i) * x.n[2] + j : i * x.n[1] + j);
}

/* The definition, in double; padding rows keep what they hold. */
static Tensor reference(Tensor start, Tensor a, Tensor b, Tensor offsets, int mode, bool acc)
{
    const int32_t *off = offsets.data;
    Tensor c = num_copy(start, F32);
    for (int64_t e = 0; e < offsets.n[0] - 1; e++) {
        int64_t rows = mode == GEMM_TN ? a.n[1] : off[e + 1] - off[e], N = c.n[c.rank - 1];
        int64_t K = mode == GEMM_TN ? off[e + 1] - off[e] : a.n[1];
        for (int64_t i = 0; i < rows * N; i++) {
            int64_t m = i / N, n = i % N, at = ((mode == GEMM_TN ? e * rows : off[e]) + m) * N + n;
            double  sum = acc ? get(start, at) : 0;
            for (int64_t k = 0; k < K; k++)
                sum += mode == GEMM_TN ? at3(a, e, off[e] + k, m) * at3(b, e, off[e] + k, n)
                     : at3(a, e, off[e] + m, k) * (mode == GEMM_NT ? at3(b, e, n, k) : at3(b, e, k, n));
            put(c, at, (float)sum);
        }
    }
    return c;
}

/* How `used` rows fall on E experts. */
typedef enum { RANDOM, ALL_IN_ONE, ONE_EACH, NONE, SPREADS } Spread;

static Tensor make_offsets(int64_t E, int64_t *used, Spread spread)
{
    Tensor   t = num_i32(E + 1, NULL);
    int32_t *off = t.data;
    if (spread == ONE_EACH) *used = E;
    if (spread == NONE)     *used = 0;
    for (int64_t e = 0; e <= E; e++)
        off[e] = spread == ONE_EACH ? (int32_t)e : spread == ALL_IN_ONE ? (e > E / 2 ? (int32_t)*used : 0)
               : e == 0 || spread == NONE ? 0 : e == E ? (int32_t)*used
               : off[e - 1] + (e % 3 ? (int32_t)num_below(*used - off[e - 1] + 1) / 2 : 0);
    return t;
}

static void known_values(void)
{
    Tensor a = num_vals(F32, 3, 2, (float[]){ 1, 2, 3, 4, 5, 6 }), off = num_i32(3, (int32_t[]){ 0, 1, 3 });
    Tensor b = t_as3(num_vals(F32, 2, 2, (float[]){ 1, 1, 1, -1 }), 2, 1, 2);      /* two experts, N = 1 */
    Tensor c = num_poison(F32, 3, 1), d = poison3(F32, 2, 2, 1);
    op_grouped_gemm(BE, c, a, b, off, none, GEMM_NT);
    EXPECT_CLOSE(c, num_vals(F32, 3, 1, (float[]){ 3, -1, -1 }), 0);
    op_grouped_gemm(BE, d, a, c, off, none, GEMM_TN);
    EXPECT_CLOSE(t_as2(d, 2, 2), num_vals(F32, 2, 2, (float[]){ 3, 6, -8, -10 }), 0);
    op_grouped_gemm(BE, d, a, c, off, none, GEMM_TN | GEMM_ACC);
    EXPECT_CLOSE(t_as2(d, 2, 2), num_vals(F32, 2, 2, (float[]){ 6, 12, -16, -20 }), 0);
    num_clear();
}

/* One random case. Padding rows hold NaN in every operand: they must be neither read nor written. */
static void run_case(int mode, bool acc, DType in, DType out, Spread spread, int64_t E, int64_t rows,
                     int64_t N, int64_t K)
{
    Tensor  off = make_offsets(E, &rows, spread);
    int64_t R = rows + 5;
    Tensor  a = num_poison(in, R, K + 2), b, c;
    a = t_cols(a, 1, K);
    Tensor  fill = num_randn(F32, rows, K);
    for (int64_t i = 0; i < rows * K; i++) put(a, i, get(fill, i));
    if (mode == GEMM_TN) {
        b = num_poison(in, R, N), fill = num_randn(F32, rows, N);
        for (int64_t i = 0; i < rows * N; i++) put(b, i, get(fill, i));
        c = poison3(out, E, K, N);
    } else {
        b = t_as3(num_randn(in, E * N, K), E, mode == GEMM_NT ? N : K, mode == GEMM_NT ? K : N);
        c = num_poison(out, R, N);
    }
    if (acc) for (int64_t i = 0; i < (mode == GEMM_TN ? E * K * N : rows * N); i++) put(c, i, (float)(i % 7));
    Tensor want = reference(c, a, b, off, mode, acc);
    op_grouped_gemm(BE, c, a, b, off, none, mode | (acc ? GEMM_ACC : 0));
    if (mode == GEMM_TN) EXPECT_CLOSE(c, want, out == F32 ? 1e-5 : 5e-3);
    else EXPECT_CLOSE(t_rows(c, 0, rows), t_rows(want, 0, rows), out == F32 ? 1e-5 : 5e-3);
    for (int64_t i = rows * N; mode != GEMM_TN && i < R * N; i++)
        EXPECT(isnan(get(c, i)), "row %d past the last expert was written", (int)(i / N));
    num_clear();
}

static void agrees_with_definition(void)
{
    for (int i = 0; i < 96; i++)
        run_case(modes[i % 3], i / 3 % 2, i / 6 % 2 ? BF16 : F32, i / 12 % 2 ? BF16 : F32,
                 (Spread)(i / 24 % SPREADS), 1 + num_below(7), 1 + num_below(60), 1 + num_below(40),
                 1 + num_below(50));
}

/* More rows and columns than a tile holds, in experts that begin anywhere. */
static void crosses_tiles(void)
{
    for (int i = 0; i < 3; i++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            run_case(modes[i], false, bf16 ? BF16 : F32, F32, i == 1 ? ALL_IN_ONE : RANDOM, 3,
                     i == 2 ? 70 : 600, i == 2 ? 300 : 70, i == 2 ? 270 : 40);
}

/* c is that of grouped_gemm to the bit, and every strip has its squares. */
static void strips_are_squared(void)
{
    static const int64_t sizes[][2] = { { 1, 1 }, { 16, 256 }, { 17, 257 }, { 130, 300 }, { 40, 700 } };
    for (int i = 0; i < 10; i++) {
        int64_t E = 1 + num_below(4), R = 30, M = sizes[i / 2][0], N = sizes[i / 2][1], n[] = { E, M, N };
        int64_t parts = grouped_squares_parts(n), down = (M + 127) / 128 * 8, across = (N + 255) / 256;
        Tensor  off = make_offsets(E, &R, (Spread)(i % SPREADS)), a = num_randn(i & 1 ? BF16 : F32, R, M);
        Tensor  b = num_randn((DType)a.dtype, R, N), c = poison3(F32, E, M, N), want = poison3(F32, E, M, N);
        Tensor  squares = num_poison(F32, 1, parts);
        squares = t_wrap(squares.data, F32, 1, &parts);
        double *sum = calloc((size_t)parts, sizeof *sum);
        op_grouped_gemm(BE, want, a, b, off, none, GEMM_TN);
        op_grouped_squares(BE, c, squares, a, b, off);
        EXPECT(!memcmp(c.data, want.data, (size_t)t_bytes(c)), "%d x %d: other bits", (int)M, (int)N);
        for (int64_t k = 0; k < E * M * N; k++) {
            int64_t strip = (k / (M * N) * down + k / N % M / 16) * across + k % N / 256;
            sum[strip] += get(want, k) * get(want, k);
        }
        EXPECT(parts == E * down * across, "%d strips", (int)parts);
        for (int64_t k = 0; k < parts; k++)
            EXPECT(fabs(sum[k] - get(squares, k)) <= 1e-6 * sum[k], "strip %d: %g", (int)k, get(squares, k));
        free(sum);
        num_clear();
    }
}

static void equal_bits(void)
{
    int threads = omp_get_max_threads();
    for (int i = 0; i < 6; i++) {
        int     mode = modes[i % 3];
        int64_t E = 5, R = 300, N = 130, K = 70;
        DType   d = i / 3 ? BF16 : F32;
        Tensor  off = make_offsets(E, &R, RANDOM), a = num_randn(d, R, K);
        Tensor  b = mode == GEMM_TN ? num_randn(d, R, N)
                  : t_as3(num_randn(d, E * N, K), E, mode == GEMM_NT ? N : K, mode == GEMM_NT ? K : N);
        Tensor  c[2];
        for (int run = 0; run < 2; run++) {
            c[run] = mode == GEMM_TN ? poison3(F32, E, K, N) : num_poison(F32, R, N);
            omp_set_num_threads(run ? 1 : threads);
            op_grouped_gemm(BE, c[run], a, b, off, none, mode);
        }
        omp_set_num_threads(threads);
        EXPECT(!memcmp(c[0].data, c[1].data, (size_t)t_bytes(c[0])), "mode %d: threads change bits", mode);
        num_clear();
    }
}

static bool same_rows(Tensor a, Tensor b, int64_t rows)
{
    a = t_rows(a, 0, rows);
    return !memcmp(a.data, b.data, (size_t)t_bytes(a));
}

/* Columns of a wider matrix. */
static Tensor inner(DType d, int64_t rows, int64_t cols)
{
    return t_cols(num_poison(d, rows, cols + 5), 3, cols);
}

static void fused_forward(DType d, Spread spread, bool gated, bool views)
{
    int64_t E = 5, rows = 90, D = 24, F = 17, R = 100;
    Tensor  absent = { 0 }, off = make_offsets(E, &rows, spread), a = num_randn(d, R, D);
    Tensor  w = t_as3(num_randn(d, E * 2 * F, D), E, 2 * F, D), gate = gated ? num_randn(F32, R, 1) : absent;
    Tensor  gu = num_poison(d, R, 2 * F), h = num_poison(d, R, F);
    Tensor  gu2 = views ? inner(d, R, 2 * F) : num_poison(d, R, 2 * F);
    Tensor  h2  = views ? inner(d, R, F) : num_poison(d, R, F);
    op_grouped_gemm(BE, gu, a, w, off, none, GEMM_NT);
    op_swiglu_fwd(BE, h, gu, gate, off);
    op_grouped_swiglu(BE, gu2, h2, a, w, off, gate, none);
    EXPECT(same_rows(gu, num_copy(gu2, d), rows) && same_rows(h, num_copy(h2, d), rows), "spread %d", spread);
    num_clear();
}

static void fused_backward(DType d, Spread spread, bool gated, bool views)
{
    int64_t E = 5, rows = 90, D = 24, F = 17, R = 100;
    Tensor  absent = { 0 }, off = make_offsets(E, &rows, spread), dout = num_randn(d, R, D);
    Tensor  w = t_as3(num_randn(d, E * D, F), E, D, F), gate = gated ? num_randn(F32, R, 1) : absent;
    Tensor  gu = num_randn(d, R, 2 * F), dh = num_poison(d, R, F), dgu = num_poison(d, R, 2 * F);
    Tensor  dgate = gated ? num_poison(F32, R, 1) : absent, dgate2 = gated ? num_poison(F32, R, 1) : absent;
    Tensor  dgu2 = views ? inner(d, R, 2 * F) : num_poison(d, R, 2 * F);
    op_grouped_gemm(BE, dh, dout, w, off, none, GEMM_NN);
    op_swiglu_bwd(BE, dgu, dgate, dh, gu, gate);
    op_grouped_dswiglu(BE, dgu2, dgate2, dout, w, off, gu, gate, none);
    EXPECT(same_rows(dgu, num_copy(dgu2, d), rows), "dgu, spread %d", spread);
    if (gated) EXPECT(same_rows(dgate, dgate2, rows), "dgate, spread %d", spread);
    num_clear();
}

static void fused_is_separate(void)
{
    for (int i = 0; i < SPREADS * 8; i++) {
        fused_forward(i & 1 ? BF16 : F32, (Spread)(i / 8), i & 2, i & 4);
        fused_backward(i & 1 ? BF16 : F32, (Spread)(i / 8), i & 2, i & 4);
    }
}

static void no_experts(void)
{
    Tensor off = num_i32(1, (int32_t[]){ 0 }), c = num_poison(F32, 4, 3);
    op_grouped_gemm(BE, c, num_randn(F32, 4, 2), t_as3(num_zeros(F32, 0, 2), 0, 3, 2), off, none, GEMM_NT);
    for (int i = 0; i < 12; i++) EXPECT(isnan(get(c, i)), "element %d was written", i);
    num_clear();
}

static void priced(void)
{
    Tensor off = num_i32(3, (int32_t[]){ 0, 0, 1 }), a = num_randn(BF16, 9, 4);
    Tensor b = t_as3(num_randn(BF16, 10, 4), 2, 5, 4), c = num_zeros(F32, 9, 5);
    Cost   cost = grouped_gemm_cost(BE, c, a, b, off, none, GEMM_NT);
    EXPECT(cost.flops == 2 * 9 * 4 * 5 && cost.wr == 4 * 45, "%g flops, %d bytes", cost.flops, (int)cost.wr);
    Tensor gu = num_zeros(BF16, 9, 6), h = num_zeros(BF16, 9, 3), gate = num_zeros(F32, 9, 1);
    cost = grouped_swiglu_cost(BE, gu, h, a, t_as3(num_zeros(BF16, 12, 4), 2, 6, 4), off, gate, none);
    EXPECT(cost.flops == 2 * 9 * 4 * 6 && cost.wr == 2 * 81, "%g flops, %d bytes", cost.flops, (int)cost.wr);
    Tensor dgu = num_zeros(BF16, 9, 6), dgate = num_zeros(F32, 9, 1);
    cost = grouped_dswiglu_cost(BE, dgu, dgate, a, t_as3(num_zeros(BF16, 8, 3), 2, 4, 3), off, gu, gate,
                                none);
    EXPECT(cost.flops == 2 * 9 * 4 * 3 && cost.wr == 2 * 54 + 36, "%g flops, %d bytes", cost.flops,
           (int)cost.wr);
    num_clear();
}

int main(void)
{
    numlab_open();
    RUN(known_values);
    RUN(agrees_with_definition);
    RUN(crosses_tiles);
    RUN(strips_are_squared);
    RUN(equal_bits);
    RUN(fused_is_separate);
    RUN(no_experts);
    RUN(priced);
    return numlab_report();
}
