/* ops/cpu/tile.c -- the inner kernel of attention and of products, and loads into a tile.
 *
 * The kernel holds 6 rows x some vectors of c in registers, and per step of k multiplies as many vectors of b
 * by 6 broadcast elements of a. It is written once over vector width and count and compiled for three
 * register files: 32 x 512 bits, 16 x 256 bits, and the compiler's default target. */
#include "ops/cpu/tile.h"

#include "base/hot.h"

typedef void Kernel(bool add, float *c, int64_t ldc, const float *a, int64_t am, int64_t ak, const float *b,
                    int64_t ldb, int64_t K);

#define UNROLL _Pragma("GCC unroll 6")
#define KERNEL(name, target_, LANES, VECS)                                                                \
    target_ static void name(bool add, float *c, int64_t ldc, const float *a, int64_t am, int64_t ak,     \
                             const float *b, int64_t ldb, int64_t K)                                      \
    {                                                                                                     \
        typedef float V __attribute__((vector_size(LANES * 4), aligned(4), may_alias));                   \
        V s[TILE_PAD_M][VECS];                                                                            \
        UNROLL for (int i = 0; i < TILE_PAD_M; i++)                                                       \
            UNROLL for (int j = 0; j < VECS; j++)                                                         \
                s[i][j] = add ? *(V *)(c + i * ldc + j * LANES) : (V){ 0 };                               \
        for (int64_t k = 0; k < K; k++, a += ak, b += ldb) {                                              \
            V row[VECS];                                                                                  \
            UNROLL for (int j = 0; j < VECS; j++) row[j] = *(const V *)(b + j * LANES);                   \
            UNROLL for (int i = 0; i < TILE_PAD_M; i++)                                                   \
                UNROLL for (int j = 0; j < VECS; j++) s[i][j] += a[i * am] * row[j];                      \
        }                                                                                                 \
        UNROLL for (int i = 0; i < TILE_PAD_M; i++)                                                       \
            UNROLL for (int j = 0; j < VECS; j++) *(V *)(c + i * ldc + j * LANES) = s[i][j];              \
    }

typedef struct Blocking { int width; Kernel *kernel; } Blocking;

KERNEL(kernel_plain, , 4, 4)
static const Blocking plain[] = { { 16, kernel_plain } };

#if defined(__x86_64__)
KERNEL(kernel_v3, TARGET_V3, 8, 2)
KERNEL(kernel_v4_64, TARGET_V4, 16, 4)
KERNEL(kernel_v4_32, TARGET_V4, 16, 2)
KERNEL(kernel_v4_16, TARGET_V4, 16, 1)
static const Blocking v3[] = { { 16, kernel_v3 } };
static const Blocking v4[] = { { 64, kernel_v4_64 }, { 32, kernel_v4_32 }, { 16, kernel_v4_16 } };

static const Blocking *blocking(void)
{
    return CPU_HAS_V4 ? v4 : CPU_HAS_V3 ? v3 : plain;
}
#else
static const Blocking *blocking(void) { return plain; }
#endif

void tile_mul(bool add, float *c, int64_t ldc, const float *a, int64_t am, int64_t ak,
              const float *b, int64_t ldb, int64_t M, int64_t N, int64_t K)
{
    const Blocking *bl = blocking();
    N = tile_cols(N);
    for (int64_t n = 0; n < N; n += bl->width) {
        while (n + bl->width > N) bl++;                 /* the last columns go to narrower kernels */
        for (int64_t m = 0; m < M; m += TILE_PAD_M)
            bl->kernel(add, c + m * ldc + n, ldc, a + m * am, am, ak, b + n, ldb, K);
    }
}

INLINE const char *source_row(TileSource s, int64_t r)
{
    return (const char *)s.p + r * s.stride * (s.dtype == F32 ? 4 : 2);
}

HOT void tile_read(float *dst, int64_t ld, TileSource s, float scale)
{
    for (int64_t r = 0; r < s.rows; r++, dst += ld) {
        const float    *f = (const float *)source_row(s, r);
        const uint16_t *h = (const uint16_t *)f;
        if (s.dtype == F32) for (int64_t c = 0; c < s.cols; c++) dst[c] = scale * f[c];
        else                for (int64_t c = 0; c < s.cols; c++) dst[c] = scale * bf16_to_f32(h[c]);
    }
}

/* 4 x 4 blocks transposed in registers. */
typedef float    F4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t U4 __attribute__((vector_size(16)));
typedef uint16_t H4 __attribute__((vector_size(8), aligned(2), may_alias));

INLINE F4 load4(const char *row, int64_t c, DType d)
{
    if (d == F32) return *(const F4 *)((const float *)row + c);
    return (F4)(__builtin_convertvector(*(const H4 *)((const uint16_t *)row + c), U4) << 16);
}

INLINE void turn_block(float *dst, int64_t ld, TileSource s, int64_t r, int64_t c)
{
    F4 a = load4(source_row(s, r), c, s.dtype),     b = load4(source_row(s, r + 1), c, s.dtype);
    F4 x = load4(source_row(s, r + 2), c, s.dtype), y = load4(source_row(s, r + 3), c, s.dtype);
    F4 lo = __builtin_shufflevector(a, b, 0, 4, 1, 5), hi = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    F4 LO = __builtin_shufflevector(x, y, 0, 4, 1, 5), HI = __builtin_shufflevector(x, y, 2, 6, 3, 7);
    dst += c * ld + r;
    *(F4 *)dst            = __builtin_shufflevector(lo, LO, 0, 1, 4, 5);
    *(F4 *)(dst + ld)     = __builtin_shufflevector(lo, LO, 2, 3, 6, 7);
    *(F4 *)(dst + 2 * ld) = __builtin_shufflevector(hi, HI, 0, 1, 4, 5);
    *(F4 *)(dst + 3 * ld) = __builtin_shufflevector(hi, HI, 2, 3, 6, 7);
}

INLINE void turn(float *dst, int64_t ld, TileSource s, DType d)
{
    s.dtype = d;                                        /* a constant: each copy has one kind of load */
    int64_t R = s.rows / 4 * 4, C = s.cols / 4 * 4;
    for (int64_t r = 0; r < R; r += 4)
        for (int64_t c = 0; c < C; c += 4) turn_block(dst, ld, s, r, c);
    for (int64_t r = 0; r < s.rows; r++) {
        const float    *f = (const float *)source_row(s, r);
        const uint16_t *h = (const uint16_t *)f;
        for (int64_t c = r < R ? C : 0; c < s.cols; c++)
            dst[c * ld + r] = d == F32 ? f[c] : bf16_to_f32(h[c]);
    }
}

HOT void tile_transpose(float *dst, int64_t ld, TileSource s)
{
    if (s.dtype == F32) turn(dst, ld, s, F32);
    else                turn(dst, ld, s, BF16);
}

void tile_write(void *dst, DType d, int64_t stride, const float *src, int64_t ld, int64_t rows, int64_t cols)
{
    char *p = dst;
    for (int64_t r = 0; r < rows; r++, p += stride * (int64_t)dtype_size(d), src += ld) {
        if (d == F32) memcpy(p, src, (size_t)cols * sizeof *src);
        else          cpu_narrow((uint16_t *)p, src, cols);
    }
}
