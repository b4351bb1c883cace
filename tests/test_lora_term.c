/* tests/test_lora_term.c -- grouped products with a LoRA term, with a scale, and with matrices that all
 * experts share. */
#include "numlab.h"

#include <omp.h>

static const int64_t ranks[] = { 1, 3, 8, 16, 64 };
static const LoraTerm    none = { 0 };

static Tensor randn3(DType d, int64_t n0, int64_t n1, int64_t n2)
{
    return t_as3(num_randn(d, n0 * n1, n2), n0, n1, n2);
}
static double at3(Tensor x, int64_t e, int64_t i, int64_t j)
{
    return get(x, ((x.n[0] == 1 ? 0 : e) * x.n[1] + i) * x.n[2] + j);
}

/* Experts with any number of rows, some with none. */
static Tensor make_offsets(int64_t E, int64_t *rows)
{
    Tensor   t = num_i32(E + 1, NULL);
    int32_t *off = t.data;
    off[0] = 0;
    for (int64_t e = 0; e < E; e++) off[e + 1] = off[e] + (int32_t)(num_below(3) ? num_below(2 * *rows) : 0);
    *rows = off[E];
    return t;
}

/* Columns of a wider matrix, with padding rows after the first `used`: reading one shows as NaN. */
static Tensor routed(DType d, int64_t used, int64_t spare, int64_t cols)
{
    Tensor t = t_cols(num_poison(d, used + spare, cols + 4), 3, cols), fill = num_randn(F32, used, cols);
    for (int64_t i = 0; i < used * cols; i++) put(t, i, get(fill, i));
    return t;
}

/* c += scale (rows of a times b of their expert), in double. */
static void add_product(double *c, Tensor a, Tensor b, Tensor offsets, double scale, int mode)
{
    const int32_t *off = offsets.data;
    int64_t N = mode == GEMM_NT ? b.n[1] : b.n[2], K = a.n[1];
    for (int64_t e = 0; e < offsets.n[0] - 1; e++)
        for (int64_t i = off[e] * N; i < off[e + 1] * N; i++)
            for (int64_t k = 0; k < K; k++)
                c[i] += scale * get(a, i / N * K + k) *
                        (mode == GEMM_NT ? at3(b, e, i % N, k) : at3(b, e, k, i % N));
}

/* Compares c with the expected result; rows past the last expert's must still be poisoned. */
static void compare(Tensor c, const double *want, int64_t used, double tol)
{
    int64_t N = c.n[1];
    double  big = 1, worst = 0;                             /* scale of the sums, should they cancel */
    for (int64_t i = 0; i < used * N; i++) big = fmax(big, fabs(want[i]));
    for (int64_t i = 0; i < used * N; i++) worst = fmax(worst, fabs(get(c, i) - want[i]) / big);
    EXPECT(worst <= tol, "error %.3g, c%s", worst, t_fmt(c));
    for (int64_t i = used * N; i < c.n[0] * N; i++)
        EXPECT(isnan(get(c, i)), "row %d past the last expert was written", (int)(i / N));
}

typedef struct Case { int mode; bool acc, shared; DType in, out; int64_t E, rows, N, K, r; } Case;

static double *start(Tensor c, int64_t used, bool acc)
{
    double *want = calloc((size_t)t_count(c) + 1, sizeof *want);
    for (int64_t i = 0; acc && i < used * c.n[1]; i++) {
        put(c, i, (float)(i % 7));
        want[i] = (double)(i % 7);
    }
    return want;
}

