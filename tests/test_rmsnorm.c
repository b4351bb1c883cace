/* tests/test_rmsnorm.c -- rmsnorm_fwd and rmsnorm_bwd. */
#include "rowlab.h"

typedef struct Case { Tensor y, rstd, sum, x, res, w, dx, dw, dy, dres; } Case;

static Case make(DType d, DType dw, int64_t T, int64_t D)
{
    return (Case){ .y = num_poison(d, T, D), .rstd = num_poison(F32, T, 1), .x = num_randn(d, T, D),
                   .w = num_randn(dw, 1, D), .dx = num_poison(d, T, D), .dw = num_zeros(F32, 1, D),
                   .dy = num_randn(d, T, D) };
}
static void forward(Case *c)  { op_rmsnorm_fwd(BE, c->y, c->rstd, c->sum, c->x, c->res, c->w, 1e-6f); }
static void backward(Case *c) { op_rmsnorm_bwd(BE, c->dx, c->dw, c->dy, c->x, c->w, c->rstd, c->dres); }

static void known_values(void)
{
    float x[] = { 3, 4 }, w[] = { 1, 2 };
    Case c = make(F32, F32, 1, 2);
    c.x = num_vals(F32, 1, 2, x), c.w = num_vals(F32, 1, 2, w);
    op_rmsnorm_fwd(BE, c.y, c.rstd, none, c.x, none, c.w, 0.0f);
    EXPECT(fabsf(get(c.y, 0) - 3 / sqrtf(12.5f)) < 1e-6f && fabsf(get(c.y, 1) - 8 / sqrtf(12.5f)) < 1e-6f,
           "y %g %g", get(c.y, 0), get(c.y, 1));
    EXPECT(fabsf(get(c.rstd, 0) - 1 / sqrtf(12.5f)) < 1e-7f, "rstd %g", get(c.rstd, 0));
    op_fill(BE, c.x, 0.0f);
    op_rmsnorm_fwd(BE, c.y, c.rstd, none, c.x, none, c.w, 1e-6f);
    EXPECT(get(c.y, 0) == 0 && fabsf(get(c.rstd, 0) - 1000) < 1e-3f, "zero row: rstd %g", get(c.rstd, 0));
    num_clear();
}

/* In double, rounding where the contract does. */
static void naive_forward(Tensor y, Tensor rstd, Tensor u, Tensor w, double eps)
{
    int64_t D = u.n[1];
    for (int64_t t = 0; t < u.n[0]; t++) {
        double s = 0;
        for (int64_t i = 0; i < D; i++) s += (double)get(u, t * D + i) * get(u, t * D + i);
        double r = 1 / sqrt(s / (double)D + eps);
        put(rstd, t, (float)r);
        for (int64_t i = 0; i < D; i++)
            put(y, t * D + i, (float)((double)get(w, i) * rounded((DType)y.dtype, get(u, t * D + i) * r)));
    }
}

static void naive_backward(Case *c, Tensor dx, Tensor dw)
{
    int64_t D = c->x.n[1];
    double *sum = calloc((size_t)D, sizeof *sum);
    for (int64_t t = 0; t < c->x.n[0]; t++) {
        double r = get(c->rstd, t), dot = 0;
        for (int64_t i = 0, k = t * D; i < D; i++, k++) {
            dot    += (double)get(c->w, i) * get(c->dy, k) * get(c->x, k);
            sum[i] += (double)get(c->dy, k) * get(c->x, k) * r;
        }
        for (int64_t i = 0, k = t * D; i < D; i++, k++)
            put(dx, k, (float)((t_has(c->dres) ? get(c->dres, k) : 0) + r * get(c->w, i) * get(c->dy, k) -
                               get(c->x, k) * (r * r * r / (double)D) * dot));
    }
    for (int64_t i = 0; i < D; i++) put(dw, i, (float)sum[i]);
    free(sum);
}

