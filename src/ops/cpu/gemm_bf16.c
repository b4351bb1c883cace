/* ops/cpu/gemm_bf16.c -- one thread's share of a matrix product, for every mix of f32 and bf16.
 *
 * A tile of c is accumulated in f32 in the thread's own workspace, TILE_K terms of the inner dim at a time,
 * and rounded once when it is stored. Operands are either f32 (multiplied by tile.c) or packed for the CPU's
 * bf16 units, in blocks of 1 KiB for AMX and the dot instructions:
 *
 *   a   16 rows x 32 terms         a[i][k]           one row is 64 bytes
 *   b   16 pairs of terms x 16 columns x 2           b[k / 2][j][k % 2], a row of 64 bytes is 16 columns
 *
 * Blocks follow each other along the terms, then along rows (columns), which are padded with zeros to 32. */
#include "ops/dropout.h"
#include "ops/cpu/gemm_bf16.h"
#include "ops/cpu/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { TILE_K = 512, PANEL = 64, PAD = 32, BLOCK = 256 /* uint32_t in a block */ };
enum { LDA = TILE_K + 16 };             /* rows a power of two apart would all fall into one cache set */

/* The workspace of a tile: its sums, then operand a, then b. */
enum { ACC_SIZE = (TILE_M + PAD) * TILE_N, A_SIZE = (TILE_M + PAD) * LDA };

/* An operand of the tile: n rows of a or columns of b. inner: its terms are adjacent in memory. Dropout may
 * apply to an a with adjacent terms, or to a b without. */
typedef struct Operand { Tensor t; bool inner; int64_t n; Dropout drop; } Operand;

Tiling gemm_tiling(int64_t M, int64_t N, int64_t products)
{
    enum { ENOUGH = 16 };                               /* tiles that keep the threads of a CPU in step */
    Tiling t = { TILE_M, TILE_N };
    while (products * ((M + t.m - 1) / t.m) * ((N + t.n - 1) / t.n) < ENOUGH) {
        if (t.n > TILE_MIN && (t.n >= t.m || t.m == TILE_MIN)) t.n /= 2;
        else if (t.m > TILE_MIN) t.m /= 2;
        else break;
    }
    return t;
}

static int64_t padded(int64_t n) { return (n + PAD - 1) / PAD * PAD; }

static TileSource source(Tensor t) { return (TileSource){ t.data, t.s[0], t.n[0], t.n[1], (DType)t.dtype }; }

/* acc += a b in f32: makes the terms of a row of a, and the columns of a panel of b, adjacent. */
static void add_widened(float *acc, int64_t ld, Operand a, Operand b, int64_t K)
{
    float *A = acc + ACC_SIZE, *B = A + A_SIZE;
    if (a.inner) tile_read(A, LDA, source(a.t), 1.0f);
    else         tile_transpose(A, LDA, source(a.t));
    dropout_f32(A, LDA, a.n, K, a.drop);
    for (int64_t n = 0; n < b.n; n += PANEL) {
        int64_t w = b.n - n < PANEL ? b.n - n : PANEL;
        if (b.inner) tile_transpose(B, PANEL, source(t_rows(b.t, n, w)));
        else         tile_read(B, PANEL, source(t_cols(b.t, n, w)), 1.0f);
        dropout_f32(B, PANEL, K, w, dropout_at(b.drop, 0, n));
        tile_mul(true, acc + n, ld, A, LDA, 1, B, PANEL, a.n, w, K);
    }
}

/* ---- packed blocks ---- */

/* 16 rows (columns) x 32 terms, as they lie: [16][32] when inner, else [32][16]. Zeros outside. */
static void block_read(uint16_t *out, Operand x, int64_t i, int64_t k)
{
    int64_t r0 = x.inner ? i : k, c0 = x.inner ? k : i, H = x.inner ? 16 : 32, W = x.inner ? 32 : 16;
    int64_t rows = x.t.n[0] - r0 < H ? x.t.n[0] - r0 : H, cols = x.t.n[1] - c0 < W ? x.t.n[1] - c0 : W;
    if (rows < H || cols < W) memset(out, 0, BLOCK * sizeof(uint32_t));
    for (int64_t r = 0; r < rows && cols > 0; r++)
        memcpy(out + r * W, (uint16_t *)row_ptr(x.t, r0 + r) + c0, (size_t)cols * sizeof *out);
    dropout_bf16(out, W, rows, cols, dropout_at(x.drop, r0, c0));
}

