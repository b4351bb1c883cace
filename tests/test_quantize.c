/* tests/test_quantize.c -- e4m3 codes, scales of groups, quantize_rows and quantize_weight. */
#include "fp8_torch.h"
#include "rowlab.h"
#include "base/num.h"
#include "ops/quant.h"

#include <float.h>

/* ---- codes ---- */

static double value_of(int code)
{
    int e = code >> 3 & 15, m = code & 7;
    double v = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m, -9);
    return code & 0x80 ? -v : v;
}
static bool is_nan_code(int code) { return (code & 0x7f) == 0x7f; }

static void every_code(void)
{
    for (int c = 0; c < 256; c++) {
        float   v = e4m3_to_f32((uint8_t)c), file;
        uint8_t code = (uint8_t)c;
        dtype_convert(&file, F32, &code, E4M3, 1);
        EXPECT(is_nan_code(c) ? isnan(v) && isnan(file) : v == (float)value_of(c) && v == file,
               "code %02x is %g and in files %g", c, v, file);
        EXPECT(is_nan_code(c) || e4m3_from_f32(v) == c, "code %02x comes back as %02x", c, e4m3_from_f32(v));
    }
    EXPECT(e4m3_to_f32(0x7e) == 448 && e4m3_to_f32(0x08) == 0x1p-6f && e4m3_to_f32(1) == 0x1p-9f, "limits");
}

/* Between neighbours: the middle goes to the even code, what is next to it to the nearer one. */
static void ties_go_to_even(void)
{
    for (int c = 0; c < 0x7e; c++) {
        float mid = (float)((value_of(c) + value_of(c + 1)) / 2);
        int   even = c + (c & 1);
        for (int sign = 0; sign <= 0x80; sign += 0x80) {
            float s = sign ? -1.0f : 1.0f;
            EXPECT(e4m3_from_f32(s * mid) == (sign | even), "%g becomes %02x", s * mid,
                   e4m3_from_f32(s * mid));
            EXPECT(e4m3_from_f32(s * nextafterf(mid, 0)) == (sign | c), "just below %g", mid);
            EXPECT(e4m3_from_f32(s * nextafterf(mid, 1e9f)) == (sign | (c + 1)), "just above %g", mid);
        }
    }
}