static void with_tail(Case x)
{
    Tensor  off = make_offsets(x.E, &x.rows);
    int64_t R = x.rows + 5, nt = x.mode == GEMM_NT, S = x.shared ? 1 : x.E;
    Tensor  a = routed(x.in, x.rows, 5, x.K), c = t_cols(num_poison(x.out, R, x.N + 3), 2, x.N);
    Tensor  b = nt ? randn3(x.in, x.E, x.N, x.K) : randn3(x.in, x.E, x.K, x.N);
    LoraTerm    lora = { .low_rank = routed(x.in, x.rows, 5, x.r),
                     .w = randn3(x.in, S, nt ? x.N : x.r, nt ? x.r : x.N) };
    double *want = start(c, x.rows, x.acc);
    add_product(want, a, b, off, 1, x.mode);
    add_product(want, lora.low_rank, lora.w, off, 1, x.mode);
    op_grouped_gemm(BE, c, a, b, off, lora, x.mode | (x.acc ? GEMM_ACC : 0));
    compare(c, want, x.rows, x.out == F32 ? 1e-5 : 5e-3);
    free(want);
    num_clear();
}

static void scaled(Case x, float scale)
{
    Tensor  off = make_offsets(x.E, &x.rows);
    int64_t R = x.rows + 5, nt = x.mode == GEMM_NT, S = x.shared ? 1 : x.E;
    Tensor  a = routed(x.in, x.rows, 5, x.K), c = t_cols(num_poison(x.out, R, x.r + 3), 2, x.r);
    Tensor  b = nt ? randn3(x.in, S, x.r, x.K) : randn3(x.in, S, x.K, x.r);
    double *want = start(c, x.rows, x.acc);
    add_product(want, a, b, off, scale, x.mode);
    op_grouped_scaled(BE, c, a, b, off, scale, (Dropout){ 0 }, x.mode | (x.acc ? GEMM_ACC : 0));
    compare(c, want, x.rows, x.out == F32 ? 1e-5 : 5e-3);
    free(want);
    num_clear();
}

static void agree_with_definition(void)
{
    for (int i = 0; i < 80; i++) {
        Case x = { i & 1 ? GEMM_NN : GEMM_NT, i & 2, i & 4, i & 8 ? BF16 : F32, i & 16 ? BF16 : F32,
                   1 + num_below(6), 1 + num_below(20), 1 + num_below(40), 1 + num_below(50), ranks[i % 5] };
        with_tail(x);
        scaled(x, i % 3 ? 0.25f : -2.0f);
    }
}

static void known_values(void)
{
    Tensor a = num_vals(F32, 3, 1, (float[]){ 1, 2, 3 }), off = num_i32(3, (int32_t[]){ 0, 1, 3 });
    Tensor b = t_as3(num_vals(F32, 2, 1, (float[]){ 1, -1 }), 2, 1, 1), c = num_poison(F32, 3, 1);
    LoraTerm   lora = { .low_rank = num_vals(F32, 3, 2, (float[]){ 1, 2, 3, 4, 5, 6 }),
                    .w = t_as3(num_vals(F32, 2, 2, (float[]){ 10, 1, 100, 0 }), 2, 1, 2) };
    op_grouped_gemm(BE, c, a, b, off, lora, GEMM_NT);
    EXPECT_CLOSE(c, num_vals(F32, 3, 1, (float[]){ 13, 298, 497 }), 0);
    op_grouped_scaled(BE, c, lora.low_rank, lora.w, off, 0.5f, (Dropout){ 0 }, GEMM_NT | GEMM_ACC);
    EXPECT_CLOSE(c, num_vals(F32, 3, 1, (float[]){ 19, 448, 747 }), 0);
    num_clear();
}

/* 1 + 2^-8 would round to 1 in bf16, and 2^-8 more again: together they are the number after 1. With few rows
 * in all, and with many. */
static void rounded_once(void)
{
    for (int i = 0; i < 2; i++) {
        int64_t R = i ? 100 : 2;
        Tensor  off = num_i32(2, (int32_t[]){ 0, 2 }), a = num_zeros(BF16, R, 2), c = num_poison(BF16, R, 1);
        LoraTerm    lora = { .low_rank = num_zeros(BF16, R, 1),
                         .w = t_as3(num_vals(BF16, 1, 1, (float[]){ 1 }), 1, 1, 1) };
        for (int r = 0; r < 2; r++)
            put(a, 2 * r, 1), put(a, 2 * r + 1, 0x1p-8f), put(lora.low_rank, r, 0x1p-8f);
        Tensor  b = t_as3(num_vals(BF16, 1, 2, (float[]){ 1, 1 }), 1, 1, 2);
        op_grouped_gemm(BE, c, a, b, off, lora, GEMM_NT);
        EXPECT(get(c, 0) == 1 + 0x1p-7f && get(c, 1) == 1 + 0x1p-7f, "%g %g", get(c, 0), get(c, 1));
        num_clear();
    }
}

