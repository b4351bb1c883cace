/* tests/test_dtype.c -- every code of every small float, every rounding case between neighbours, and all
 * pairs of types. The reference is written the slow way (scan the codes for the nearest), so it shares no
 * trick with dtype.c. */
#include "lab.h"
#include "tensor/dtype.h"

typedef struct Form {
    DType    d;
    int      mbits, bias;
    uint32_t codes;           /* not counting the sign, which is this bit */
    uint32_t inf;             /* the first code that is not a finite number */
    bool     saturates;
} Form;

static const Form forms[] = {
    { BF16, 7,  127, 0x8000, 0x7f80, false },
    { F16,  10, 15,  0x8000, 0x7c00, false },
    { E4M3, 3,  7,   0x80,   0x7f,   true  },
    { E5M2, 2,  15,  0x80,   0x7c,   false },
};
enum { FORMS = sizeof forms / sizeof *forms };

static double value(const Form *f, uint32_t mag)
{
    int e = (int)(mag >> f->mbits), m = (int)(mag & ((1u << f->mbits) - 1));
    return e ? ldexp(1.0 + ldexp(m, -f->mbits), e - f->bias) : ldexp(m, 1 - f->bias - f->mbits);
}

static uint32_t encode(DType d, DType from, double x)
{
    float    f = (float)x;
    uint8_t  b = 0;
    uint16_t h = 0;
    const void *src = from == F32 ? (const void *)&f : &x;
    dtype_convert(dtype_size(d) == 1 ? (void *)&b : &h, d, src, from, 1);
    return dtype_size(d) == 1 ? b : h;
}

static double decode(DType d, DType to, uint32_t code)
{
    uint8_t  b = (uint8_t)code;
    uint16_t h = (uint16_t)code;
    float    f = 0;
    double   x = 0;
    dtype_convert(to == F32 ? (void *)&f : &x, to, dtype_size(d) == 1 ? (void *)&b : &h, d, 1);
    return to == F32 ? f : x;
}

static void table_and_names(void)
{
    DType d;
    EXPECT(dtype_size(F32) == 4 && dtype_size(E5M2) == 1 && dtype_size(I64) == 8, "sizes");
    for (int i = 0; i < DTYPE_N; i++) {
        EXPECT(!dtype_parse(&d, dtype_name((DType)i)) && d == (DType)i, "%s", dtype_name((DType)i));
        EXPECT(!dtype_parse(&d, dtype_file_name((DType)i)) && d == (DType)i, "%s", dtype_file_name((DType)i));
    }
    EXPECT(!dtype_parse(&d, "torch.bfloat16") && d == BF16, "torch's spelling");
    EXPECT(!dtype_parse(&d, "float8_e4m3fn") && d == E4M3, "fp8");
    EXPECT_FAIL(dtype_parse(&d, "float12"), E_DATA, "float12");
    EXPECT_FAIL(dtype_parse(&d, ""), E_DATA, "unknown element type");
}

static void every_code_decodes(void)
{
    for (int k = 0; k < FORMS; k++)
        for (uint32_t mag = 0; mag < forms[k].codes; mag++)
            for (int neg = 0; neg < 2; neg++) {
                const Form *f = &forms[k];
                uint32_t code = mag | (neg ? f->codes : 0);
                double   odd  = mag == f->inf && !f->saturates ? INFINITY : NAN;
                double   want = mag < f->inf ? value(f, mag) : odd;
                double   wide = decode(f->d, F64, code), slim = decode(f->d, F32, code);
                if (neg) want = -want;
                bool good = isnan(want) ? isnan(wide) && isnan(slim) : wide == want && slim == want;
                EXPECT(good && signbit(wide) == neg && signbit(slim) == neg, "%s code %#x: %g, %g, want %g",
                       dtype_name(f->d), mag, wide, slim, want);
            }
}

/* Between each code and the next: the code, just under, at, and just over the middle, from f64 and f32. */
static void every_rounding_case(void)
{
    for (int k = 0; k < FORMS; k++) {
        const Form *f = &forms[k];
        for (uint32_t mag = 0; mag + 1 < f->inf + (uint32_t)!f->saturates; mag++) {
            double lo = value(f, mag), hi = value(f, mag + 1), mid = lo / 2 + hi / 2;
            struct { double x; uint32_t code; } c[] = {
                { lo,                 mag }, { mid,                mag + (mag & 1) },
                { nextafter(mid, lo), mag }, { nextafter(mid, hi), mag + 1 },
            };
            for (int i = 0; i < 4; i++) {
                uint32_t up = encode(f->d, F64, c[i].x), down = encode(f->d, F64, -c[i].x);
                EXPECT(up == c[i].code && down == (c[i].code | f->codes), "%s: +-%a gives %#x %#x, want %#x",
                       dtype_name(f->d), c[i].x, up, down, c[i].code);
            }
            float m = (float)mid;                         /* exact: f32 has more bits than any of them */
            struct { float x; uint32_t code; } s[] = {
                { m, mag + (mag & 1) }, { nextafterf(m, 0), mag }, { nextafterf(m, INFINITY), mag + 1 }
            };
            for (int i = 0; i < 3; i++) {
                uint32_t got = encode(f->d, F32, s[i].x);
                EXPECT(got == s[i].code, "%s: f32 %a gives %#x, want %#x",
                       dtype_name(f->d), s[i].x, got, s[i].code);
            }
        }
    }
}