static void agrees_with_double(void)
{
    DType d, dw;
    int64_t D;
    for EACH_WIDTH(D) for EACH_FLOAT(d) for EACH_FLOAT(dw) {
        Case c = make(d, dw, 7, D);
        Tensor y = num_poison(d, 7, D), r = num_poison(F32, 7, 1);
        Tensor dx = num_poison(F32, 7, D), g = num_poison(F32, 1, D);
        forward(&c);
        naive_forward(y, r, c.x, c.w, 1e-6);
        EXPECT_CLOSE(c.rstd, r, 1e-7 * (3 + (double)D / 64));  /* a build without vectors sums one by one */
        EXPECT_CLOSE(c.y, y, 2 * tolerance(d));                /* two roundings */
        if (D % 3 == 0) c.dres = num_randn(d, 7, D);
        backward(&c);
        naive_backward(&c, dx, g);
        EXPECT_CLOSE_AT(4 * largest(r), c.dx, dx, tolerance(d));
        EXPECT_CLOSE_AT(4, c.dw, g, 2e-6);
        num_clear();
    }
}

static void rounds_before_and_after_weight(void)
{
    Case c = make(BF16, BF16, 3, 257);
    Tensor want = num_poison(BF16, 3, 257);
    forward(&c);
    for (int64_t i = 0; i < t_count(want); i++)
        put(want, i, get(c.w, i % 257) * rounded(BF16, get(c.x, i) * get(c.rstd, i / 257)));
    EXPECT(same_bits(c.y, want), "w * round(x * r)");
    num_clear();
}

static void residual_is_added_first(void)
{
    DType d;
    int64_t D;
    for EACH_WIDTH(D) for EACH_FLOAT(d) {
        Case c = make(d, d, 5, D), plain = c;
        c.res = num_randn(d, 5, D), c.sum = loose(d, 5, D);
        plain.x = num_poison(d, 5, D), plain.y = num_poison(d, 5, D), plain.rstd = num_poison(F32, 5, 1);
        op_add(BE, plain.x, c.x, c.res);
        forward(&plain);
        forward(&c);
        EXPECT(same_bits(c.sum, plain.x) && gaps_intact(c.sum), "sum %s", t_fmt(c.sum));
        EXPECT(same_bits(c.y, plain.y) && same_bits(c.rstd, plain.rstd), "norm of the sum, %s", t_fmt(c.y));
        Tensor keep = num_copy(c.x, d);
        c.sum = c.x, forward(&c);
        EXPECT(same_bits(c.x, plain.x) && same_bits(c.y, plain.y), "sum over x");
        c.x = keep, c.sum = c.res, forward(&c);
        EXPECT(same_bits(c.res, plain.x) && same_bits(c.y, plain.y), "sum over res");
        num_clear();
    }
}

static void wide_residual_stream(void)                    /* f32 sum and res beside bf16 activations */
{
    Case c = make(BF16, BF16, 5, 96), f = make(F32, BF16, 5, 96);
    c.res = num_randn(F32, 5, 96), c.sum = num_poison(F32, 5, 96);
    forward(&c);
    op_add(BE, f.x, c.x, c.res);
    f.w = c.w;
    forward(&f);
    EXPECT(same_bits(c.sum, f.x) && same_bits(c.rstd, f.rstd), "f32 sum");
    EXPECT_CLOSE(c.y, f.y, 1e-2);
    num_clear();
}

