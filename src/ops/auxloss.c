/* ops/auxloss.c -- router statistics and the load-balancing loss: contract, cost, CPU.
 *
 * Tokens belong to groups (documents of a packed stream): group (T) i32, -1 = masked, not counted.
 *   router_stats   count[g,e] = number of slots of group g routed to e      prob[g,e] = sum of p[t,e]
 *                  zsum = sum of lse^2 over the tokens that count           all overwritten
 *   aux_loss       of all L layers: out[0] = the loss, out[1] = the z-loss sum_l zsum_l / N,
 *                  out[2] = coeff out[0]; coef[l,g,e] = d(out[2]) / d(prob[l,g,e]), for router_bwd
 *
 * Rows (l, g) of the statistics are pooled; the loss of a pool is E sum_e F_e P_e. N = sum len. F is constant
 * for the gradient, since top-k selection has none.
 *   pooled     one pool of everything            F = count / (L N)    P = prob / (L N)    balanced: K
 *   layer      a pool per layer                  F = count / (K N)    P = prob / N        balanced: L
 *   document   a pool per layer and document,    F = count / (K len)  P = prob / len      balanced: L
 *              the mean over documents with len > 0
 *   document_tokens   the same, the mean over documents weighted by len
 *
 * count, prob (G, E) f32 of one layer, (L, G, E) of all; zsum (1), (L); len (G) f32 tokens per group. With
 * AUX_NONE count and prob may be absent; coef may always be. Probabilities are summed in token order, in
 * double as long as the group stays the same: the result does not depend on the number of threads. */
#include "ops/cpu/cpu_rows.h"

static bool holds(Tensor t, DType d, int64_t n) { return t.dtype == d && t_dense(t) && t_count(t) == n; }

Cost router_stats_cost(Backend *be, Tensor count, Tensor prob, Tensor zsum, Tensor logits, Tensor lse,
                       Tensor idx, Tensor group)
{
    int64_t T = logits.n[0], E = logits.n[1], G = count.n[0];
    REQUIRE(logits.rank == 2 && logits.dtype == F32 && count.rank == 2 && count.n[1] == E &&
            t_same(count, prob) && holds(count, F32, G * E) && holds(prob, F32, G * E) && holds(zsum, F32, 1),
            "router_stats: count %s prob %s zsum %s logits %s",
            t_fmt(count), t_fmt(prob), t_fmt(zsum), t_fmt(logits));
    REQUIRE(holds(lse, F32, T) && idx.rank == 2 && holds(idx, I32, T * idx.n[1]) && holds(group, I32, T),
            "router_stats: lse %s idx %s group %s", t_fmt(lse), t_fmt(idx), t_fmt(group));
    return (Cost){ .flops = 3.0 * (double)(T * E) + (double)t_count(idx),
                   .rd    = t_bytes(logits) + t_bytes(lse) + t_bytes(idx) + t_bytes(group),
                   .wr    = t_bytes(count) + t_bytes(prob) + t_bytes(zsum) };
}

Cost aux_loss_cost(Backend *be, Tensor out, Tensor coef, Tensor count, Tensor prob, Tensor zsum, Tensor len,
                   AuxForm form, int64_t K, Factor coeff)
{
    int64_t L = t_count(zsum), G = t_count(len);
    bool    on = form != AUX_NONE;
    REQUIRE(holds(out, F32, 3) && holds(zsum, F32, L) && holds(len, F32, G) && K >= 1,
            "aux_loss: out %s zsum %s len %s", t_fmt(out), t_fmt(zsum), t_fmt(len));
    REQUIRE((!t_has(coef) || (coef.rank == 3 && holds(coef, F32, L * G * coef.n[2]))) &&
            (!on || (t_has(count) && count.rank == 3 && holds(count, F32, L * G * count.n[2]) &&
                     t_same(count, prob) && t_dense(prob) && (!t_has(coef) || t_same(coef, count)))),
            "aux_loss: count %s prob %s coef %s", t_fmt(count), t_fmt(prob), t_fmt(coef));
    return (Cost){ .flops = on ? 3.0 * (double)t_count(count) : 0.0,
                   .rd    = (on ? t_bytes(count) + t_bytes(prob) : 0) + t_bytes(zsum) + t_bytes(len),
                   .wr    = t_bytes(out) + opt_bytes(coef) };
}

/* A stripe of expert columns, as wide as a vector; its thread walks all tokens in order. */
enum { STRIPE = 16 };

static HOT void sum_stripe(float *prob, Tensor logits, const float *lse, const int32_t *group, int64_t first,
                           int w)
{
    double       acc[STRIPE] = { 0 };
    float        p[STRIPE] = { 0 };
    const float *z = (const float *)logits.data + first;
    int32_t      now = -1;
    int64_t      T = logits.n[0], E = logits.n[1];
    for (int64_t t = 0; t <= T; t++, z += logits.s[0]) {
        if (t == T || group[t] != now) {
            for (int j = 0; j < w && now >= 0; j++) prob[now * E + first + j] += (float)acc[j];
            for (int j = 0; j < STRIPE; j++) acc[j] = 0.0;
            if (t == T) return;
            now = group[t];
        }
        if (now < 0) continue;
        if (w == STRIPE) for (int j = 0; j < STRIPE; j++) p[j] = fast_exp(z[j] - lse[t]);
        else             for (int j = 0; j < w; j++)      p[j] = fast_exp(z[j] - lse[t]);
        for (int j = 0; j < STRIPE; j++) acc[j] += p[j];
    }
}

