/* ops/cpu/tile.h -- products of small f32 matrices by one thread, in its workspace; see tile.c.
 *
 * Tiles are padded so that the kernels need no edge cases: rows of c and a to a multiple of TILE_PAD_M,
 * columns of c and b to one of TILE_PAD_N. The padding of c receives garbage, that of the inputs is read. */
#ifndef OPS_CPU_TILE_H
#define OPS_CPU_TILE_H

#include "ops/cpu/cpu.h"

enum { TILE_PAD_M = 6, TILE_PAD_N = 16 };
INLINE int64_t tile_rows(int64_t n) { return (n + TILE_PAD_M - 1) / TILE_PAD_M * TILE_PAD_M; }
INLINE int64_t tile_cols(int64_t n) { return (n + TILE_PAD_N - 1) / TILE_PAD_N * TILE_PAD_N; }

/* c (M, N) = a b, or += when add; b is (K, N), element (m, k) of a is a[m * am + k * ak]. Every element is
 * summed over ascending k, however the product is cut in M and N. */
void tile_mul(bool add, float *c, int64_t ldc, const float *a, int64_t am, int64_t ak,
              const float *b, int64_t ldb, int64_t M, int64_t N, int64_t K);

/* A strided matrix of f32 or bf16 in memory, as the source of a tile. */
typedef struct TileSource { const void *p; int64_t stride, rows, cols; DType dtype; } TileSource;

void tile_read(float *dst, int64_t ld, TileSource s, float scale);   /* dst[r * ld + c] = scale * s[r,c] */
void tile_transpose(float *dst, int64_t ld, TileSource s);           /* dst[c * ld + r] = s[r,c]         */
void tile_write(void *dst, DType d, int64_t stride, const float *src, int64_t ld, int64_t rows, int64_t cols);

#endif
