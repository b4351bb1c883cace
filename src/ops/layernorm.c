/* ops/layernorm.c -- layer norm over the last dim: contract, cost, CPU.
 *
 *   z = (x - m) * r      m = mean(x)      r = 1 / sqrt(mean((x - m)^2) + eps)      y = z * w + b
 *
 * x, y (T, D) are f32 or bf16 each; w, b (1, D) either; stat (T, 2) f32 holds m and r for backward. y may
 * alias x. The variance is taken around the mean found first: mean(x^2) - m^2 would cancel. One rounding.
 *
 *   g = w * dy      dx = [dres] + r * (g - mean(g) - z * mean(g * z))
 *   dw += sum over rows of dy * z                                   db += sum over rows of dy
 *
 * dx, dw, db (1, D) f32 may each be absent; dx may alias dy or dres. Row sums go by chunks (cpu_rows.h). */
#include "ops/cpu/norm_bwd.h"

Cost layernorm_fwd_cost(Backend *be, Tensor y, Tensor stat, Tensor x, Tensor w, Tensor b, float eps)
{
    int64_t T = x.n[0], D = x.n[1];
    REQUIRE(is_rows(x, T, D) && is_rows(y, T, D) && is_rows(w, 1, D) && is_rows(b, 1, D) &&
            is_rows_f32(stat, T, 2),
            "layernorm_fwd: y %s stat %s x %s w %s b %s",
            t_fmt(y), t_fmt(stat), t_fmt(x), t_fmt(w), t_fmt(b));
    return (Cost){ .flops = 7.0 * (double)t_count(x),
                   .rd    = t_bytes(x) + t_bytes(w) + t_bytes(b),
                   .wr    = t_bytes(y) + t_bytes(stat) };
}

static HOT float sum_row(const float *x, int64_t n)
{
    float s = 0.0f;
    #pragma omp simd reduction(+:s)
    for (int64_t i = 0; i < n; i++) s += x[i];
    return s;
}

static HOT float sum_squares_around(const float *x, float m, int64_t n)
{
    float s = 0.0f;
    #pragma omp simd reduction(+:s)
    for (int64_t i = 0; i < n; i++) s += (x[i] - m) * (x[i] - m);
    return s;
}

static HOT void affine_row(float *y, const float *x, const float *w, const float *b, float m, float r,
                           int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - m) * r * w[i] + b[i];
}

void cpu_layernorm_fwd(Backend *be, Tensor y, Tensor stat, Tensor x, Tensor w, Tensor b, float eps)
{
    int64_t T = x.n[0], D = x.n[1];
    cpu_check_own("layernorm_fwd", 3, D);
    #pragma omp parallel if (worth_threads(t_count(x)))
    {
        float *buf = cpu_own(be);
        const float *wf = row_read(w, 0, buf + D), *bf = row_read(b, 0, buf + 2 * D);
        #pragma omp for schedule(static)
        for (int64_t t = 0; t < T; t++) {
            const float *u = row_read(x, t, buf);
            float *out = row_edit(y, t, buf), *st = (float *)row_ptr(stat, t);
            st[0] = sum_row(u, D) / (float)D;
            st[1] = 1.0f / sqrtf(sum_squares_around(u, st[0], D) / (float)D + eps);
            affine_row(out, u, wf, bf, st[0], st[1], D);
            row_store(y, t, out);
        }
    }
}

Cost layernorm_bwd_cost(Backend *be, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w,
                        Tensor stat, Tensor dres)
{
    int64_t T = x.n[0], D = x.n[1];
    REQUIRE(is_rows(x, T, D) && is_rows(dy, T, D) && is_rows(w, 1, D) && is_rows_f32(stat, T, 2),
            "layernorm_bwd: dy %s x %s w %s stat %s", t_fmt(dy), t_fmt(x), t_fmt(w), t_fmt(stat));
    REQUIRE((!t_has(dx) || is_rows(dx, T, D)) && (!t_has(dres) || is_rows(dres, T, D)) &&
            (!t_has(dw) || is_rows_f32(dw, 1, D)) && (!t_has(db) || is_rows_f32(db, 1, D)),
            "layernorm_bwd: dx %s dw %s db %s x %s dres %s",
            t_fmt(dx), t_fmt(dw), t_fmt(db), t_fmt(x), t_fmt(dres));
    double n = (double)t_count(x);
    return (Cost){ .flops = n * ((t_has(dx) ? 12 : 0) + (t_has(dw) ? 4 : 0) + (t_has(db) ? 1 : 0)),
                   .rd    = t_bytes(dy) + t_bytes(x) + t_bytes(w) + t_bytes(stat) +
                            opt_bytes(dres) + opt_bytes(dw) + opt_bytes(db),
                   .wr    = opt_bytes(dx) + opt_bytes(dw) + opt_bytes(db) };
}

/* The two row sums of backward: mean(w * dy) and mean(w * dy * z). */
typedef struct Means { float g, gz; } Means;
static HOT Means gradient_means(const float *dy, const float *x, const float *w, float m, float r, int64_t n)
{
    float g = 0.0f, gz = 0.0f;
    #pragma omp simd reduction(+:g, gz)
    for (int64_t i = 0; i < n; i++) {
        float gi = w[i] * dy[i];
        g += gi, gz += gi * (x[i] - m);
    }
    return (Means){ g / (float)n, gz * r / (float)n };
}

static HOT void input_grad_means(float *dx, const float *dy, const float *x, const float *w, float m, float r,
                                 Means a, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = r * (w[i] * dy[i] - a.g - (x[i] - m) * r * a.gz);
}

static void input_grad(float *dx, const float *dy, const float *x, const float *w, float m, float r,
                       int64_t n)
{
    input_grad_means(dx, dy, x, w, m, r, gradient_means(dy, x, w, m, r, n), n);
}

void cpu_layernorm_bwd(Backend *be, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w,
                       Tensor stat, Tensor dres)
{
    norm_backward(be, "layernorm_bwd", &(NormBwd){ dx, dw, db, dy, x, w, stat, dres, true }, input_grad);
}