HOT static void pack_a(uint32_t *out, Operand x, int64_t K)
{
    uint16_t raw[32][16];
    for (int64_t i = 0; i < padded(x.n); i += 16)
        for (int64_t k = 0; k < K; k += 32, out += BLOCK) {
            uint16_t *to = (uint16_t *)out;
            block_read(x.inner ? to : raw[0], x, i, k);
            for (int r = 0; r < 16 && !x.inner; r++)
                for (int c = 0; c < 32; c++) to[r * 32 + c] = raw[c][r];
        }
}

HOT static void pack_b(uint32_t *out, Operand x, int64_t K)
{
    uint32_t pairs[16][16];
    uint16_t (*terms)[16] = (uint16_t (*)[16])pairs;
    for (int64_t i = 0; i < padded(x.n); i += 16)
        for (int64_t k = 0; k < K; k += 32, out += BLOCK) {
            block_read(terms[0], x, i, k);
            for (int p = 0; p < 16; p++)
                for (int c = 0; c < 16; c++) {
                    uint32_t two = terms[2 * p][c] | (uint32_t)terms[2 * p + 1][c] << 16;
                    out[p * 16 + c] = x.inner ? pairs[c][p] : two;
                }
        }
}

/* acc (rows, cols) += a b over `blocks` blocks of terms; rows and cols are multiples of 32. */
typedef void Unit(float *acc, int64_t ld, const uint32_t *a, const uint32_t *b, int64_t rows, int64_t cols,
                  int64_t blocks);

/* The packed product in plain C. */
static void unit_plain(float *acc, int64_t ld, const uint32_t *a, const uint32_t *b, int64_t rows,
                       int64_t cols, int64_t blocks)
{
    for (int64_t m = 0; m < rows; m++)
        for (int64_t n = 0; n < cols; n++)
            for (int64_t p = 0; p < blocks * 16; p++) {
                uint32_t x = a[(m / 16 * blocks + p / 16) * BLOCK + m % 16 * 16 + p % 16];
                uint32_t y = b[(n / 16 * blocks + p / 16) * BLOCK + p % 16 * 16 + n % 16];
                acc[m * ld + n] += bf16_to_f32((uint16_t)x) * bf16_to_f32((uint16_t)y) +
                                   bf16_to_f32((uint16_t)(x >> 16)) * bf16_to_f32((uint16_t)(y >> 16));
            }
}

#if defined(__x86_64__)
/* 8 rows x 2 column blocks of sums in registers. */
__attribute__((target("avx512f,avx512bf16")))
static void unit_dot(float *acc, int64_t ld, const uint32_t *a, const uint32_t *b, int64_t rows, int64_t cols,
                     int64_t blocks)
{
    for (int64_t n = 0; n < cols; n += 32)
        for (int64_t m = 0; m < rows; m += 8) {
            const uint32_t *x = a + m / 16 * blocks * BLOCK + m % 16 * 16, *y = b + n / 16 * blocks * BLOCK;
            float  *c = acc + m * ld + n;
            __m512  s[8][2];
            #pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                s[i][0] = _mm512_loadu_ps(c + i * ld);
                s[i][1] = _mm512_loadu_ps(c + i * ld + 16);
            }
            for (int64_t k = 0; k < blocks; k++, x += BLOCK, y += BLOCK)
                for (int p = 0; p < 16; p++) {
                    __m512bh lo = (__m512bh)_mm512_loadu_si512(y + p * 16);
                    __m512bh hi = (__m512bh)_mm512_loadu_si512(y + blocks * BLOCK + p * 16);
                    #pragma GCC unroll 8
                    for (int i = 0; i < 8; i++) {
                        __m512bh e = (__m512bh)_mm512_set1_epi32((int)x[i * 16 + p]);
                        s[i][0] = _mm512_dpbf16_ps(s[i][0], e, lo);
                        s[i][1] = _mm512_dpbf16_ps(s[i][1], e, hi);
                    }
                }
            #pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                _mm512_storeu_ps(c + i * ld, s[i][0]);
                _mm512_storeu_ps(c + i * ld + 16, s[i][1]);
            }
        }
}

