/* ops/router.c -- top-K selection of experts and its gradient: contract, cost, CPU.
 *
 *   p = softmax(logits[t,:])     lse[t] = logsumexp(logits[t,:])     S = the K largest of p
 *   idx[t,:] lists S from the largest down, the lowest index first among equals
 *   weight[t,k] = p_k, or p_k / sum_S p when renorm
 *
 * logits (T, E) f32, idx (T, K) i32, weight (T, K) f32, lse (T, 1) f32. Selection compares logits, which is
 * the order of p before rounding. A NaN among the logits ranks last, so idx always holds K distinct
 * experts, and makes weight and lse of its token NaN.
 *
 * Backward, g = dweight: the selection has no gradient; the weights give
 *   renorm       dz_e = r_e (g_e - sum_S r g) in S, 0 outside       (a softmax over the selected logits)
 *   not renorm   dz_e = p_e ([e in S] g_e - sum_S p g)
 * and, for tokens with group[t] >= 0, the auxiliary loss (coef of aux_loss, c = coef[group[t],:]) and the
 * z-loss (zcoef * lse^2) add
 *   dz_e += p_e (c_e - sum_j p_j c_j) + 2 zcoef lse p_e
 * dweight, coef and group may be absent; without group every token is of group 0. dlogits may be bf16. */
#include "ops/cpu/cpu_rows.h"
#include "ops/cpu/topk.h"

static bool per_token(Tensor t, DType d, int64_t T, int64_t width)
{
    return t.dtype == d && t_dense(t) && t_count(t) == T * width && (width == 1 || row_width(t) == width);
}

Cost router_fwd_cost(Backend *be, Tensor idx, Tensor weight, Tensor lse, Tensor logits, bool renorm)
{
    int64_t T = logits.n[0], E = logits.n[1], K = row_width(idx);
    REQUIRE(logits.rank == 2 && logits.dtype == F32 && K >= 1 && K <= E && per_token(idx, I32, T, K) &&
            per_token(weight, F32, T, K) && per_token(lse, F32, T, 1),
            "router_fwd: idx %s weight %s lse %s logits %s",
            t_fmt(idx), t_fmt(weight), t_fmt(lse), t_fmt(logits));
    return (Cost){ .flops = 4.0 * (double)(T * E),             /* subtract, exp, add, compare */
                   .rd    = t_bytes(logits),
                   .wr    = t_bytes(idx) + t_bytes(weight) + t_bytes(lse) };
}

Cost router_bwd_cost(Backend *be, Tensor dlogits, Tensor dweight, Tensor weight, Tensor idx, Tensor logits,
                     Tensor lse, Tensor coef, Tensor group, Factor zcoef, bool renorm)
{
    int64_t T = logits.n[0], E = logits.n[1], K = row_width(idx);
    REQUIRE(logits.rank == 2 && logits.dtype == F32 && dlogits.rank == 2 && dlogits.n[0] == T &&
            dlogits.n[1] == E && is_float(dlogits) && per_token(idx, I32, T, K) &&
            per_token(weight, F32, T, K) && per_token(lse, F32, T, 1),
            "router_bwd: dlogits %s weight %s idx %s logits %s lse %s", t_fmt(dlogits), t_fmt(weight),
            t_fmt(idx), t_fmt(logits), t_fmt(lse));
    REQUIRE((!t_has(dweight) || per_token(dweight, F32, T, K)) &&
            (!t_has(group) || per_token(group, I32, T, 1)) &&
            (!t_has(coef) || (coef.rank == 2 && coef.dtype == F32 && coef.n[1] == E &&
                              (t_has(group) || coef.n[0] == 1))),
            "router_bwd: dweight %s coef %s group %s", t_fmt(dweight), t_fmt(coef), t_fmt(group));
    bool dense = t_has(coef) || !factor_is(zcoef, 0.0f) || (!renorm && t_has(dweight));
    return (Cost){ .flops = (dense ? 6.0 * (double)(T * E) : 0.0) + 4.0 * (double)(T * K),
                   .rd    = (dense ? t_bytes(logits) + t_bytes(lse) : 0) + opt_bytes(coef) +
                            opt_bytes(group) + opt_bytes(dweight) +
                            (t_has(dweight) ? t_bytes(weight) + t_bytes(idx) : 0),
                   .wr    = t_bytes(dlogits) };
}

enum { LANES = TOPK_LANES };

/* part[0] = the sum of LANES lanes, by halves. */
INLINE void fold(float *part)
{
    for (int j = 0; j < 8; j++) part[j] += part[j + 8];
    for (int j = 0; j < 4; j++) part[j] += part[j + 4];
    part[0] += part[2], part[1] += part[3];
    part[0] += part[1];
}

