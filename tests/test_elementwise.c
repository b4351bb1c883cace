/* tests/test_elementwise.c -- fill, copy, add, mix. */
#include "rowlab.h"

#include "base/rng.h"

static void fill_every_kind(void)
{
    DType d;
    for EACH_FLOAT(d) {
        Tensor y = loose(d, 3, 5), v = t_at(num_poison(d, 2, 7), 1);
        Tensor h = t_heads(num_poison(d, 4, 13), 2, 3, 3);
        op_fill(BE, y, 2.5f);
        op_fill(BE, v, -1.0f);
        op_fill(BE, h, 0.5f);
        for (int64_t i = 0; i < t_count(y); i++) EXPECT(get(y, i) == 2.5f, "[%d] is %g", (int)i, get(y, i));
        for (int64_t i = 0; i < t_count(v); i++) EXPECT(get(v, i) == -1.0f, "[%d] is %g", (int)i, get(v, i));
        for (int64_t i = 0; i < t_count(h); i++) EXPECT(get(h, i) == 0.5f, "[%d] is %g", (int)i, get(h, i));
        EXPECT(gaps_intact(y), "fill wrote between the rows");
        num_clear();
    }
    Tensor n = num_i32(5000, NULL);
    op_fill(BE, n, 7.0f);
    for (int i = 0; i < 5000; i++) EXPECT(((int32_t *)n.data)[i] == 7, "i32 [%d]", i);
    num_clear();
}

static void copy_converts_and_rounds(void)
{
    float v[] = { 1.0f, -2.5f, 1.00390625f, 1.01171875f, 3.0e38f, 1e-40f };
    float b[] = { 1.0f, -2.5f, 1.0f,        1.015625f };                       /* the two ties go to even */
    Tensor x = num_vals(F32, 1, 6, v), y = num_poison(BF16, 1, 6), z = num_poison(F32, 1, 6);
    op_copy(BE, y, x);
    op_copy(BE, z, y);
    for (int i = 0; i < 4; i++) EXPECT(get(y, i) == b[i], "[%d] is %.9g, not %.9g", i, get(y, i), b[i]);
    EXPECT(same_bits(z, num_copy(y, F32)), "widening is not exact");
    num_clear();
}

static void copy_any_view(void)
{
    DType from, to;
    int64_t D;
    for EACH_WIDTH(D) for EACH_FLOAT(from) for EACH_FLOAT(to) {
        Tensor x = loose_copy(num_randn(from, 3, D)), y = loose(to, 3, D), z = num_poison(to, 3, D);
        op_copy(BE, y, x);
        op_copy(BE, z, y);
        EXPECT(same_bits(y, num_copy(x, to)) && same_bits(z, y), "copy of %s to %s", t_fmt(x), t_fmt(y));
        EXPECT(gaps_intact(y), "copy wrote between the rows of %s", t_fmt(y));
        num_clear();
    }
    Tensor x = t_heads(num_randn(F32, 5, 40), 3, 4, 7), y = t3(&num_.a, "lab", BF16, 5, 4, 7);
    op_copy(BE, y, x);
    EXPECT(same_bits(y, num_copy(x, BF16)), "copy of heads %s", t_fmt(x));
    int32_t ids[] = { 3, -1, 2147483647 };
    Tensor a = num_i32(3, ids), b = num_i32(3, NULL);
    op_copy(BE, b, a);
    EXPECT(!memcmp(b.data, ids, sizeof ids), "i32 copy");
    num_clear();
}

static void add_any_mixture(void)
{
    DType dy, da, db;
    int64_t D;
    for EACH_WIDTH(D) for EACH_FLOAT(dy) for EACH_FLOAT(da) for EACH_FLOAT(db) {
        Tensor a = num_randn(da, 3, D), b = loose_copy(num_randn(db, 3, D)), y = loose(dy, 3, D);
        Tensor want = num_poison(dy, 3, D);
        for (int64_t i = 0; i < 3 * D; i++) put(want, i, get(a, i) + get(b, i));
        op_add(BE, y, a, b);
        EXPECT(same_bits(y, want) && gaps_intact(y), "%s + %s -> %s", t_fmt(a), t_fmt(b), t_fmt(y));
        Tensor c = num_copy(a, dy), sum = num_poison(dy, 3, D);
        op_add(BE, sum, c, b);
        op_add(BE, c, c, b);
        EXPECT(same_bits(c, sum), "y over a, %s", t_fmt(y));
        num_clear();
    }
}

static void add_in_place(void)
{
    DType d;
    for EACH_FLOAT(d) {
        Tensor a = num_randn(d, 2, 5000), b = num_randn(d, 2, 5000), y = num_poison(d, 2, 5000);
        op_add(BE, y, a, b);
        Tensor c = num_copy(b, d), twice = num_copy(a, d);
        op_add(BE, c, a, c);
        EXPECT(same_bits(c, y), "y over b");
        op_add(BE, twice, twice, twice);
        for (int64_t i = 0; i < 10000; i++) EXPECT(get(twice, i) == 2 * get(a, i), "y over a and b");
        num_clear();
    }
}

