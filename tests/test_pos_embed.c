/* tests/test_pos_embed.c -- pos_embed_fwd and pos_embed_bwd. */
#include "rowlab.h"

/* The patches of one h x w grid in merge-block order: 2 x 2 blocks, blocks in raster order. */
static Tensor grid(int32_t h, int32_t w, int64_t tail)
{
    Tensor cell = t_as2(num_i32((h * w + tail) * 4, NULL), h * w + tail, 4);
    int32_t *c = cell.data;
    for (int32_t k = 0; k < h * w; k++, c += 4) {
        int32_t block = k / 4, per_row = w / 2;
        c[0] = block / per_row * 2 + k / 2 % 2, c[1] = block % per_row * 2 + k % 2, c[2] = h, c[3] = w;
    }
    memset(c, 0, (size_t)tail * 16);
    return cell;
}

/* With the identity as table, y is the vector of tap weights. */
static void known_taps(void)
{
    static const struct { int k, idx[4]; float w[4]; } gold[] = {
        { 1, {  1,  2,  9, 10 }, { .6f,       .4f,       0,         0         } },
        { 3, { 17, 18, 25, 26 }, { .4f,       .266667f,  .2f,       .133333f  } },
        { 6, { 18, 19, 26, 27 }, { .133333f,  .533333f,  .066667f,  .266667f  } },
    };
    Tensor table = num_zeros(F32, 64, 64), x = num_zeros(F32, 24, 64), y = num_poison(F32, 24, 64);
    for (int i = 0; i < 64; i++) put(table, 65 * i, 1.0f);
    op_pos_embed_fwd(BE, y, x, table, grid(4, 6, 0));
    for (int g = 0; g < 3; g++) {
        float sum = 0;
        for (int q = 0; q < 4; q++) {
            float got = get(y, gold[g].k * 64 + gold[g].idx[q]);
            EXPECT(fabsf(got - gold[g].w[q]) < 2e-6f, "patch %d tap %d: %g", gold[g].k, gold[g].idx[q], got);
        }
        for (int i = 0; i < 64; i++) sum += get(y, gold[g].k * 64 + i);
        EXPECT(fabsf(sum - 1) < 1e-6f, "patch %d: weights add to %g", gold[g].k, sum);
    }
    EXPECT(get(y, 0) == 1 && get(y, 23 * 64 + 63) == 1, "corners lie on corners");
    num_clear();
}

static void naive(Tensor y, Tensor x, Tensor table, Tensor cell, Tensor dtable, Tensor dy, int64_t G)
{
    int64_t D = x.n[1];
    for (int64_t p = 0; p < x.n[0]; p++) {
        const int32_t *c = (const int32_t *)cell.data + 4 * p;
        double s[2] = { 0, 0 };
        for (int a = 0; a < 2; a++) s[a] = (double)c[a] * (double)(G - 1) / (c[2 + a] > 1 ? c[2 + a] - 1 : 1);
        for (int64_t i = 0; i < D; i++) {
            double sum = 0;
            for (int64_t r = 0; r < G && c[2]; r++)                        /* a hat function per grid point */
                for (int64_t q = 0; q < G; q++) {
                    double w = fmax(0, 1 - fabs(s[0] - (double)r)) * fmax(0, 1 - fabs(s[1] - (double)q));
                    int64_t k = (r * G + q) * D + i;
                    sum += w * get(table, k);
                    put(dtable, k, (float)(get(dtable, k) + w * get(dy, p * D + i)));
                }
            put(y, p * D + i, (float)((double)get(x, p * D + i) + rounded((DType)y.dtype, sum)));
        }
    }
}

static void agrees_with_double(void)
{
    static const int32_t sides[][3] = {                                        /* G, h, w */
        { 3, 2, 2 }, { 8, 4, 6 }, { 5, 16, 2 }, { 1, 2, 4 }, { 4, 4, 4 },
    };
    DType d, dt;
    int64_t D[] = { 1, 5, 33 };
    for (int s = 0; s < 5; s++) for (int j = 0; j < 3; j++) for EACH_FLOAT(d) for EACH_FLOAT(dt) {
        int64_t G = sides[s][0], P = sides[s][1] * sides[s][2] + 3;
        Tensor cell = grid(sides[s][1], sides[s][2], 3), table = loose_copy(num_randn(dt, G * G, D[j]));
        Tensor x = num_randn(d, P, D[j]), y = loose(d, P, D[j]), dy = loose_copy(num_randn(d, P, D[j]));
        Tensor want = num_poison(d, P, D[j]), sum = num_zeros(F32, G * G, D[j]), dtable = loose_copy(sum);
        naive(want, x, table, cell, sum, dy, G);
        op_pos_embed_fwd(BE, y, x, table, cell);
        op_pos_embed_bwd(BE, dtable, dy, cell);
        EXPECT_CLOSE(y, want, 2 * tolerance(d));
        EXPECT_CLOSE(dtable, sum, 5e-6);
        EXPECT(gaps_intact(y) && gaps_intact(dtable), "wrote between the rows");
        EXPECT(same_bits(t_rows(y, P - 3, 3), t_rows(x, P - 3, 3)), "tail rows changed");
        op_pos_embed_fwd(BE, x, x, table, cell);
        EXPECT(same_bits(x, y), "y over x");
        num_clear();
    }
}

static void rounds_before_and_after_adding(void)
{
    Tensor cell = grid(6, 8, 0), table = num_randn(BF16, 25, 40), x = num_randn(BF16, 48, 40);
    Tensor y = num_poison(BF16, 48, 40), want = num_poison(BF16, 48, 40), pos = num_poison(F32, 48, 40);
    op_pos_embed_fwd(BE, y, x, table, cell);
    op_pos_embed_fwd(BE, pos, num_zeros(F32, 48, 40), table, cell);
    for (int64_t i = 0; i < t_count(x); i++) put(want, i, get(x, i) + rounded(BF16, get(pos, i)));
    EXPECT(same_bits(y, want), "x + round(pos)");
    num_clear();
}

typedef struct Case { Tensor y, x, table, cell, dtable, dy; } Case;
static double loss(void *arg)
{
    Case *c = arg;
    op_pos_embed_fwd(BE, c->y, c->x, c->table, c->cell);
    return num_dot(c->y, c->dy);
}
static void both(Case *c)
{
    op_fill(BE, c->dtable, 0.0f);
    op_pos_embed_fwd(BE, c->y, c->x, c->table, c->cell);
    op_pos_embed_bwd(BE, c->dtable, c->dy, c->cell);
}

static void gradient_and_threads(void)
{
    Case c = { num_poison(F32, 26, 6), num_randn(F32, 26, 6), num_randn(F32, 25, 6), grid(4, 6, 2),
               num_zeros(F32, 25, 6), num_randn(F32, 26, 6) };
    both(&c);
    EXPECT_GRADIENT(loss, &c, c.table, c.dtable, 1e-2f, 1e-3);
    EXPECT_GRADIENT(loss, &c, c.x, c.dy, 1e-2f, 1e-3);
    Case b = { num_poison(BF16, 200, 211), num_randn(BF16, 200, 211), num_randn(BF16, 49, 211),
               grid(10, 20, 0), num_zeros(F32, 49, 211), num_randn(BF16, 200, 211) };
    Tensor out[2] = { b.y, b.dtable };
    EXPECT_THREADS_AGREE(both, &b, out, 2);
    num_clear();
}

int main(void)
{
    rowlab_open();
    RUN(known_taps);
    RUN(agrees_with_double);
    RUN(rounds_before_and_after_adding);
    RUN(gradient_and_threads);
    return numlab_report();
}