/* The layout that ldtilecfg reads: eight tiles of 16 rows of 64 bytes. */
static const struct { uint8_t palette, start, zero[14]; uint16_t bytes[16]; uint8_t rows[16]; } amx_tiles = {
    .palette = 1, .bytes = { 64, 64, 64, 64, 64, 64, 64, 64 }, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
};

/* 2 x 2 tiles of sums (0 to 3) from 2 of a (4, 5) and 2 of b (6, 7). The intrinsics do not declare to the
 * compiler that they access memory, hence the barriers and noinline. */
__attribute__((target("amx-tile,amx-bf16"), noinline))
static void unit_amx(float *acc, int64_t ld, const uint32_t *a, const uint32_t *b, int64_t rows, int64_t cols,
                     int64_t blocks)
{
    int64_t line = ld * (int64_t)sizeof *acc;
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&amx_tiles);
    for (int64_t n = 0; n < cols; n += 32)
        for (int64_t m = 0; m < rows; m += 32) {
            const uint32_t *x = a + m / 16 * blocks * BLOCK, *y = b + n / 16 * blocks * BLOCK;
            float *c = acc + m * ld + n;
            _tile_loadd(0, c, line);
            _tile_loadd(1, c + 16, line);
            _tile_loadd(2, c + 16 * ld, line);
            _tile_loadd(3, c + 16 * ld + 16, line);
            for (int64_t k = 0; k < blocks; k++, x += BLOCK, y += BLOCK) {
                _tile_loadd(4, x, 64);
                _tile_loadd(5, x + blocks * BLOCK, 64);
                _tile_loadd(6, y, 64);
                _tile_loadd(7, y + blocks * BLOCK, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, c, line);
            _tile_stored(1, c + 16, line);
            _tile_stored(2, c + 16 * ld, line);
            _tile_stored(3, c + 16 * ld + 16, line);
        }
    _tile_release();
    __asm__ volatile("" ::: "memory");
}

/* Linux grants the tile registers on request, once per process. */
static bool amx_granted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    static int granted = -1;                            /* threads that race here store the same answer */
    int known = __atomic_load_n(&granted, __ATOMIC_RELAXED);
    if (known < 0) {
        known = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
        __atomic_store_n(&granted, known, __ATOMIC_RELAXED);
    }
    return known;
}

bool gemm_bf16_has(Bf16Path path)
{
    if (path == BF16_AMX) return CPU_HAS_AMX_BF16 && amx_granted();
    if (path == BF16_DOT) return __builtin_cpu_supports("avx512bf16");
    return true;
}
#else
enum { unit_dot = 0, unit_amx = 0 };
bool gemm_bf16_has(Bf16Path path) { return path < BF16_DOT; }
#endif

static Bf16Path best_path(void)
{
    return gemm_bf16_has(BF16_AMX) ? BF16_AMX : gemm_bf16_has(BF16_DOT) ? BF16_DOT : BF16_WIDEN;
}

static Unit *const units[BF16_PATHS] = {
    [BF16_PLAIN] = unit_plain, [BF16_DOT] = unit_dot, [BF16_AMX] = unit_amx,
};

/* acc += a b with packed blocks. */
static void add_packed(Unit *unit, float *acc, int64_t ld, Operand a, Operand b, int64_t K)
{
    uint32_t *A = (uint32_t *)(acc + ACC_SIZE), *B = A + A_SIZE / 2;
    pack_a(A, a, K);
    pack_b(B, b, K);
    unit(acc, ld, A, B, padded(a.n), padded(b.n), (K + 31) / 32);
}

/* ---- the tile ---- */

/* The initial sum: 0 or c, plus the bias. */
static void acc_begin(float *acc, int64_t ld, Tensor c, Tensor bias, bool add)
{
    for (int64_t r = 0; r < c.n[0]; r++, acc += ld) {
        if (!add) memset(acc, 0, (size_t)c.n[1] * sizeof *acc);
        else tile_read(acc, ld, source(t_rows(c, r, 1)), 1.0f);
        if (!t_has(bias)) continue;
        for (int64_t i = 0; i < c.n[1]; i++)
            acc[i] += bias.dtype == F32 ? ((float *)bias.data)[i] : bf16_to_f32(((uint16_t *)bias.data)[i]);
    }
}

