/* tests/test_weight_code.c -- codes of frozen weights: values that bitsandbytes computes, parts, decoding. */
#include "rowlab.h"
#include "base/num.h"
#include "ops/weight_code.h"

enum { N = 36, K = 512 };

/* A weight, its statistics and codes in place. */
typedef struct Coded { Tensor w, amax, group, first; WeightCodes z; } Coded;

static Tensor bytes(DType d, int64_t n0, int64_t n1) { return num_poison(d, n0, n1); }

static Tensor row_of(Tensor t, int64_t n)
{
    return t_wrap(t.data, (DType)t.dtype, 1, &n);
}

static void code(Coded *c, CodeFormat f, Tensor w)
{
    int64_t rows = w.n[0], cols = w.n[1], n = rows * cols, amaxes = f == CODE_NF4 ? nf4_blocks(n) : rows;
    DType   scales = f == CODE_NF4 ? U8 : F32;
    *c = (Coded){ .w = w, .amax = bytes(F32, 1, amaxes), .group = bytes(F32, nf4_groups(n), 2),
                  .first = bytes(I32, 1, rows) };
    c->z = (WeightCodes){ f, bytes(f == CODE_NF4 ? U8 : I8, rows, code_bytes(f, cols)),
                          bytes(scales, 1, amaxes), row_of(c->first, rows), c->group };
    for (int64_t r = 0; r < rows; r++) ((int32_t *)c->first.data)[r] = (int32_t)(r * cols / 2);
    op_weight_stats(BE, f, row_of(c->amax, amaxes), c->group, w);
    op_code_scales(BE, f, c->z.scale, row_of(c->amax, amaxes), c->group, 0, 0);
    op_code_weight(BE, f, t_as2(c->z.q, 1, code_bytes(f, n)), w, row_of(c->amax, amaxes), 0, 0, cols);
}

/* ---- bitsandbytes 0.50.2: its definition in PyTorch; its CPU kernel rounds one amax in 288 otherwise
 * ---- */

static Tensor recorded_weight(DType d)
{
    Tensor   w = bytes(d, N, K);
    uint32_t s = 12345;
    for (int64_t i = 0; i < N * K; i++) {
        s = (s * 1103515245u + 12345u) & 0x7fffffffu;
        put(w, i, ldexpf((float)((int)(s >> 16 & 0xff) - 128), -7 - (int)(i / 64 * 7 % 5)));
    }
    return w;
}

static uint64_t hash_of(const void *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3u;
    return h;
}

static void nf4_is_that_of_bitsandbytes(void)
{
    Coded  c;
    Tensor back = bytes(BF16, N, K);
    code(&c, CODE_NF4, recorded_weight(BF16));
    op_decode_weight(BE, back, c.z, (TileAt){ 0 });
    const float *g = c.group.data;
    EXPECT(g[0] == 0.617524862f && g[1] == 0.382475108f && g[2] == 0.617524862f && g[3] == 0.382475108f,
           "groups %.9g %.9g", g[0], g[1]);
    EXPECT(hash_of(c.z.q.data, N * K / 2) == 0xf383628337f63749u, "codes of elements");
    EXPECT(hash_of(c.z.scale.data, N * K / 64) == 0x5a63b951c6541857u, "codes of amaxes");
    EXPECT(hash_of(back.data, N * K * 2) == 0xeb595aad5285f656u, "decoded");
}

/* ---- by definition ---- */

static double element(const Coded *c, int64_t i)
{
    static const double value[16] = {
#define X(v) (double)v,
        NF4_VALUES(X)
#undef X
    };
    const uint8_t *q = c->z.q.data;
    if (c->z.format == CODE_INT8)
        return (double)((const int8_t *)q)[i] * (double)((const float *)c->z.scale.data)[i / c->w.n[1]];
    return value[q[i / 2] >> (i % 2 ? 0 : 4) & 15] * (double)((const float *)c->amax.data)[i / 64];
}

static void codes_are_nearest(void)
{
    for (CodeFormat f = CODE_INT8; f <= CODE_NF4; f++) {
        Coded c;
        DType d;
        for EACH_FLOAT(d) {
            code(&c, f, num_randn(d, 24, 192));
            for (int64_t i = 0; i < t_count(c.w); i++) {
                double amax = ((const float *)c.amax.data)[f == CODE_NF4 ? i / 64 : i / 192];
                double gap  = f == CODE_NF4 ? amax * 0.152 : amax / 254 * 1.001; /* half of the widest */
                EXPECT(fabs(element(&c, i) - get(c.w, i)) <= gap, "format %d, element %lld: %g for %g",
                       (int)f, (long long)i, element(&c, i), get(c.w, i));
            }
        }
    }
}

