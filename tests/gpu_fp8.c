/* Quantisation and e4m3 products on the GPU: codes and scales have the CPU's bits, products its values. */
#include "grouplab.h"

/* ---- quantisation ---- */

/* Some groups of zeros, some with values that have no code: infinities, NaN, numbers far below the others. */
static void spoil(Tensor x)
{
    static const float odd[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-42f, 3e38f, 448.0f, 1e-30f };
    for (int i = 0; i < 12 && t_count(x); i++) {
        float v = odd[num_below((int64_t)(sizeof odd / sizeof *odd))];
        char *p = gpu_row(x, num_below(gpu_rows(x)));
        dtype_convert(p + num_below(gpu_width(x)) * (int64_t)dtype_size((DType)x.dtype), (DType)x.dtype, &v,
                      F32, 1);
    }
    if (t_count(x)) memset(gpu_row(x, 0), 0, (size_t)gpu_width(x) * dtype_size((DType)x.dtype));
}

/* Numbers of two magnitudes: the first rows, of a stack its first matrices, have their own. */
static Tensor wild(Tensor x)
{
    gpu_normal(x, 0, ldexpf(1.0f, (int)num_below(60) - 30));
    gpu_normal(t_rows(x, 0, x.n[0] / 2), 0, ldexpf(1.0f, (int)num_below(60) - 30));
    return x;
}

static void rows(int64_t R, int64_t K, int64_t spare, DType d, Layout l, bool pow2)
{
    fresh();
    Tensor x = wild(in2(d, R + spare, K, l)), q = out2(E4M3, R + spare, K, l);
    Tensor scale = out2(F32, (K + 127) / 128, R + spare, l);
    Tensor off = spare ? int_list(3, (int32_t[]){ 0, (int32_t)(R / 2), (int32_t)R }) : none;
    if (maybe()) spoil(x);
    exact(q), exact(scale);
    CALL(quantize_rows, q, scale, x, off, pow2);
}

static void rows_of_any_size(void)
{
    for (int i = 0; i < 60; i++)
        rows(num_below(70), any_size(1, 400), num_below(2) * num_below(20), any_float(), any_layout(),
             maybe());
}

static void rows_of_units(void)
{
    for (int i = 0; i < 40; i++)
        rows(num_below(300), 16 * any_size(1, 80), num_below(2) * num_below(20), any_float(),
             maybe() ? DENSE : STRIDED, maybe());
    rows(1000, 2048, 24, BF16, DENSE, true);
    rows(1000, 768, 0, BF16, DENSE, false);
}

/* which: 1 codes, 2 transposed codes, 3 both. */
static void weight(int64_t E, int64_t N, int64_t K, DType d, Layout l, bool pow2, int which)
{
    fresh();
    int64_t n = (N + 127) / 128, k = (K + 127) / 128;
    Tensor  w = wild(E ? in3(d, E, N, K, l) : in2(d, N, K, l)), q = none, s = none, qt = none, st = none;
    if (which & 1) {
        q = E ? out3(E4M3, E, N, K, l) : out2(E4M3, N, K, l);
        s = E ? out3(F32, E, n, k, l) : out2(F32, n, k, l);
        exact(q), exact(s);
    }
    if (which & 2) {
        qt = E ? out3(E4M3, E, K, N, l) : out2(E4M3, K, N, l);
        st = E ? out3(F32, E, k, n, l) : out2(F32, k, n, l);
        exact(qt), exact(st);
    }
    if (maybe()) spoil(w);
    CALL(quantize_weight, q, s, qt, st, w, pow2);
}

static void weights(void)
{
    for (int i = 0; i < 30; i++)
        weight(num_below(4), any_size(1, 300), any_size(1, 300), any_float(), any_layout(), maybe(),
               1 + (int)num_below(3));
    for (int i = 0; i < 30; i++)
        weight(num_below(4), 16 * any_size(1, 20), 16 * any_size(1, 20), any_float(),
               maybe() ? DENSE : STRIDED, maybe(), 1 + (int)num_below(3));
    weight(3, 1536, 512, BF16, DENSE, true, 3);
    weight(3, 256, 768, F32, DENSE, false, 3);
}

/* ---- products ---- */

/* Codes over the whole range of the format, positive scales; padding rows hold NaN. */
static Tensor codes(Tensor t) { return gpu_normal(t, 0, 90); }

static Tensor scales_in(Tensor t)
{
    gpu_normal(t, 0, 0.01f);
    for (int64_t r = 0; r < gpu_rows(t); r++) {
        float *v = (float *)(void *)gpu_row(t, r);
        for (int64_t c = 0; c < gpu_width(t); c++) v[c] = fabsf(v[c]) + 0.001f;
    }
    return t;
}

/* (groups, R) with rows that begin on 16 bytes. */
static Tensor row_scales(int64_t groups, int64_t R, Layout l)
{
    Tensor t = scales_in(gpu_new(F32, 2, (int64_t[]){ groups, (R + 3) / 4 * 4 }, l, 0xff));
    return t_cols(t, 0, R);
}

