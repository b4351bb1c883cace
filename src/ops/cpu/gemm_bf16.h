/* ops/cpu/gemm_bf16.h -- one thread's share of a matrix product; see gemm_bf16.c.
 *
 * gemm.c and grouped_gemm.c cut their products into tiles of c and hand each to gemm_tile, which runs on
 * the calling thread alone. Bits depend on the shapes and the path, not on the thread that computes a
 * tile. */
#ifndef OPS_CPU_GEMM_BF16_H
#define OPS_CPU_GEMM_BF16_H

#include "ops/cpu/cpu.h"

/* How bf16 operands are multiplied. All sum in f32; they differ in rounding order alone. */
typedef enum {
    BF16_AUTO,                /* the fastest that this CPU has */
    BF16_WIDEN,               /* widened to f32 when packed: any CPU */
    BF16_PLAIN,               /* the units' packed blocks in plain C: any CPU, slow, for tests */
    BF16_DOT,                 /* AVX512-BF16 vdpbf16ps */
    BF16_AMX,                 /* AMX-BF16 tdpbf16ps */
    BF16_PATHS
} Bf16Path;

bool gemm_bf16_has(Bf16Path path);

INLINE const char *gemm_mode(int flags)                          /* for messages */
{
    static const char *const names[] = { "NT", "NN", "TN", "?" };
    return names[flags & GEMM_MODE];
}

/* Multiplications under which waking the other threads costs more than they save. */
#define GEMM_SMALL 1e6

/* Tiles of c: rows x cols at most TILE_M x TILE_N. A product too small to keep many threads busy is cut
 * finer, by its shape alone. */
enum { TILE_M = 256, TILE_N = 512, TILE_MIN = 64 };
typedef struct Tiling { int64_t m, n; } Tiling;
Tiling gemm_tiling(int64_t M, int64_t N, int64_t products);

/* The operands of c or of a tile of it, all rank 2: scale (op(a) op(b) + low_rank op(w) [+ bias]) [+ c].
 * Dropout applies to a in NT, to b in TN, to the product in NN. */
typedef struct Terms { Tensor a, b, bias; LoraTerm lora; float scale; Dropout drop; int flags; } Terms;

/* The operands of rows m .. and columns n .. of c. */
Terms terms_of_tile(Terms t, int64_t m, int64_t rows, int64_t n, int64_t cols);

/* Computes c, no larger than a tile; ws has CPU_OWN bytes. */
void gemm_tile(Bf16Path path, float *ws, Tensor c, Terms t);

/* gemm with a chosen path, for tests. */
void gemm_with(Bf16Path path, Backend *be, Tensor c, Tensor a, Tensor b, Tensor bias, int flags);

#endif
