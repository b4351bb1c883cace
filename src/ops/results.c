/* ops/results.c -- results of a step that are gathered on the device: contract, cost, CPU.
 *
 *   add_losses      of a micro-batch: sums[SUM_CE] += ce[0], sums[SUM_MTP] += ce[1], sums[SUM_AUX] +=
 *                   aux_scale aux[0], sums[SUM_Z] += z_scale aux[1]; sums (SUMS) and ce (2) f64, aux (3) f32
 *                   or absent
 *   count_experts   count[e] += slots of idx (T, K) i32 with expert e, over the tokens with group[t] >= 0, or
 *                   over the tokens that rows (n) i32 lists, where it is present (-1: none). Experts outside
 *                   0 ... E - 1 are not counted. count (E) i32
 *   bias_step       bias[e] += rate sign(mean of count - count[e]), compared as integers; bias (E) f32, count
 *                   (E) i32. With a verdict other than STEP_GOOD nothing; verdict (1) f64 or absent
 *   step_verdict    guard[GUARD_VERDICT] = a StepVerdict by the loss in sums, the norm in sumsq (1) f64, and
 *                   limits. After STEP_NOT_FINITE and STEP_SPIKE guard[GUARD_HELD] is 1, and then every
 *                   verdict is STEP_HELD, until the host clears the cell: it computes the bad step once more
 *                   before a later one may update. A good step raises guard[GUARD_HIGHEST] to its loss.
 *
 * The host decides in the same way about sums of several ranks (train/guard.h). */
#include "ops/cpu/cpu_rows.h"

#include <math.h>

static bool cells(Tensor t, DType d, int64_t n) { return t.dtype == d && t_dense(t) && t_count(t) == n; }

Cost add_losses_cost(Backend *be, Tensor sums, Tensor ce, Tensor aux, Factor aux_scale, Factor z_scale)
{
    REQUIRE(cells(sums, F64, SUMS) && cells(ce, F64, 2) && (!t_has(aux) || cells(aux, F32, 3)),
            "add_losses: sums %s ce %s aux %s", t_fmt(sums), t_fmt(ce), t_fmt(aux));
    return (Cost){ .flops = 6, .rd = t_bytes(sums) + t_bytes(ce) + opt_bytes(aux), .wr = t_bytes(sums) };
}

void cpu_add_losses(Backend *be, Tensor sums, Tensor ce, Tensor aux, Factor aux_scale, Factor z_scale)
{
    double      *s = sums.data;
    const float *a = aux.data;
    s[SUM_CE]  += ((const double *)ce.data)[0];
    s[SUM_MTP] += ((const double *)ce.data)[1];
    if (!t_has(aux)) return;
    s[SUM_AUX] += (double)factor_value(aux_scale) * (double)a[0];
    s[SUM_Z]   += (double)factor_value(z_scale) * (double)a[1];
}

Cost count_experts_cost(Backend *be, Tensor count, Tensor idx, Tensor group, Tensor rows)
{
    int64_t T = idx.n[0];
    REQUIRE(count.rank == 1 && count.dtype == I32 && t_dense(count) && idx.rank == 2 &&
            cells(idx, I32, T * idx.n[1]) && cells(group, I32, T) &&
            (!t_has(rows) || cells(rows, I32, rows.n[0])),
            "count_experts: count %s idx %s group %s rows %s", t_fmt(count), t_fmt(idx), t_fmt(group),
            t_fmt(rows));
    int64_t tokens = t_has(rows) ? rows.n[0] : T;
    return (Cost){ .rd = tokens * (idx.n[1] + 1) * 4 + t_bytes(count), .wr = t_bytes(count) };
}

static void count_token(Tensor count, Tensor idx, int64_t t)
{
    const int32_t *e = (const int32_t *)idx.data + t * idx.n[1];
    for (int64_t k = 0; k < idx.n[1]; k++)
        if (e[k] >= 0 && e[k] < count.n[0]) ((int32_t *)count.data)[e[k]]++;
}

void cpu_count_experts(Backend *be, Tensor count, Tensor idx, Tensor group, Tensor rows)
{
    const int32_t *row = rows.data, *g = group.data;
    int64_t n = t_has(rows) ? rows.n[0] : idx.n[0];
    for (int64_t i = 0; i < n; i++) {
        int64_t t = row ? row[i] : i;
        if (t >= 0 && t < idx.n[0] && (row || g[t] >= 0)) count_token(count, idx, t);
    }
}

Cost bias_step_cost(Backend *be, Tensor bias, Tensor count, Tensor verdict, float rate)
{
    int64_t E = t_count(count);
    REQUIRE(cells(bias, F32, E) && cells(count, I32, E) && (!t_has(verdict) || cells(verdict, F64, 1)),
            "bias_step: bias %s count %s verdict %s", t_fmt(bias), t_fmt(count), t_fmt(verdict));
    return (Cost){ .flops = 3.0 * (double)E, .rd = 2 * t_bytes(bias) + opt_bytes(verdict),
                   .wr = t_bytes(bias) };
}

void cpu_bias_step(Backend *be, Tensor bias, Tensor count, Tensor verdict, float rate)
{
    const int32_t *n = count.data;
    float         *b = bias.data;
    int64_t        E = t_count(count), sum = 0;
    if (t_has(verdict) && *(const double *)verdict.data != STEP_GOOD) return;
    for (int64_t e = 0; e < E; e++) sum += n[e];
    for (int64_t e = 0; e < E; e++) b[e] += rate * (float)((n[e] * E < sum) - (n[e] * E > sum));
}

Cost step_verdict_cost(Backend *be, Tensor guard, Tensor sums, Tensor sumsq, StepLimits limits)
{
    REQUIRE(cells(guard, F64, GUARD_CELLS) && cells(sums, F64, SUMS) && cells(sumsq, F64, 1),
            "step_verdict: guard %s sums %s sumsq %s", t_fmt(guard), t_fmt(sums), t_fmt(sumsq));
    return (Cost){ .flops = 6, .rd = t_bytes(guard) + t_bytes(sums) + 8, .wr = t_bytes(guard) };
}

static StepVerdict verdict_of(const double *guard, double loss, double norm, StepLimits limits)
{
    if (guard[GUARD_HELD] > 0) return STEP_HELD;
    if (!isfinite(loss) || !isfinite(norm)) return STEP_NOT_FINITE;
    if (!limits.supervised) return STEP_EMPTY;
    bool spike = limits.spike > 0 && guard[GUARD_HIGHEST] > 0 && loss > limits.spike * guard[GUARD_HIGHEST];
    return spike ? STEP_SPIKE : STEP_GOOD;
}

void cpu_step_verdict(Backend *be, Tensor guard, Tensor sums, Tensor sumsq, StepLimits limits)
{
    double       *g = guard.data;
    const double *s = sums.data;
    double loss = s[SUM_CE] + s[SUM_MTP] + limits.aux_coeff * s[SUM_AUX] + limits.z_coeff * s[SUM_Z];
    StepVerdict v = verdict_of(g, loss, sqrt(*(const double *)sumsq.data), limits);
    g[GUARD_VERDICT] = v;
    if (v == STEP_NOT_FINITE || v == STEP_SPIKE) g[GUARD_HELD] = 1;
    if (v == STEP_GOOD && loss > g[GUARD_HIGHEST]) g[GUARD_HIGHEST] = loss;
}
