/* ops/dropout.c -- the dropout mask applied to rows in memory; see dropout.h. */
#include "ops/dropout.h"

#include "ops/cpu/cpu.h"

void dropout_check(Dropout d, const char *op)
{
    REQUIRE(d.p >= 0 && d.p < 1 && d.row >= 0 && d.row < INT32_MAX && d.col >= 0 && d.col < INT32_MAX,
            "%s: dropout with p = %g at (%lld, %lld)", op, (double)d.p, (long long)d.row,
            (long long)d.col);
}

enum { GROUPS = 16 };                                  /* groups of 32 columns drawn at once */

HOT static void draw_blocks(Rng4 *out, int64_t n, const Dropout *d, uint32_t row, uint32_t k)
{
    for (int64_t i = 0; i < n; i++) out[i] = dropout_block(d->seed, d->stream, row, k, (uint32_t)i);
}

/* keep[j]: all bits set where column j of these blocks is kept, else 0. */
HOT static void mask_columns(uint16_t *keep, const Rng4 *block, int64_t n, uint32_t least)
{
    for (int64_t i = 0; i < n; i++, keep += DROPOUT_COLS, block += DROPOUT_BLOCKS)
        for (int w = 0; w < 4; w++)
            for (int q = 0; q < DROPOUT_BLOCKS; q++) {
                keep[8 * w + 2 * q]     = (block[q].v[w] & 0xffff) >= least ? 0xffff : 0;
                keep[8 * w + 2 * q + 1] = (block[q].v[w] >> 16) >= least ? 0xffff : 0;
            }
}

/* Draws the mask of up to n columns of a row from d->col on; returns how many. *from points into keep. */
static int64_t draw_mask(uint16_t keep[GROUPS * DROPOUT_COLS], const uint16_t **from, const Dropout *d,
                         int64_t n)
{
    Rng4    block[GROUPS * DROPOUT_BLOCKS];
    int64_t lead = d->col % DROPOUT_COLS, most = GROUPS * DROPOUT_COLS - lead, count = min_i64(n, most);
    int64_t groups = (lead + count + DROPOUT_COLS - 1) / DROPOUT_COLS;
    draw_blocks(block, groups * DROPOUT_BLOCKS, d, (uint32_t)d->row, (uint32_t)(d->col / DROPOUT_COLS));
    mask_columns(keep, block, groups, dropout_threshold(d->p));
    *from = keep + lead;
    return count;
}

HOT static void mask_f32(float *x, const uint16_t *keep, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = keep[i] ? x[i] : 0.0f;
}
HOT static void mask_bf16(uint16_t *x, const uint16_t *keep, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] &= keep[i];
}

static void apply_mask(void *x, bool bf16, int64_t ld, int64_t rows, int64_t cols, Dropout d)
{
    uint16_t        keep[GROUPS * DROPOUT_COLS];
    const uint16_t *from;
    if (d.p > 0) d.seed = dropout_seed(d.base, d.seed, d.stream);
    for (int64_t r = 0; r < rows && d.p > 0; r++)
        for (int64_t c = 0, n; c < cols; c += n) {
            Dropout here = dropout_at(d, r, c);
            n = draw_mask(keep, &from, &here, cols - c);
            if (bf16) mask_bf16((uint16_t *)x + r * ld + c, from, n);
            else        mask_f32((float *)x + r * ld + c, from, n);
        }
}

void dropout_f32(float *x, int64_t ld, int64_t rows, int64_t cols, Dropout d)
{
    apply_mask(x, false, ld, rows, cols, d);
}

void dropout_bf16(uint16_t *x, int64_t ld, int64_t rows, int64_t cols, Dropout d)
{
    apply_mask(x, true, ld, rows, cols, d);
}