static void in_place_and_gaps(void)
{
    DType d;
    int64_t D;
    for EACH_WIDTH(D) for EACH_FLOAT(d) {
        Case c = make(d, F32, 5, D), g = c;
        c.dres = g.dres = num_randn(d, 5, D);
        forward(&c), backward(&c);
        g.x = loose_copy(c.x), g.y = loose(d, 5, D), g.rstd = loose(F32, 5, 1), g.w = loose_copy(c.w);
        g.dx = loose(d, 5, D), g.dy = loose_copy(c.dy), g.dres = loose_copy(c.dres);
        g.dw = num_zeros(F32, 1, D);
        forward(&g), backward(&g);
        EXPECT(same_bits(g.y, c.y) && same_bits(g.dx, c.dx) && same_bits(g.dw, c.dw), "gaps, %s", t_fmt(c.x));
        EXPECT(gaps_intact(g.y) && gaps_intact(g.dx) && gaps_intact(g.rstd), "wrote between the rows");
        Case a = c;
        a.dw = none, a.dx = a.dy = num_copy(c.dy, d), backward(&a);
        EXPECT(same_bits(a.dx, c.dx), "dx over dy");
        a.dy = c.dy, a.dx = a.dres = num_copy(c.dres, d), backward(&a);
        EXPECT(same_bits(a.dx, c.dx), "dx over dres");
        a.dx = none, a.dw = num_zeros(F32, 1, D), backward(&a);
        EXPECT(same_bits(a.dw, c.dw), "dw alone");
        a.y = a.x = num_copy(c.x, d), forward(&a);
        EXPECT(same_bits(a.y, c.y), "y over x");
        num_clear();
    }
}

static void weight_gradient_adds(void)
{
    Case c = make(F32, F32, 40, 33);
    forward(&c), backward(&c);
    Tensor once = num_copy(c.dw, F32);
    backward(&c);
    for (int64_t i = 0; i < 33; i++)
        EXPECT(fabsf(get(c.dw, i) - 2 * get(once, i)) <= 4e-6f * (1 + fabsf(get(once, i))), "dw[%d]", (int)i);
    num_clear();
}

static double loss(void *arg)
{
    Case *c = arg;
    forward(c);
    return num_dot(c->y, c->dy) + (t_has(c->sum) ? num_dot(c->sum, c->dres) : 0);
}

static void gradients(void)
{
    for (int64_t D = 7; D < 80; D = 3 * D + 1) {
        Case c = make(F32, F32, 4, D);
        forward(&c), backward(&c);
        EXPECT_GRADIENT(loss, &c, c.x, c.dx, 3e-3f, 3e-3);
        EXPECT_GRADIENT(loss, &c, c.w, c.dw, 1e-2f, 2e-3);
        c.res = num_randn(F32, 4, D), c.sum = num_poison(F32, 4, D), c.dres = num_randn(F32, 4, D);
        forward(&c);
        Tensor x = c.x;
        c.x = c.sum, backward(&c), c.x = x;
        EXPECT_GRADIENT(loss, &c, c.x, c.dx, 3e-3f, 3e-3);
        EXPECT_GRADIENT(loss, &c, c.res, c.dx, 3e-3f, 3e-3);
        num_clear();
    }
}

static void both(Case *c)
{
    op_fill(BE, c->dw, 0.0f);
    forward(c), backward(c);
}

static void threads_agree(void)
{
    DType d;
    for EACH_FLOAT(d) {
        Case c = make(d, d, 301, 257);
        Tensor out[4] = { c.y, c.rstd, c.dx, c.dw };
        EXPECT_THREADS_AGREE(both, &c, out, 4);
        num_clear();
    }
}

static void price(void)
{
    Case c = make(BF16, BF16, 4, 8);
    Cost f = rmsnorm_fwd_cost(BE, c.y, c.rstd, none, c.x, none, c.w, 1e-6f);
    EXPECT(f.rd == 64 + 16 && f.wr == 64 + 16 && f.flops == 128, "rd %d wr %d", (int)f.rd, (int)f.wr);
    Cost b = rmsnorm_bwd_cost(BE, c.dx, none, c.dy, c.x, c.w, c.rstd, none);
    EXPECT(b.rd == 64 + 64 + 16 + 16 && b.wr == 64 && b.flops == 256, "rd %d wr %d", (int)b.rd, (int)b.wr);
    num_clear();
}

int main(void)
{
    rowlab_open();
    RUN(known_values);
    RUN(agrees_with_double);
    RUN(rounds_before_and_after_weight);
    RUN(residual_is_added_first);
    RUN(wide_residual_stream);
    RUN(in_place_and_gaps);
    RUN(weight_gradient_adds);
    RUN(gradients);
    RUN(threads_agree);
    RUN(price);
    return numlab_report();
}
