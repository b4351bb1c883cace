/* tensor/dtype.c -- element types: their table and the conversions between any two of them.
 *
 * A pair with a fast path (same type, bf16 and f16 against f32) takes it; integers go to integers through
 * int64; every other pair goes through double in chunks that stay in cache. Each element is rounded once
 * (to nearest, ties to even), straight from double: bf16 from f64 or from a large integer does not pass
 * f32. The one exception: an i64 beyond 2^53 is rounded to double first.
 *
 * Into integers, fractions are cut toward zero, what does not fit saturates and NaN becomes 0; into bool,
 * whatever is not zero is true. e4m3 saturates at 448, having no infinity; the others overflow to it. */
#include "tensor/dtype.h"

#include <strings.h>

enum { CHUNK = 512 };                 /* elements: 4 kB of double, well inside L1 */

typedef struct DTypeRow { const char *name, *file; size_t bytes; } DTypeRow;

static const DTypeRow rows[DTYPE_N] = {
#define DTYPE(e, size, as_name, as_file) [e] = { as_name, as_file, size },
    DTYPES(DTYPE)
#undef DTYPE
};

static const struct { const char *name; DType d; } aliases[] = {
    { "float32",  F32  }, { "float", F32 }, { "fp32",  F32 }, { "float64", F64 }, { "double", F64 },
    { "bfloat16", BF16 }, { "half",  F16 }, { "fp16",  F16 }, { "float16", F16 },
    { "fp8",      E4M3 }, { "float8_e4m3fn", E4M3 },          { "float8_e5m2", E5M2 },
    { "int64",    I64  }, { "long",  I64 }, { "int32", I32 }, { "int", I32 },
    { "int16",    I16  }, { "int8",  I8  }, { "uint8", U8  },
};

static const DTypeRow *row(DType d)
{
    REQUIRE((unsigned)d < DTYPE_N, "dtype %d", (int)d);
    return &rows[d];
}

size_t      dtype_size(DType d)      { return row(d)->bytes; }
const char *dtype_name(DType d)      { return row(d)->name; }
const char *dtype_file_name(DType d) { return row(d)->file; }

Status dtype_parse(DType *d, const char *name)
{
    const char *bare = strncasecmp(name, "torch.", 6) ? name : name + 6;
    *d = F32;
    for (int i = 0; i < DTYPE_N; i++)
        if (!strcasecmp(bare, rows[i].name) || !strcasecmp(bare, rows[i].file)) return *d = (DType)i, OK;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (!strcasecmp(bare, aliases[i].name)) return *d = aliases[i].d, OK;
    return fail(E_DATA, "unknown element type '%.40s'; known are f32 bf16 f16 f64 e4m3 e5m2 i64 i32 i16 i8 "
                        "u8 bool", name);
}

/* The floats smaller than f32, as one family: sign, exponent with this bias, mbits of fraction. `over` is
 * the code (sign aside) that stands for everything too large, `nan` the one written for NaN. */
typedef struct Small { int mbits, bias; uint32_t sign, over, nan; } Small;

static const Small small_bf16 = { 7,  127, 0x8000, 0x7f80, 0x7fc0 };
static const Small small_f16  = { 10, 15,  0x8000, 0x7c00, 0x7e00 };
static const Small small_e4m3 = { 3,  7,   0x80,   0x7e,   0x7f };
static const Small small_e5m2 = { 2,  15,  0x80,   0x7c,   0x7f };

#define F64_ONE  (1ull << 52)         /* the implicit bit */
#define F64_INF  0x7ff0000000000000ull

/* Below the smallest normal number the step stops shrinking, so more bits are cut; a carry out of the
 * fraction then walks into the exponent by itself, which is what rounding up to the next power means. */
