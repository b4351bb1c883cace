/* ops/dropout.h -- the dropout mask (Dropout of ops.h): one definition for CPU and GPU.
 *
 * Element (i, j) of the mask has a 16-bit random number and is kept if the number is at least p 2^16,
 * truncated: p is met to 2^-16, and dropout_scale is the factor that makes up for the dropped elements. A
 * number is a function of its position, so a part of a matrix, or a recomputed one, gets the same mask.
 *
 * Four blocks of a random stream (base/rng.h, with seven rounds) are the numbers of 32 columns of a row.
 * Block q has columns 8 w + 2 q, in the low half of its word w, and 8 w + 2 q + 1, in the high half: the sums
 * that a thread holds of a row after wgmma take one block, and 16 bytes of bf16 take word w of all four. */
#ifndef OPS_DROPOUT_H
#define OPS_DROPOUT_H

#include "base/rng.h"
#include "ops/ops.h"

enum { DROPOUT_COLS = 32, DROPOUT_BLOCKS = 4 };

/* Numbers of at least this are kept; it is below 2^16, since p < 1. */
RNG_INLINE uint32_t dropout_threshold(float p) { return (uint32_t)((double)p * 0x1p16); }

RNG_INLINE float dropout_scale(float p) { return 0x1p16f / (float)(0x10000u - dropout_threshold(p)); }

/* The seed of the mask. */
RNG_INLINE uint64_t dropout_seed(const uint64_t *base, uint64_t seed, uint64_t stream)
{
    return base ? rng_u64(*base, stream, seed) : seed;
}

/* Block q of columns 32 k .. 32 k + 31 of a row. */
RNG_INLINE Rng4 dropout_block(uint64_t seed, uint64_t stream, uint32_t row, uint32_t k, uint32_t q)
{
    Rng4 at = rng_counter(stream, (uint64_t)row << 32 | (k * DROPOUT_BLOCKS + q));
    return rng_rounds(at, (uint32_t)seed, (uint32_t)(seed >> 32), 7);
}

/* The mask of one element; `least` is dropout_threshold. */
RNG_INLINE bool dropout_keeps(uint64_t seed, uint64_t stream, uint32_t row, uint32_t col, uint32_t least)
{
    Rng4     block = dropout_block(seed, stream, row, col / DROPOUT_COLS, col / 2 % DROPOUT_BLOCKS);
    uint32_t word = block.v[col % DROPOUT_COLS / 8];
    return (col % 2 ? word >> 16 : word & 0xffff) >= least;
}

/* The dropout of the submatrix that begins at (row, col). */
RNG_INLINE Dropout dropout_at(Dropout d, int64_t row, int64_t col)
{
    d.row += row, d.col += col;
    return d;
}

#ifdef __cplusplus
extern "C" {
#endif

void dropout_check(Dropout d, const char *op);              /* for contracts: an invalid one is our bug */

/* Applies the mask on the CPU: x[r * ld + c] = 0 where it is dropped. */
void dropout_f32(float *x, int64_t ld, int64_t rows, int64_t cols, Dropout d);
void dropout_bf16(uint16_t *x, int64_t ld, int64_t rows, int64_t cols, Dropout d);      /* bf16 */

#ifdef __cplusplus
}
#endif
#endif
