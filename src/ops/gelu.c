/* ops/gelu.c -- GELU, by tanh or exact: contract, price, CPU.
 *
 *   GELU_TANH   y = x / 2 * (1 + tanh(k * (x + 0.044715 x^3)))     k = sqrt(2 / pi)
 *   GELU_ERF    y = x * P(x), P(x) = (1 + erf(x / sqrt 2)) / 2
 *
 * x, y, dx, dy (T, D) are f32 or bf16 each; y may alias x, dx may alias dy or x. Arithmetic in f32.
 *
 * Both run at the speed of one exponential and one division. The tanh form is x * sigmoid(2 k (...)), which
 * also keeps its digits for large negative x. For the exact form libm's erff is a call per element, so P is
 * computed here, within 8e-8: a series up to |x| = 1, beyond it the tail as exp(-x^2/2) * f(|x|). Backward
 * needs the density exp(-x^2/2) / sqrt(2 pi) as well and has it from the same exponential. */
#include "ops/gelu.h"
#include "ops/rows.h"

/* P(x), and exp(-x^2/2) by the way. */
INLINE float normal_below(float x, float *bell)
{
    float t = __builtin_fabsf(x), s = x * x, u = 1.0f / (1.0f + 0.32f * t), e = fast_exp(-0.5f * s);
    float f = GELU_TAIL(u);
    float near = GELU_NEAR(s);
    float far = x < 0.0f ? e * f : 1.0f - e * f;
    *bell = e;
    return t < 1.0f ? 0.5f + DENSITY_0 * x * near : far;
}

/* sigmoid(2 z), z the argument of tanh, and its slope s (1 - s). From exp(-|2 z|) both keep their digits at
 * either end, and nothing overflows. */
INLINE float tanh_sigmoid(float x, float *slope)
{
    float z = 2.0f * TANH_K * (x + TANH_CUBE * x * x * x);
    float e = fast_exp(-__builtin_fabsf(z)), d = 1.0f / (1.0f + e);
    *slope = e * d * d;
    return z < 0.0f ? e * d : d;
}

static Cost cost(const char *op, Tensor out, Tensor dy, Tensor x, Gelu kind, double flops)
{
    REQUIRE(is_rows(x, x.n[0], x.n[1]) && is_rows(out, x.n[0], x.n[1]) &&
            (!t_has(dy) || is_rows(dy, x.n[0], x.n[1])) && (kind == GELU_TANH || kind == GELU_ERF),
            "%s: out %s dy %s x %s kind %d", op, t_fmt(out), t_fmt(dy), t_fmt(x), (int)kind);
    return (Cost){ .flops = flops * (double)t_count(x),
                   .rd    = t_bytes(x) + opt_bytes(dy),
                   .wr    = t_bytes(out) };
}

Cost gelu_fwd_cost(Backend *be, Tensor y, Tensor x, Gelu kind)
{
    return cost("gelu_fwd", y, (Tensor){ 0 }, x, kind, 10.0);
}

Cost gelu_bwd_cost(Backend *be, Tensor dx, Tensor dy, Tensor x, Gelu kind)
{
    return cost("gelu_bwd", dx, dy, x, kind, 18.0);
}

static HOT void forward_tanh(float *y, const float *x, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float slope;
        y[i] = x[i] * tanh_sigmoid(x[i], &slope);
    }
}

static HOT void forward_erf(float *y, const float *x, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float bell;
        y[i] = x[i] * normal_below(x[i], &bell);
    }
}

/* With s = sigmoid(2 z) = (1 + tanh z) / 2, 1 - tanh^2 z is 4 s (1 - s) = 4 slope. */
static HOT void backward_tanh(float *dx, const float *dy, const float *x, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = x[i], slope, s = tanh_sigmoid(v, &slope), dz = TANH_K * (1.0f + 3.0f * TANH_CUBE * v * v);
        dx[i] = dy[i] * (s + 2.0f * v * slope * dz);
    }
}

static HOT void backward_erf(float *dx, const float *dy, const float *x, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float bell, p = normal_below(x[i], &bell);
        dx[i] = dy[i] * (p + x[i] * DENSITY_0 * bell);
    }
}

void cpu_gelu_fwd(Backend *be, Tensor y, Tensor x, Gelu kind)
{
    if (t_dense(y) && t_dense(x)) y = flat(y), x = flat(x);
    Pieces p = pieces_of(x);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t i = 0; i < p.count; i++) {
        float *buf = cpu_own(be);
        Tensor yi = piece(y, p, i), xi = piece(x, p, i);
        float *out = row_edit(yi, 0, buf);
        if (kind == GELU_TANH) forward_tanh(out, row_read(xi, 0, buf), xi.n[0]);
        else                   forward_erf(out, row_read(xi, 0, buf), xi.n[0]);
        row_store(yi, 0, out);
    }
}

void cpu_gelu_bwd(Backend *be, Tensor dx, Tensor dy, Tensor x, Gelu kind)
{
    if (t_dense(dx) && t_dense(dy) && t_dense(x)) dx = flat(dx), dy = flat(dy), x = flat(x);
    Pieces p = pieces_of(x);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t i = 0; i < p.count; i++) {
        float *buf = cpu_own(be);
        Tensor di = piece(dx, p, i), gi = piece(dy, p, i), xi = piece(x, p, i);
        float *out = row_edit(di, 0, buf);
        const float *g = row_read(gi, 0, buf), *u = row_read(xi, 0, buf + PIECE);
        if (kind == GELU_TANH) backward_tanh(out, g, u, xi.n[0]);
        else                   backward_erf(out, g, u, xi.n[0]);
        row_store(di, 0, out);
    }
}