static void count_slots(Tensor count, float *zsum, const float *lse, Tensor idx, const int32_t *group)
{
    int64_t T = idx.n[0], K = idx.n[1], E = count.n[1];
    double  z = 0.0;
    for (int64_t t = 0; t < T; t++) {
        if (group[t] < 0) continue;
        float         *c = (float *)count.data + group[t] * E;
        const int32_t *e = (const int32_t *)idx.data + t * K;
        for (int64_t k = 0; k < K; k++)
            if (e[k] >= 0) c[e[k]] += 1.0f;
        z += (double)lse[t] * lse[t];
    }
    *zsum = (float)z;
}

void cpu_router_stats(Backend *be, Tensor count, Tensor prob, Tensor zsum, Tensor logits, Tensor lse,
                      Tensor idx, Tensor group)
{
    int64_t E = logits.n[1], stripes = (E + STRIPE - 1) / STRIPE;
    memset(count.data, 0, (size_t)t_bytes(count));
    memset(prob.data, 0, (size_t)t_bytes(prob));
    #pragma omp parallel for schedule(dynamic, 1) if(worth_threads(t_count(logits)))
    for (int64_t i = -1; i < stripes; i++) {                    /* -1: the counts */
        int64_t first = i * STRIPE, w = E - first < STRIPE ? E - first : STRIPE;
        if (i < 0) count_slots(count, zsum.data, lse.data, idx, group.data);
        else sum_stripe(prob.data, logits, lse.data, group.data, first, (int)w);
    }
}

static HOT void sum_rows(double *sum, const float *x, int64_t rows, int64_t E)
{
    for (int64_t e = 0; e < E; e++) sum[e] = 0.0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t e = 0; e < E; e++) sum[e] += x[r * E + e];
}

/* One pool of rows: its loss, and in coef (if present) the gradient of share * coeff * loss. */
typedef struct LossPool { int64_t rows, E; double f_div, p_div, share; } LossPool;

static double pool_loss(LossPool p, float *coef, const float *count, const float *prob, float coeff,
                        double *work)
{
    double *F = work, *P = work + p.E, loss = 0.0, scale = p.share * (double)p.E / p.f_div / p.p_div;
    sum_rows(F, count, p.rows, p.E);
    sum_rows(P, prob, p.rows, p.E);
    for (int64_t e = 0; e < p.E; e++) loss += F[e] * P[e];
    for (int64_t e = 0; coef && e < p.E; e++) coef[e] = (float)(coeff * scale * F[e]);
    for (int64_t r = 1; coef && r < p.rows; r++) memcpy(coef + r * p.E, coef, (size_t)p.E * sizeof *coef);
    return scale * loss;
}

void cpu_aux_loss(Backend *be, Tensor out, Tensor coef, Tensor count, Tensor prob, Tensor zsum, Tensor len,
                  AuxForm form, int64_t K, Factor coeff)
{
    int64_t      L = t_count(zsum), G = t_count(len), E = count.n[2];
    const float *n = len.data, *zs = zsum.data, by = factor_value(coeff);
    float       *o = out.data;
    double       N = 0.0, groups = 0.0, loss = 0.0, z = 0.0;
    for (int64_t g = 0; g < G; g++) N += n[g], groups += n[g] > 0.0f;
    for (int64_t l = 0; l < L && N > 0.0; l++) z += zs[l] / N;
    if (t_has(coef)) memset(coef.data, 0, (size_t)t_bytes(coef));

    LossPool p = { .rows = form == AUX_POOLED ? L * G : form == AUX_LAYER ? G : 1, .E = E, .share = 1.0 };
    for (int64_t r = 0; r < L * G && N > 0.0 && form != AUX_NONE; r += p.rows) {
        double m = n[r % G];
        switch (form) {
        case AUX_POOLED:   p.f_div = p.p_div = (double)L * N; break;
        case AUX_LAYER:    p.f_div = (double)K * N, p.p_div = N; break;
        case AUX_DOCUMENT: p.f_div = (double)K * m, p.p_div = m, p.share = 1.0 / groups; break;
        case AUX_DOCUMENT_TOKENS: p.f_div = (double)K * m, p.p_div = m, p.share = m / N; break;
        case AUX_NONE:     break;
        }
        if (p.p_div > 0.0)                                      /* an empty document has no loss */
            loss += pool_loss(p, t_has(coef) ? (float *)coef.data + r * E : NULL, (float *)count.data + r * E,
                              (float *)prob.data + r * E, by, (double *)cpu_shared(be));
    }
    o[0] = (float)loss, o[1] = (float)z, o[2] = (float)(by * loss);
}
