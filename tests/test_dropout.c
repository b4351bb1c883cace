/* tests/test_dropout.c -- what is left out: by number alone, as often as asked for, the same each time. */
#include "numlab.h"

#include <omp.h>

/* The definition; the factor and the rounding included. */
static float element(float x, float y, float p, uint64_t seed, uint64_t stream, int64_t at, bool add)
{
    bool           kept = (double)rng_u32(seed, stream, (uint64_t)at) * 0x1p-32 >= (double)p;
    volatile float v = kept ? x * (1.0f / (1.0f - p)) : 0.0f;      /* rounded before it is added */
    return add ? y + v : v;
}

static void agrees_with_definition(void)
{
    for (int i = 0; i < 64; i++) {
        DType   dx = i & 1 ? BF16 : F32, dy = i & 2 ? BF16 : F32;
        bool    add = i & 4, inside = i & 8;
        int64_t rows = num_below(6), cols = 1 + num_below(i % 9 ? 40 : 5000), stride = cols + num_below(9);
        int64_t first = num_below(1000), pad = inside ? 5 : 0;
        float   p = (float)(i % 5) * 0.2f;
        Tensor  x = t_cols(num_randn(dx, rows, cols + pad), pad / 2, cols);
        Tensor  y = t_cols(num_randn(dy, rows, cols + pad), pad / 2, cols), want = num_copy(y, dy);
        for (int64_t k = 0; k < rows * cols; k++)
            put(want, k, element(get(x, k), get(y, k), p, 7, 3, first + k / cols * stride + k % cols, add));
        op_dropout(BE, y, x, p, 7, 3, first, stride, add);
        for (int64_t k = 0; k < rows * cols; k++)
            EXPECT(get(y, k) == get(want, k), "[%d] is %g, not %g", (int)k, get(y, k), get(want, k));
        num_clear();
    }
}

static void as_often_as_asked(void)
{
    for (int i = 1; i < 5; i++) {
        float   p = (float)i * 0.2f;
        int64_t rows = 256, cols = 1024, n = rows * cols, kept = 0;
        Tensor  x = num_poison(F32, rows, cols), y = num_poison(F32, rows, cols);
        op_fill(BE, x, 1.0f);
        op_dropout(BE, y, x, p, num_.seed, 1, 0, cols, false);
        for (int64_t k = 0; k < n; k++) kept += get(y, k) != 0;
        double sigma = sqrt((double)p * (1 - (double)p) / (double)n), share = (double)kept / (double)n;
        EXPECT(fabs(share - (1 - (double)p)) < 6 * sigma, "p %g: %g kept", (double)p, share);
        num_clear();
    }
}

static bool equal(Tensor a, Tensor b)
{
    for (int64_t i = 0; i < t_count(a); i++)
        if (get(a, i) != get(b, i)) return false;
    return true;
}

static void by_number_alone(void)
{
    int64_t rows = 30, cols = 50;
    Tensor  x = num_randn(F32, rows, cols), y = num_poison(F32, rows, cols), z = num_poison(F32, rows, cols);
    op_dropout(BE, y, x, 0.3f, 5, 9, 100, cols, false);
    op_dropout(BE, z, x, 0.3f, 5, 9, 100, cols, false);
    EXPECT(equal(y, z), "twice");
    Tensor part = num_poison(F32, 7, 13);                         /* rows 4 .., columns 11 .. */
    op_dropout(BE, part, t_cols(t_rows(x, 4, 7), 11, 13), 0.3f, 5, 9, 100 + 4 * cols + 11, cols, false);
    EXPECT(equal(part, t_cols(t_rows(y, 4, 7), 11, 13)), "a part");
    for (int i = 0; i < 3; i++) {
        op_dropout(BE, z, x, 0.3f, 5 + (i == 0), 9 + (i == 1), 100 + (i == 2), cols, false);
        EXPECT(!equal(y, z), "other numbers, %d", i);
    }
    op_dropout(BE, z, x, 0, 5, 9, 100, cols, false);
    EXPECT(equal(x, z), "nothing is left out");
    op_dropout(BE, x, x, 0.3f, 5, 9, 100, cols, false);
    EXPECT(equal(x, y), "in place");
    num_clear();
}

static void threads_do_not_matter(void)
{
    int    threads = omp_get_max_threads();
    Tensor x = num_randn(BF16, 100, 1000), y = num_poison(BF16, 100, 1000), z = num_poison(BF16, 100, 1000);
    op_dropout(BE, y, x, 0.5f, 1, 2, 3, 1000, false);
    omp_set_num_threads(1);
    op_dropout(BE, z, x, 0.5f, 1, 2, 3, 1000, false);
    omp_set_num_threads(threads);
    EXPECT(equal(y, z), "threads change bits");
    num_clear();
}

static void priced(void)
{
    Tensor x = num_zeros(BF16, 4, 8), y = num_zeros(F32, 4, 8);
    Cost   c = dropout_cost(BE, y, x, 0.5f, 1, 2, 3, 8, true);
    EXPECT(c.rd == 64 + 128 && c.wr == 128, "rd %d wr %d", (int)c.rd, (int)c.wr);
    EXPECT(dropout_cost(BE, y, x, 0.5f, 1, 2, 3, 8, false).rd == 64, "over what was there");
    num_clear();
}

int main(void)
{
    numlab_open();
    RUN(agrees_with_definition);
    RUN(as_often_as_asked);
    RUN(by_number_alone);
    RUN(threads_do_not_matter);
    RUN(priced);
    return numlab_report();
}
