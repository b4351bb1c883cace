/* ops/dropout.h -- what chance leaves out of a matrix (Dropout of ops.h): one definition for CPU and card.
 *
 * Element (i, j) of the matrix of numbers has 16 bits and is kept if they are no less than p 2^16, cut to an
 * integer: so p is met to 2^-16, and dropout_scale says by what the rest grows to make up for it. Numbers are
 * a function of their place: whoever has a part of a matrix, or makes it again, leaves out the same.
 *
 * Four blocks of a stream (base/rng.h, with seven rounds) are the numbers of 32 columns of a row. Block q has
 * those of columns 8 w + 2 q, in the low half of its word w, and 8 w + 2 q + 1, in the high half: what a
 * thread holds of a wgmma's sums in a row takes one block, and 16 bytes of bf16 take word w of all four. */
#ifndef OPS_DROPOUT_H
#define OPS_DROPOUT_H

#include "base/rng.h"
#include "ops/ops.h"

enum { DROPOUT_COLS = 32, DROPOUT_BLOCKS = 4 };

/* 16 bits no less than this are kept; below 2^16, since p is below 1. */
RNG_INLINE uint32_t dropout_threshold(float p) { return (uint32_t)((double)p * 0x1p16); }

RNG_INLINE float dropout_scale(float p) { return 0x1p16f / (float)(0x10000u - dropout_threshold(p)); }

/* Block q of columns 32 k .. of a row. */
RNG_INLINE Rng4 dropout_block(uint64_t seed, uint64_t stream, uint32_t row, uint32_t k, uint32_t q)
{
    Rng4 at = rng_counter(stream, (uint64_t)row << 32 | (k * DROPOUT_BLOCKS + q));
    return rng_rounds(at, (uint32_t)seed, (uint32_t)(seed >> 32), 7);
}

/* Element by element; `least` is dropout_threshold. */
RNG_INLINE bool dropout_keeps(uint64_t seed, uint64_t stream, uint32_t row, uint32_t col, uint32_t least)
{
    Rng4     block = dropout_block(seed, stream, row, col / DROPOUT_COLS, col / 2 % DROPOUT_BLOCKS);
    uint32_t word = block.v[col % DROPOUT_COLS / 8];
    return (col % 2 ? word >> 16 : word & 0xffff) >= least;
}

/* What is left out of the part of a matrix that begins `row` rows and `col` columns into it. */
RNG_INLINE Dropout dropout_at(Dropout d, int64_t row, int64_t col)
{
    d.row += row, d.col += col;
    return d;
}

#ifdef __cplusplus
extern "C" {
#endif

void dropout_check(Dropout d, const char *op);              /* for contracts: a bad one is our bug */

/* x[r * ld + c] = 0 where it is left out; nothing happens if p is 0. On the CPU. */
void dropout_f32(float *x, int64_t ld, int64_t rows, int64_t cols, Dropout d);
void dropout_bf16(uint16_t *x, int64_t ld, int64_t rows, int64_t cols, Dropout d);      /* bf16 */

#ifdef __cplusplus
}
#endif
#endif
