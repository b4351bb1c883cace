/* tests/test_exp.c -- the exponentials of ops/cpu/cpu.h over their whole range, against double. */
#include "lab.h"
#include "ops/cpu/cpu.h"

#include <float.h>

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Distance in steps of a float at `want`. */
static double ulps(float got, double want)
{
    int e;
    frexp(want, &e);
    return fabs(got - want) / ldexp(1.0, (e < -125 ? -125 : e) - 24);
}

HOT static void exp_row(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = fast_exp(x[i]);
}
HOT static void decay_row(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = fast_decay(x[i]);
}
HOT static void sigmoid_row(float *y, float *slope, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = fast_sigmoid(x[i], slope + i);
}

enum { ROW = 1024, ROWS = 2048 };

/* Every 1021st float from -88 to 88, both zeros' neighbourhoods with their denormals included. */
static void within_two_ulp(void)
{
    float  x[ROW], y[ROW], d[ROW], s[ROW], slope[ROW];
    double worst = 0, worst_decay = 0, worst_sigmoid = 0, worst_slope = 0;
    for (int r = 0; r < 2 * ROWS; r++) {
        for (int i = 0; i < ROW; i++) {
            x[i] = from_bits((uint32_t)(r / 2 * ROW + i) * 531u);
            if (x[i] > 88.0f) x[i] = 88.0f;
        }
        decay_row(d, x, ROW);
        if (r % 2) for (int i = 0; i < ROW; i++) x[i] = -x[i];
        exp_row(y, x, ROW);
        sigmoid_row(s, slope, x, ROW);
        for (int i = 0; i < ROW; i++) {
            double e = exp((double)x[i]), p = 1 / (1 + exp(-(double)x[i])), q = 1 / (1 + e);
            if (x[i] < -87.33f) EXPECT(y[i] == 0.0f, "exp(%a) = %a", x[i], y[i]);
            else                worst = fmax(worst, ulps(y[i], e));
            if (fabsf(x[i]) > 87.3f) continue;                       /* 0 or denormal further out */
            worst_decay   = fmax(worst_decay, ulps(d[i], r % 2 ? e : 1 / e));
            worst_sigmoid = fmax(worst_sigmoid, ulps(s[i], p));
            worst_slope   = fmax(worst_slope, ulps(slope[i], p * q));
        }
    }
    EXPECT(worst <= 2, "exp off by %g ulp", worst);
    EXPECT(worst_decay <= 2, "decay off by %g ulp", worst_decay);
    EXPECT(worst_sigmoid <= 4, "sigmoid off by %g ulp", worst_sigmoid);
    EXPECT(worst_slope <= 5, "slope off by %g ulp", worst_slope);
}

static void ends_of_the_range(void)
{
    float low[] = { -87.34f, -88, -89, -104, -1e4f, -1e9f, -1e30f, -FLT_MAX, -INFINITY };
    float zero[] = { 0.0f, -0.0f, FLT_TRUE_MIN, -FLT_TRUE_MIN, FLT_MIN / 2, 1e-20f, -1e-20f };
    float y[9], high[9], slope[9], nan[] = { NAN, -NAN, from_bits(0x7fffffff), from_bits(0x7f800001) };
    exp_row(y, low, 9);
    for (int i = 0; i < 9; i++) EXPECT(y[i] == 0.0f, "exp(%g) = %g", low[i], y[i]);
    sigmoid_row(y, slope, low, 9);
    for (int i = 0; i < 9; i++) EXPECT(y[i] >= 0.0f && y[i] < FLT_MIN, "sigmoid(%g) = %g", low[i], y[i]);
    for (int i = 0; i < 9; i++) high[i] = -low[i];
    decay_row(y, high, 9);
    for (int i = 0; i < 9; i++) EXPECT(y[i] >= 0.0f && y[i] < FLT_MIN, "decay(%g) = %g", high[i], y[i]);
    sigmoid_row(y, slope, high, 9);
    for (int i = 0; i < 9; i++) EXPECT(y[i] == 1.0f, "sigmoid(%g) = %g", high[i], y[i]);
    exp_row(y, zero, 7);
    for (int i = 0; i < 7; i++) EXPECT(y[i] == 1.0f, "exp(%g) = %a", zero[i], y[i]);
    sigmoid_row(y, slope, zero, 7);
    for (int i = 0; i < 7; i++) EXPECT(y[i] == 0.5f && slope[i] == 0.25f, "sigmoid(%g) = %a", zero[i], y[i]);
    exp_row(y, nan, 4);
    for (int i = 0; i < 4; i++) EXPECT(isnan(y[i]), "exp(NaN %d) = %g", i, y[i]);
}

int main(void)
{
    RUN(within_two_ulp);
    RUN(ends_of_the_range);
    return lab_report();
}
