/* ops/gelu.c -- GELU, by tanh or exact: contract, cost, CPU.
 *
 *   GELU_TANH   y = x / 2 * (1 + tanh(k * (x + 0.044715 x^3)))     k = sqrt(2 / pi)
 *   GELU_ERF    y = x * P(x), P(x) = (1 + erf(x / sqrt 2)) / 2
 *
 * x, y, dx, dy (T, D) are f32 or bf16 each; y may alias x, dx may alias dy or x. Arithmetic in f32.
 *
 * Both run at the speed of one exponential and one division. The tanh form is x * sigmoid(2 k (...)), which
 * also keeps its digits for large negative x. For the exact form libm's erff is a call per element, so P is
 * computed here (gelu.h), within 1e-7 and with its digits in the tail. Backward needs the density
 * exp(-x^2/2) / sqrt(2 pi) as well and has it from the same exponential. */
#include "ops/gelu.h"
#include "ops/cpu/cpu_rows.h"

/* P(x); also returns exp(-x^2/2) in *bell. Past t = 16 both are 0. */
INLINE float normal_below(float x, float *bell)
{
    union { float f; uint32_t u; } t = { __builtin_fabsf(x) }, most = { 16.0f };
    t.u = t.u < most.u ? t.u : most.u;                     /* as in fast_decay */
    float k = GELU_BEND * t.f, v = k * (1.0f / (1.0f + k)), e = fast_decay(0.5f * t.f * t.f);
    float tail = e * GELU_TAIL(v);
    *bell = e;
    return x < 0.0f ? tail : 1.0f - tail;
}

/* sigmoid(2 z), z the argument of tanh, and its slope s (1 - s). */
INLINE float tanh_sigmoid(float x, float *slope)
{
    return fast_sigmoid(x * (2.0f * TANH_K + 2.0f * TANH_K * TANH_CUBE * (x * x)), slope);
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

INLINE void forward_batch(void *y, const void *x, DType d, int64_t i, int m, Gelu kind)
{
    float v[BATCH], by;
    batch_get(v, x, d, i, m);
    for (int j = 0; j < BATCH; j++)
        v[j] *= kind == GELU_TANH ? tanh_sigmoid(v[j], &by) : normal_below(v[j], &by);
    batch_put(y, d, i, v, m);
}

INLINE void forward_all(void *y, const void *x, DType d, int64_t n, Gelu kind)
{
    int64_t i = 0;
    for (; i + BATCH <= n; i += BATCH) forward_batch(y, x, d, i, BATCH, kind);
    if (i < n) forward_batch(y, x, d, i, (int)(n - i), kind);
}

/* With s = sigmoid(2 z) = (1 + tanh z) / 2, 1 - tanh^2 z is 4 s (1 - s) = 4 slope. */
INLINE float gradient(float x, Gelu kind)
{
    float by, p = kind == GELU_TANH ? tanh_sigmoid(x, &by) : normal_below(x, &by);
    if (kind == GELU_ERF) return p + x * DENSITY_0 * by;
    return p + 2.0f * x * by * (TANH_K * (1.0f + 3.0f * TANH_CUBE * x * x));
}

INLINE void backward_batch(void *dx, const void *dy, const void *x, DType d, int64_t i, int m, Gelu kind)
{
    float v[BATCH], g[BATCH];
    batch_get(v, x, d, i, m);
    batch_get(g, dy, d, i, m);
    for (int j = 0; j < BATCH; j++) g[j] *= gradient(v[j], kind);
    batch_put(dx, d, i, g, m);
}

INLINE void backward_all(void *dx, const void *dy, const void *x, DType d, int64_t n, Gelu kind)
{
    int64_t i = 0;
    for (; i + BATCH <= n; i += BATCH) backward_batch(dx, dy, x, d, i, BATCH, kind);
    if (i < n) backward_batch(dx, dy, x, d, i, (int)(n - i), kind);
}

static HOT void forward(void *y, const void *x, DType d, int64_t n, Gelu kind)
{
    if (kind == GELU_TANH && d == F32) forward_all(y, x, F32,  n, GELU_TANH);
    else if (kind == GELU_TANH)        forward_all(y, x, BF16, n, GELU_TANH);
    else if (d == F32)                 forward_all(y, x, F32,  n, GELU_ERF);
    else                               forward_all(y, x, BF16, n, GELU_ERF);
}

static HOT void backward(void *dx, const void *dy, const void *x, DType d, int64_t n, Gelu kind)
{
    if (kind == GELU_TANH && d == F32) backward_all(dx, dy, x, F32,  n, GELU_TANH);
    else if (kind == GELU_TANH)        backward_all(dx, dy, x, BF16, n, GELU_TANH);
    else if (d == F32)                 backward_all(dx, dy, x, F32,  n, GELU_ERF);
    else                               backward_all(dx, dy, x, BF16, n, GELU_ERF);
}

/* Tensors of one dtype are processed in place, others through f32 copies. */
void cpu_gelu_fwd(Backend *be, Tensor y, Tensor x, Gelu kind)
{
    if (t_dense(y) && t_dense(x)) y = flat(y), x = flat(x);
    Pieces p = pieces_of(x);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t i = 0; i < p.count; i++) {
        float *buf = cpu_own(be);
        Tensor yi = piece(y, p, i), xi = piece(x, p, i);
        if (y.dtype == x.dtype) {
            forward(yi.data, xi.data, (DType)x.dtype, xi.n[0], kind);
            continue;
        }
        float *out = row_edit(yi, 0, buf);
        forward(out, row_read(xi, 0, buf), F32, xi.n[0], kind);
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
        if (dx.dtype == x.dtype && dy.dtype == x.dtype) {
            backward(di.data, gi.data, xi.data, (DType)x.dtype, xi.n[0], kind);
            continue;
        }
        float *out = row_edit(di, 0, buf);
        backward(out, row_read(gi, 0, buf), row_read(xi, 0, buf + PIECE), F32, xi.n[0], kind);
        row_store(di, 0, out);
    }
}