static void mix_of_two(void)
{
    Tensor a = num_randn(F32, 3, 4001), b = num_randn(F32, 3, 4001), y = num_poison(F32, 3, 4001);
    op_mix(BE, y, a, b, factor(0.5f), factor(-2.0f));
    for (int64_t i = 0; i < t_count(y); i++)
        EXPECT(fabsf(get(y, i) - (0.5f * get(a, i) - 2.0f * get(b, i))) < 1e-6f, "[%d]", (int)i);
    Tensor c = num_copy(a, F32), poison = num_poison(F32, 3, 4001);
    op_mix(BE, c, c, b, factor(0.5f), factor(-2.0f));
    EXPECT(same_bits(c, y), "y over a");
    float half = 0.5f, minus = -2.0f;
    op_mix(BE, c, a, b, factor_at(&half), factor_at(&minus));
    EXPECT(same_bits(c, y), "factors in memory");
    op_mix(BE, y, poison, b, factor(0.0f), factor(1.0f));
    EXPECT(same_bits(y, b), "a side without a share was read");
    op_mix(BE, y, a, poison, factor(1.0f), factor(0.0f));
    EXPECT(same_bits(y, a), "b side without a share was read");
    num_clear();
}

typedef struct Sum { Tensor y, a, b; } Sum;
static void run_sum(Sum *s) { op_add(BE, s->y, s->a, s->b); }

static void empty_and_threads(void)
{
    Tensor e = t_rows(num_poison(F32, 1, 8), 0, 0);
    op_fill(BE, e, 1.0f);
    op_copy(BE, e, e);
    op_add(BE, e, e, e);
    Sum s = { num_poison(BF16, 301, 333), num_randn(BF16, 301, 333), num_randn(F32, 301, 333) };
    EXPECT_THREADS_AGREE(run_sum, &s, &s.y, 1);
    num_clear();
}

static void price(void)
{
    Tensor a = num_randn(F32, 4, 8), b = num_randn(BF16, 4, 8), y = num_poison(BF16, 4, 8);
    Cost c = add_cost(BE, y, a, b);
    EXPECT(c.rd == 128 + 64 && c.wr == 64 && c.flops == 32, "rd %d wr %d", (int)c.rd, (int)c.wr);
    EXPECT(fill_cost(BE, a, 0).wr == 128 && copy_cost(BE, y, a).rd == 128, "fill, copy");
    num_clear();
}

static void normals_are_those_of_the_stream(void)
{
    DType d;
    for EACH_FLOAT(d)
        for (int64_t n = 0; n < 12; n++) {
            Tensor y = num_poison(d, 1, n);
            op_normal(BE, y, 9, 77, 0, 0, 0.5f);
            for (int64_t i = 0; i < n; i++) {
                float  want = 0.5f * rng_normal(9, 77, (uint64_t)i);
                Tensor w = num_copy(num_vals(F32, 1, 1, &want), d);
                EXPECT(get(y, i) == get(w, 0), "[%d] is %g, not %g", (int)i, get(y, i), want);
            }
            num_clear();
        }
    Tensor y = num_poison(F32, 1, (1 << 20) + 5);               /* past one piece */
    op_normal(BE, y, 9, 77, 0, 0, 1.0f);
    for (int64_t i = (1 << 20) - 3; i < t_count(y); i++)
        EXPECT(get(y, i) == rng_normal(9, 77, (uint64_t)i), "[%d]", (int)i);
    num_clear();
    y = num_poison(F32, 5, 7);                                 /* a part of a wider matrix */
    op_normal(BE, y, 9, 77, 1002, 13, 1.0f);
    for (int64_t i = 0; i < 35; i++)
        EXPECT(get(y, i) == rng_normal(9, 77, (uint64_t)(1002 + i / 7 * 13 + i % 7)), "[%d]", (int)i);
    num_clear();
}

static void uniforms_lie_between_the_bounds(void)
{
    float bound = 0.3f;
    Tensor y = num_poison(F32, 5, 7);                          /* a part of a wider matrix */
    op_uniform(BE, y, 9, 77, 1002, 13, bound);
    for (int64_t i = 0; i < 35; i++) {
        float u = rng_uniform(9, 77, (uint64_t)(1002 + i / 7 * 13 + i % 7));
        EXPECT(get(y, i) == bound * (2 * u - 1), "[%d] is %g", (int)i, get(y, i));
    }
    Tensor narrow = num_poison(BF16, 5, 7);
    op_uniform(BE, narrow, 9, 77, 1002, 13, bound);
    Tensor want = num_copy(y, BF16);
    for (int64_t i = 0; i < 35; i++) EXPECT(get(narrow, i) == get(want, i), "[%d]", (int)i);
    num_clear();
}

static void normalized_pixels_are_within_one(void)
{
    DType d;
    for EACH_FLOAT(d) {
        int64_t n = 256;
        uint8_t level[256];
        for (int i = 0; i < 256; i++) level[i] = (uint8_t)(i * 37);
        Tensor y = num_poison(d, 1, n);
        op_normalize_pixels(BE, y, t_wrap(level, U8, 1, &n));
        for (int64_t i = 0; i < n; i++) {
            float  v = ((float)level[i] - 127.5f) / 127.5f;
            Tensor w = num_copy(num_vals(F32, 1, 1, &v), d);
            EXPECT(get(y, i) == get(w, 0), "level %d is %g", level[i], get(y, i));
        }
        EXPECT(level[0] == 0 && get(y, 0) == -1.0f, "black");
        num_clear();
    }
}

int main(void)
{
    rowlab_open();
    RUN(fill_every_kind);
    RUN(copy_converts_and_rounds);
    RUN(copy_any_view);
    RUN(add_any_mixture);
    RUN(add_in_place);
    RUN(mix_of_two);
    RUN(empty_and_threads);
    RUN(price);
    RUN(normals_are_those_of_the_stream);
    RUN(uniforms_lie_between_the_bounds);
    RUN(normalized_pixels_are_within_one);
    return numlab_report();
}
