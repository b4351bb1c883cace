/* ops/rmsnorm.c -- root-mean-square norm over the last dim, with the residual add before it: contract, cost,
 * CPU.
 *
 *   u = x, or round(x + res), kept in sum         r = 1 / sqrt(mean(u^2) + eps)
 *   y = w * round(u * r)                          round: to the type of y
 *
 * x, y, res, sum (T, D) are f32 or bf16 each; w (1, D) either; rstd (T, 1) f32 is read again by backward.
 * res and sum come together or not at all; sum may alias x or res, y may alias x. A bf16 y is rounded twice,
 * before w and after it, as the reference model does.
 *
 *   g = w * dy       dx = [dres] + r * g - u * (r^3 / D) * sum(g * u)       dw += sum over rows of dy * u * r
 *
 * In backward x is u, the tensor that was normalised. dx or dw (1, D) f32 may be absent; dx may alias dy or
 * dres. Row sums go by chunks (cpu_rows.h), so equal shapes give equal bits with any number of threads. */
#include "ops/cpu/norm_bwd.h"

static bool fits_or_absent(Tensor t, int64_t rows, int64_t cols)
{
    return !t_has(t) || is_rows(t, rows, cols);
}

Cost rmsnorm_fwd_cost(Backend *be, Tensor y, Tensor rstd, Tensor sum, Tensor x, Tensor res, Tensor w,
                      float eps)
{
    int64_t T = x.n[0], D = x.n[1];
    REQUIRE(is_rows(x, T, D) && is_rows(y, T, D) && is_rows(w, 1, D) && is_rows_f32(rstd, T, 1),
            "rmsnorm_fwd: y %s rstd %s x %s w %s", t_fmt(y), t_fmt(rstd), t_fmt(x), t_fmt(w));
    REQUIRE(t_has(sum) == t_has(res) && fits_or_absent(sum, T, D) && fits_or_absent(res, T, D),
            "rmsnorm_fwd: sum %s x %s res %s", t_fmt(sum), t_fmt(x), t_fmt(res));
    return (Cost){ .flops = (t_has(res) ? 5.0 : 4.0) * (double)t_count(x),
                   .rd    = t_bytes(x) + opt_bytes(res) + t_bytes(w),
                   .wr    = t_bytes(y) + opt_bytes(sum) + t_bytes(rstd) };
}

static HOT float sum_squares(const float *u, int64_t n)
{
    float s = 0.0f;
    #pragma omp simd reduction(+:s)
    for (int64_t i = 0; i < n; i++) s += u[i] * u[i];
    return s;
}

static HOT void scale_f32(float *y, const float *u, const float *w, float r, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = w[i] * (u[i] * r);
}

static HOT void scale_bf16(uint16_t *y, const float *u, const float *w, float r, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = bf16_from_f32(w[i] * bf16_to_f32(bf16_from_f32(u[i] * r)));
}

/* The row to normalise. A bf16 sum is read back after its store: the norm must see the rounded value. */
static const float *forward_input(Tensor sum, Tensor x, Tensor res, int64_t t, float *buf)
{
    int64_t D = x.n[1];
    if (!t_has(res)) return row_read(x, t, buf);
    float *s = row_edit(sum, t, buf);
    rows_add(s, row_read(x, t, buf), row_read(res, t, buf + D), D);
    row_store(sum, t, s);
    return row_read(sum, t, buf);
}

void cpu_rmsnorm_fwd(Backend *be, Tensor y, Tensor rstd, Tensor sum, Tensor x, Tensor res, Tensor w,
                     float eps)
{
    int64_t T = x.n[0], D = x.n[1];
    cpu_check_own("rmsnorm_fwd", 3, D);
    #pragma omp parallel if (worth_threads(t_count(x)))
    {
        float *buf = cpu_own(be);
        const float *wf = row_read(w, 0, buf + 2 * D);
        #pragma omp for schedule(static)
        for (int64_t t = 0; t < T; t++) {
            const float *u = forward_input(sum, x, res, t, buf);
            float r = 1.0f / sqrtf(sum_squares(u, D) / (float)D + eps);
            if (y.dtype == F32) scale_f32((float *)row_ptr(y, t), u, wf, r, D);
            else                scale_bf16((uint16_t *)row_ptr(y, t), u, wf, r, D);
            *(float *)row_ptr(rstd, t) = r;
        }
    }
}

Cost rmsnorm_bwd_cost(Backend *be, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd,
                      Tensor dres)
{
    int64_t T = x.n[0], D = x.n[1];
    REQUIRE(is_rows(x, T, D) && is_rows(dy, T, D) && is_rows(w, 1, D) && is_rows_f32(rstd, T, 1),
            "rmsnorm_bwd: dy %s x %s w %s rstd %s", t_fmt(dy), t_fmt(x), t_fmt(w), t_fmt(rstd));
    REQUIRE(fits_or_absent(dx, T, D) && fits_or_absent(dres, T, D) && (!t_has(dw) || is_rows_f32(dw, 1, D)),
            "rmsnorm_bwd: dx %s dw %s x %s dres %s", t_fmt(dx), t_fmt(dw), t_fmt(x), t_fmt(dres));
    double n = (double)t_count(x);
    return (Cost){ .flops = (t_has(dx) ? 8.0 * n : 0.0) + (t_has(dw) ? 3.0 * n : 0.0),
                   .rd    = t_bytes(dy) + t_bytes(x) + t_bytes(w) + t_bytes(rstd) +
                            opt_bytes(dres) + opt_bytes(dw),
                   .wr    = opt_bytes(dx) + opt_bytes(dw) };
}

static HOT float dot3(const float *a, const float *b, const float *c, int64_t n)
{
    float s = 0.0f;
    #pragma omp simd reduction(+:s)
    for (int64_t i = 0; i < n; i++) s += a[i] * b[i] * c[i];
    return s;
}

static HOT void input_grad_scaled(float *dx, const float *dy, const float *x, const float *w, float r,
                                  float k, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = r * (w[i] * dy[i]) - x[i] * k;
}

static void input_grad(float *dx, const float *dy, const float *x, const float *w, float m, float r,
                       int64_t n)
{
    input_grad_scaled(dx, dy, x, w, r, r * r * r / (float)n * dot3(dy, w, x, n), n);
}

void cpu_rmsnorm_bwd(Backend *be, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd,
                     Tensor dres)
{
    norm_backward(be, "rmsnorm_bwd", &(NormBwd){ dx, dw, { 0 }, dy, x, w, rstd, dres, false }, input_grad);
}
