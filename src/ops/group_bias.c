/* ops/group_bias.c -- biases of experts over rows sorted by expert: contract, cost, CPU.
 *
 *   group_bias_fwd   y[r] += gate[r] b[e]              e: the expert of row r, by offsets
 *   group_bias_bwd   db[e] += sum of gate[r] dy[r]     dgate[r] += <dy[r], b[e]>
 *
 * y, dy (R, N) and b (E, N) are f32 or bf16; db (E, N) f32; offsets (E + 1) i32, rows past the last are
 * padding and stay; gate (R, 1) f32, absent = 1; db or dgate (R, 1) f32 may be absent. Rows of an expert
 * are summed in order: equal bits on any number of threads. */
#include "ops/cpu/cpu_rows.h"

static bool fits(Tensor y, Tensor b, Tensor offsets, Tensor gate)
{
    return is_rows(y, y.n[0], y.n[1]) && is_rows(b, b.n[0], y.n[1]) && offsets.dtype == I32 &&
           t_count(offsets) == b.n[0] + 1 && (!t_has(gate) || is_rows_f32(gate, y.n[0], 1));
}

Cost group_bias_fwd_cost(Backend *be, Tensor y, Tensor b, Tensor offsets, Tensor gate)
{
    REQUIRE(fits(y, b, offsets, gate), "group_bias_fwd: y %s b %s offsets %s gate %s", t_fmt(y), t_fmt(b),
            t_fmt(offsets), t_fmt(gate));
    return (Cost){ .flops = 2.0 * (double)(expert_rows(be, y.n[0]) * y.n[1]),
                   .rd = expert_bytes(be, y) + t_bytes(b), .wr = expert_bytes(be, y) };
}

Cost group_bias_bwd_cost(Backend *be, Tensor db, Tensor dgate, Tensor dy, Tensor b, Tensor offsets,
                         Tensor gate)
{
    REQUIRE(fits(dy, b, offsets, gate) && (!t_has(db) || is_rows_f32(db, b.n[0], b.n[1])) &&
            (!t_has(dgate) || is_rows_f32(dgate, dy.n[0], 1)),
            "group_bias_bwd: db %s dgate %s dy %s b %s", t_fmt(db), t_fmt(dgate), t_fmt(dy), t_fmt(b));
    return (Cost){ .flops = 4.0 * (double)(expert_rows(be, dy.n[0]) * dy.n[1]),
                   .rd = expert_bytes(be, dy) + t_bytes(b), .wr = opt_bytes(db) };
}

static float gate_of(Tensor gate, int64_t r) { return t_has(gate) ? *(float *)row_ptr(gate, r) : 1.0f; }

void cpu_group_bias_fwd(Backend *be, Tensor y, Tensor b, Tensor offsets, Tensor gate)
{
    const int32_t *at = offsets.data;
    int64_t N = y.n[1];
    cpu_check_own("group_bias_fwd", 2, N);
    #pragma omp parallel for schedule(dynamic, 1) if (worth_threads(t_count(y)))
    for (int64_t e = 0; e < b.n[0]; e++) {
        const float *bias = row_read(b, e, cpu_own(be));
        for (int64_t r = at[e]; r < at[e + 1]; r++) {
            float        by = gate_of(gate, r), *out = row_edit(y, r, cpu_own(be) + N);
            const float *in = row_read(y, r, cpu_own(be) + N);
            for (int64_t i = 0; i < N; i++) out[i] = in[i] + by * bias[i];
            row_store(y, r, out);
        }
    }
}

static void bias_grads(float *db, float *dgate, const float *dy, const float *bias, float by, int64_t N)
{
    float dot = 0.0f;
    for (int64_t i = 0; db && i < N; i++) db[i] += by * dy[i];
    for (int64_t i = 0; dgate && i < N; i++) dot += dy[i] * bias[i];
    if (dgate) *dgate += dot;
}

void cpu_group_bias_bwd(Backend *be, Tensor db, Tensor dgate, Tensor dy, Tensor b, Tensor offsets,
                        Tensor gate)
{
    const int32_t *at = offsets.data;
    int64_t N = dy.n[1];
    cpu_check_own("group_bias_bwd", 2, N);
    #pragma omp parallel for schedule(dynamic, 1) if (worth_threads(t_count(dy)))
    for (int64_t e = 0; e < b.n[0]; e++) {
        const float *bias = row_read(b, e, cpu_own(be));
        for (int64_t r = at[e]; r < at[e + 1]; r++)
            bias_grads(t_has(db) ? (float *)row_ptr(db, e) : NULL,
                       t_has(dgate) ? (float *)row_ptr(dgate, r) : NULL, row_read(dy, r, cpu_own(be) + N),
                           bias,
                       gate_of(gate, r), N);
    }
}
