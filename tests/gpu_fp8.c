/* Quantisation and e4m3 products on the GPU: codes and scales have the CPU's bits, products its values. */
#include "grouplab.h"
#include "ops/quant.h"

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

/* residual: 1 a tensor of its own, 2 c. */
static void dense(int64_t M, int64_t N, int64_t K, DType out, Layout l, bool with_bias, int residual)
{
    fresh();
    int64_t k = (K + 127) / 128;
    Tensor  a = codes(gpu_new(E4M3, 2, (int64_t[]){ M, K }, l, 0xff)), sa = row_scales(k, M, DENSE);
    Tensor  b = codes(gpu_new(E4M3, 2, (int64_t[]){ N, K }, l, 0xff));
    Tensor  sb = scales_in(gpu_new(F32, 2, (int64_t[]){ (N + 127) / 128, k }, l, 0xff));
    Tensor  bias = with_bias ? in2(maybe() ? out : any_float(), 1, N, DENSE) : none;
    Tensor  res = residual == 1 ? in2(out, M, N, l) : none;
    Tensor  c = residual == 2 ? add2(out, M, N, l) : out2(out, M, N, l);
    within(c, fp8_sums);
    CALL(gemm_fp8, c, a, sa, b, sb, bias, residual == 2 ? c : res);
}

static void dense_products(void)
{
    for (int i = 0; i < 40; i++)
        dense(any_size(1, 300), any_size(1, 90), any_size(1, 300), any_float(), any_layout(), maybe(),
              (int)num_below(3));
    for (int i = 0; i < 24; i++)
        dense(any_size(1, 600), 8 * any_size(1, 90), 16 * any_size(1, 60), BF16, maybe() ? DENSE : STRIDED,
              maybe(), i % 3);
    for (int i = 0; i < 3; i++) dense(2048 + 72 * i, 1024, 1024, BF16, DENSE, i > 0, i);
    for (int i = 0; i < 3; i++) dense(2500, 2560 + 8 * i, 256, BF16, DENSE, i > 0, i);   /* in bands */
}

/* ---- fused with quantisation ---- */

/* The codes that the GPU left are those of the x that it left. A row of x may differ from the CPU's in a last
 * bit, and then its scale too, so these cannot be compared with the CPU's. */
static bool codes_are_of(const char *x, DType d, const uint8_t *code, float scale, int64_t n, bool pow2)
{
    float    v[128];
    uint32_t amax = 0;
    dtype_convert(v, F32, x, d, n);
    for (int64_t i = 0; i < n; i++)
        if (quant_magnitude(v[i]) > amax) amax = quant_magnitude(v[i]);
    QuantScale s = quant_scale(amax, pow2);
    bool same = quant_bits(scale) == quant_bits(s.scale);
    for (int64_t i = 0; i < n; i++) same = same && code[i] == e4m3_from_f32(v[i] * s.inverse);
    return same;
}

static void check_codes(Tensor x, Tensor q, Tensor scale, int64_t used, bool pow2)
{
    ptrdiff_t moved = gpu_.again - num_.a.base;
    int64_t   size = (int64_t)dtype_size((DType)x.dtype);
    gpu_fetch(gpu_.again);
    for (int64_t i = 0; i < used * scale.n[0]; i++) {
        int64_t r = i / scale.n[0], g = i % scale.n[0], n = x.n[1] - g * 128 < 128 ? x.n[1] - g * 128 : 128;
        float   s = ((float *)(void *)(gpu_row(scale, g) + moved))[r];
        if (codes_are_of(gpu_row(x, r) + moved + g * 128 * size, (DType)x.dtype,
                         (uint8_t *)gpu_row(q, r) + moved + g * 128, s, n, pow2)) continue;
        gpu_fail("row %lld, group %lld: codes or scale are not those of the row", (long long)r, (long long)g);
        return;
    }
}

/* N = F, K = D. */
static void swiglu(Shape x, Share s, DType d, Layout l, bool gated)
{
    fresh();
    Tensor  off = offsets_of(s, x.E, x.most);
    int64_t used = rows_used(off), R = used + x.spare, k = (x.K + 127) / 128;
    Tensor  gate = gated ? in2(F32, R, 1, l) : none;
    Tensor  a = codes(gpu_new(E4M3, 2, (int64_t[]){ R, x.K }, l, 0xff)), sa = row_scales(k, R, DENSE);
    Tensor  w = codes(gpu_new(E4M3, 3, (int64_t[]){ x.E, 2 * x.N, x.K }, l, 0xff));
    Tensor  sw = scales_in(gpu_new(F32, 3, (int64_t[]){ x.E, (2 * x.N + 127) / 128, k }, l, 0xff));
    Tensor  gu = out2(d, R, 2 * x.N, l), h = out2(d, R, x.N, l), hq = out2(E4M3, R, x.N, l);
    Tensor  hs = out2(F32, (x.N + 127) / 128, R, l);
    within(gu, fp8_sums), within(h, fp8_sums), times(h, 4);
    at_least(gu, 1e-3), at_least(h, 1e-3);
    scratch(hq), scratch(hs);
    CALL(grouped_swiglu_fp8, gu, h, hq, hs, a, sa, w, sw, off, gate, true);
    check_codes(h, hq, hs, used, true);
}

