/* ops/l2norm.c -- heads scaled to length 1 (queries and keys of delta rules): contract, cost, CPU.
 *
 *   l2norm_fwd   y = x r           r = 1 / sqrt(sum(x^2) + eps), kept in rstd
 *   l2norm_bwd   dx = r (dy - y <y, dy>)
 *
 * x, y, dx, dy (T, H, C) are f32 or bf16 each, with any stride between rows and between heads; rstd (T, H)
 * f32. y may alias x, dx may alias dy. Arithmetic in f32, rounded once. */
#include "ops/cpu/cpu_rows.h"

Cost l2norm_fwd_cost(Backend *be, Tensor y, Tensor rstd, Tensor x, float eps)
{
    REQUIRE(is_heads_like(x, x) && is_heads_like(y, x) &&
            is_rows_f32(rstd, x.n[0], x.n[1]),
            "l2norm_fwd: y %s rstd %s x %s", t_fmt(y), t_fmt(rstd), t_fmt(x));
    return (Cost){ .flops = 3.0 * (double)t_count(x), .rd = t_bytes(x), .wr = t_bytes(y) + t_bytes(rstd) };
}

Cost l2norm_bwd_cost(Backend *be, Tensor dx, Tensor dy, Tensor y, Tensor rstd)
{
    REQUIRE(is_heads_like(y, y) && is_heads_like(dx, y) && is_heads_like(dy, y) &&
            is_rows_f32(rstd, y.n[0], y.n[1]),
            "l2norm_bwd: dx %s dy %s y %s rstd %s", t_fmt(dx), t_fmt(dy), t_fmt(y), t_fmt(rstd));
    return (Cost){ .flops = 5.0 * (double)t_count(y), .rd = t_bytes(dy) + t_bytes(y) + t_bytes(rstd),
                   .wr = t_bytes(dx) };
}

static HOT float dot(const float *a, const float *b, int64_t n)
{
    float s = 0.0f;
    #pragma omp simd reduction(+:s)
    for (int64_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

static HOT void scale(float *y, const float *x, float s, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * s;
}

static HOT void input_grad(float *dx, const float *dy, const float *y, float s, float along, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = s * (dy[i] - y[i] * along);
}

void cpu_l2norm_fwd(Backend *be, Tensor y, Tensor rstd, Tensor x, float eps)
{
    int64_t C = x.n[2], rows = x.n[0] * x.n[1];
    cpu_check_own("l2norm_fwd", 2, C);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t r = 0; r < rows; r++) {
        float *buf = cpu_own(be), *out = row_edit(y, r, buf);
        const float *in = row_read(x, r, buf + C);
        float s = *head_stat(rstd, r) = 1.0f / sqrtf(dot(in, in, C) + eps);
        scale(out, in, s, C);
        row_store(y, r, out);
    }
}

void cpu_l2norm_bwd(Backend *be, Tensor dx, Tensor dy, Tensor y, Tensor rstd)
{
    int64_t C = y.n[2], rows = y.n[0] * y.n[1];
    cpu_check_own("l2norm_bwd", 3, C);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(y)))
    for (int64_t r = 0; r < rows; r++) {
        float *buf = cpu_own(be), *out = row_edit(dx, r, buf);
        const float *d = row_read(dy, r, buf + C), *v = row_read(y, r, buf + 2 * C);
        input_grad(out, d, v, *head_stat(rstd, r), dot(d, v, C), C);
        row_store(dx, r, out);
    }
}
