/* ops/gated_norm.c -- root-mean-square norm of heads, then a SiLU gate: contract, cost, CPU.
 *
 *   gated_norm_fwd   y = w (o r) silu(z)           r = 1 / sqrt(mean(o^2) + eps), kept in rstd
 *   gated_norm_bwd   n = dy silu(z):   dx = r w n - o (r^3 / C) sum(w n o)      dw += sum of n o r
 *                    dz = dy w (o r) s (1 + z (1 - s)),   s = sigmoid(z)
 *
 * o, y, dx, dy (T, H, C) and z, dz (T, G, M C), G M = H, whose rows hold the gates of M heads side by side:
 * f32 or bf16 each, with any stride between rows and between heads. w (1, C) either, dw (1, C) f32 or absent;
 * rstd (T, H) f32. dx may alias dy. A bf16 y is rounded after the norm, after w and after the gate, as the
 * reference model does. Sums of dw go by chunks of tokens (cpu_rows.h): equal bits on any number of
 * threads. */
#include "ops/cpu/cpu_rows.h"

static bool is_gate(Tensor z, Tensor o)
{
    return z.rank == 3 && z.n[0] == o.n[0] && z.n[1] * z.n[2] == o.n[1] * o.n[2] && z.n[2] % o.n[2] == 0 &&
           is_float(z);
}

Cost gated_norm_fwd_cost(Backend *be, Tensor y, Tensor rstd, Tensor o, Tensor z, Tensor w, float eps)
{
    REQUIRE(is_heads_like(o, o) && is_heads_like(y, o) && is_gate(z, o) && is_rows(w, 1, o.n[2]) &&
                is_rows_f32(rstd, o.n[0], o.n[1]),
            "gated_norm_fwd: y %s rstd %s o %s z %s w %s", t_fmt(y), t_fmt(rstd), t_fmt(o), t_fmt(z),
            t_fmt(w));
    return (Cost){ .flops = 8.0 * (double)t_count(o), .rd = t_bytes(o) + t_bytes(z) + t_bytes(w),
                   .wr = t_bytes(y) + t_bytes(rstd) };
}

Cost gated_norm_bwd_cost(Backend *be, Tensor dx, Tensor dz, Tensor dw, Tensor dy, Tensor o, Tensor z,
                         Tensor w, Tensor rstd)
{
    REQUIRE(is_heads_like(o, o) && is_heads_like(dx, o) && is_heads_like(dy, o) && is_gate(z, o) &&
            is_gate(dz, o) && is_rows(w, 1, o.n[2]) && is_rows_f32(rstd, o.n[0], o.n[1]) &&
            (!t_has(dw) || is_rows_f32(dw, 1, o.n[2])),
            "gated_norm_bwd: dx %s dz %s dw %s dy %s o %s z %s w %s rstd %s", t_fmt(dx), t_fmt(dz), t_fmt(dw),
            t_fmt(dy), t_fmt(o), t_fmt(z), t_fmt(w), t_fmt(rstd));
    return (Cost){ .flops = 18.0 * (double)t_count(o),
                   .rd = t_bytes(dy) + t_bytes(o) + t_bytes(z) + t_bytes(w) + t_bytes(rstd) + opt_bytes(dw),
                   .wr = t_bytes(dx) + t_bytes(dz) + opt_bytes(dw) };
}

/* The gates of head r as one of the rows of (T, G, M C). */
static Tensor gate_head(Tensor z, int64_t r, int64_t C)
{
    int64_t M = z.n[2] / C, at = r % M * C;
    char *p = row_ptr(z, r / M) + at * (int64_t)dtype_size((DType)z.dtype);
    return t_wrap(p, (DType)z.dtype, 1, &C);
}

INLINE float rounded(float x, bool narrow) { return narrow ? bf16_to_f32(bf16_from_f32(x)) : x; }

