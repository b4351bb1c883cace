/* ops/router_sigmoid.c -- a router that scores every expert by itself (DeepSeek-V3): contract, cost, CPU.
 *
 *   log_sigmoid    z = log(sigmoid(z)), in place: the logarithms of the scores s
 *   select_fwd     S = the K largest of s + bias among the top_groups of `groups` groups of neighbouring
 *                  experts, whose own score is the sum of their two largest; lowest index first among equals
 *                  idx[t,:] lists S; weight[t,k] = scale s_k, or scale s_k / sum_S s with renorm
 * select_bwd of dweight g, and for tokens with group[t] >= 0 of the auxiliary losses as in router.c with
 *                  p = s / sum s:
 *                    d(log s_k) = w_k (g_k - sum_S w g / scale) with renorm, w_k g_k without, in S
 *                    dz = (1 - s) d(log s)
 *
 * The auxiliary loss reads s through router_fwd and router_stats, for which log s are logits: their
 * softmax is s / sum s, their lse is log(sum s). logits (T, E) f32 are log s; bias (1, E) f32 or absent;
 * the rest as in router.c. groups 0 or 1: all experts are one group. A NaN ranks last and makes the
 * weights NaN. */
#include "ops/cpu/cpu_rows.h"

static bool per_token(Tensor t, DType d, int64_t T, int64_t width)
{
    return t.dtype == d && t_dense(t) && t_count(t) == T * width && (width == 1 || row_width(t) == width);
}

static bool logits_fit(Tensor logits, int64_t K)
{
    return logits.rank == 2 && logits.dtype == F32 && K >= 1 && K <= logits.n[1];
}

static bool groups_fit(RouterGroups g, int64_t E, int64_t K)
{
    return g.groups <= 1 || (E % g.groups == 0 && g.top >= 1 && g.top <= g.groups &&
                             E / g.groups * g.top >= K);
}

Cost log_sigmoid_cost(Backend *be, Tensor z)
{
    REQUIRE(z.rank == 2 && z.dtype == F32, "log_sigmoid: z %s", t_fmt(z));
    return (Cost){ .flops = 3.0 * (double)t_count(z), .rd = t_bytes(z), .wr = t_bytes(z) };
}

Cost select_fwd_cost(Backend *be, Tensor idx, Tensor weight, Tensor logits, Tensor bias, RouterGroups groups,
                     bool renorm, float scale)
{
    int64_t T = logits.n[0], E = logits.n[1], K = row_width(idx);
    REQUIRE(logits_fit(logits, K) && per_token(idx, I32, T, K) && per_token(weight, F32, T, K) &&
            (!t_has(bias) || is_rows_f32(bias, 1, E)) && groups_fit(groups, E, K),
            "select_fwd: idx %s weight %s logits %s bias %s, %d of %d groups", t_fmt(idx), t_fmt(weight),
            t_fmt(logits), t_fmt(bias), groups.top, groups.groups);
    return (Cost){ .flops = 3.0 * (double)(T * E), .rd = t_bytes(logits) + opt_bytes(bias),
                   .wr = t_bytes(idx) + t_bytes(weight) };
}

Cost select_bwd_cost(Backend *be, Tensor dlogits, Tensor dweight, Tensor weight, Tensor idx, Tensor logits,
                     Tensor lse, Tensor coef, Tensor group, Factor zcoef, bool renorm, float scale)
{
    int64_t T = logits.n[0], E = logits.n[1], K = row_width(idx);
    REQUIRE(logits_fit(logits, K) && dlogits.rank == 2 && dlogits.n[0] == T && dlogits.n[1] == E &&
            is_float(dlogits) && per_token(idx, I32, T, K) && per_token(weight, F32, T, K) &&
            per_token(lse, F32, T, 1) && (!t_has(dweight) || per_token(dweight, F32, T, K)),
            "select_bwd: dlogits %s dweight %s weight %s idx %s logits %s", t_fmt(dlogits), t_fmt(dweight),
            t_fmt(weight), t_fmt(idx), t_fmt(logits));
    REQUIRE((!t_has(group) || per_token(group, I32, T, 1)) &&
            (!t_has(coef) || (coef.rank == 2 && coef.dtype == F32 && coef.n[1] == E)),
            "select_bwd: coef %s group %s", t_fmt(coef), t_fmt(group));
    return (Cost){ .flops = 6.0 * (double)(T * E) + 4.0 * (double)(T * K),
                   .rd    = t_bytes(logits) + t_bytes(lse) + opt_bytes(coef) + opt_bytes(dweight),
                   .wr    = t_bytes(dlogits) };
}

void cpu_log_sigmoid(Backend *be, Tensor z)
{
    #pragma omp parallel for schedule(static) if (worth_threads(8 * t_count(z)))
    for (int64_t t = 0; t < z.n[0]; t++) {
        float *row = (float *)row_ptr(z, t);
        for (int64_t e = 0; e < z.n[1]; e++)
            row[e] = row[e] < 0.0f ? row[e] - log1pf(expf(row[e])) : -log1pf(expf(-row[e]));
    }
}

