/* ops/rope.c -- rotary position embedding, with the optional per-head RMSNorm before it: contract, cost, CPU.
 *
 *   rope_table   a = pos[axis[j]][t] * inv[j]      cs[t][j] = cos a      cs[t][h + j] = sin a      h = C / 2
 *   rope_fwd     n = w * x * r, r = 1 / sqrt(mean(x^2) + eps) over one head; without w: n = x
 *                y[j] = n[j] cos - n[h + j] sin        y[h + j] = n[h + j] cos + n[j] sin
 *   rope_bwd     dn[j] = dy[j] cos + dy[h + j] sin     dn[h + j] = dy[h + j] cos - dy[j] sin
 *                g = w * dn      dx = r * g - x * (r^3 / C) * sum(g * x)      dw += sum of dn * x * r
 *
 * pos (A, T) i32, inv (C/2) f32, axis (C/2) i32, cs (T, C) f32. x, y, dx, dy (T, H, C) are f32 or bf16 each,
 * heads of one token or whole tokens may lie apart; w (1, C); rstd (T, H) f32; dw (1, C) f32 adds over tokens
 * and heads and may be absent. Without w there is no x, rstd or dw in backward, no rstd in forward, and the
 * rotation may run in place (y over x, dx over dy). Everything is one f32 chain, rounded once at the end. */
#include "ops/cpu/cpu_rows.h"

Cost rope_table_cost(Backend *be, Tensor cs, Tensor pos, Tensor inv, Tensor axis)
{
    int64_t T = cs.n[0], h = cs.n[1] / 2;
    REQUIRE(is_rows_f32(cs, T, 2 * h) && pos.rank == 2 && pos.dtype == I32 && pos.n[1] == T &&
            inv.rank == 1 && inv.dtype == F32 && inv.n[0] == h &&
            axis.rank == 1 && axis.dtype == I32 && axis.n[0] == h,
            "rope_table: cs %s pos %s inv %s axis %s", t_fmt(cs), t_fmt(pos), t_fmt(inv), t_fmt(axis));
    return (Cost){ .flops = (double)t_count(cs),
                   .rd    = t_bytes(pos) + t_bytes(inv) + t_bytes(axis),
                   .wr    = t_bytes(cs) };
}

/* Angles reach 262144 radians, where only libm's argument reduction is exact enough. */
void cpu_rope_table(Backend *be, Tensor cs, Tensor pos, Tensor inv, Tensor axis)
{
    int64_t T = cs.n[0], h = cs.n[1] / 2;
    const float *f = inv.data;
    const int32_t *ax = axis.data, *p = pos.data;
    for (int64_t j = 0; j < h; j++)
        REQUIRE(ax[j] >= 0 && ax[j] < pos.n[0], "rope_table: axis %d of %s", ax[j], t_fmt(pos));
    #pragma omp parallel for schedule(static) if (worth_threads(16 * t_count(cs)))
    for (int64_t t = 0; t < T; t++) {
        float *row = (float *)row_ptr(cs, t);
        for (int64_t j = 0; j < h; j++) {
            float a = (float)p[ax[j] * pos.s[0] + t] * f[j];
            row[j] = cosf(a), row[h + j] = sinf(a);
        }
    }
}

Cost rope_fwd_cost(Backend *be, Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor cs, float eps)
{
    int64_t T = x.n[0], H = x.n[1], C = x.n[2];
    REQUIRE(is_heads_like(x, x) && is_heads_like(y, x) && is_rows_f32(cs, T, C) && C % 2 == 0,
            "rope_fwd: y %s x %s cs %s", t_fmt(y), t_fmt(x), t_fmt(cs));
    REQUIRE(t_has(w) ? is_rows(w, 1, C) && is_rows_f32(rstd, T, H) : !t_has(rstd),
            "rope_fwd: rstd %s x %s w %s", t_fmt(rstd), t_fmt(x), t_fmt(w));
    return (Cost){ .flops = (t_has(w) ? 7.0 : 3.0) * (double)t_count(x),
                   .rd    = t_bytes(x) + t_bytes(cs) + opt_bytes(w),
                   .wr    = t_bytes(y) + opt_bytes(rstd) };
}

