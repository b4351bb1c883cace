/* tests/test_layernorm.c -- layernorm_fwd and layernorm_bwd. */
#include "rowlab.h"

typedef struct Case { Tensor y, stat, x, w, b, dx, dw, db, dy, dres; } Case;

static Case make(DType d, DType dw, int64_t T, int64_t D)
{
    return (Case){ num_poison(d, T, D), num_poison(F32, T, 2), num_randn(d, T, D), num_randn(dw, 1, D),
                   num_randn(dw, 1, D), num_poison(d, T, D), num_zeros(F32, 1, D), num_zeros(F32, 1, D),
                   num_randn(d, T, D), none };
}
static void forward(Case *c) { op_layernorm_fwd(BE, c->y, c->stat, c->x, c->w, c->b, 1e-6f); }
static void backward(Case *c)
{
    op_layernorm_bwd(BE, c->dx, c->dw, c->db, c->dy, c->x, c->w, c->stat, c->dres);
}

static void known_values(void)
{
    float x[] = { 1, 3, 5, 7 }, w[] = { 1, 1, 2, 1 }, b[] = { 0, 0, 0, 10 }, r = 1 / sqrtf(5);
    float want[] = { -3 * r, -r, 2 * r, 3 * r + 10 };
    Case c = make(F32, F32, 1, 4);
    c.x = num_vals(F32, 1, 4, x), c.w = num_vals(F32, 1, 4, w), c.b = num_vals(F32, 1, 4, b);
    op_layernorm_fwd(BE, c.y, c.stat, c.x, c.w, c.b, 0.0f);
    EXPECT_CLOSE(c.y, num_vals(F32, 1, 4, want), 1e-7);
    EXPECT(get(c.stat, 0) == 4 && fabsf(get(c.stat, 1) - r) < 1e-7f,
           "m %g r %g", get(c.stat, 0), get(c.stat, 1));
    num_clear();
}

/* mean(x^2) - m^2 would have no digit left here. */
static void far_from_zero(void)
{
    Case c = make(F32, F32, 1, 1000);
    for (int64_t i = 0; i < 1000; i++) put(c.x, i, 10000.0f + (float)(i % 2));
    forward(&c);
    EXPECT(fabsf(get(c.stat, 0) - 10000.5f) < 2e-3f && fabsf(get(c.stat, 1) - 2.0f) < 1e-4f,
           "m %.9g r %.9g", get(c.stat, 0), get(c.stat, 1));
    num_clear();
}

static void naive(Case *c, Tensor y, Tensor stat, Tensor dx, Tensor dw, Tensor db)
{
    int64_t D = c->x.n[1];
    double n = (double)D, *sw = calloc((size_t)D, sizeof *sw), *sb = calloc((size_t)D, sizeof *sb);
    for (int64_t t = 0; t < c->x.n[0]; t++) {
        double m = 0, v = 0, g = 0, gz = 0;
        for (int64_t i = 0; i < D; i++) m += get(c->x, t * D + i) / n;
        for (int64_t i = 0; i < D; i++) v += pow(get(c->x, t * D + i) - m, 2) / n;
        double r = 1 / sqrt(v + 1e-6);
        put(stat, 2 * t, (float)m), put(stat, 2 * t + 1, (float)r);
        for (int64_t i = 0, k = t * D; i < D; i++, k++) {
            double z = (get(c->x, k) - m) * r, dy = get(c->dy, k);
            put(y, k, (float)(z * get(c->w, i) + get(c->b, i)));
            g += dy * get(c->w, i) / n, gz += dy * get(c->w, i) * z / n;
            sw[i] += dy * z, sb[i] += dy;
        }
        for (int64_t i = 0, k = t * D; i < D; i++, k++)
            put(dx, k, (float)((t_has(c->dres) ? get(c->dres, k) : 0) +
                               r * ((double)get(c->w, i) * get(c->dy, k) - g - (get(c->x, k) - m) * r * gz)));
    }
    for (int64_t i = 0; i < D; i++) put(dw, i, (float)sw[i]), put(db, i, (float)sb[i]);
    free(sw), free(sb);
}

static void agrees_with_double(void)
{
    DType d, dw;
    int64_t D;
    for EACH_WIDTH(D) for EACH_FLOAT(d) for EACH_FLOAT(dw) {
        Case c = make(d, dw, 7, D);
        Tensor y = num_poison(F32, 7, D), st = num_poison(F32, 7, 2), dx = num_poison(F32, 7, D);
        Tensor gw = num_poison(F32, 1, D), gb = num_poison(F32, 1, D);
        if (D % 2) c.dres = num_randn(d, 7, D);
        forward(&c), backward(&c);
        naive(&c, y, st, dx, gw, gb);
        double r = largest(st);                   /* amplifies what rounding does to x - m */
        EXPECT_CLOSE(c.stat, st, 4e-6);
        EXPECT_CLOSE_AT(4 * r, c.y, y, tolerance(d));
        EXPECT_CLOSE_AT(4 * r * r, c.dx, dx, tolerance(d));
        EXPECT_CLOSE_AT(4 * r, c.dw, gw, 2e-6);
        EXPECT_CLOSE_AT(4, c.db, gb, 2e-6);
        num_clear();
    }
}