static void what_does_not_fit(void)
{
    static const struct { float x; uint8_t code; } cases[] = {
        { 448, 0x7e }, { 464, 0x7e }, { 465, 0x7e }, { 480, 0x7e }, { 1e30f, 0x7e }, { -449, 0xfe },
        { INFINITY, 0x7e }, { -INFINITY, 0xfe }, { NAN, 0x7f }, { 0.0f, 0x00 }, { -0.0f, 0x80 },
        { 0x1p-10f, 0x00 }, { 0x1.000002p-10f, 0x01 }, { -0x1p-10f, 0x80 }, { FLT_TRUE_MIN, 0x00 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        EXPECT(e4m3_from_f32(cases[i].x) == cases[i].code, "%g becomes %02x", cases[i].x,
               e4m3_from_f32(cases[i].x));
    EXPECT(e4m3_from_f32(-NAN) == 0x7f, "NaN has no sign");
}

static void as_files_do(void)
{
    for (int i = 0; i < 20000; i++) {
        float   x = ldexpf(rng_normal(num_.seed, 7, (uint64_t)i), (int)num_below(24) - 14);
        uint8_t code;
        dtype_convert(&code, E4M3, &x, F32, 1);
        EXPECT(e4m3_from_f32(x) == code, "%a becomes %02x and in files %02x", x, e4m3_from_f32(x), code);
    }
}

/* ---- scales ---- */

static QuantScale scale_of(float amax, bool pow2) { return quant_scale(quant_magnitude(amax), pow2); }

static void known_scales(void)
{
    EXPECT(scale_of(448, true).scale == 1 && scale_of(448, false).scale == 1, "448 needs no scale");
    EXPECT(scale_of(nextafterf(448, 500), true).scale == 2, "just above it");
    EXPECT(scale_of(1, true).scale == 0x1p-8f && scale_of(-1.75f, true).scale == 0x1p-8f, "256 to 448");
    EXPECT(scale_of(1, false).scale == 1.0f / 448, "f32");
    for (int pow2 = 0; pow2 < 2; pow2++) {
        EXPECT(scale_of(0, pow2).scale == 1 && scale_of(-0.0f, pow2).inverse == 1, "a group of zeros");
        EXPECT(isnan(scale_of(INFINITY, pow2).scale) && isnan(scale_of(NAN, pow2).inverse), "not finite");
        EXPECT(scale_of(FLT_TRUE_MIN, pow2).scale == 0x1p-126f && scale_of(FLT_MIN, pow2).inverse == 0x1p126f,
               "the least");
        EXPECT(e4m3_from_f32(FLT_MAX * scale_of(FLT_MAX, pow2).inverse) >= 0x76, "the largest");
    }
}

static void scales_fit(void)
{
    for (int i = 0; i < 20000; i++) {
        float      amax = fabsf(ldexpf(rng_normal(num_.seed, 8, (uint64_t)i), (int)num_below(200) - 100));
        QuantScale p = scale_of(amax, true), f = scale_of(amax, false);
        int        e;
        EXPECT(frexpf(p.scale, &e) == 0.5f && p.scale * p.inverse == 1, "%a: %a", amax, p.scale);
        EXPECT(amax <= 448 * p.scale && (amax > 224 * p.scale || p.scale == 0x1p-126f), "%a: %a", amax,
               p.scale);
        EXPECT(e4m3_from_f32(amax * f.inverse) == 0x7e, "%a: the largest code", amax);
    }
}

/* ---- rows ---- */

typedef struct Rows { Tensor q, scale, x, offsets; bool pow2; } Rows;

static Rows rows(DType d, int64_t R, int64_t K, bool pow2)
{
    return (Rows){ num_poison(E4M3, R, K), num_poison(F32, quant_groups(K), R), num_randn(d, R, K),
                   none, pow2 };
}
static void run_rows(Rows *c) { op_quantize_rows(BE, c->q, c->scale, c->x, c->offsets, c->pow2); }

static uint8_t *codes(Tensor q, int64_t r) { return (uint8_t *)q.data + r * q.s[q.rank - 2]; }

static void check_row(const Rows *c, int64_t r)
{
    for (int64_t k = 0; k < c->x.n[1]; k += QUANT_GROUP) {
        int64_t  end = min_i64(c->x.n[1], k + QUANT_GROUP);
        float    amax = 0, s = ((float *)c->scale.data)[k / QUANT_GROUP * c->scale.s[0] + r];
        for (int64_t i = k; i < end; i++) amax = fmaxf(amax, fabsf(get(c->x, r * c->x.n[1] + i)));
        QuantScale want = scale_of(amax, c->pow2);
        EXPECT(s == want.scale, "row %lld column %lld: scale %a, not %a", (long long)r, (long long)k, s,
               want.scale);
        for (int64_t i = k; i < end; i++)
            EXPECT(codes(c->q, r)[i] == e4m3_from_f32(get(c->x, r * c->x.n[1] + i) * want.inverse), "[%lld]",
                   (long long)i);
    }
}

static void rows_by_definition(void)
{
    DType   d;
    int64_t K;
    for EACH_WIDTH(K) for EACH_FLOAT(d) for (int pow2 = 0; pow2 < 2; pow2++) {
        Rows c = rows(d, 5, K, pow2), g = c;
        run_rows(&c);
        for (int64_t r = 0; r < 5; r++) check_row(&c, r);
        g.q = loose(E4M3, 5, K), g.scale = loose(F32, c.scale.n[0], 5), g.x = loose_copy(c.x);
        run_rows(&g);
        EXPECT(same_bits(g.q, c.q) && same_bits(g.scale, c.scale), "strided rows");
        EXPECT(gaps_intact(g.q) && gaps_intact(g.scale), "wrote between the rows");
        num_clear();
    }
}

static void padding_rows_stay(void)
{
    int32_t off[] = { 0, 2, 2, 4 };
    Rows c = rows(BF16, 7, 130, true);
    c.offsets = num_i32(4, off);
    run_rows(&c);
    for (int64_t r = 0; r < 4; r++) check_row(&c, r);
    for (int64_t i = 4 * 130; i < 7 * 130; i++) EXPECT(codes(c.q, 0)[i] == 0xff, "padding was written");
    num_clear();
}

/* One element that is not finite makes its group NaN, and no other group. */
static void not_finite_shows(void)
{
    static const float bad[] = { INFINITY, -INFINITY, NAN };
    for (int i = 0; i < 3; i++) {
        Rows c = rows(F32, 1, 300, i % 2);
        put(c.x, 140, bad[i]);
        run_rows(&c);
        EXPECT(isnan(get(c.scale, 1)) && !isnan(get(c.scale, 0)) && !isnan(get(c.scale, 2)), "scales");
        for (int64_t k = 0; k < 300; k++)
            EXPECT((codes(c.q, 0)[k] == 0x7f) == (k / 128 == 1), "[%lld] %02x", (long long)k,
                   codes(c.q, 0)[k]);
        num_clear();
    }
}

/* ---- weights ---- */

typedef struct Weight { Tensor q, scale, qt, scale_t, w; bool pow2; } Weight;

static Tensor stack(Tensor t, int64_t E, int64_t N, int64_t K) { return E ? t_as3(t, E, N, K) : t; }

static Weight weight(DType d, int64_t E, int64_t N, int64_t K, bool pow2)
{
    int64_t e = E ? E : 1, nb = quant_groups(N), kb = quant_groups(K);
    return (Weight){ .q = stack(num_poison(E4M3, e * N, K), E, N, K),
                     .scale = stack(num_poison(F32, e * nb, kb), E, nb, kb),
                     .qt = stack(num_poison(E4M3, e * K, N), E, K, N),
                     .scale_t = stack(num_poison(F32, e * kb, nb), E, kb, nb),
                     .w = stack(num_randn(d, e * N, K), E, N, K), .pow2 = pow2 };
}
static void run_weight(Weight *c)
{
    op_quantize_weight(BE, c->q, c->scale, c->qt, c->scale_t, c->w, c->pow2);
}

static float block_scale(const Weight *c, int64_t e, int64_t nb, int64_t kb)
{
    int64_t N = c->w.n[c->w.rank - 2], K = c->w.n[c->w.rank - 1];
    float   amax = 0;
    for (int64_t n = nb * 128; n < min_i64(N, nb * 128 + 128); n++)
        for (int64_t k = kb * 128; k < min_i64(K, kb * 128 + 128); k++)
            amax = fmaxf(amax, fabsf(get(c->w, (e * N + n) * K + k)));
    return scale_of(amax, c->pow2).scale;
}

static void check_weight(const Weight *c)
{
    int64_t E = c->w.rank == 3 ? c->w.n[0] : 1, N = c->w.n[c->w.rank - 2], K = c->w.n[c->w.rank - 1];
    int64_t nb = quant_groups(N), kb = quant_groups(K);
    for (int64_t e = 0; e < E; e++)
        for (int64_t b = 0; b < nb * kb; b++) {
            float want = block_scale(c, e, b / kb, b % kb);
            EXPECT(get(c->scale, e * nb * kb + b) == want, "block %lld", (long long)b);
            EXPECT(get(c->scale_t, (e * kb + b % kb) * nb + b / kb) == want, "block %lld", (long long)b);
        }
    for (int64_t i = 0; i < E * N * K; i++) {
        int64_t e = i / (N * K), n = i / K % N, k = i % K;
        float   s = get(c->scale, (e * nb + n / 128) * kb + k / 128), inverse = 1 / s;
        uint8_t code = ((uint8_t *)c->q.data)[i];
        EXPECT(code == e4m3_from_f32(get(c->w, i) * inverse), "[%lld]", (long long)i);
        EXPECT(((uint8_t *)c->qt.data)[(e * K + k) * N + n] == code, "transposed [%lld]", (long long)i);
    }
}

static void weights_by_definition(void)
{
    static const int64_t sizes[][3] = { { 0, 1, 1 }, { 0, 3, 130 }, { 0, 257, 65 }, { 3, 129, 140 },
                                        { 2, 128, 256 } };
    DType d;
    for (int i = 0; i < 5; i++) for EACH_FLOAT(d) {
        Weight c = weight(d, sizes[i][0], sizes[i][1], sizes[i][2], i % 2), one = c;
        run_weight(&c);
        check_weight(&c);
        one.q = num_poison(E4M3, 1, 1), one.q.data = NULL, one.qt = num_copy(c.qt, E4M3);
        memset(one.qt.data, 0xff, (size_t)t_bytes(one.qt));
        run_weight(&one);
        EXPECT(!memcmp(one.qt.data, c.qt.data, (size_t)t_bytes(c.qt)), "the transposed copy alone");
        num_clear();
    }
}

/* With power-of-two scales the codes of a row are exact products: quantising them again changes nothing. */
static void twice_is_once(void)
{
    Rows c = rows(F32, 3, 300, true), again = rows(F32, 3, 300, true);
    run_rows(&c);
    for (int64_t i = 0; i < 900; i++)
        put(again.x, i, e4m3_to_f32(codes(c.q, 0)[i]) * get(c.scale, i % 300 / 128 * 3 + i / 300));
    run_rows(&again);
    for (int64_t i = 0; i < 900; i++) {
        int64_t at = i % 300 / 128 * 3 + i / 300;
        float one = e4m3_to_f32(codes(c.q, 0)[i]) * get(c.scale, at);
        EXPECT(one == e4m3_to_f32(codes(again.q, 0)[i]) * get(again.scale, at), "[%lld]", (long long)i);
    }
    num_clear();
}

/* ---- against PyTorch ---- */

static void as_pytorch(void)
{
    for (int pow2 = 0; pow2 < 2; pow2++) {
        Rows c = rows(F32, TORCH_ROWS, TORCH_COLS, pow2);
        memcpy(c.x.data, torch_x, sizeof torch_x);
        run_rows(&c);
        EXPECT(!memcmp(c.q.data, torch_q[pow2], sizeof torch_q[pow2]), "codes, pow2 %d", pow2);
        EXPECT(!memcmp(c.scale.data, torch_scale[pow2], sizeof torch_scale[pow2]), "scales, pow2 %d", pow2);
        num_clear();
    }
    for (int c = 0; c < 256; c++) {
        float v = e4m3_to_f32((uint8_t)c);
        EXPECT(is_nan_code(c) ? isnan(v) : quant_bits(v) == torch_e4m3[c], "code %02x", c);
    }
}

static void threads_agree(void)
{
    Rows   r = rows(BF16, 301, 260, true);
    Weight w = weight(BF16, 3, 200, 300, false);
    Tensor of_rows[] = { r.q, r.scale }, of_weight[] = { w.q, w.scale, w.qt, w.scale_t };
    EXPECT_THREADS_AGREE(run_rows, &r, of_rows, 2);
    EXPECT_THREADS_AGREE(run_weight, &w, of_weight, 4);
    num_clear();
}

static void nothing_to_do(void)
{
    Rows   r = rows(F32, 0, 130, true);
    Weight w = weight(F32, 0, 0, 5, true);
    run_rows(&r), run_weight(&w);
    num_clear();
}

int main(void)
{
    rowlab_open();
    RUN(every_code);
    RUN(ties_go_to_even);
    RUN(what_does_not_fit);
    RUN(as_files_do);
    RUN(known_scales);
    RUN(scales_fit);
    RUN(rows_by_definition);
    RUN(padding_rows_stay);
    RUN(not_finite_shows);
    RUN(weights_by_definition);
    RUN(twice_is_once);
    RUN(as_pytorch);
    RUN(threads_agree);
    RUN(nothing_to_do);
    return numlab_report();
}
