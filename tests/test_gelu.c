/* tests/test_gelu.c -- gelu_fwd and gelu_bwd, both forms. */
#include "rowlab.h"

static const Gelu kinds[] = { GELU_TANH, GELU_ERF };

static double gelu(double x, Gelu kind)
{
    if (kind == GELU_ERF) return 0.5 * x * erfc(-x / sqrt(2));
    return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double slope(double x, Gelu kind)
{
    if (kind == GELU_ERF) return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    double k = sqrt(2 / M_PI), t = tanh(k * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 0.134145 * x * x);
}

static void known_values(void)
{
    float x[] = { 0, 1, -1, 3, -20, 20 };
    float tanh_form[] = { 0, 0.84119199f, -0.15880801f, 2.99636261f, 0, 20 };
    float exact[]     = { 0, 0.84134475f, -0.15865525f, 2.99595031f, 0, 20 };
    Tensor v = num_vals(F32, 1, 6, x), y = num_poison(F32, 1, 6);
    op_gelu_fwd(BE, y, v, GELU_TANH);
    EXPECT_CLOSE(y, num_vals(F32, 1, 6, tanh_form), 1e-8);
    op_gelu_fwd(BE, y, v, GELU_ERF);
    EXPECT_CLOSE(y, num_vals(F32, 1, 6, exact), 1e-8);
    op_gelu_bwd(BE, y, v, num_zeros(F32, 1, 6), GELU_ERF);                 /* slope 1/2 at 0 */
    for (int i = 0; i < 6; i++) EXPECT(get(y, i) == x[i] / 2, "[%d] %g", i, get(y, i));
    num_clear();
}

/* A dense sweep. y is off by x times the error of P, so this holds erf = 2 P - 1 to 2e-7. */
static void sweep(void)
{
    int64_t n = 40001;
    Tensor x = num_poison(F32, 1, n), y = num_poison(F32, 1, n);
    Tensor one = num_poison(F32, 1, n), dx = num_poison(F32, 1, n);
    op_fill(BE, one, 1.0f);
    for (int64_t i = 0; i < n; i++) put(x, i, -14.0f + 28.0f * (float)i / (float)(n - 1));
    for (int k = 0; k < 2; k++) {
        double worst = 0, worst_slope = 0, worst_tail = 0;
        op_gelu_fwd(BE, y, x, kinds[k]);
        op_gelu_bwd(BE, dx, one, x, kinds[k]);
        for (int64_t i = 0; i < n; i++) {
            double v = get(x, i), want = gelu(v, kinds[k]);
            worst       = fmax(worst, fabs(get(y, i) - want) / fmax(fabs(v), 1e-3));
            worst_slope = fmax(worst_slope, fabs(get(dx, i) - slope(v, kinds[k])));
            if (v < 0 && v > -7) worst_tail = fmax(worst_tail, fabs(get(y, i) / want - 1));
        }
        EXPECT(worst < 1.7e-7, "kind %d: |y - gelu(x)| / |x| up to %g", k, worst);
        EXPECT(worst_slope < 6e-7, "kind %d: slope off by %g", k, worst_slope);
        EXPECT(worst_tail < 1e-5, "kind %d: tail relatively off by %g", k, worst_tail);
    }
    num_clear();
}

/* Far out y is x or 0, and NaN stays; what is nearly 0 is halved. */
static void ends_of_the_range(void)
{
    float  x[] = { INFINITY, 1e30f, 100, -14.5f, -100, -1e30f, NAN, 1e-30f, -1e-30f, 0x1p-140f, 0.0f };
    float  want[] = { INFINITY, 1e30f, 100, 0, 0, 0, NAN, 5e-31f, -5e-31f, 0x1p-141f, 0.0f };
    DType  d;
    for EACH_FLOAT(d) for (int k = 0; k < 2; k++) {
        Tensor v = num_vals(d, 1, 11, x), y = num_poison(d, 1, 11);
        op_gelu_fwd(BE, y, v, kinds[k]);
        for (int i = 0; i < 11; i++) {
            float w = rounded(d, want[i]), got = get(y, i);
            EXPECT(isnan(w) ? isnan(got) : got == w || fabsf(got - w) < 1e-38f,
                   "kind %d: gelu(%g) = %g, want %g", k, x[i], got, w);
        }
        num_clear();
    }
}

static void agrees_with_double(void)
{
    DType d;
    int64_t D;
    for EACH_WIDTH(D) for EACH_FLOAT(d) for (int k = 0; k < 2; k++) {
        Tensor x = num_randn(d, 3, D), dy = num_randn(d, 3, D), y = loose(d, 3, D), dx = loose(d, 3, D);
        Tensor want = num_poison(F32, 3, D), grad = num_poison(F32, 3, D);
        for (int64_t i = 0; i < 3 * D; i++) {
            put(want, i, (float)gelu(get(x, i), kinds[k]));
            put(grad, i, (float)(get(dy, i) * slope(get(x, i), kinds[k])));
        }
        op_gelu_fwd(BE, y, loose_copy(x), kinds[k]);
        op_gelu_bwd(BE, dx, dy, x, kinds[k]);
        EXPECT_CLOSE(y, want, tolerance(d));
        EXPECT_CLOSE(dx, grad, tolerance(d));
        EXPECT(gaps_intact(y) && gaps_intact(dx), "wrote between the rows");
        Tensor a = num_copy(x, d), b = num_copy(dy, d), c = num_copy(x, d);
        op_gelu_fwd(BE, a, a, kinds[k]);
        op_gelu_bwd(BE, b, b, x, kinds[k]);
        op_gelu_bwd(BE, c, dy, c, kinds[k]);
        EXPECT(same_bits(a, y) && same_bits(b, dx) && same_bits(c, dx), "in place, %s", t_fmt(x));
        num_clear();
    }
}

typedef struct Case { Tensor y, dx, x, dy; Gelu kind; } Case;
static double loss(void *arg)
{
    Case *c = arg;
    op_gelu_fwd(BE, c->y, c->x, c->kind);
    return num_dot(c->y, c->dy);
}
static void both(Case *c)
{
    op_gelu_fwd(BE, c->y, c->x, c->kind);
    op_gelu_bwd(BE, c->dx, c->dy, c->x, c->kind);
}

static void gradients_and_threads(void)
{
    for (int k = 0; k < 2; k++) {
        Case c = { num_poison(F32, 3, 19), num_poison(F32, 3, 19), num_randn(F32, 3, 19),
                   num_randn(F32, 3, 19), kinds[k] };
        both(&c);
        EXPECT_GRADIENT(loss, &c, c.x, c.dx, 1e-2f, 2e-3);
        Case b = { num_poison(BF16, 99, 501), num_poison(BF16, 99, 501), num_randn(BF16, 99, 501),
                   num_randn(BF16, 99, 501), kinds[k] };
        Tensor out[2] = { b.y, b.dx };
        EXPECT_THREADS_AGREE(both, &b, out, 2);
        num_clear();
    }
}

int main(void)
{
    rowlab_open();
    RUN(known_values);
    RUN(sweep);
    RUN(ends_of_the_range);
    RUN(agrees_with_double);
    RUN(gradients_and_threads);
    return numlab_report();
}
