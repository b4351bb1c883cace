/* tests/test_dropout.c -- the dropout mask: a function of the position, with the requested rate, repeatable;
 * and products with dropout. */
#include "numlab.h"

#include "ops/dropout.h"

#include <omp.h>

static Dropout any_drop(float p)
{
    return (Dropout){ p, (uint64_t)num_below(1 << 20) << 30, (uint64_t)num_below(99), num_below(5000),
                   num_below(3) ? num_below(200) : 0, NULL };
}

static bool keeps(Dropout d, int64_t row, int64_t col)
{
    return dropout_keeps(d.seed, d.stream, (uint32_t)(d.row + row), (uint32_t)(d.col + col),
                        dropout_threshold(d.p));
}

/* x after dropout. */
static Tensor thinned(Tensor x, Dropout d)
{
    Tensor y = num_copy(x, (DType)x.dtype);
    for (int64_t i = 0; i < t_count(y) && d.p > 0; i++)
        if (!keeps(d, i / x.n[1], i % x.n[1])) put(y, i, 0);
    return y;
}

static bool equal(Tensor a, Tensor b)
{
    for (int64_t i = 0; i < t_count(a); i++)
        if (get(a, i) != get(b, i)) return false;
    return true;
}

/* Rows as the ops treat them, of f32 and of bf16, in a wider matrix that stays as it was. */
static void rows_by_definition(void)
{
    for (int i = 0; i < 60; i++) {
        DType   t = i & 1 ? BF16 : F32;
        int64_t rows = num_below(6), cols = 1 + num_below(i % 9 ? 80 : 3000), pad = i & 2 ? 5 : 0;
        Tensor  wide = num_randn(t, rows, cols + pad), before = num_copy(wide, t);
        Tensor  x = t_cols(wide, pad / 2, cols), want;
        Dropout    d = any_drop((float)(i % 5) * 0.2f);
        want = thinned(x, d);
        if (t == F32) dropout_f32(x.data, x.s[0], rows, cols, d);
        else          dropout_bf16(x.data, x.s[0], rows, cols, d);
        EXPECT(equal(x, want), "p %g of %d x %d from (%d, %d)", (double)d.p, (int)rows, (int)cols, (int)d.row,
               (int)d.col);
        for (int64_t k = 0; k < rows * (cols + pad); k++) {
            int64_t c = k % (cols + pad);
            bool    beside = c < pad / 2 || c >= pad / 2 + cols;
            EXPECT(!beside || get(wide, k) == get(before, k), "a neighbour was changed");
        }
        num_clear();
    }
}

/* Philox4x32-7, the first of the known answers of its authors. */
static void known_numbers(void)
{
    Rng4 b = dropout_block(0, 0, 0, 0, 0);
    EXPECT(b.v[0] == 0x5f6fb709u && b.v[1] == 0x0d893f64u && b.v[2] == 0x4f121f81u && b.v[3] == 0x4f730a48u,
           "%08x %08x %08x %08x", b.v[0], b.v[1], b.v[2], b.v[3]);
    EXPECT(dropout_threshold(0.5f) == 1 << 15 && dropout_scale(0.5f) == 2, "a half");
    EXPECT(dropout_threshold(0) == 0 && dropout_scale(0) == 1, "nothing");
    EXPECT(dropout_threshold(0.999999f) == 0xffff && dropout_scale(0.999999f) == 0x1p16f, "nearly all");
}