static inline uint32_t small_encode(Small f, double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    uint32_t sign = u >> 63 ? f.sign : 0;
    uint64_t mag  = u & ~(1ull << 63);
    if (mag > F64_INF) return sign | f.nan;
    int e = (int)(mag >> 52) - 1023, least = 1 - f.bias, cut = 52 - f.mbits;
    if (e < least) cut += least - e;
    if (cut > 60) return sign;                              /* far below half of the smallest step */
    if (e > f.bias + 1) return sign | f.over;
    uint64_t m = (mag & (F64_ONE - 1)) | F64_ONE, half = 1ull << (cut - 1), rest = m & (2 * half - 1);
    uint64_t code = m >> cut;
    code += rest > half || (rest == half && (code & 1));
    if (e >= least) code += (uint64_t)(e - least) << f.mbits;
    return sign | (uint32_t)(code > f.over ? f.over : code);
}

static inline double small_decode(Small f, uint32_t code)
{
    uint32_t mag  = code & (f.sign - 1), e = mag >> f.mbits, m = mag & ((1u << f.mbits) - 1);
    bool     ieee = f.over != f.nan - 1;                    /* e4m3 spends the top exponent on numbers */
    uint64_t u    = (uint64_t)m << (52 - f.mbits);
    double   x;
    if (ieee ? mag > f.over : mag == f.nan) u |= F64_INF | 1ull << 51;
    else if (ieee && mag == f.over)         u |= F64_INF;
    else                                    u |= (uint64_t)((int)e - f.bias + 1023) << 52;
    memcpy(&x, &u, 8);
    if (e == 0) {                                           /* subnormal: m steps of 2^(1 - bias - mbits) */
        u = (uint64_t)(1 - f.bias - f.mbits + 1023) << 52;
        memcpy(&x, &u, 8);
        x *= m;
    }
    return code & f.sign ? -x : x;
}

/* 2^63 is a double, INT64_MAX is not; comparing against the former keeps the cast defined. */
static inline int64_t whole(double x)
{
    if (!(x == x)) return 0;
    if (x >= 0x1p63)  return INT64_MAX;
    if (x <= -0x1p63) return INT64_MIN;
    return (int64_t)x;
}

static inline int64_t clamp(int64_t v, int64_t lo, int64_t hi) { return v < lo ? lo : v > hi ? hi : v; }

/* The two ends of the long way round: one loop per type, so that the switch is paid once per chunk. */
#define EACH(ctype, work) for (int64_t i = 0; i < n; i++) { ctype v; work }
#define GET(ctype, e)     EACH(ctype, memcpy(&v, src + (size_t)i * sizeof v, sizeof v); x[i] = (e);) break
#define PUT(ctype, e)     EACH(ctype, v = (ctype)(e); memcpy(dst + (size_t)i * sizeof v, &v, sizeof v);) break

static void load_double(double *restrict x, const uint8_t *restrict src, DType from, int64_t n)
{
    switch (from) {
    case F32:  GET(float,    v);
    case F64:  GET(double,   v);
    case BF16: GET(uint16_t, bf16_to_f32(v));
    case F16:  GET(uint16_t, small_decode(small_f16, v));
    case E4M3: GET(uint8_t,  small_decode(small_e4m3, v));
    case E5M2: GET(uint8_t,  small_decode(small_e5m2, v));
    case I64:  GET(int64_t,  (double)v);
    case I32:  GET(int32_t,  v);
    case I16:  GET(int16_t,  v);
    case I8:   GET(int8_t,   v);
    case U8:   GET(uint8_t,  v);
    case BOOL: GET(uint8_t,  v != 0);
    default:   REQUIRE(false, "dtype %d", (int)from);
    }
}

static void store_double(uint8_t *restrict dst, DType to, const double *restrict x, int64_t n)
{
    switch (to) {
    case F32:  PUT(float,    x[i]);
    case F64:  PUT(double,   x[i]);
    case BF16: PUT(uint16_t, small_encode(small_bf16, x[i]));
    case F16:  PUT(uint16_t, small_encode(small_f16, x[i]));
    case E4M3: PUT(uint8_t,  small_encode(small_e4m3, x[i]));
    case E5M2: PUT(uint8_t,  small_encode(small_e5m2, x[i]));
    case I64:  PUT(int64_t,  whole(x[i]));
    case I32:  PUT(int32_t,  clamp(whole(x[i]), INT32_MIN, INT32_MAX));
    case I16:  PUT(int16_t,  clamp(whole(x[i]), INT16_MIN, INT16_MAX));
    case I8:   PUT(int8_t,   clamp(whole(x[i]), INT8_MIN, INT8_MAX));
    case U8:   PUT(uint8_t,  clamp(whole(x[i]), 0, UINT8_MAX));
    case BOOL: PUT(uint8_t,  x[i] != 0);
    default:   REQUIRE(false, "dtype %d", (int)to);
    }
}