/* Any tile of the weight has the elements of the whole. */
static void tiles_are_parts_of_the_whole(void)
{
    static const TileAt at[] = { { 0, 0, 0 }, { 0, 5, 64 }, { 0, 1, 32 }, { 0, 23, 190 } };
    static const int64_t size[][2] = { { 24, 192 }, { 7, 64 }, { 3, 100 }, { 1, 2 } };
    for (CodeFormat f = CODE_INT8; f <= CODE_NF4; f++) {
        Coded  c;
        Tensor whole = bytes(F32, 24, 192);
        code(&c, f, num_randn(BF16, 24, 192));
        op_decode_weight(BE, whole, c.z, (TileAt){ 0 });
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
            Tensor t = bytes(F32, size[i][0], size[i][1]);
            op_decode_weight(BE, t, c.z, at[i]);
            EXPECT(same_bits(t, loose_copy(t_cols(t_rows(whole, at[i].row, t.n[0]), at[i].col, t.n[1]))),
                   "format %d, tile %zu", (int)f, i);
        }
    }
}

/* Codes of columns 64 .. 191 by themselves, as a rank of two of three would have them. */
static void parts_have_the_codes_of_the_whole(void)
{
    for (CodeFormat f = CODE_INT8; f <= CODE_NF4; f++) {
        Coded   c;
        code(&c, f, num_randn(BF16, 24, 192));
        int64_t n = f == CODE_NF4 ? 2 : 24, wide = code_bytes(f, 128);
        Tensor  q = bytes((DType)c.z.q.dtype, 24, wide), amax = row_of(c.amax, t_count(c.amax));
        Tensor  scale = f == CODE_NF4 ? bytes(U8, 24, n) : bytes(F32, 1, n);
        op_code_weight(BE, f, q, c.w, amax, 64, 192, 192);
        op_code_scales(BE, f, scale, amax, c.group, f == CODE_NF4, f == CODE_NF4 ? 3 : 0);
        for (int64_t r = 0; r < 24; r++)
            EXPECT(!memcmp((char *)q.data + r * wide, (char *)c.z.q.data + r * wide * 3 / 2 + wide / 2,
                           (size_t)wide), "format %d, row %lld", (int)f, (long long)r);
        for (int64_t r = 0; r < 24 && f == CODE_NF4; r++)
            EXPECT(!memcmp((char *)scale.data + 2 * r, (char *)c.z.scale.data + 3 * r + 1, 2), "amaxes");
        EXPECT(f == CODE_NF4 || !memcmp(scale.data, c.z.scale.data, 24 * 4), "scales");
    }
}

static void fp8_blocks_decode(void)
{
    Tensor w = num_randn(BF16, 2 * 150, 200), back = bytes(F32, 2 * 150, 200);
    Tensor q = bytes(E4M3, 300, 200), s = bytes(F32, 4, 2);
    Tensor w3 = t_as3(w, 2, 150, 200), q3 = t_as3(q, 2, 150, 200), s3 = t_as3(s, 2, 2, 2);
    op_quantize_weight(BE, q3, s3, none, none, w3, true);
    op_decode_weight(BE, t_as3(back, 2, 150, 200), (WeightCodes){ CODE_FP8, q3, s3, none, none },
                     (TileAt){ 0 });
    for (int64_t r = 0; r < 300; r++)
        for (int64_t k = 0; k < 200; k++) {
            float scale = ((const float *)s.data)[r / 150 * 4 + r % 150 / 128 * 2 + k / 128];
            float want = e4m3_to_f32(((const uint8_t *)q.data)[r * 200 + k]) * scale;
            EXPECT(get(back, r * 200 + k) == want, "row %lld", (long long)r);
        }
}

/* Zeros stay zeros, and nothing that is not finite is hidden. */
static void edges(void)
{
    for (CodeFormat f = CODE_INT8; f <= CODE_NF4; f++) {
        Coded  c;
        Tensor w = num_randn(F32, 4, 128), back = bytes(F32, 4, 128);
        for (int64_t i = 128; i < 256; i++) put(w, i, 0.0f);
        code(&c, f, w);
        EXPECT(f == CODE_INT8 || ((uint8_t *)c.z.q.data)[64] == 0x77, "the code of 0 is %02x",
               ((uint8_t *)c.z.q.data)[64]);
        op_decode_weight(BE, back, c.z, (TileAt){ 0 });
        for (int64_t i = 128; i < 256; i++) EXPECT(get(back, i) == 0.0f, "%g", get(back, i));
        put(w, 5, NAN);
        code(&c, f, w);
        op_decode_weight(BE, back, c.z, (TileAt){ 0 });
        EXPECT(isnan(get(back, 0)) && isnan(get(back, 5)), "%g %g", get(back, 0), get(back, 5));
    }
}

static void threads_do_not_matter(void)
{
    Coded a, b;
    Tensor w = num_randn(BF16, 256, 512), x = bytes(F32, 256, 512), y = bytes(F32, 256, 512);
    code(&a, CODE_NF4, w);
    op_decode_weight(BE, x, a.z, (TileAt){ 0 });
    omp_set_num_threads(1);
    code(&b, CODE_NF4, w);
    op_decode_weight(BE, y, b.z, (TileAt){ 0 });
    omp_set_num_threads(omp_get_num_procs());
    EXPECT(same_bits(x, y), "bits");
}

int main(void)
{
    rowlab_open();
    RUN(nf4_is_that_of_bitsandbytes);
    RUN(codes_are_nearest);
    RUN(tiles_are_parts_of_the_whole);
    RUN(parts_have_the_codes_of_the_whole);
    RUN(fp8_blocks_decode);
    RUN(edges);
    RUN(threads_do_not_matter);
    return numlab_report();
}