static void one_column(void)                      /* no variance: y is b, nothing but rounding flows back */
{
    Case c = make(F32, F32, 3, 1);
    forward(&c), backward(&c);
    for (int t = 0; t < 3; t++)
        EXPECT(get(c.y, t) == get(c.b, 0) && fabsf(get(c.dx, t)) < 1e-3f, "y %g b %g dx %g",
               get(c.y, t), get(c.b, 0), get(c.dx, t));
    num_clear();
}

static void in_place_and_gaps(void)
{
    DType d;
    int64_t D;
    for EACH_WIDTH(D) for EACH_FLOAT(d) {
        Case c = make(d, F32, 5, D), g = c, a;
        c.dres = num_randn(d, 5, D);
        forward(&c), backward(&c);
        g.x = loose_copy(c.x), g.y = loose(d, 5, D), g.stat = loose(F32, 5, 2), g.w = loose_copy(c.w);
        g.dx = loose(d, 5, D), g.dy = loose_copy(c.dy), g.dres = loose_copy(c.dres);
        g.dw = num_zeros(F32, 1, D), g.db = num_zeros(F32, 1, D);
        forward(&g), backward(&g);
        EXPECT(same_bits(g.y, c.y) && same_bits(g.dx, c.dx) && same_bits(g.dw, c.dw) && same_bits(g.db, c.db),
               "rows with gaps, %s", t_fmt(c.x));
        EXPECT(gaps_intact(g.y) && gaps_intact(g.dx) && gaps_intact(g.stat), "wrote between the rows");
        a = c, a.dw = a.db = none, a.dx = a.dy = num_copy(c.dy, d), backward(&a);
        EXPECT(same_bits(a.dx, c.dx), "dx over dy");
        a.dy = c.dy, a.dx = a.dres = num_copy(c.dres, d), backward(&a);
        EXPECT(same_bits(a.dx, c.dx), "dx over dres");
        a.dx = none, a.dw = num_zeros(F32, 1, D), backward(&a);
        EXPECT(same_bits(a.dw, c.dw), "dw alone");
        a.dw = none, a.db = num_zeros(F32, 1, D), backward(&a);
        EXPECT(same_bits(a.db, c.db), "db alone");
        a.y = a.x = num_copy(c.x, d), forward(&a);
        EXPECT(same_bits(a.y, c.y), "y over x");
        num_clear();
    }
}

static double loss(void *arg)
{
    Case *c = arg;
    forward(c);
    return num_dot(c->y, c->dy) + (t_has(c->dres) ? num_dot(c->x, c->dres) : 0);
}

static void gradients(void)
{
    for (int64_t D = 4; D < 100; D = 3 * D + 1) {
        Case c = make(F32, F32, 4, D);
        if (D > 20) c.dres = num_randn(F32, 4, D);
        forward(&c), backward(&c);
        EXPECT_GRADIENT(loss, &c, c.x, c.dx, 3e-3f, 3e-3);
        EXPECT_GRADIENT(loss, &c, c.w, c.dw, 1e-2f, 2e-3);
        EXPECT_GRADIENT(loss, &c, c.b, c.db, 1e-2f, 2e-3);
        num_clear();
    }
}

static void weight_gradients_add(void)
{
    Case c = make(F32, F32, 40, 33);
    op_fill(BE, c.dw, 1000.0f);
    op_fill(BE, c.db, -1000.0f);
    forward(&c), backward(&c);
    Case z = c;
    z.dw = num_zeros(F32, 1, 33), z.db = num_zeros(F32, 1, 33), backward(&z);
    for (int64_t i = 0; i < 33; i++)
        EXPECT(fabsf(get(c.dw, i) - 1000 - get(z.dw, i)) < 1e-2f &&
               fabsf(get(c.db, i) + 1000 - get(z.db, i)) < 1e-2f, "column %d", (int)i);
    num_clear();
}

static void both(Case *c)
{
    op_fill(BE, c->dw, 0.0f);
    op_fill(BE, c->db, 0.0f);
    forward(c), backward(c);
}

static void threads_agree(void)
{
    DType d;
    for EACH_FLOAT(d) {
        Case c = make(d, d, 301, 257);
        Tensor out[5] = { c.y, c.stat, c.dx, c.dw, c.db };
        EXPECT_THREADS_AGREE(both, &c, out, 5);
        num_clear();
    }
}

static void price(void)
{
    Case c = make(BF16, BF16, 4, 8);
    Cost f = layernorm_fwd_cost(BE, c.y, c.stat, c.x, c.w, c.b, 1e-6f);
    EXPECT(f.rd == 64 + 32 && f.wr == 64 + 32, "rd %d wr %d", (int)f.rd, (int)f.wr);
    Cost b = layernorm_bwd_cost(BE, c.dx, none, none, c.dy, c.x, c.w, c.stat, none);
    EXPECT(b.rd == 64 + 64 + 16 + 32 && b.wr == 64, "rd %d wr %d", (int)b.rd, (int)b.wr);
    num_clear();
}

int main(void)
{
    rowlab_open();
    RUN(known_values);
    RUN(far_from_zero);
    RUN(agrees_with_double);
    RUN(one_column);
    RUN(in_place_and_gaps);
    RUN(gradients);
    RUN(weight_gradients_add);
    RUN(threads_agree);
    RUN(price);
    return numlab_report();
}
