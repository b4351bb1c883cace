/* ops/code_stats.c: known values, a count element by element on fresh random rows, the sample of rows,
 * padding; and engine/code_losses.c: which tensors are named, and when. */
#include "lab.h"
#include "base/rng.h"
#include "engine/code_losses.h"
#include "ops/quant.h"

#include <math.h>

enum { K = 300, R = 23 };                /* groups of 128, 128 and 44 */

static float   x[R * K];
static uint8_t q[R * K];
static float   scale[3 * R];
static int64_t cell[CODE_CELLS];

static Tensor rows_of(void *data, DType d, int64_t rows, int64_t cols)
{
    int64_t n[2] = { rows, cols };
    return t_wrap(data, d, 2, n);
}

static Tensor cells(void)
{
    int64_t n = CODE_CELLS;
    return t_wrap(cell, I64, 1, &n);
}

static void measure(Backend *be, Tensor in, Tensor offsets, int64_t every)
{
    Tensor codes = rows_of(q, E4M3, R, K), scales = rows_of(scale, F32, 3, R);
    op_quantize_rows(be, codes, scales, in, offsets, true);
    op_code_stats(be, cells(), in, codes, scales, offsets, every);
}

/* Row 0: 448 and 2^-10, half of the least code of scale 1: a tie, to zero; 2^-9 stays. Row 1: an infinity. */
static void known_values(void)
{
    Backend be;
    EXPECT_OK(backend_open(&be, "cpu"));
    memset(x, 0, sizeof x), memset(cell, 0, sizeof cell);
    x[0] = -448, x[1] = 0x1p-10f, x[2] = 0x1p-9f, x[K + 130] = INFINITY, x[K + 131] = 5e4f;
    measure(&be, rows_of(x, F32, R, K), (Tensor){ 0 }, 1);
    EXPECT(quant_float((uint32_t)cell[CODE_AMAX]) == 448, "amax %g", quant_float((uint32_t)cell[CODE_AMAX]));
    EXPECT(cell[CODE_ELEMENTS] == R * K - 128 && cell[CODE_GROUPS] == 3 * R && cell[CODE_NOT_FINITE] == 1,
           "%lld elements, %lld groups, %lld not finite", (long long)cell[CODE_ELEMENTS],
           (long long)cell[CODE_GROUPS], (long long)cell[CODE_NOT_FINITE]);
    EXPECT(cell[CODE_FLUSHED] == 1 && !cell[CODE_SATURATED], "%lld flushed, %lld saturated",
           (long long)cell[CODE_FLUSHED], (long long)cell[CODE_SATURATED]);
    scale[0] = 0.5f;                                         /* a scale that does not fit its group */
    op_code_stats(&be, cells(), rows_of(x, F32, R, K), rows_of(q, E4M3, R, K), rows_of(scale, F32, 3, R),
                  (Tensor){ 0 }, 1);
    EXPECT(cell[CODE_SATURATED] == 1 && cell[CODE_GROUPS] == 6 * R, "%lld saturated of %lld groups",
           (long long)cell[CODE_SATURATED], (long long)cell[CODE_GROUPS]);
    backend_close(&be);
}

/* Of the rows that the sample has; values over 40 powers of two, so that many are flushed. */
static void count_plainly(int64_t *want, int64_t rows, int64_t every)
{
    memset(want, 0, CODE_CELLS * sizeof *want);
    for (int64_t r = 0; r < rows; r += every)
        for (int64_t k = 0; k < K; k++) {
            float s = scale[k / 128 * R + r], v = x[r * K + k];
            want[CODE_GROUPS] += k % 128 == 0, want[CODE_ELEMENTS]++;
            want[CODE_FLUSHED] += v != 0 && fabsf(v) / s <= 0x1p-10f;
            want[CODE_SATURATED] += fabsf(v) > 448 * s;
            if (quant_magnitude(v) > want[CODE_AMAX]) want[CODE_AMAX] = quant_magnitude(v);
        }
}

static void random_rows(void)
{
    Backend be;
    int64_t want[CODE_CELLS];
    int32_t ends[2] = { 0, R - 4 };
    int64_t two = 2;
    EXPECT_OK(backend_open(&be, "cpu"));
    for (int i = 0; i < R * K; i++)
        x[i] = rng_normal(9, 1, (uint64_t)i) *
               exp2f((float)rng_below(9, 2, (uint64_t)i, 40) - 30);
    for (int64_t every = 1; every < 5; every += 3) {
        memset(cell, 0, sizeof cell);
        measure(&be, rows_of(x, F32, R, K), t_wrap(ends, I32, 1, &two), every);
        count_plainly(want, R - 4, every);
        EXPECT(!memcmp(cell, want, sizeof cell) && want[CODE_FLUSHED] > 0,
               "every %lld: %lld flushed, not %lld", (long long)every,
               (long long)cell[CODE_FLUSHED], (long long)want[CODE_FLUSHED]);
    }
    backend_close(&be);
}

static void tensors_are_named(void)
{
    Param p = { .index = 0, .ndim = 2, .linear = LINEAR_EXPERTS, .group = G_LLM, .pieces = 1 };
    CodedTensor t[2] = { { .p = &p, .side = CODED_X }, { .p = &p, .side = CODED_DY } };
    CodeLosses  c = { .n = 2, .tensor = t };
    int64_t     two[2] = { 2, CODE_CELLS }, at[2][CODE_CELLS] = { { 0 } };
    ResultBlock b = { .codes = t_wrap(at, I64, 2, two) };
    snprintf(p.piece[0].name, sizeof p.piece[0].name, "layers.3.mlp.experts.gate_up_proj");
    for (int i = 0; i < 2; i++)
        at[i][CODE_ELEMENTS] = 1000, at[i][CODE_GROUPS] = 8, at[i][CODE_FLUSHED] = 400;
    at[1][CODE_AMAX] = quant_bits(3.5f);
    for (int line = 1; line < 3 * CODE_LOSS_LINES; line++) {
        bool bad = line > 2 && line != 5;                    /* 3, 4, then from 6 on: named at 10 alone */
        at[1][CODE_FLUSHED] = bad ? 600 : 400;
        code_losses_add(&c, &b);
        EXPECT(c.site[SITE_EXPERTS][CODED_DY].amax == 3.5 && c.site[SITE_EXPERTS][CODED_X].flushed == 400,
               "amax %g", c.site[SITE_EXPERTS][CODED_DY].amax);
        if (line == 10) EXPECT_FAIL(code_losses_check(&c), E_CHECK, "experts.gate_up_proj: the rows dy");
        else            EXPECT_OK(code_losses_check(&c));
        code_losses_end_line(&c);
    }
}

int main(void)
{
    RUN(known_values);
    RUN(random_rows);
    RUN(tensors_are_named);
    return lab_report();
}