/* acc = scale acc [+ c]; a row of c is widened in the free part of the workspace. */
static void acc_scale(float *acc, int64_t ld, Tensor c, float scale, bool add)
{
    float *buf = acc + ACC_SIZE;
    for (int64_t r = 0; r < c.n[0]; r++, acc += ld) {
        const float *old = add ? row_read(c, r, buf) : NULL;
        for (int64_t i = 0; i < c.n[1]; i++) acc[i] = scale * acc[i] + (add ? old[i] : 0.0f);
    }
}

/* acc += op(a) op(b), TILE_K terms at a time, with dropout of a or b. */
static void acc_multiply(Bf16Path path, float *acc, int64_t ld, Tensor c, Tensor a, Tensor b, Dropout drop,
                         int mode)
{
    int64_t K = mode == GEMM_TN ? a.n[0] : a.n[1];
    for (int64_t k = 0; k < K; k += TILE_K) {
        int64_t n = K - k < TILE_K ? K - k : TILE_K;
        Operand x = { mode == GEMM_TN ? t_rows(a, k, n) : t_cols(a, k, n), mode != GEMM_TN, c.n[0],
                      mode == GEMM_NT ? dropout_at(drop, 0, k) : (Dropout){ 0 } };
        Operand y = { mode == GEMM_NT ? t_cols(b, k, n) : t_rows(b, k, n), mode == GEMM_NT, c.n[1],
                      mode == GEMM_TN ? dropout_at(drop, k, 0) : (Dropout){ 0 } };
        if (path == BF16_WIDEN || a.dtype == F32) add_widened(acc, ld, x, y, n);
        else add_packed(units[path], acc, ld, x, y, n);
    }
}

Terms terms_of_tile(Terms t, int64_t m, int64_t rows, int64_t n, int64_t cols)
{
    int mode = t.flags & GEMM_MODE;
    t.a = mode == GEMM_TN ? t_cols(t.a, m, rows) : t_rows(t.a, m, rows);
    t.b = mode == GEMM_NT ? t_rows(t.b, n, cols) : t_cols(t.b, n, cols);
    t.drop = dropout_at(t.drop, mode == GEMM_TN ? 0 : m, mode == GEMM_NT ? 0 : n);
    t.lora.dropout = dropout_at(t.lora.dropout, m, n);
    if (t_has(t.bias)) t.bias = t_cols(t.bias, n, cols);
    if (t_has(t.lora.low_rank)) {
        t.lora.low_rank = t_rows(t.lora.low_rank, m, rows);
        t.lora.w   = mode == GEMM_NT ? t_rows(t.lora.w, n, cols) : t_cols(t.lora.w, n, cols);
    }
    return t;
}

/* An unscaled product starts from c; a scaled one, or one with dropout, adds c at the end. A LoRA term with
 * dropout comes first, so that dropout applies to it alone. */
void gemm_tile(Bf16Path path, float *ws, Tensor c, Terms t)
{
    int     mode = t.flags & GEMM_MODE;
    bool    add = t.flags & GEMM_ACC, lora = t_has(t.lora.low_rank), first = lora && t.lora.dropout.p > 0;
    bool    of_c = mode == GEMM_NN && t.drop.p > 0, late = t.scale != 1.0f || of_c || first;
    Dropout    none = { 0 };
    int64_t ld = padded(c.n[1]);
    if (path == BF16_AUTO) path = best_path();
    acc_begin(ws, ld, c, t.bias, add && !late);
    if (first) {
        acc_multiply(path, ws, ld, c, t.lora.low_rank, t.lora.w, none, mode);
        dropout_f32(ws, ld, c.n[0], c.n[1], t.lora.dropout);
    }
    acc_multiply(path, ws, ld, c, t.a, t.b, t.drop, mode);
    if (of_c) dropout_f32(ws, ld, c.n[0], c.n[1], t.drop);
    if (lora && !first) acc_multiply(path, ws, ld, c, t.lora.low_rank, t.lora.w, none, mode);
    if (late) acc_scale(ws, ld, c, t.scale, add);
    tile_write(c.data, (DType)c.dtype, c.s[0], ws, ld, c.n[0], c.n[1]);
}
