/* ops/gate.c -- rows behind a sigmoid gate: contract, cost, CPU.
 *
 *   gate_fwd   y = [res] + s x                 s = sigmoid(g)
 *   gate_bwd   dx = s dy         dg = s (1 - s) dy x
 *
 * x, y, res, dx, dy (T, H, C) are f32 or bf16 each. g, dg (T, H, C), or (T, H, 1): one gate of a row of C,
 * whose gradient is the sum over the row. Rows and heads may lie apart; y may alias x or res, dx may alias
 * dy. Arithmetic in f32, rounded once. */
#include "ops/cpu/cpu_rows.h"

static bool is_gate(Tensor g, Tensor x)
{
    return is_heads_like(g, x) || is_heads(g, x.n[0], x.n[1], 1);
}

Cost gate_fwd_cost(Backend *be, Tensor y, Tensor x, Tensor g, Tensor res)
{
    REQUIRE(is_heads_like(x, x) && is_heads_like(y, x) && is_gate(g, x) &&
            (!t_has(res) || is_heads_like(res, x)),
            "gate_fwd: y %s x %s g %s res %s", t_fmt(y), t_fmt(x), t_fmt(g), t_fmt(res));
    return (Cost){ .flops = 4.0 * (double)t_count(x),
                   .rd    = t_bytes(x) + t_bytes(g) + opt_bytes(res),
                   .wr    = t_bytes(y) };
}

Cost gate_bwd_cost(Backend *be, Tensor dx, Tensor dg, Tensor dy, Tensor x, Tensor g)
{
    REQUIRE(is_heads_like(x, x) && is_heads_like(dx, x) && is_heads_like(dy, x) && is_gate(g, x) &&
            is_gate(dg, x) && dg.n[2] == g.n[2],
            "gate_bwd: dx %s dg %s dy %s x %s g %s", t_fmt(dx), t_fmt(dg), t_fmt(dy), t_fmt(x), t_fmt(g));
    return (Cost){ .flops = 8.0 * (double)t_count(x),
                   .rd    = t_bytes(x) + t_bytes(dy) + t_bytes(g),
                   .wr    = t_bytes(dx) + t_bytes(dg) };
}

static HOT void gate_row(float *y, const float *x, const float *g, const float *res, int64_t C, bool one)
{
    for (int64_t i = 0; i < C; i++) y[i] = sigmoid(g[one ? 0 : i]) * x[i] + (res ? res[i] : 0.0f);
}

void cpu_gate_fwd(Backend *be, Tensor y, Tensor x, Tensor g, Tensor res)
{
    int64_t C = x.n[2], rows = x.n[0] * x.n[1];
    cpu_check_own("gate_fwd", 4, C);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t r = 0; r < rows; r++) {
        float *buf = cpu_own(be), *out = row_edit(y, r, buf);
        gate_row(out, row_read(x, r, buf + C), row_read(g, r, buf + 2 * C),
                 t_has(res) ? row_read(res, r, buf + 3 * C) : NULL, C, g.n[2] != C);
        row_store(y, r, out);
    }
}

static HOT void gate_grads(float *dx, float *dg, const float *dy, const float *x, const float *g, int64_t C,
                           bool one)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < C; i++) {
        float s = sigmoid(g[one ? 0 : i]), d = s * (1.0f - s) * dy[i] * x[i];
        if (one) sum += d;
        else     dg[i] = d;
        dx[i] = s * dy[i];
    }
    if (one) dg[0] = sum;
}

void cpu_gate_bwd(Backend *be, Tensor dx, Tensor dg, Tensor dy, Tensor x, Tensor g)
{
    int64_t C = x.n[2], rows = x.n[0] * x.n[1];
    cpu_check_own("gate_bwd", 5, C);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t r = 0; r < rows; r++) {
        float *buf = cpu_own(be), *to = row_edit(dx, r, buf), *gate = row_edit(dg, r, buf + C);
        gate_grads(to, gate, row_read(dy, r, buf + 2 * C), row_read(x, r, buf + 3 * C),
                   row_read(g, r, buf + 4 * C), C, g.n[2] != C);
        row_store(dx, r, to), row_store(dg, r, gate);
    }
}
