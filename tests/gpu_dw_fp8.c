/* Weight gradients of experts from codes on the GPU: codes have the CPU's bits, products its values. */
#include "grouplab.h"
#include "ops/quant.h"

/* ---- columns ---- */

static ColumnCodes columns_out(int64_t R, int64_t E, int64_t K, bool blocks, Layout l)
{
    int64_t C = quant_columns(R, E);
    return (ColumnCodes){ out2(E4M3, K, C, l), out2(F32, C / 128, blocks ? quant_groups(K) : K, l) };
}

/* Some values that have no code, and a row far below the others. */
static void spoil(Tensor x)
{
    static const float odd[] = { 0.0f, -0.0f, INFINITY, NAN, 1e-42f, 3e38f, 448.0f, 1e-30f };
    for (int i = 0; i < 12 && t_count(x); i++) {
        float v = odd[num_below((int64_t)(sizeof odd / sizeof *odd))];
        char *p = gpu_row(x, num_below(gpu_rows(x)));
        dtype_convert(p + num_below(gpu_width(x)) * (int64_t)dtype_size((DType)x.dtype), (DType)x.dtype, &v,
                      F32, 1);
    }
}

/* Tokens of R rows, in any order and some of them in none. */
static Tensor any_sources(int64_t R, int64_t T)
{
    Tensor src = int1(R);
    for (int64_t i = 0; i < R; i++) ((int32_t *)src.data)[i] = num_below(9) ? (int32_t)num_below(3 * T) : -1;
    return src;
}

static void quantize(Shape x, Share s, DType d, Layout l, bool tokens)
{
    fresh();
    bool    pow2 = maybe(), blocks = maybe();
    Tensor  off = offsets_of(s, x.E, x.most);
    int64_t used = rows_used(off), R = used + x.spare, T = tokens ? 1 + R / 3 : R;
    Tensor  in = gpu_normal(in2(d, T, x.K, l), 0, ldexpf(1.0f, (int)num_below(40) - 20));
    Tensor  src = tokens ? any_sources(R, T) : none;
    ColumnCodes z = columns_out(R, x.E, x.K, blocks, l);
    if (maybe()) spoil(in);
    exact(z.q), exact(z.scale);
    CALL(quantize_cols, z, in, src, tokens ? 3 : 1, off, pow2);
}

static void columns_of_any_size(void)
{
    for (int i = 0; i < 40; i++)
        quantize((Shape){ any_size(1, 9), any_size(1, 60), 0, any_size(1, 300), num_below(2) * 9 },
                 (Share)(i % SHARES), any_float(), any_layout(), maybe());
}

static void columns_by_units(void)
{
    for (int i = 0; i < 4 * SHARES; i++)
        quantize((Shape){ any_size(1, 9), 100, 0, 8 * any_size(1, 40), num_below(2) * 9 },
                 (Share)(i % SHARES), any_float(), maybe() ? DENSE : STRIDED, maybe());
    quantize((Shape){ 16, 200, 0, 1024, 0 }, ZIPF, BF16, DENSE, true);
}

/* ---- the backward of SwiGLU ---- */

/* A tensor as the GPU left it. */
static Tensor left(Tensor t)
{
    if (t_has(t)) t.data = gpu_.again + ((char *)t.data - num_.a.base);
    return t;
}

static bool same_columns(ColumnCodes got, ColumnCodes want)
{
    for (int64_t k = 0; k < got.q.n[0]; k++)
        if (memcmp(gpu_row(got.q, k), gpu_row(want.q, k), (size_t)got.q.n[1])) return false;
    for (int64_t g = 0; g < got.scale.n[0]; g++)
        if (memcmp(gpu_row(got.scale, g), gpu_row(want.scale, g), (size_t)got.scale.n[1] * 4)) return false;
    return true;
}

/* The codes that the GPU left are those of the dgu and h that it computes: these may differ from the CPU's in
 * a last bit, and then their codes too. */
static void check_backward(Tensor dgu, Tensor q, ColumnCodes g, ColumnCodes a, Tensor h,
                           Tensor off, int64_t used)
{
    int64_t     n = t_has(q) ? used : 0;
    Tensor      rows = num_poison(E4M3, dgu.n[0], dgu.n[1]);
    Tensor      row_scale = num_poison(F32, quant_groups(dgu.n[1]), dgu.n[0]);
    bool        blocks = g.scale.n[1] != g.q.n[0];
    ColumnCodes cols = columns_out(dgu.n[0], off.n[0] - 1, dgu.n[1], blocks, DENSE);
    ColumnCodes act = columns_out(dgu.n[0], off.n[0] - 1, h.n[1], true, DENSE);
    op_quantize_rows(BE, rows, row_scale, left(dgu), off, true);
    op_quantize_cols(BE, cols, left(dgu), none, 1, off, true);
    op_quantize_cols(BE, act, h, none, 1, off, true);
    for (int64_t r = 0; r < n; r++)
        if (memcmp(gpu_row(left(q), r), gpu_row(rows, r), (size_t)q.n[1])) {
            gpu_fail("codes of row %lld are not those of dgu", (long long)r);
            break;
        }
    if (!same_columns((ColumnCodes){ left(g.q), left(g.scale) }, cols)) gpu_fail("columns of dgu");
    if (t_has(a.q) && !same_columns((ColumnCodes){ left(a.q), left(a.scale) }, act)) gpu_fail("columns of h");
    gpu_.outs = 0;
}

