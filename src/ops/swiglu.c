/* ops/swiglu.c -- gated activation of a feed-forward, with the router's weight folded in.
 *
 *   h[r] = silu(g[r]) * u[r] * gate[r]            silu(g) = g * s, s = 1 / (1 + exp(-g))
 *
 * gu (R, 2F): columns 0 .. F-1 are g, the rest u. h (R, F). gate (R, 1) f32, absent = 1. One rounding.
 *
 *   d  = dh * gate                    dgate = sum(dh * silu(g) * u)
 *   du = d * silu(g)                  dg = d * u * s * (1 + g * (1 - s))
 *
 * dgu (R, 2F) may alias gu, and dh may be the first F columns of dgu. dgate (R, 1) f32 overwrites; it leaves the gate factor out, so that it is the
 * gradient of gate itself. It may be absent, and must be when gate is. */
#include "ops/rows.h"

Cost swiglu_fwd_cost(Backend *be, Tensor h, Tensor gu, Tensor gate)
{
    int64_t R = h.n[0], F = h.n[1];
    REQUIRE(is_rows(h, R, F) && is_rows(gu, R, 2 * F) && (!t_has(gate) || is_rows_f32(gate, R, 1)),
            "swiglu_fwd: h %s gu %s gate %s", t_fmt(h), t_fmt(gu), t_fmt(gate));
    return (Cost){ .flops = 6.0 * (double)t_count(h), .rd = t_bytes(gu) + opt_bytes(gate), .wr = t_bytes(h) };
}

static HOT void forward_row(float *h, const float *gu, float gate, int64_t F)
{
    #pragma omp simd
    for (int64_t i = 0; i < F; i++) h[i] = gu[i] * fast_sigmoid(gu[i]) * gu[F + i] * gate;
}

void cpu_swiglu_fwd(Backend *be, Tensor h, Tensor gu, Tensor gate)
{
    int64_t R = h.n[0], F = h.n[1];
    REQUIRE((size_t)F * 3 * 4 <= CPU_OWN, "swiglu_fwd: rows of %lld", (long long)F);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(gu)))
    for (int64_t r = 0; r < R; r++) {
        float *buf = cpu_own(be), *out = row_edit(h, r, buf + 2 * F);
        forward_row(out, row_read(gu, r, buf), t_has(gate) ? *(float *)row_ptr(gate, r) : 1.0f, F);
        row_store(h, r, out);
    }
}

Cost swiglu_bwd_cost(Backend *be, Tensor dgu, Tensor dgate, Tensor dh, Tensor gu, Tensor gate)
{
    int64_t R = dh.n[0], F = dh.n[1];
    REQUIRE(is_rows(dh, R, F) && is_rows(gu, R, 2 * F) && is_rows(dgu, R, 2 * F),
            "swiglu_bwd: dgu %s dh %s gu %s", t_fmt(dgu), t_fmt(dh), t_fmt(gu));
    REQUIRE((!t_has(gate) || is_rows_f32(gate, R, 1)) &&
            (!t_has(dgate) || (t_has(gate) && is_rows_f32(dgate, R, 1))),
            "swiglu_bwd: dgate %s dh %s gate %s", t_fmt(dgate), t_fmt(dh), t_fmt(gate));
    return (Cost){ .flops = (t_has(dgate) ? 14.0 : 12.0) * (double)t_count(dh),
                   .rd    = t_bytes(dh) + t_bytes(gu) + opt_bytes(gate),
                   .wr    = t_bytes(dgu) + opt_bytes(dgate) };
}

/* Returns the row's dgate. dgu may be gu: each i touches its own g and u only. */
static HOT float backward_row(float *dgu, const float *dh, const float *gu, float gate, int64_t F)
{
    float sum = 0.0f;
    #pragma omp simd reduction(+:sum)
    for (int64_t i = 0; i < F; i++) {
        float g = gu[i], u = gu[F + i], s = fast_sigmoid(g), d = dh[i] * gate;
        sum       += dh[i] * (g * s * u);
        dgu[i]     = d * u * s * (1.0f + g * (1.0f - s));
        dgu[F + i] = d * g * s;
    }
    return sum;
}

void cpu_swiglu_bwd(Backend *be, Tensor dgu, Tensor dgate, Tensor dh, Tensor gu, Tensor gate)
{
    int64_t R = dh.n[0], F = dh.n[1];
    REQUIRE((size_t)F * 3 * 4 <= CPU_OWN, "swiglu_bwd: rows of %lld", (long long)F);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(gu)))
    for (int64_t r = 0; r < R; r++) {
        float *buf = cpu_own(be), *out = row_edit(dgu, r, buf);
        float gr = t_has(gate) ? *(float *)row_ptr(gate, r) : 1.0f;
        float sum = backward_row(out, row_read(dh, r, buf + 2 * F), row_read(gu, r, buf), gr, F);
        row_store(dgu, r, out);
        if (t_has(dgate)) *(float *)row_ptr(dgate, r) = sum;
    }
}