static bool same_rows(Tensor a, Tensor b, int64_t rows)
{
    a = num_copy(t_rows(a, 0, rows), F32), b = num_copy(t_rows(b, 0, rows), F32);
    return !memcmp(a.data, b.data, (size_t)t_bytes(a));
}

static void fused(DType d, int64_t r, bool shared, bool back)
{
    int64_t E = 5, rows = 20, D = 24, F = 17, W = back ? F : 2 * F, S = shared ? 1 : E;
    Tensor  off = make_offsets(E, &rows);
    int64_t R = rows + 4;
    Tensor  x = num_randn(d, R, D), w = back ? randn3(d, E, D, F) : randn3(d, E, 2 * F, D);
    LoraTerm lora = { .low_rank = num_randn(d, R, r),
                      .w = back ? randn3(d, S, r, W) : randn3(d, S, W, r) };
    Tensor  gate = num_randn(F32, R, 1), gu = num_randn(d, R, 2 * F), dh = num_poison(d, R, F);
    Tensor  one = num_poison(d, R, 2 * F), two = num_poison(d, R, 2 * F);
    Tensor  slim = num_poison(back ? F32 : d, R, back ? 1 : F), slim2 = num_poison(slim.dtype, R, slim.n[1]);
    if (back) {
        op_grouped_gemm(BE, dh, x, w, off, lora, GEMM_NN);
        op_swiglu_bwd(BE, one, slim, dh, gu, gate);
        op_grouped_dswiglu(BE, two, slim2, x, w, off, gu, gate, lora);
    } else {
        op_grouped_gemm(BE, one, x, w, off, lora, GEMM_NT);
        op_swiglu_fwd(BE, slim, one, gate, off);
        op_grouped_swiglu(BE, two, slim2, x, w, off, gate, lora);
    }
    EXPECT(same_rows(one, two, rows) && same_rows(slim, slim2, rows), "rank %d, back %d", (int)r, back);
    num_clear();
}

static void fused_is_separate(void)
{
    for (int i = 0; i < 40; i++) fused(i & 1 ? BF16 : F32, ranks[i % 5], i & 2, i & 4);
}

/* Adapters of experts as nn runs them: y = a b' + low w', low = s a A'; A and w per expert, or shared. */
typedef struct Adapters { Tensor off, a, b, A, w, low, y, dy; float s; } Adapters;

static double loss(void *arg)
{
    Adapters *p = arg;
    op_grouped_scaled(BE, p->low, p->a, p->A, p->off, p->s, (Dropout){ 0 }, GEMM_NT);
    op_grouped_gemm(BE, p->y, p->a, p->b, p->off, (LoraTerm){ .low_rank = p->low, .w = p->w }, GEMM_NT);
    int64_t used = ((int32_t *)p->off.data)[p->off.n[0] - 1];
    return num_dot(t_rows(p->y, 0, used), t_rows(p->dy, 0, used));
}

