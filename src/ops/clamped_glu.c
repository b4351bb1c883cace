/* ops/clamped_glu.c -- the activation of gpt-oss's experts, times the router's gate: contract, cost, CPU.
 *
 *   h[r] = (u' + 1) g' s gate[r]      s = sigmoid(1.702 g')      g' = min(g, 7)      u' = clamp(u, -7, 7)
 *
 * gu (R, 2F): column 2i is g of column i of h (R, F), column 2i + 1 is u. gate (R, 1) f32, absent = 1;
 * offsets as in swiglu.c. One rounding.
 *
 *   d  = dh gate                      dgate = sum(dh (u' + 1) g' s)
 *   du = d g' s, 0 past the clamp     dg = d (u' + 1) (s + 1.702 g' s (1 - s)), 0 past the clamp
 *
 * dgate overwrites; it may be absent, and must be when gate is. */
#include "ops/cpu/cpu_rows.h"

#define STEEP 1.702f
#define LIMIT 7.0f

static bool fits(Tensor h, Tensor gu, Tensor gate)
{
    return is_rows(h, h.n[0], h.n[1]) && is_rows(gu, h.n[0], 2 * h.n[1]) &&
           (!t_has(gate) || is_rows_f32(gate, h.n[0], 1));
}

Cost clamped_glu_fwd_cost(Backend *be, Tensor h, Tensor gu, Tensor gate, Tensor offsets)
{
    REQUIRE(fits(h, gu, gate) && (!t_has(offsets) || offsets.dtype == I32),
            "clamped_glu_fwd: h %s gu %s gate %s offsets %s", t_fmt(h), t_fmt(gu), t_fmt(gate),
                t_fmt(offsets));
    return (Cost){ .flops = 8.0 * (double)(expert_rows(be, h.n[0]) * h.n[1]),
                   .rd = expert_bytes(be, gu) + expert_bytes(be, gate), .wr = expert_bytes(be, h) };
}

Cost clamped_glu_bwd_cost(Backend *be, Tensor dgu, Tensor dgate, Tensor dh, Tensor gu, Tensor gate)
{
    REQUIRE(fits(dh, gu, gate) && fits(dh, dgu, dgate) && (!t_has(dgate) || t_has(gate)),
            "clamped_glu_bwd: dgu %s dgate %s dh %s gu %s gate %s", t_fmt(dgu), t_fmt(dgate), t_fmt(dh),
            t_fmt(gu), t_fmt(gate));
    return (Cost){ .flops = 16.0 * (double)(expert_rows(be, dh.n[0]) * dh.n[1]),
                   .rd = expert_bytes(be, gu) + expert_bytes(be, gate) + expert_bytes(be, dh),
                   .wr = expert_bytes(be, dgu) + expert_bytes(be, dgate) };
}

typedef struct Glu { float g, u, s; bool g_in, u_in; } Glu;

INLINE Glu glu_of(const float *gu, int64_t i)
{
    float g = gu[2 * i], u = gu[2 * i + 1];
    Glu   x = { g < LIMIT ? g : LIMIT, u < -LIMIT ? -LIMIT : u > LIMIT ? LIMIT : u, 0, g <= LIMIT,
                u >= -LIMIT && u <= LIMIT };
    x.s = 1.0f / (1.0f + expf(-STEEP * x.g));
    return x;
}

static HOT void forward_row(float *h, const float *gu, float gate, int64_t F)
{
    for (int64_t i = 0; i < F; i++) {
        Glu x = glu_of(gu, i);
        h[i] = (x.u + 1.0f) * x.g * x.s * gate;
    }
}

void cpu_clamped_glu_fwd(Backend *be, Tensor h, Tensor gu, Tensor gate, Tensor offsets)
{
    int64_t R = used_rows(offsets, h.n[0]), F = h.n[1];
    cpu_check_own("clamped_glu_fwd", 3, F);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(gu)))
    for (int64_t r = 0; r < R; r++) {
        float *out = row_edit(h, r, cpu_own(be));
        forward_row(out, row_read(gu, r, cpu_own(be) + F), t_has(gate) ? *(float *)row_ptr(gate, r) : 1.0f,
                    F);
        row_store(h, r, out);
    }
}

static HOT float backward_row(float *dgu, const float *dh, const float *gu, float gate, int64_t F)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < F; i++) {
        Glu   x = glu_of(gu, i);
        float d = dh[i] * gate, up = x.g * x.s;
        sum += dh[i] * (x.u + 1.0f) * up;
        dgu[2 * i]     = x.g_in ? d * (x.u + 1.0f) * (x.s + STEEP * x.g * x.s * (1.0f - x.s)) : 0.0f;
        dgu[2 * i + 1] = x.u_in ? d * up : 0.0f;
    }
    return sum;
}

void cpu_clamped_glu_bwd(Backend *be, Tensor dgu, Tensor dgate, Tensor dh, Tensor gu, Tensor gate)
{
    int64_t R = dh.n[0], F = dh.n[1];
    cpu_check_own("clamped_glu_bwd", 5, F);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(gu)))
    for (int64_t r = 0; r < R; r++) {
        float *out = row_edit(dgu, r, cpu_own(be));
        float  by = t_has(gate) ? *(float *)row_ptr(gate, r) : 1.0f;
        float  sum = backward_row(out, row_read(dh, r, cpu_own(be) + 2 * F),
                                  row_read(gu, r, cpu_own(be) + 3 * F),
                                  by, F);
        row_store(dgu, r, out);
        if (t_has(dgate)) *(float *)row_ptr(dgate, r) = sum;
    }
}
