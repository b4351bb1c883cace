/* ops/swiglu.c -- SwiGLU activation of an FFN, times the router's gate: contract, cost, CPU.
 *
 *   h[r] = silu(g[r]) * u[r] * gate[r]            silu(g) = g * s, s = 1 / (1 + exp(-g))
 *
 * gu (R, 2F): columns 0 .. F-1 are g, the rest u. h (R, F). gate (R, 1) f32, absent = 1. One rounding.
 * offsets (E + 1) i32 of rows of experts, as in grouped_gemm.c: rows past the last are padding and are not
 * computed; absent: there is no padding.
 *
 *   d  = dh * gate                    dgate = sum(dh * silu(g) * u)
 *   du = d * silu(g)                  dg = d * u * s * (1 + g * (1 - s))
 *
 * dgu (R, 2F) may alias gu, and dh may be the first F columns of dgu. dgate (R, 1) f32 overwrites; it may
 * be absent, and must be when gate is. */
#include "ops/cpu/cpu_rows.h"

Cost swiglu_fwd_cost(Backend *be, Tensor h, Tensor gu, Tensor gate, Tensor offsets)
{
    int64_t R = h.n[0], F = h.n[1];
    REQUIRE(is_rows(h, R, F) && is_rows(gu, R, 2 * F) && (!t_has(gate) || is_rows_f32(gate, R, 1)) &&
            (!t_has(offsets) || offsets.dtype == I32),
            "swiglu_fwd: h %s gu %s gate %s offsets %s", t_fmt(h), t_fmt(gu), t_fmt(gate), t_fmt(offsets));
    if (t_has(offsets))
        return (Cost){ .flops = 6.0 * (double)(expert_rows(be, R) * F),
                       .rd = expert_bytes(be, gu) + expert_bytes(be, gate), .wr = expert_bytes(be, h) };
    return (Cost){ .flops = 6.0 * (double)t_count(h), .rd = t_bytes(gu) + opt_bytes(gate), .wr = t_bytes(h) };
}

INLINE void forward_batch(void *h, const void *gu, DType d, float gate, int64_t F, int64_t i, int m)
{
    float g[BATCH], u[BATCH], slope;
    batch_get(g, gu, d, i, m);
    batch_get(u, gu, d, F + i, m);
    for (int j = 0; j < BATCH; j++) g[j] = g[j] * fast_sigmoid(g[j], &slope) * u[j] * gate;
    batch_put(h, d, i, g, m);
}

INLINE void forward_all(void *h, const void *gu, DType d, float gate, int64_t F)
{
    int64_t i = 0;
    for (; i + BATCH <= F; i += BATCH) forward_batch(h, gu, d, gate, F, i, BATCH);
    if (i < F) forward_batch(h, gu, d, gate, F, i, (int)(F - i));
}

static HOT void forward_row(void *h, const void *gu, DType d, float gate, int64_t F)
{
    if (d == F32) forward_all(h, gu, F32, gate, F);
    else          forward_all(h, gu, BF16, gate, F);
}

/* Tensors of one dtype are processed in place, others through f32 copies. */
void cpu_swiglu_fwd(Backend *be, Tensor h, Tensor gu, Tensor gate, Tensor offsets)
{
    int64_t R = used_rows(offsets, h.n[0]), F = h.n[1];
    cpu_check_own("swiglu_fwd", 3, F);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(gu)))
    for (int64_t r = 0; r < R; r++) {
        float gr = t_has(gate) ? *(float *)row_ptr(gate, r) : 1.0f;
        if (h.dtype == gu.dtype) {
            forward_row(row_ptr(h, r), row_ptr(gu, r), (DType)h.dtype, gr, F);
            continue;
        }
        float *buf = cpu_own(be), *out = row_edit(h, r, buf + 2 * F);
        forward_row(out, row_read(gu, r, buf), F32, gr, F);
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

/* Adds to the lanes of dgate. dgu may alias gu, and dh the first columns of dgu: each i touches its own g and
 * u only. */
INLINE void backward_batch(void *dgu, float *sum, const void *dh, const void *gu, DType d, float gate,
                           int64_t F, int64_t i, int m)
{
    float g[BATCH], u[BATCH], v[BATCH], slope;
    batch_get(v, dh, d, i, m);
    batch_get(g, gu, d, i, m);
    batch_get(u, gu, d, F + i, m);
    for (int j = 0; j < BATCH; j++) {
        float s = fast_sigmoid(g[j], &slope), silu = g[j] * s, by = v[j] * gate;
        sum[j] += v[j] * (silu * u[j]);
        g[j] = by * u[j] * s * (1.0f + g[j] * (1.0f - s));
        u[j] = by * silu;
    }
    batch_put(dgu, d, i, g, m);
    batch_put(dgu, d, F + i, u, m);
}

/* The row's dgate, summed in BATCH lanes and then over them in order. */
INLINE float backward_all(void *dgu, const void *dh, const void *gu, DType d, float gate, int64_t F)
{
    float   lane[BATCH] = { 0 }, sum = 0.0f;
    int64_t i = 0;
    for (; i + BATCH <= F; i += BATCH) backward_batch(dgu, lane, dh, gu, d, gate, F, i, BATCH);
    if (i < F) backward_batch(dgu, lane, dh, gu, d, gate, F, i, (int)(F - i));
    for (int j = 0; j < BATCH; j++) sum += lane[j];
    return sum;
}

static HOT float backward_row(void *dgu, const void *dh, const void *gu, DType d, float gate, int64_t F)
{
    if (d == F32) return backward_all(dgu, dh, gu, F32, gate, F);
    return backward_all(dgu, dh, gu, BF16, gate, F);
}

void cpu_swiglu_bwd(Backend *be, Tensor dgu, Tensor dgate, Tensor dh, Tensor gu, Tensor gate)
{
    int64_t R = dh.n[0], F = dh.n[1];
    cpu_check_own("swiglu_bwd", 3, F);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(gu)))
    for (int64_t r = 0; r < R; r++) {
        float gr = t_has(gate) ? *(float *)row_ptr(gate, r) : 1.0f, sum;
        if (dgu.dtype == gu.dtype && dh.dtype == gu.dtype) {
            sum = backward_row(row_ptr(dgu, r), row_ptr(dh, r), row_ptr(gu, r), (DType)gu.dtype, gr, F);
        } else {
            float *buf = cpu_own(be), *out = row_edit(dgu, r, buf);
            sum = backward_row(out, row_read(dh, r, buf + 2 * F), row_read(gu, r, buf), F32, gr, F);
            row_store(dgu, r, out);
        }
        if (t_has(dgate)) *(float *)row_ptr(dgate, r) = sum;
    }
}