static void ends_of_the_range(void)
{
    EXPECT(encode(E4M3, F32, 448) == 0x7e && encode(E4M3, F32, 465) == 0x7e, "448 is e4m3's largest");
    EXPECT(encode(E4M3, F64, 1e300) == 0x7e && encode(E5M2, F64, 1e300) == 0x7c, "far beyond the range");
    EXPECT(encode(E4M3, F32, INFINITY) == 0x7e && encode(E4M3, F32, -INFINITY) == 0xfe, "no infinity");
    EXPECT(encode(E5M2, F32, 57344) == 0x7b && encode(E5M2, F32, 61440) == 0x7c, "57344 is e5m2's largest");
    EXPECT(encode(F16, F32, 65519) == 0x7bff && encode(F16, F32, 65520) == 0x7c00, "65504 is f16's largest");
    EXPECT(encode(BF16, F64, 3.4e38) == 0x7f80 && encode(BF16, F64, 1e300) == 0x7f80, "bf16 overflows");
    EXPECT(encode(BF16, F64, 5e-324) == 0 && encode(F16, F64, -5e-324) == 0x8000, "underflow keeps the sign");
    for (int k = 0; k < FORMS; k++) {
        DType d = forms[k].d;
        EXPECT(isnan(decode(d, F64, encode(d, F64, NAN))), "%s loses NaN", dtype_name(d));
        EXPECT(isnan(decode(d, F32, encode(d, F32, -NAN))), "%s loses -NaN", dtype_name(d));
        EXPECT(encode(d, F64, -0.0) == forms[k].codes, "%s loses -0", dtype_name(d));
    }
    /* 1 + 2^-8 + 2^-40 lies above bf16's middle; through f32 it would land on it and fall to even. */
    EXPECT(encode(BF16, F64, 1 + 0x1p-8 + 0x1p-40) == 0x3f81, "f64 to bf16 rounds once");
}

static void integers_saturate(void)
{
    double  x[] = { 1.9, -1.9, 300, -300, 1e30, -1e30, NAN, 0x1p63, 9007199254740993.0 };
    int64_t big[] = { INT64_MAX, INT64_MIN, 70000, -70000, 0 };
    int8_t  b[9];
    uint8_t u[9];
    int64_t l[9];
    int32_t w[9];
    int16_t h[5];
    dtype_convert(b, I8, x, F64, 9);
    EXPECT(b[0] == 1 && b[1] == -1 && b[2] == 127 && b[3] == -128 && b[4] == 127 && b[6] == 0, "i8");
    dtype_convert(u, U8, x, F64, 9);
    EXPECT(u[0] == 1 && u[1] == 0 && u[2] == 255 && u[3] == 0 && u[4] == 255 && u[6] == 0, "u8");
    dtype_convert(l, I64, x, F64, 9);
    EXPECT(l[4] == INT64_MAX && l[5] == INT64_MIN && l[7] == INT64_MAX && l[3] == -300, "i64");
    dtype_convert(w, I32, big, I64, 5);
    EXPECT(w[0] == INT32_MAX && w[1] == INT32_MIN && w[2] == 70000, "i32 from i64");
    dtype_convert(h, I16, big, I64, 5);
    EXPECT(h[2] == INT16_MAX && h[3] == INT16_MIN && h[4] == 0, "i16 from i64");
    dtype_convert(u, BOOL, x, F64, 7);
    EXPECT(u[0] == 1 && u[1] == 1 && u[6] == 1, "bool");
    dtype_convert(u, BOOL, big, I64, 5);
    EXPECT(u[0] == 1 && u[4] == 0, "bool from i64");
}

/* 0 and 1 exist in every type, so every pair must carry them, at every length and from odd addresses. */
static void all_pairs(void)
{
    enum { N = 1100 };                                              /* beyond two chunks */
    uint8_t *ones = malloc(N), *a = malloc(N * 8 + 1), *b = malloc(N * 8), *c = malloc(N);
    for (int i = 0; i < N; i++) ones[i] = i % 3 == 0;
    for (int from = 0; from < DTYPE_N; from++)
        for (int to = 0; to < DTYPE_N; to++)
            for (int64_t n = 0; n < N; n = n * 2 + 1) {
                dtype_convert(b, (DType)from, ones, BOOL, n);
                memcpy(a + 1, b, (size_t)n * dtype_size((DType)from));  /* unaligned, as files may be */
                dtype_convert(b, (DType)to, a + 1, (DType)from, n);
                dtype_convert(c, BOOL, b, (DType)to, n);
                EXPECT(!memcmp(c, ones, (size_t)n), "%s to %s, %lld elements", dtype_name((DType)from),
                       dtype_name((DType)to), (long long)n);
            }
    dtype_convert(NULL, F32, NULL, BF16, 0);                        /* nothing is a legal amount */
    free(ones), free(a), free(b), free(c);
}

/* The loops agree with the inline functions of the header for every upper half of an f32. */
static void bf16_loop_agrees(void)
{
    enum { N = 65536 };
    float    *f = malloc(N * 4), *g = malloc(N * 4);
    uint16_t *h = malloc(N * 2);
    for (uint32_t low = 0x7fff; low <= 0x8001; low++) {
        for (uint32_t i = 0; i < N; i++) { uint32_t u = i << 16 | low; memcpy(&f[i], &u, 4); }
        dtype_convert(h, BF16, f, F32, N);
        dtype_convert(g, F32, h, BF16, N);
        for (uint32_t i = 0; i < N; i++) {
            float one = bf16_to_f32(h[i]);
            bool  nan = isnan(one) == isnan(f[i]);
            EXPECT(h[i] == bf16_from_f32(f[i]) && !memcmp(&one, &g[i], 4) && nan, "%#x", i);
        }
    }
    free(f), free(g), free(h);
}

int main(void)
{
    RUN(table_and_names);
    RUN(every_code_decodes);
    RUN(every_rounding_case);
    RUN(ends_of_the_range);
    RUN(integers_saturate);
    RUN(all_pairs);
    RUN(bf16_loop_agrees);
    return lab_report();
}