static void gradients(void)
{
    for (int i = 0; i < 8; i++) {
        int64_t E = 4, N = 11, K = 9, r = ranks[i % 3], SA = i & 1 ? 1 : E, SB = i & 2 ? 1 : E;
        Tensor  off = num_i32(E + 1, (int32_t[]){ 0, 5, 5, 6, 13 });
        int64_t R = 16;
        Adapters   p = { off, num_randn(F32, R, K), randn3(F32, E, N, K), randn3(F32, SA, r, K),
                      randn3(F32, SB, N, r), num_poison(F32, R, r), num_poison(F32, R, N),
                      num_randn(F32, R, N), 0.5f };
        Tensor  back = num_poison(F32, R, r), da = num_zeros(F32, R, K);
        Tensor  dA = t_as3(num_poison(F32, SA * r, K), SA, r, K);
        Tensor  dw = t_as3(num_poison(F32, SB * N, r), SB, N, r);
        loss(&p);
        op_grouped_scaled(BE, back, p.dy, p.w, off, p.s, (Dropout){ 0 }, GEMM_NN);
        op_grouped_gemm(BE, da, p.dy, p.b, off, (LoraTerm){ .low_rank = back, .w = p.A }, GEMM_NN);
        op_grouped_gemm(BE, dw, p.dy, p.low, off, none, GEMM_TN);
        op_grouped_gemm(BE, dA, back, p.a, off, none, GEMM_TN);
        EXPECT_GRADIENT(loss, &p, p.a, da, 1e-2f, 2e-3);
        EXPECT_GRADIENT(loss, &p, p.A, dA, 1e-2f, 2e-3);
        EXPECT_GRADIENT(loss, &p, p.w, dw, 1e-2f, 2e-3);
        op_grouped_gemm(BE, dA, back, p.a, off, none, GEMM_TN | GEMM_ACC);
        for (int64_t k = 0; k < t_count(dA); k++) put(dA, k, get(dA, k) / 2);
        EXPECT_GRADIENT(loss, &p, p.A, dA, 1e-2f, 2e-3);
        num_clear();
    }
}

static void equal_bits(void)
{
    int threads = omp_get_max_threads();
    for (int i = 0; i < 4; i++) {
        int64_t E = 5, R = 60, N = 130, K = 70, r = 16;
        DType   d = i & 1 ? BF16 : F32;
        Tensor  off = make_offsets(E, &R), a = num_randn(d, R, K), b = randn3(d, E, N, K), c[2];
        LoraTerm    lora = { .low_rank = num_randn(d, R, r), .w = randn3(d, i & 2 ? 1 : E, N, r) };
        for (int run = 0; run < 2; run++) {
            c[run] = num_poison(F32, R, N);
            omp_set_num_threads(run ? 1 : threads);
            op_grouped_gemm(BE, c[run], a, b, off, lora, GEMM_NT);
            op_grouped_scaled(BE, c[run], lora.low_rank, lora.w, off, 3, (Dropout){ 0 }, GEMM_NT | GEMM_ACC);
        }
        omp_set_num_threads(threads);
        EXPECT(!memcmp(c[0].data, c[1].data, (size_t)t_bytes(c[0])), "threads change bits");
        num_clear();
    }
}

static void priced(void)
{
    Tensor off = num_i32(3, (int32_t[]){ 0, 0, 1 }), a = num_randn(BF16, 9, 4), c = num_zeros(BF16, 9, 5);
    Tensor b = randn3(BF16, 2, 5, 4);
    LoraTerm   lora = { .low_rank = num_randn(BF16, 9, 3), .w = randn3(BF16, 1, 5, 3) };
    Cost   plain = grouped_gemm_cost(BE, c, a, b, off, none, GEMM_NT);
    Cost   cost = grouped_gemm_cost(BE, c, a, b, off, lora, GEMM_NT);
    EXPECT(cost.flops - plain.flops == 2 * 9 * 3 * 5 && cost.rd - plain.rd == 2 * (9 * 3 + 5 * 3) &&
           cost.wr == plain.wr && cost.each == 4.5, "%g more flops, %d bytes", cost.flops - plain.flops,
           (int)(cost.rd - plain.rd));
    cost = grouped_scaled_cost(BE, lora.low_rank, c, lora.w, off, 2, (Dropout){ 0 }, GEMM_NN);
    EXPECT(cost.flops == 2 * 9 * 5 * 3, "%g flops", cost.flops);
    num_clear();
}

int main(void)
{
    numlab_open();
    RUN(known_values);
    RUN(agree_with_definition);
    RUN(rounded_once);
    RUN(fused_is_separate);
    RUN(gradients);
    RUN(equal_bits);
    RUN(priced);
    return numlab_report();
}