static HOT float mean_squares(const float *o, int64_t C)
{
    float s = 0.0f;
    #pragma omp simd reduction(+:s)
    for (int64_t i = 0; i < C; i++) s += o[i] * o[i];
    return s / (float)C;
}

static void norm_head(float *y, const float *o, const float *z, const float *w, float r, int64_t C,
                      bool narrow)
{
    for (int64_t i = 0; i < C; i++)
        y[i] = rounded(w[i] * rounded(o[i] * r, narrow), narrow) * z[i] * sigmoid(z[i]);
}

void cpu_gated_norm_fwd(Backend *be, Tensor y, Tensor rstd, Tensor o, Tensor z, Tensor w, float eps)
{
    int64_t C = o.n[2], rows = o.n[0] * o.n[1];
    cpu_check_own("gated_norm_fwd", 4, C);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(o)))
    for (int64_t r = 0; r < rows; r++) {
        float *buf = cpu_own(be), *out = row_edit(y, r, buf);
        const float *x = row_read(o, r, buf + C);
        float s = *head_stat(rstd, r) = 1.0f / sqrtf(mean_squares(x, C) + eps);
        norm_head(out, x, row_read(gate_head(z, r, C), 0, buf + 2 * C), row_read(w, 0, buf + 3 * C), s, C,
                  y.dtype != F32);
        row_store(y, r, out);
    }
}

typedef struct HeadGrads { float *dx, *dz, *dw; const float *dy, *o, *z, *w; float r; } HeadGrads;

static HOT void head_grads(HeadGrads h, int64_t C)
{
    float along = 0.0f;
    for (int64_t i = 0; i < C; i++) along += h.w[i] * h.dy[i] * h.z[i] * sigmoid(h.z[i]) * h.o[i];
    along *= h.r * h.r * h.r / (float)C;
    for (int64_t i = 0; i < C; i++) {
        float s = sigmoid(h.z[i]), d = h.dy[i], n = d * h.z[i] * s, x = h.o[i] * h.r;
        h.dw[i] += n * x;
        h.dz[i] = d * h.w[i] * x * s * (1.0f + h.z[i] * (1.0f - s));
        h.dx[i] = h.r * h.w[i] * n - h.o[i] * along;
    }
}

static void row_grads(Backend *be, Tensor dx, Tensor dz, float *dw, Tensor dy, Tensor o, Tensor z,
                      Tensor w, Tensor rstd, int64_t r)
{
    int64_t C = o.n[2];
    float  *buf = cpu_own(be);
    Tensor  to = gate_head(dz, r, C);
    HeadGrads h = { row_edit(dx, r, buf), row_edit(to, 0, buf + C), dw, row_read(dy, r, buf + 2 * C),
                    row_read(o, r, buf + 3 * C), row_read(gate_head(z, r, C), 0, buf + 4 * C),
                    row_read(w, 0, buf + 5 * C), *head_stat(rstd, r) };
    head_grads(h, C);
    row_store(dx, r, h.dx), row_store(to, 0, h.dz);
}

void cpu_gated_norm_bwd(Backend *be, Tensor dx, Tensor dz, Tensor dw, Tensor dy, Tensor o, Tensor z, Tensor w,
                        Tensor rstd)
{
    int64_t C = o.n[2], rows = o.n[0] * o.n[1];
    cpu_check_own("gated_norm_bwd", 6, C), cpu_check_parts("gated_norm_bwd", C);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(o)))
    for (int chunk = 0; chunk < CPU_CHUNKS; chunk++) {
        float *sum = chunk_part(be, chunk, C);
        for (int64_t i = 0; i < C; i++) sum[i] = 0.0f;
        for (int64_t r = chunk_begin(rows, chunk); r < chunk_begin(rows, chunk + 1); r++)
            row_grads(be, dx, dz, sum, dy, o, z, w, rstd, r);
    }
    if (t_has(dw)) rows_gather(be, (float *)dw.data, rows, C, 0, C);
}