static void load_int(int64_t *restrict x, const uint8_t *restrict src, DType from, int64_t n)
{
    switch (from) {
    case I64:  GET(int64_t, v);
    case I32:  GET(int32_t, v);
    case I16:  GET(int16_t, v);
    case I8:   GET(int8_t,  v);
    case U8:   GET(uint8_t, v);
    case BOOL: GET(uint8_t, v != 0);
    default:   REQUIRE(false, "dtype %d", (int)from);
    }
}

static void store_int(uint8_t *restrict dst, DType to, const int64_t *restrict x, int64_t n)
{
    switch (to) {
    case I64:  PUT(int64_t, x[i]);
    case I32:  PUT(int32_t, clamp(x[i], INT32_MIN, INT32_MAX));
    case I16:  PUT(int16_t, clamp(x[i], INT16_MIN, INT16_MAX));
    case I8:   PUT(int8_t,  clamp(x[i], INT8_MIN, INT8_MAX));
    case U8:   PUT(uint8_t, clamp(x[i], 0, UINT8_MAX));
    case BOOL: PUT(uint8_t, x[i] != 0);
    default:   REQUIRE(false, "dtype %d", (int)to);
    }
}

static void bf16_from_f32s(uint8_t *restrict dst, const uint8_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float f;
        memcpy(&f, src + 4 * i, 4);
        uint16_t b = bf16_from_f32(f);
        memcpy(dst + 2 * i, &b, 2);
    }
}

static void f32_from_bf16s(uint8_t *restrict dst, const uint8_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t b;
        memcpy(&b, src + 2 * i, 2);
        uint32_t u = (uint32_t)b << 16;
        memcpy(dst + 4 * i, &u, 4);
    }
}

/* Shifted into place, an f16 reads as an f32 whose exponent is 112 too low, subnormals included, so one
 * multiplication puts it right; infinity and NaN get the top exponent. No branches: it vectorises. */
static void f32_from_f16s(uint8_t *restrict dst, const uint8_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, 2);
        uint32_t mag = (uint32_t)(h & 0x7fff) << 13, u;
        float    f;
        memcpy(&f, &mag, 4);
        f *= 0x1p112f;
        memcpy(&u, &f, 4);
        u |= mag >= 0x0f800000u ? 0x7f800000u : 0;
        u |= (uint32_t)(h & 0x8000) << 16;
        memcpy(dst + 4 * i, &u, 4);
    }
}

static bool is_int(DType d) { return d >= I64; }

void dtype_convert(void *dst, DType to, const void *src, DType from, int64_t n)
{
    size_t         out = dtype_size(to), in = dtype_size(from);
    uint8_t       *d = dst;
    const uint8_t *s = src;
    REQUIRE(n >= 0, "dtype_convert: %lld elements", (long long)n);
    if (n == 0) return;
    if (to == from)                { memcpy(d, s, (size_t)n * in); return; }
    if (to == F32 && from == BF16) { f32_from_bf16s(d, s, n); return; }
    if (to == BF16 && from == F32) { bf16_from_f32s(d, s, n); return; }
    if (to == F32 && from == F16)  { f32_from_f16s(d, s, n);  return; }
    for (int64_t i = 0; i < n; i += CHUNK, d += CHUNK * out, s += CHUNK * in) {
        union { double x[CHUNK]; int64_t v[CHUNK]; } mid;
        int64_t m = n - i < CHUNK ? n - i : CHUNK;
        if (is_int(to) && is_int(from)) load_int(mid.v, s, from, m), store_int(d, to, mid.v, m);
        else                            load_double(mid.x, s, from, m), store_double(d, to, mid.x, m);
    }
}