/* Over all of a matrix, and over each of the 32 columns that share four blocks. */
static void as_often_as_asked(void)
{
    for (int i = 1; i < 5; i++) {
        float   p = (float)i * 0.2f;
        int64_t rows = 1024, cols = 256, kept = 0, of[32] = { 0 };
        double  q = 1 - (double)p, all = sqrt(q * (1 - q) / (double)(rows * cols));
        Dropout    d = { p, num_.seed, 1, 0, 0, NULL };
        Tensor  x = num_poison(F32, rows, cols);
        op_fill(BE, x, 1.0f);
        dropout_f32(x.data, x.s[0], rows, cols, d);
        for (int64_t k = 0; k < rows * cols; k++) kept += get(x, k) != 0, of[k % 32] += get(x, k) != 0;
        double share = (double)kept / (double)(rows * cols);
        EXPECT(fabs(share - q) < 6 * all + 0x1p-16, "p %g: %g kept", (double)p, share);
        EXPECT(fabs((double)dropout_scale(p) * q - 1) < 1e-4, "p %g grows by %g", (double)p,
               (double)dropout_scale(p));
        for (int c = 0; c < 32; c++) {
            share = (double)of[c] * 32 / (double)(rows * cols);
            EXPECT(fabs(share - q) < 6 * sqrt(32) * all, "p %g: %g kept of column %d", (double)p, share, c);
        }
        num_clear();
    }
}

static void by_place_alone(void)
{
    int64_t rows = 30, cols = 150;
    Dropout    d = { 0.3f, 5, 9, 100, 7, NULL };
    Tensor  x = num_randn(F32, rows, cols), y = thinned(x, d);
    EXPECT(equal(thinned(t_cols(t_rows(x, 4, 7), 11, 103), dropout_at(d, 4, 11)),
                 t_cols(t_rows(y, 4, 7), 11, 103)), "a part");
    for (int i = 0; i < 4; i++) {
        Dropout other = { 0.3f, 5 + (i == 0), 9 + (i == 1), 100 + (i == 2), 7 + (i == 3), NULL };
        EXPECT(!equal(y, thinned(x, other)), "other numbers, %d", i);
    }
    uint64_t base = 77;
    Dropout  by_address = { 0.3f, 4, 9, 100, 7, &base }, by_value = by_address;
    by_value.base = NULL, by_value.seed = rng_u64(base, 9, 4);
    Tensor z = num_copy(x, F32);
    dropout_f32(z.data, cols, rows, cols, by_address);
    EXPECT(equal(z, thinned(x, by_value)), "number 4 of the stream of a seed in memory");
    num_clear();
}

/* c = scale op(a) op(b) [+ c] where a (NT), b (TN) or the product (NN) has dropout: the plain product of
 * the kept elements. */
static void dense(int mode, bool add, DType in, DType out, int64_t M, int64_t N, int64_t K, Dropout d)
{
    Tensor a = mode == GEMM_TN ? num_randn(in, K, M) : num_randn(in, M, K);
    Tensor b = mode == GEMM_NT ? num_randn(in, N, K) : num_randn(in, K, N);
    Tensor c = num_randn(out, M, N), product = num_poison(F32, M, N), want = num_poison(F32, M, N);
    float  scale = num_below(2) ? 1 : -1.5f;
    op_gemm(BE, product, mode == GEMM_NT ? thinned(a, d) : a, mode == GEMM_TN ? thinned(b, d) : b,
            (Tensor){ 0 }, mode);
    if (mode == GEMM_NN) product = thinned(product, d);
    for (int64_t i = 0; i < M * N; i++) put(want, i, scale * get(product, i) + (add ? get(c, i) : 0));
    op_gemm_scaled(BE, c, a, b, scale, d, mode | (add ? GEMM_ACC : 0));
    EXPECT_CLOSE(c, want, out == F32 ? 1e-5 : 8e-3);
    num_clear();
}

static void dense_products(void)
{
    static const int modes[] = { GEMM_NT, GEMM_NN, GEMM_TN };
    for (int i = 0; i < 72; i++)
        dense(modes[i % 3], i & 1, i & 2 ? BF16 : F32, i & 4 ? BF16 : F32, 1 + num_below(i % 4 ? 20 : 300),
              1 + num_below(i % 5 ? 20 : 200), 1 + num_below(i % 7 ? 60 : 600), any_drop(i % 11 ? 0.4f : 0));
}