/* All heads of token t as floats, one after the other. Adjacent heads are read at once: they are short, and a
 * call for each costs as much as its work. */
static const float *token_read(Tensor x, int64_t t, float *buf)
{
    int64_t H = x.n[1], C = x.n[2];
    bool    together = x.s[1] == C;
    if (x.dtype == F32 && together) return (const float *)row_ptr(x, t * H);
    for (int64_t i = 0; i < (together ? 1 : H); i++) {
        const char *from = row_ptr(x, t * H + i);
        if (x.dtype == F32) memcpy(buf + i * C, from, (size_t)C * sizeof *buf);
        else                cpu_widen(buf + i * C, (const uint16_t *)from, together ? H * C : C);
    }
    return buf;
}
static float *token_edit(Tensor y, int64_t t, float *buf)
{
    return y.dtype == F32 && y.s[1] == y.n[2] ? (float *)row_ptr(y, t * y.n[1]) : buf;
}
static void token_store(Tensor y, int64_t t, const float *buf)
{
    int64_t H = y.n[1], C = y.n[2];
    bool    together = y.s[1] == C;
    if (y.dtype == F32 && together) return;
    for (int64_t i = 0; i < (together ? 1 : H); i++) {
        char *to = row_ptr(y, t * H + i);
        if (y.dtype == F32) memcpy(to, buf + i * C, (size_t)C * sizeof *buf);
        else                cpu_narrow((uint16_t *)to, buf + i * C, together ? H * C : C);
    }
}

INLINE float sum_squares(const float *u, int64_t n)
{
    float s = 0.0f;
    #pragma omp simd reduction(+:s)
    for (int64_t i = 0; i < n; i++) s += u[i] * u[i];
    return s;
}

/* Rotates by the angle, or back with sign -1. y may alias x: each j touches its own pair only. */
INLINE void rotate(float *y, const float *x, const float *cs, float sign, int64_t h)
{
    #pragma omp simd
    for (int64_t j = 0; j < h; j++) {
        float a = x[j], b = x[h + j], c = cs[j], s = sign * cs[h + j];
        y[j]     = a * c - b * s;
        y[h + j] = b * c + a * s;
    }
}

static HOT void rotate_token(float *y, const float *x, const float *cs, float sign, int64_t H, int64_t h)
{
    for (; H > 0; H--, x += 2 * h, y += 2 * h) rotate(y, x, cs, sign, h);
}

static HOT void norm_rotate_token(float *y, float *rstd, const float *x, const float *w, const float *cs,
                                  float eps, int64_t H, int64_t h)
{
    for (int64_t i = 0; i < H; i++, x += 2 * h, y += 2 * h) {
        float r = rstd[i] = 1.0f / sqrtf(sum_squares(x, 2 * h) / (float)(2 * h) + eps);
        #pragma omp simd
        for (int64_t j = 0; j < h; j++) {
            float a = w[j] * (x[j] * r), b = w[h + j] * (x[h + j] * r), c = cs[j], s = cs[h + j];
            y[j]     = a * c - b * s;
            y[h + j] = b * c + a * s;
        }
    }
}

void cpu_rope_fwd(Backend *be, Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor cs, float eps)
{
    int64_t T = x.n[0], H = x.n[1], C = x.n[2];
    cpu_check_own("rope_fwd", H + 1, C);
    #pragma omp parallel if (worth_threads(t_count(x)))
    {
        float *buf = cpu_own(be);
        const float *wf = t_has(w) ? row_read(w, 0, buf + H * C) : NULL;
        #pragma omp for schedule(static)
        for (int64_t t = 0; t < T; t++) {
            const float *angles = (const float *)row_ptr(cs, t), *u = token_read(x, t, buf);
            float       *out = token_edit(y, t, buf);
            if (wf) norm_rotate_token(out, (float *)row_ptr(rstd, t), u, wf, angles, eps, H, C / 2);
            else    rotate_token(out, u, angles, 1.0f, H, C / 2);
            token_store(y, t, out);
        }
    }
}

