/* ops/dropout.c -- what chance leaves out of rows in memory; see chance.h. */
#include "ops/dropout.h"

#include "ops/cpu/cpu.h"

void dropout_check(Dropout d, const char *op)
{
    REQUIRE(d.p >= 0 && d.p < 1 && d.row >= 0 && d.row < INT32_MAX && d.col >= 0 && d.col < INT32_MAX,
            "%s: %g is left out of numbers (%lld, %lld) on", op, (double)d.p, (long long)d.row,
            (long long)d.col);
}

enum { SPAN = 16 };                                    /* times 32 columns are drawn at once */

HOT static void draw(Rng4 *out, int64_t n, const Dropout *d, uint32_t row, uint32_t k)
{
    for (int64_t i = 0; i < n; i++) out[i] = dropout_block(d->seed, d->stream, row, k, (uint32_t)i);
}

/* keep[j]: all bits where column j of these blocks is kept, else none. */
HOT static void judge(uint16_t *keep, const Rng4 *block, int64_t n, uint32_t least)
{
    for (int64_t i = 0; i < n; i++, keep += DROPOUT_COLS, block += DROPOUT_BLOCKS)
        for (int w = 0; w < 4; w++)
            for (int q = 0; q < DROPOUT_BLOCKS; q++) {
                keep[8 * w + 2 * q]     = (block[q].v[w] & 0xffff) >= least ? 0xffff : 0;
                keep[8 * w + 2 * q + 1] = (block[q].v[w] >> 16) >= least ? 0xffff : 0;
            }
}

/* Columns of a row from d->col on, at most n: how many, and what of them is kept. */
static int64_t drawn(uint16_t keep[SPAN * DROPOUT_COLS], const uint16_t **from, const Dropout *d, int64_t n)
{
    Rng4    block[SPAN * DROPOUT_BLOCKS];
    int64_t lead = d->col % DROPOUT_COLS, most = SPAN * DROPOUT_COLS - lead, count = n < most ? n : most;
    int64_t spans = (lead + count + DROPOUT_COLS - 1) / DROPOUT_COLS;
    draw(block, spans * DROPOUT_BLOCKS, d, (uint32_t)d->row, (uint32_t)(d->col / DROPOUT_COLS));
    judge(keep, block, spans, dropout_threshold(d->p));
    *from = keep + lead;
    return count;
}

HOT static void thin_floats(float *x, const uint16_t *keep, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = keep[i] ? x[i] : 0.0f;
}
HOT static void thin_halves(uint16_t *x, const uint16_t *keep, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] &= keep[i];
}

static void thin(void *x, bool halves, int64_t ld, int64_t rows, int64_t cols, Dropout d)
{
    uint16_t        keep[SPAN * DROPOUT_COLS];
    const uint16_t *from;
    for (int64_t r = 0; r < rows && d.p > 0; r++)
        for (int64_t c = 0, n; c < cols; c += n) {
            Dropout here = dropout_at(d, r, c);
            n = drawn(keep, &from, &here, cols - c);
            if (halves) thin_halves((uint16_t *)x + r * ld + c, from, n);
            else        thin_floats((float *)x + r * ld + c, from, n);
        }
}

void dropout_f32(float *x, int64_t ld, int64_t rows, int64_t cols, Dropout d)
{
    thin(x, false, ld, rows, cols, d);
}

void dropout_bf16(uint16_t *x, int64_t ld, int64_t rows, int64_t cols, Dropout d)
{
    thin(x, true, ld, rows, cols, d);
}