/* Grouped products, LoRA terms included, equal the products of each expert's rows. */
static void per_expert(int mode, bool acc, DType in, bool with_lora, bool shared)
{
    int32_t at[] = { 0, 3, 3, 40, 47 };
    int64_t E = 4, R = 50, K = 5 + num_below(60), N = 1 + num_below(60), r = 4, S = shared ? 1 : E;
    bool    tn = mode == GEMM_TN, nt = mode == GEMM_NT;
    Tensor  off = num_i32(5, at), a = num_randn(in, R, K), b, c, want;
    Dropout    d = any_drop(0.4f);
    LoraTerm    lora = { num_randn(in, R, r), t_as3(num_randn(in, S * r, N), S, r, N), d };
    b = tn ? num_randn(in, R, N) : t_as3(num_randn(in, S * K, N), S, nt ? N : K, nt ? K : N);
    c = tn ? t_as3(num_randn(F32, S * K, N), S, K, N) : num_randn(F32, R, N);
    want = tn ? t_as3(num_copy(t_as2(c, S * K, N), F32), S, K, N) : num_copy(c, F32);
    if (with_lora) op_grouped_gemm(BE, c, a, b, off, lora, mode | (acc ? GEMM_ACC : 0));
    else        op_grouped_scaled(BE, c, a, b, off, 2, d, mode | (acc ? GEMM_ACC : 0));
    if (tn && !acc) op_fill(BE, want, 0);
    for (int64_t e = 0; e < E; e++) {
        int64_t n = at[e + 1] - at[e], s = shared ? 0 : e;
        int     flags = mode | (acc || tn ? GEMM_ACC : 0);
        Tensor  ae = t_rows(a, at[e], n), be = tn ? t_rows(b, at[e], n) : t_at(b, s);
        Tensor  ce = tn ? t_at(want, s) : t_rows(want, at[e], n);
        Dropout    here = dropout_at(d, at[e], 0);
        if (!with_lora) op_gemm_scaled(BE, ce, ae, be, 2, here, flags);
        else         op_gemm(BE, ce, ae, be, (Tensor){ 0 }, flags);
        if (with_lora)
            op_gemm_scaled(BE, ce, t_rows(lora.low_rank, at[e], n), t_at(lora.w, s), 1, here,
                           mode | GEMM_ACC);
    }
    EXPECT_CLOSE(c, want, 1e-5);
    num_clear();
}

static void products_per_expert(void)
{
    for (int i = 0; i < 32; i++) {
        per_expert(GEMM_NT, i & 1, i & 2 ? BF16 : F32, false, i & 4);
        per_expert(GEMM_NN, i & 1, i & 2 ? BF16 : F32, i & 8, i & 4);
        per_expert(GEMM_TN, i & 1, i & 2 ? BF16 : F32, false, i & 4);
    }
}

static void threads_do_not_matter(void)
{
    int    threads = omp_get_max_threads();
    Tensor a = num_randn(BF16, 300, 1000), b = num_randn(BF16, 40, 1000), c[2];
    for (int i = 0; i < 2; i++) {
        omp_set_num_threads(i ? 1 : threads);
        c[i] = num_poison(F32, 300, 40);
        op_gemm_scaled(BE, c[i], a, b, 2, (Dropout){ 0.5f, 1, 2, 3, 4, NULL }, GEMM_NT);
    }
    omp_set_num_threads(threads);
    EXPECT(equal(c[0], c[1]), "threads change bits");
    num_clear();
}

/* Nothing is written but the product. */
static void priced(void)
{
    Tensor a = num_zeros(BF16, 4, 8), b = num_zeros(BF16, 2, 8), c = num_zeros(F32, 4, 2);
    Cost   x = gemm_scaled_cost(BE, c, a, b, 2, (Dropout){ 0.5f, 1, 2, 3, 4, NULL }, GEMM_NT);
    EXPECT(x.flops == 2 * 4 * 2 * 8 && x.rd == 2 * (32 + 16) && x.wr == 4 * 8, "%g flops, rd %d wr %d",
           x.flops, (int)x.rd, (int)x.wr);
    num_clear();
}

int main(void)
{
    numlab_open();
    RUN(known_numbers);
    RUN(rows_by_definition);
    RUN(as_often_as_asked);
    RUN(by_place_alone);
    RUN(dense_products);
    RUN(products_per_expert);
    RUN(threads_do_not_matter);
    RUN(priced);
    return numlab_report();
}