/* Selection ranks NaN last; the sum becomes NaN, also where the maximum is not finite. */
static HOT void lay_out(TopKRow d, const float *z, int64_t E)
{
    #pragma omp simd
    for (int64_t e = 0; e < E; e++) d.v[e] = z[e] > -INFINITY ? z[e] : -INFINITY;
    for (int64_t e = E; e < topk_padded(E); e++) d.v[e] = -INFINITY;
}

static HOT void weigh(int32_t *idx, float *weight, float *lse, const float *z, int64_t E, int64_t K,
                      bool renorm, TopKRow d)
{
    float   part[LANES] = { 0 }, chosen = 0.0f, max = d.v[d.best[0]];
    int64_t e = 0;
    for (; e + LANES <= E; e += LANES) {
        #pragma omp simd
        for (int j = 0; j < LANES; j++) part[j] += d.v[e + j] = fast_exp(z[e + j] - max);
    }
    for (; e < E; e++) part[e % LANES] += d.v[e] = fast_exp(z[e] - max);
    fold(part);
    for (int64_t k = 0; k < K; k++) chosen += d.v[d.best[k]];
    bool  bad = part[0] != part[0];
    float scale = bad ? NAN : 1.0f / (renorm ? chosen : part[0]);
    for (int64_t k = 0; k < K; k++) {
        idx[k]    = d.best[k];
        weight[k] = d.v[idx[k]] * scale;
    }
    *lse = bad ? NAN : max + logf(part[0]);
}

void cpu_router_fwd(Backend *be, Tensor idx, Tensor weight, Tensor lse, Tensor logits, bool renorm)
{
    int64_t  T = logits.n[0], E = logits.n[1], K = row_width(idx);
    int32_t *out = idx.data;
    float   *w = weight.data, *l = lse.data;
    TopK    *top_k = topk_best();
    cpu_check_own("router_fwd", TOPK_ROWS, topk_desk_size(E));
    #pragma omp parallel for schedule(static) if(worth_threads(T * E))
    for (int64_t t = 0; t < T; t += TOPK_ROWS) {
        int  rows = (int)(T - t < TOPK_ROWS ? T - t : TOPK_ROWS);
        TopKRow d[TOPK_ROWS];
        for (int r = 0; r < rows; r++) {
            d[r] = topk_desk(cpu_own(be) + r * topk_desk_size(E), E);
            lay_out(d[r], (const float *)row_ptr(logits, t + r), E);
        }
        top_k(d, rows, (int32_t)E, (int32_t)K);
        for (int r = 0; r < rows; r++)
            weigh(out + (t + r) * K, w + (t + r) * K, l + t + r, (const float *)row_ptr(logits, t + r), E, K,
                  renorm, d[r]);
    }
}

/* dz_e = p_e (c_e + shift - sum_j p_j c_j); c may be NULL. */
static HOT void spread(float *dz, const float *z, float lse, const float *c, float shift, int64_t E)
{
    float mean = 0.0f;
    for (int64_t e = 0; e < E; e++) dz[e] = fast_exp(z[e] - lse);
    if (!c) {
        for (int64_t e = 0; e < E; e++) dz[e] *= shift;
        return;
    }
    #pragma omp simd reduction(+:mean)
    for (int64_t e = 0; e < E; e++) mean += dz[e] * c[e];
    for (int64_t e = 0; e < E; e++) dz[e] *= c[e] + shift - mean;
}

void cpu_router_bwd(Backend *be, Tensor dlogits, Tensor dweight, Tensor weight, Tensor idx, Tensor logits,
                    Tensor lse, Tensor coef, Tensor group, Factor zcoef, bool renorm)
{
    int64_t        T = logits.n[0], E = logits.n[1], K = row_width(idx);
    const int32_t *chosen = idx.data, *groups = group.data;
    const float   *l = lse.data, by = factor_value(zcoef);
    #pragma omp parallel for schedule(static) if(worth_threads(T * E))
    for (int64_t t = 0; t < T; t++) {
        int64_t      at = groups ? groups[t] : 0;
        const float *w = (const float *)weight.data + t * K;
        const float *g = t_has(dweight) ? (const float *)dweight.data + t * K : NULL;
        const float *c = t_has(coef) && at >= 0 ? (const float *)row_ptr(coef, at) : NULL;
        float       *dz = row_edit(dlogits, t, cpu_own(be)), mean = 0.0f;
        float        shift = at >= 0 ? 2.0f * by * l[t] : 0.0f;
        for (int64_t k = 0; g && k < K; k++) mean += w[k] * g[k];
        if (!renorm) shift -= mean, mean = 0.0f;                /* every logit gets a gradient */
        if (c || shift != 0.0f) spread(dz, (const float *)row_ptr(logits, t), l[t], c, shift, E);
        else memset(dz, 0, (size_t)E * sizeof *dz);
        for (int64_t k = 0; g && k < K; k++)
            if (chosen[t * K + k] >= 0) dz[chosen[t * K + k]] += w[k] * (g[k] - mean);
        row_store(dlogits, t, dz);
    }
}