static void swiglu_of_any_size(void)
{
    for (int i = 0; i < 20; i++)
        swiglu((Shape){ any_size(1, 9), any_size(1, 40), any_size(1, 90), any_size(1, 300), 0 },
               (Share)(i % SHARES), any_float(), any_layout(), maybe());
}

static void swiglu_by_tiles(void)
{
    for (int i = 0; i < 3 * SHARES; i++)
        swiglu((Shape){ 8, 48, 128 * any_size(1, 3), 16 * any_size(1, 60), num_below(3) * num_below(70) },
               (Share)(i % SHARES), BF16, maybe() ? DENSE : STRIDED, maybe());
    swiglu((Shape){ 16, 128, 768, 1024, 500 }, ZIPF, BF16, DENSE, true);
    swiglu((Shape){ 16, 128, 256, 2048, 0 }, EDGES, BF16, DENSE, true);
    swiglu((Shape){ 140, 1, 128, 64, 5 }, ONE_EACH, BF16, DENSE, true);
    swiglu((Shape){ 4, 0, 128, 64, 33 }, EVEN, BF16, DENSE, true);
}

/* over: dh is the first half of dgu. */
static void swiglu_bwd(int64_t R, int64_t F, int64_t spare, DType d, Layout l, bool gated, bool over)
{
    fresh();
    bool    pow2 = maybe();
    int64_t groups = (2 * F + 127) / 128;
    Tensor  dgu = over ? add2(d, R + spare, 2 * F, l) : out2(d, R + spare, 2 * F, l);
    Tensor  dh = over ? t_cols(dgu, 0, F) : in2(d, R + spare, F, l), gu = in2(d, R + spare, 2 * F, l);
    Tensor  gate = gated ? in2(F32, R + spare, 1, l) : none;
    Tensor  dgate = gated ? out2(F32, R + spare, 1, l) : none;
    Tensor  q = out2(E4M3, R + spare, 2 * F, l), scale = out2(F32, groups, R + spare, l);
    Tensor  off = int_list(3, (int32_t[]){ 0, (int32_t)(R / 2), (int32_t)R });
    scratch(q), scratch(scale);
    if (gated) at_least(dgate, sqrt((double)F));
    CALL(swiglu_bwd_fp8, dgu, q, scale, dgate, dh, gu, gate, off, pow2);
    check_codes(dgu, q, scale, R, pow2);
}

static void swiglu_bwd_quantised(void)
{
    for (int i = 0; i < 20; i++)
        swiglu_bwd(num_below(70), any_size(1, 300), num_below(2) * num_below(9), any_float(), any_layout(),
                   maybe(), maybe());
    for (int i = 0; i < 20; i++)
        swiglu_bwd(num_below(200), 128 * any_size(1, 9), num_below(2) * num_below(9), any_float(),
                   maybe() ? DENSE : STRIDED, maybe(), maybe());
}

/* Tokens to distinct rows in any order; some assignments are dropped. */
static Tensor any_rows(int64_t T, int64_t K)
{
    int32_t *to = calloc((size_t)(T * K + 1), sizeof *to);
    for (int64_t i = 0; i < T * K; i++) to[i] = (int32_t)i;
    for (int64_t i = T * K - 1; i > 0; i--) {
        int64_t j = num_below(i + 1);
        int32_t keep = to[i];
        to[i] = to[j], to[j] = keep;
    }
    for (int64_t i = 0; i < T * K; i++) if (!num_below(9)) to[i] = -1;
    Tensor t = t_as2(int_list(T * K, to), T, K);
    free(to);
    return t;
}

static void expand(int64_t T, int64_t K, int64_t D, DType d, Layout l, bool wide)
{
    fresh();
    bool   pow2 = maybe();
    Tensor x = wild(in2(d, T, D, l)), rows = any_rows(T, K), y = wide ? out2(d, T * K, D, l) : none;
    Tensor q = out2(E4M3, T * K, D, l), scale = out2(F32, (D + 127) / 128, T * K, l);
    if (maybe()) spoil(x);
    if (wide) exact(y);
    exact(q), exact(scale);
    CALL(expand_rows_fp8, y, q, scale, x, rows, pow2);
}

static void expand_quantised(void)
{
    for (int i = 0; i < 30; i++)
        expand(1 + num_below(60), 1 + num_below(8), any_size(1, 400), any_float(), any_layout(), maybe());
    for (int i = 0; i < 20; i++)
        expand(1 + num_below(60), 1 + num_below(8), 16 * any_size(1, 150), any_float(),
               maybe() ? DENSE : STRIDED, maybe());
    expand(700, 8, 2048, BF16, DENSE, true);
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
    GPU_RUN(swiglu_of_any_size);
    GPU_RUN(swiglu_by_tiles);
    GPU_RUN(swiglu_bwd_quantised);
    GPU_RUN(expand_quantised);
    GPU_RUN(beside_a_kernel);
    return gpulab_report();
}