/* h of the GPU, in host memory. */
static Tensor gpu_h(Tensor gu, Tensor gate, Tensor off, Layout l)
{
    Tensor h = out2((DType)gu.dtype, gu.n[0], gu.n[1] / 2, l);
    Tensor kept = num_poison((DType)h.dtype, h.n[0], h.n[1]);
    CALL(swiglu_fwd, h, gu, gate, off);
    gpu_fetch(gpu_.again);
    for (int64_t r = 0; r < h.n[0]; r++)
        memcpy(gpu_row(kept, r), gpu_row(left(h), r), (size_t)h.n[1] * dtype_size((DType)h.dtype));
    return kept;
}

/* over: dh is the first half of dgu. */
static void backward(Shape x, Share s, DType d, Layout l, bool gated, bool over)
{
    fresh();
    Tensor  off = offsets_of(s, x.E, x.most);
    int64_t used = rows_used(off), R = used + x.spare, F = x.N;
    Tensor  gu = in2(d, R, 2 * F, l), gate = gated ? in2(F32, R, 1, l) : none, h = gpu_h(gu, gate, off, l);
    Tensor  dgu = over ? add2(d, R, 2 * F, l) : out2(d, R, 2 * F, l);
    Tensor  dh = over ? t_cols(dgu, 0, F) : in2(d, R, F, l), dgate = gated ? out2(F32, R, 1, l) : none;
    Tensor  q = none, scale = none;
    ColumnCodes g = columns_out(R, x.E, 2 * F, maybe(), l), a = { none, none };
    if (maybe()) scratch(q = out2(E4M3, R, 2 * F, l)), scratch(scale = out2(F32, quant_groups(2 * F), R, l));
    if (maybe()) a = columns_out(R, x.E, F, true, l), scratch(a.q), scratch(a.scale);
    scratch(g.q), scratch(g.scale);
    if (gated) at_least(dgate, sqrt((double)F));
    CALL(swiglu_bwd_cols, dgu, q, scale, g, a, dgate, dh, gu, gate, off, true);
    gpu_fetch(gpu_.again);
    check_backward(dgu, q, g, a, h, off, used);
}

/* Codes are the same where the values of dgu are not wanted. */
static void backward_of_codes(void)
{
    for (int i = 0; i < SHARES; i++) {
        fresh();
        Tensor  off = offsets_of((Share)i, 5, 90);
        int64_t R = rows_used(off), F = 256, bytes;
        Tensor  gu = in2(BF16, R, 2 * F, DENSE), gate = in2(F32, R, 1, DENSE), dh = in2(BF16, R, F, DENSE);
        Tensor  dgu = out2(BF16, R, 2 * F, DENSE), dgate = out2(F32, R, 1, DENSE);
        ColumnCodes g = columns_out(R, 5, 2 * F, false, DENSE), a = columns_out(R, 5, F, true, DENSE);
        char   *first = malloc((size_t)t_bytes(g.q));
        for (int stores = 1; stores >= 0; stores--) {
            if (!stores)                        /* those of the first call are forgotten */
                output(g.q), output(g.scale), output(a.q), output(a.scale), output(dgu), output(dgate);
            scratch(g.q), scratch(g.scale), scratch(a.q), scratch(a.scale), scratch(dgu), scratch(dgate);
            CALL(swiglu_bwd_cols, dgu, none, none, g, a, dgate, dh, gu, gate, off, stores);
            gpu_fetch(gpu_.again);
            bytes = t_bytes(g.q);
            if (stores) memcpy(first, left(g.q).data, (size_t)bytes);
            else if (memcmp(first, left(g.q).data, (size_t)bytes)) gpu_fail("other columns of dgu");
        }
        free(first);
    }
}

static void backward_of_any_size(void)
{
    for (int i = 0; i < 20; i++)
        backward((Shape){ any_size(1, 9), any_size(1, 40), any_size(1, 200), 0, num_below(2) * 9 },
                 (Share)(i % SHARES), any_float(), any_layout(), maybe(), maybe());
}

static void backward_by_tiles(void)
{
    for (int i = 0; i < 3 * SHARES; i++)
        backward((Shape){ any_size(1, 9), 90, 128 * any_size(1, 4), 0, num_below(2) * 9 },
                 (Share)(i % SHARES), BF16, maybe() ? DENSE : STRIDED, maybe(), maybe());
}

/* ---- products ---- */