Cost rope_bwd_cost(Backend *be, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd, Tensor cs)
{
    int64_t T = dy.n[0], H = dy.n[1], C = dy.n[2];
    REQUIRE(is_heads_like(dy, dy) && is_heads_like(dx, dy) && is_rows_f32(cs, T, C) && C % 2 == 0,
            "rope_bwd: dx %s dy %s cs %s", t_fmt(dx), t_fmt(dy), t_fmt(cs));
    REQUIRE(t_has(w) ? is_rows(w, 1, C) && is_heads_like(x, dy) && is_rows_f32(rstd, T, H)
                     : !t_has(x) && !t_has(rstd) && !t_has(dw),
            "rope_bwd: dy %s x %s w %s rstd %s dw %s", t_fmt(dy), t_fmt(x), t_fmt(w), t_fmt(rstd), t_fmt(dw));
    REQUIRE(!t_has(dw) || is_rows_f32(dw, 1, C), "rope_bwd: dw %s dy %s", t_fmt(dw), t_fmt(dy));
    double n = (double)t_count(dy);
    return (Cost){ .flops = (t_has(w) ? 11.0 * n : 3.0 * n) + (t_has(dw) ? 3.0 * n : 0.0),
                   .rd    = t_bytes(dy) + t_bytes(cs) + opt_bytes(x) + opt_bytes(w) +
                            opt_bytes(rstd) + opt_bytes(dw),
                   .wr    = t_bytes(dx) + opt_bytes(dw) };
}

/* One head: the gradient of its x, and what it adds to dw, from dn, that of the normalised head. */
INLINE void norm_grad(float *dx, float *dw, const float *dn, const float *x, const float *w, float r,
                      int64_t C)
{
    float s = 0.0f;
    #pragma omp simd reduction(+:s)
    for (int64_t j = 0; j < C; j++) {
        float p = dn[j] * x[j];
        s     += p * w[j];
        dw[j] += p * r;
    }
    float k = r * r * r / (float)C * s;
    #pragma omp simd
    for (int64_t j = 0; j < C; j++) dx[j] = r * (w[j] * dn[j]) - x[j] * k;
}

static HOT void norm_grad_token(float *dx, float *dw, float *dn, const float *dy, const float *x,
                                const float *w, const float *rstd, const float *cs, int64_t H, int64_t h)
{
    for (int64_t i = 0; i < H; i++, dx += 2 * h, dy += 2 * h, x += 2 * h) {
        rotate(dn, dy, cs, -1.0f, h);
        norm_grad(dx, dw, dn, x, w, rstd[i], 2 * h);
    }
}

static void backward_chunk(Backend *be, int chunk, Tensor dx, Tensor dy, Tensor x, Tensor w, Tensor rstd,
                           Tensor cs)
{
    int64_t T = dy.n[0], H = dy.n[1], C = dy.n[2];
    float *buf = cpu_own(be), *dn = buf + 2 * H * C, *part = chunk_part(be, chunk, C);
    const float *wf = t_has(w) ? row_read(w, 0, dn + C) : NULL;
    memset(part, 0, (size_t)C * 4);
    for (int64_t t = chunk_begin(T, chunk); t < chunk_begin(T, chunk + 1); t++) {
        const float *angles = (const float *)row_ptr(cs, t), *g = token_read(dy, t, buf);
        float       *out = token_edit(dx, t, buf);
        if (wf) norm_grad_token(out, part, dn, g, token_read(x, t, buf + H * C), wf,
                                (const float *)row_ptr(rstd, t), angles, H, C / 2);
        else    rotate_token(out, g, angles, -1.0f, H, C / 2);
        token_store(dx, t, out);
    }
}

void cpu_rope_bwd(Backend *be, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd, Tensor cs)
{
    int64_t T = dy.n[0], H = dy.n[1], C = dy.n[2];
    cpu_check_own("rope_bwd", 2 * H + 2, C);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(dy)))
    for (int c = 0; c < CPU_CHUNKS; c++)
        if (chunk_begin(T, c) < chunk_begin(T, c + 1))
            backward_chunk(be, c, dx, dy, x, w, rstd, cs);
    if (t_has(dw)) rows_gather(be, dw.data, T, C, 0, C);
}
