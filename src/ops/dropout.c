/* ops/dropout.c -- what chance leaves out of rows in memory; see chance.h. */
#include "ops/dropout.h"

#include "ops/cpu/cpu.h"

void drop_check(Drop d, const char *op)
{
    REQUIRE(d.p >= 0 && d.p < 1 && d.row >= 0 && d.row < INT32_MAX && d.col >= 0 && d.col < INT32_MAX,
            "%s: %g is left out of numbers (%lld, %lld) on", op, (double)d.p, (long long)d.row,
            (long long)d.col);
}

enum { SPAN = 16 };                                    /* times 32 columns are drawn at once */

HOT static void draw(Rng4 *out, int64_t n, const Drop *d, uint32_t row, uint32_t k)
{
    for (int64_t i = 0; i < n; i++) out[i] = chance_block(d->seed, d->stream, row, k, (uint32_t)i);
}

/* keep[j]: all bits where column j of these blocks is kept, else none. */
HOT static void judge(uint16_t *keep, const Rng4 *block, int64_t n, uint32_t least)
{
    for (int64_t i = 0; i < n; i++, keep += CHANCE_COLS, block += CHANCE_BLOCKS)
        for (int w = 0; w < 4; w++)
            for (int q = 0; q < CHANCE_BLOCKS; q++) {
                keep[8 * w + 2 * q]     = (block[q].v[w] & 0xffff) >= least ? 0xffff : 0;
                keep[8 * w + 2 * q + 1] = (block[q].v[w] >> 16) >= least ? 0xffff : 0;
            }
}

/* Columns of a row from d->col on, at most n: how many, and what of them is kept. */
static int64_t drawn(uint16_t keep[SPAN * CHANCE_COLS], const uint16_t **from, const Drop *d, int64_t n)
{
    Rng4    block[SPAN * CHANCE_BLOCKS];
    int64_t lead = d->col % CHANCE_COLS, most = SPAN * CHANCE_COLS - lead, count = n < most ? n : most;
    int64_t spans = (lead + count + CHANCE_COLS - 1) / CHANCE_COLS;
    draw(block, spans * CHANCE_BLOCKS, d, (uint32_t)d->row, (uint32_t)(d->col / CHANCE_COLS));
    judge(keep, block, spans, chance_least(d->p));
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

static void thin(void *x, bool halves, int64_t ld, int64_t rows, int64_t cols, Drop d)
{
    uint16_t        keep[SPAN * CHANCE_COLS];
    const uint16_t *from;
    for (int64_t r = 0; r < rows && d.p > 0; r++)
        for (int64_t c = 0, n; c < cols; c += n) {
            Drop here = drop_at(d, r, c);
            n = drawn(keep, &from, &here, cols - c);
            if (halves) thin_halves((uint16_t *)x + r * ld + c, from, n);
            else        thin_floats((float *)x + r * ld + c, from, n);
        }
}

void chance_floats(float *x, int64_t ld, int64_t rows, int64_t cols, Drop d)
{
    thin(x, false, ld, rows, cols, d);
}

void chance_halves(uint16_t *x, int64_t ld, int64_t rows, int64_t cols, Drop d)
{
    thin(x, true, ld, rows, cols, d);
}