/* Tensor cores keep about 13 bits of the products that they add within a group. */
static const Tolerance fp8_sums = { 6e-3, 1e-2, 2e-2, 0 };

static void product(Shape x, Share s, DType out, Layout l)
{
    fresh();
    Tensor  off = offsets_of(s, x.E, x.most);
    int64_t used = rows_used(off), R = used + x.spare, k = (x.K + 127) / 128;
    Tensor  a = codes(gpu_new(E4M3, 2, (int64_t[]){ R, x.K }, l, 0xff)), sa = row_scales(k, R, DENSE);
    Tensor  b = codes(gpu_new(E4M3, 3, (int64_t[]){ x.E, x.N, x.K }, l, 0xff));
    Tensor  sb = scales_in(gpu_new(F32, 3, (int64_t[]){ x.E, (x.N + 127) / 128, k }, l, 0xff));
    Tensor  c = out2(out, R, x.N, l);
    for (int64_t r = used; r < R; r++) memset(gpu_row(a, r), 0xff, (size_t)x.K);
    within(c, fp8_sums);
    at_least(c, 1e-3);
    CALL(grouped_gemm_fp8, c, a, sa, b, sb, off);
}

static void products_of_any_size(void)
{
    for (int i = 0; i < 40; i++)
        product((Shape){ any_size(1, 9), any_size(1, 40), any_size(1, 90), any_size(1, 300), num_below(30) },
                (Share)(i % SHARES), any_float(), any_layout());
}

/* Widths that the fast kernel takes, with every border of its tiles. */
static void products_by_tiles(void)
{
    for (int i = 0; i < 2 * SHARES; i++)
        product((Shape){ 8, 48, 8 * any_size(1, 90), 16 * any_size(1, 60), num_below(3) * num_below(70) },
                (Share)(i % SHARES), BF16, maybe() ? DENSE : STRIDED);
}

static void experts_of_a_model(void)
{
    static const Share shares[] = { EVEN, ZIPF, ONE_TAKES_ALL, EDGES };
    for (int i = 0; i < 4; i++) {
        product((Shape){ 16, 128, 1536, 1024, 500 }, shares[i], BF16, DENSE);
        product((Shape){ 16, 128, 1024, 768, 500 }, shares[i], BF16, DENSE);
        product((Shape){ 16, 128, 768, 1024, 500 }, shares[i], BF16, DENSE);
    }
    product((Shape){ 128, 8, 256, 512, 0 }, ANY, BF16, DENSE);
    product((Shape){ 140, 1, 128, 64, 5 }, ONE_EACH, BF16, DENSE);
    product((Shape){ 4, 0, 128, 64, 33 }, EVEN, BF16, DENSE);
    product((Shape){ 4, 0, 128, 64, 0 }, EVEN, BF16, DENSE);
}

static void dense(int64_t M, int64_t N, int64_t K, DType out, Layout l, bool with_bias, int flags)
{
    fresh();
    int64_t k = (K + 127) / 128;
    Tensor  a = codes(gpu_new(E4M3, 2, (int64_t[]){ M, K }, l, 0xff)), sa = row_scales(k, M, DENSE);
    Tensor  b = codes(gpu_new(E4M3, 2, (int64_t[]){ N, K }, l, 0xff));
    Tensor  sb = scales_in(gpu_new(F32, 2, (int64_t[]){ (N + 127) / 128, k }, l, 0xff));
    Tensor  bias = with_bias ? in2(any_float(), 1, N, DENSE) : none;
    Tensor  c = flags ? add2(out, M, N, l) : out2(out, M, N, l);
    within(c, fp8_sums);
    CALL(gemm_fp8, c, a, sa, b, sb, bias, flags);
}

static void dense_products(void)
{
    for (int i = 0; i < 40; i++)
        dense(any_size(1, 300), any_size(1, 90), any_size(1, 300), any_float(), any_layout(), maybe(),
              maybe() ? GEMM_ACC : 0);
    for (int i = 0; i < 20; i++)
        dense(any_size(1, 600), 8 * any_size(1, 90), 16 * any_size(1, 60), BF16, maybe() ? DENSE : STRIDED,
              !num_below(4), num_below(4) ? 0 : GEMM_ACC);
    dense(2048, 1024, 1024, BF16, DENSE, false, 0);
}

/* Beside a kernel that holds SMs, and on fewer SMs, tiles go to other blocks. */
static void beside_a_kernel(void)
{
    static const int held[] = { 16, 100, 0, 40 }, reserved[] = { 0, 0, 16, 120 };
    for (int i = 0; i < 4; i++) {
        gpu_share(held[i], reserved[i]);
        product((Shape){ 16, 128, 1536, 1024, 500 }, ZIPF, BF16, DENSE);
        products_by_tiles();
    }
    gpu_share(0, 0);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(rows_of_any_size);
    GPU_RUN(rows_of_units);
    GPU_RUN(weights);
    GPU_RUN(products_of_any_size);
    GPU_RUN(products_by_tiles);
    GPU_RUN(experts_of_a_model);
    GPU_RUN(dense_products);
    GPU_RUN(beside_a_kernel);
    return gpulab_report();
}