/* The largest of v[0 .. n-1] is taken, which NaN marks; its index. */
static int32_t take_largest(float *v, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (v[i] == v[i] && (best < 0 || v[i] > v[best])) best = i;
    v[best] = NAN;
    return (int32_t)best;
}

static float two_largest(const float *v, int64_t n)
{
    float a = -INFINITY, b = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (v[i] > a) b = a, a = v[i];
        else if (v[i] > b) b = v[i];
    }
    return n > 1 ? a + b : a;
}

/* Experts outside the best groups become -inf. score: room for the groups; kept: a mark for each. */
static void mask_groups(float *v, float *score, float *kept, int64_t E, RouterGroups g)
{
    int64_t each = g.groups > 1 ? E / g.groups : E;
    if (g.groups <= 1) return;
    for (int i = 0; i < g.groups; i++) score[i] = two_largest(v + i * each, each), kept[i] = 0.0f;
    for (int i = 0; i < g.top; i++) kept[take_largest(score, g.groups)] = 1.0f;
    for (int64_t e = 0; e < E; e++)
        if (kept[e / each] == 0.0f) v[e] = -INFINITY;
}

static void select_row(int32_t *idx, float *weight, const float *z, const float *bias, int64_t E, int64_t K,
                       RouterGroups groups, bool renorm, float scale, float *v)
{
    float sum = 0.0f;
    bool  bad = false;
    for (int64_t e = 0; e < E; e++) {
        v[e] = expf(z[e]) + (bias ? bias[e] : 0.0f);
        if (v[e] != v[e]) bad = true, v[e] = -INFINITY;
    }
    mask_groups(v, v + E, v + 2 * E, E, groups);
    for (int64_t k = 0; k < K; k++) {
        idx[k] = take_largest(v, E);
        sum   += weight[k] = expf(z[idx[k]]);
    }
    for (int64_t k = 0; k < K; k++) weight[k] = bad ? NAN : scale * (renorm ? weight[k] / (sum + 1e-20f)
                                                                     : weight[k]);
}

void cpu_select_fwd(Backend *be, Tensor idx, Tensor weight, Tensor logits, Tensor bias, RouterGroups groups,
                    bool renorm, float scale)
{
    int64_t T = logits.n[0], E = logits.n[1], K = row_width(idx);
    cpu_check_own("select_fwd", 3, E);
    #pragma omp parallel for schedule(static) if (worth_threads(T * E))
    for (int64_t t = 0; t < T; t++)
        select_row((int32_t *)idx.data + t * K, (float *)weight.data + t * K,
                   (const float *)row_ptr(logits, t),
                   bias.data, E, K, groups, renorm, scale, cpu_own(be));
}

/* d(log s) of the auxiliary loss and the z-loss; c may be NULL. */
static void aux_grads(float *d, const float *z, float lse, const float *c, float shift, int64_t E)
{
    float mean = 0.0f;
    for (int64_t e = 0; e < E; e++) d[e] = c || shift != 0.0f ? expf(z[e] - lse) : 0.0f;
    for (int64_t e = 0; c && e < E; e++) mean += d[e] * c[e];
    for (int64_t e = 0; e < E; e++) d[e] *= (c ? c[e] - mean : 0.0f) + shift;
}

void cpu_select_bwd(Backend *be, Tensor dlogits, Tensor dweight, Tensor weight, Tensor idx, Tensor logits,
                    Tensor lse, Tensor coef, Tensor group, Factor zcoef, bool renorm, float scale)
{
    int64_t T = logits.n[0], E = logits.n[1], K = row_width(idx);
    const int32_t *groups = group.data;
    #pragma omp parallel for schedule(static) if (worth_threads(T * E))
    for (int64_t t = 0; t < T; t++) {
        int64_t        at = groups ? groups[t] : 0;
        const float   *z = (const float *)row_ptr(logits, t), *w = (const float *)weight.data + t * K;
        const float   *g = t_has(dweight) ? (const float *)dweight.data + t * K : NULL;
        const float   *c = t_has(coef) && at >= 0 ? (const float *)row_ptr(coef, at) : NULL;
        const int32_t *e = (const int32_t *)idx.data + t * K;
        float          l = ((const float *)lse.data)[t], mean = 0.0f, *d = row_edit(dlogits, t, cpu_own(be));
        aux_grads(d, z, l, c, at >= 0 ? 2.0f * factor_value(zcoef) * l : 0.0f, E);
        for (int64_t k = 0; g && renorm && k < K; k++) mean += w[k] * g[k] / scale;
        for (int64_t k = 0; g && k < K; k++)
            if (e[k] >= 0) d[e[k]] += w[k] * (g[k] - mean);
        for (int64_t i = 0; i < E; i++) d[i] *= -expm1f(z[i]);
        row_store(dlogits, t, d);
    }
}