static const Tolerance fp8_sums = { 6e-3, 1e-2, 2e-2, 0 };

/* Codes over the whole range of the format; groups of no expert hold NaN. M = K of the shape. */
static ColumnCodes columns_in(Tensor off, int64_t R, int64_t K, bool blocks, Layout l)
{
    int64_t     E = off.n[0] - 1, C = quant_columns(R, E), n = blocks ? quant_groups(K) : K;
    const int32_t *at = off.data;
    ColumnCodes z = { gpu_new(E4M3, 2, (int64_t[]){ K, C }, l, 0xff),
                      gpu_new(F32, 2, (int64_t[]){ C / 128, n }, l, 0xff) };
    for (int64_t e = 0; e < E; e++) {
        int64_t first = quant_column(at[e], e), rows = at[e + 1] - at[e], all = (rows + 127) / 128 * 128;
        if (!rows) continue;
        Tensor codes = gpu_normal(t_cols(z.q, first, all), 0, 90);
        Tensor scale = gpu_normal(t_rows(z.scale, first / 128, all / 128), 0, 0.01f);
        for (int64_t k = 0; k < K; k++) memset(gpu_row(codes, k) + rows, 0, (size_t)(all - rows));
        for (int64_t g = 0; g < all / 128; g++)
            for (int64_t i = 0; i < n; i++) {
                float *v = (float *)(void *)gpu_row(scale, g) + i;
                *v = fabsf(*v) + 0.001f;
            }
    }
    return z;
}

static void product(Shape x, Share s, DType out, Layout l, int flags, bool squared)
{
    fresh();
    x = sized(x);
    Tensor  off = offsets_of(s, x.E, x.most), squares = none;
    int64_t R = rows_used(off) + x.spare, n[] = { x.E, x.K, x.N }, parts = grouped_squares_parts(n);
    ColumnCodes a = columns_in(off, R, x.K, false, l), b = columns_in(off, R, x.N, true, l);
    Tensor  c = out3(out, x.E, x.K, x.N, squared ? DENSE : l);
    if (squared) at_least(squares = output(gpu_new(F32, 1, &parts, DENSE, 0xff)), 1);
    if (flags) gpu_normal(c, 0, 1);
    within(c, fp8_sums), at_least(c, 1);
    if (squared) within(squares, (Tolerance){ 2e-2, 2e-2, 2e-2, 0 });
    CALL(grouped_dw_fp8, c, squares, a, b, off, R, flags);
}

static void products_of_any_size(void)
{
    for (int i = 0; i < 4 * SHARES; i++)
        product((Shape){ any_size(1, 9), any_size(1, 90), any_size(1, 200), any_size(1, 200),
                         num_below(2) * 9 },
                (Share)(i % SHARES), any_float(), any_layout(), maybe() ? GEMM_ACC : 0, false);
}

static void products_by_tiles(void)
{
    for (int i = 0; i < 4 * SHARES; i++) {
        bool adds = maybe();
        product((Shape){ 8, 100, 16 * any_size(1, 40), 16 * any_size(1, 40), num_below(2) * 70 },
                (Share)(i % SHARES), any_float(), maybe() ? DENSE : STRIDED, adds ? GEMM_ACC : 0,
                !adds && maybe());
    }
}

static void experts_of_a_model(void)
{
    static const Share shares[] = { EVEN, ZIPF, ONE_TAKES_ALL, EDGES };
    for (int i = 0; i < 4; i++) {
        product((Shape){ 16, 128, 1024, 1536, 500 }, shares[i], i % 2 ? F32 : BF16, DENSE, 0, true);
        product((Shape){ 16, 128, 768, 1024, 0 }, shares[i], i % 2 ? BF16 : F32, DENSE, GEMM_ACC, false);
    }
    product((Shape){ 140, 1, 64, 128, 5 }, ONE_EACH, F32, DENSE, 0, true);
    product((Shape){ 4, 0, 64, 128, 33 }, EVEN, BF16, DENSE, 0, false);
}

/* Beside a kernel that holds SMs, and on fewer SMs, tiles go to other blocks. */
static void beside_a_kernel(void)
{
    static const int held[] = { 16, 100, 0 }, reserved[] = { 0, 0, 40 };
    for (int i = 0; i < 3; i++) {
        gpu_share(held[i], reserved[i]);
        product((Shape){ 16, 128, 1024, 768, 500 }, ZIPF, BF16, DENSE, 0, true);
        products_by_tiles();
    }
    gpu_share(0, 0);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(columns_of_any_size);
    GPU_RUN(columns_by_units);
    GPU_RUN(backward_of_any_size);
    GPU_RUN(backward_by_tiles);
    GPU_RUN(backward_of_codes);
    GPU_RUN(products_of_any_size);
    GPU_RUN(products_by_tiles);
    GPU_RUN(experts_of_a_model);
    GPU_RUN(beside_a_kernel);
    return gpulab_report();
}
