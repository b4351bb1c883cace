/* tests/test_auxloss.c -- expert statistics and the balance losses: sums, forms, masks, gradients. */
#include "numlab.h"

#include <omp.h>

static const Tensor none;

/* L layers of routed tokens, and what the ops make of them. */
typedef struct Case {
    int64_t L, T, E, K, G;
    AuxForm form;
    float   coeff;
    Tensor  logits, lse, idx, weight;              /* (L T, ...) */
    Tensor  group, len, count, prob, zsum, coef, out;
} Case;

static int32_t at(Tensor t, int64_t i) { return ((const int32_t *)t.data)[i]; }

/* Groups come in runs, or in any order; about one token in eight is masked. */
static Case case_new(int64_t L, int64_t T, int64_t E, int64_t K, int64_t G, bool runs)
{
    Case c = { .L = L, .T = T, .E = E, .K = K, .G = G, .coeff = 0.5f };
    c.logits = num_randn(F32, L * T, E);
    c.idx = num_poison(I32, L * T, K), c.weight = num_poison(F32, L * T, K);
    c.lse = num_poison(F32, L * T, 1);
    op_router_fwd(BE, c.idx, c.weight, c.lse, c.logits, true);
    c.group = num_i32(T, NULL), c.len = num_zeros(F32, 1, G);
    for (int64_t t = 0; t < T; t++) {
        int32_t g = num_below(8) == 0 ? -1 : (int32_t)(runs ? t * G / T : num_below(G));
        ((int32_t *)c.group.data)[t] = g;
        if (g >= 0) put(c.len, g, get(c.len, g) + 1);
    }
    c.count = t_as3(num_poison(F32, L * G, E), L, G, E), c.prob = t_as3(num_poison(F32, L * G, E), L, G, E);
    c.coef  = t_as3(num_poison(F32, L * G, E), L, G, E);
    c.zsum  = num_poison(F32, L, 1), c.out = num_poison(F32, 1, 3);
    return c;
}

static void stats(Case *c)
{
    for (int64_t l = 0; l < c->L; l++)
        op_router_stats(BE, t_at(c->count, l), t_at(c->prob, l), t_rows(c->zsum, l, 1),
                        t_rows(c->logits, l * c->T, c->T), t_rows(c->lse, l * c->T, c->T),
                        t_rows(c->idx, l * c->T, c->T), c->group);
}

static void loss(Case *c)
{
    op_aux_loss(BE, c->out, c->coef, c->count, c->prob, c->zsum, c->len, c->form, c->K, factor(c->coeff));
}

static void check_stats(Case c)
{
    Tensor count = num_zeros(F32, c.L * c.G, c.E), prob = num_zeros(F32, c.L * c.G, c.E);
    Tensor zsum = num_zeros(F32, c.L, 1);
    stats(&c);
    for (int64_t l = 0; l < c.L; l++)
        for (int64_t t = 0; t < c.T; t++) {
            int64_t row = l * c.T + t, to = (l * c.G + at(c.group, t)) * c.E;
            if (at(c.group, t) < 0) continue;
            for (int64_t k = 0; k < c.K; k++) {
                int64_t e = to + at(c.idx, row * c.K + k);
                put(count, e, get(count, e) + 1);
            }
            for (int64_t e = 0; e < c.E; e++)
                put(prob, to + e, get(prob, to + e) + expf(get(c.logits, row * c.E + e) - get(c.lse, row)));
            put(zsum, l, get(zsum, l) + get(c.lse, row) * get(c.lse, row));
        }
    EXPECT_CLOSE(t_as2(c.count, c.L * c.G, c.E), count, 0);
    EXPECT_CLOSE(t_as2(c.prob, c.L * c.G, c.E), prob, 3e-6);
    EXPECT_CLOSE(c.zsum, zsum, 3e-6);
}

static void stats_agree_with_naive(void)
{
    static const int64_t Es[] = { 1, 3, 15, 16, 17, 40, 128 };
    for (int i = 0; i < 14; i++) {
        int64_t E = Es[i % 7];
        check_stats(case_new(1 + i % 2, 5 + 31 * i, E, i % 3 ? (E + 7) / 8 : E, 1 + i % 5, i < 7));
        num_clear();
    }
}

/* The loss and its slope as the header of auxloss.c defines them, one element at a time. */
static void check_loss(Case c, AuxForm form)
{
    double L = (double)c.L, E = (double)c.E, K = (double)c.K, N = 0, groups = 0, want = 0, z = 0;
    Tensor ref = num_zeros(F32, c.L * c.G, c.E);
    c.form = form;
    stats(&c);
    loss(&c);
    for (int64_t g = 0; g < c.G; g++) N += get(c.len, g), groups += get(c.len, g) > 0;
    for (int64_t l = 0; l < c.L; l++) z += get(c.zsum, l) / N;
    for (int64_t l = 0; l < c.L; l++)
        for (int64_t g = 0; g < c.G; g++)
            for (int64_t e = 0; e < c.E; e++) {
                double F = 0, len = get(c.len, g);
                for (int64_t i = 0; i < c.L; i++)
                    for (int64_t j = 0; j < c.G; j++)
                        if (form == AUX_POOLED || (i == l && (form == AUX_LAYER || j == g)))
                            F += get(c.count, (i * c.G + j) * c.E + e);
                double slope = form == AUX_POOLED ? E * F / (L * N) / (L * N) :
                               form == AUX_LAYER  ? E * F / (K * N) / N :
                               !(len > 0)         ? 0 :
                               form == AUX_DOCUMENT ? E * F / (K * len) / len / groups :
                                                      E * F / (K * len) / N;
                put(ref, (l * c.G + g) * c.E + e, (float)(c.coeff * slope));
                want += slope * get(c.prob, (l * c.G + g) * c.E + e);       /* the loss is linear in prob */
            }
    EXPECT_CLOSE(t_as2(c.coef, c.L * c.G, c.E), ref, 1e-6);
    float got = get(c.out, 0), zgot = get(c.out, 1), scaled = get(c.out, 2);
    EXPECT(fabs(got - want) <= 2e-6 * want, "form %d: loss %.8g, want %.8g", form, got, want);
    EXPECT(fabs(zgot - z) <= 2e-6 * z, "form %d: z-loss %.8g, want %.8g", form, zgot, z);
    EXPECT(fabs(scaled - c.coeff * want) <= 2e-6 * want, "form %d: out[2] %.8g", form, scaled);
}

static void losses_agree_with_naive(void)
{
    for (int i = 0; i < 12; i++) {
        Case c = case_new(1 + i % 3, 20 + 9 * i, 5 + 11 * (i % 2), 1 + i % 4, 1 + i / 2, i & 1);
        check_loss(c, AUX_POOLED + i % 4);
        num_clear();
    }
}

/* Uniform logits, every expert chosen equally often: K in the reference's form, 1 per layer in the others. */
static void balanced_values(void)
{
    enum { L = 3, T = 32, E = 8, K = 2, G = 2 };
    static const double want[] = { [AUX_POOLED] = K, [AUX_LAYER] = L, [AUX_DOCUMENT] = L,
                                   [AUX_DOCUMENT_TOKENS] = L };
    for (int form = AUX_POOLED; form <= AUX_DOCUMENT_TOKENS; form++) {
        Case c = case_new(L, T, E, K, G, true);
        c.form = (AuxForm)form;
        for (int i = 0; i < L * T * E; i++) put(c.logits, i, 1.0f);
        for (int i = 0; i < L * T; i++) put(c.lse, i, 1.0f + logf(E));
        for (int i = 0; i < L * T * K; i++) ((int32_t *)c.idx.data)[i] = i % E;
        for (int t = 0; t < T; t++) ((int32_t *)c.group.data)[t] = t / (T / G);
        for (int g = 0; g < G; g++) put(c.len, g, T / G);
        stats(&c);
        loss(&c);
        float got = get(c.out, 0);
        EXPECT(fabs(got - want[form]) < 1e-5, "form %d: %g, want %g", form, got, want[form]);
        num_clear();
    }
}

/* All tokens on one of E experts, with probability 1: E times the balanced loss. */
static void collapsed_values(void)
{
    enum { T = 12, E = 5 };
    Case c = case_new(1, T, E, 1, 1, true);
    for (int i = 0; i < T * E; i++) put(c.logits, i, i % E == 3 ? 80.0f : 0.0f);
    for (int t = 0; t < T; t++) ((int32_t *)c.group.data)[t] = 0;
    put(c.len, 0, T);
    op_router_fwd(BE, c.idx, c.weight, c.lse, c.logits, true);
    for (int form = AUX_POOLED; form <= AUX_DOCUMENT_TOKENS; form++) {
        c.form = (AuxForm)form;
        stats(&c);
        loss(&c);
        EXPECT(fabs(get(c.out, 0) - E) < 1e-5, "form %d: %g", form, get(c.out, 0));
        EXPECT(get(c.count, 3) == T && get(c.count, 0) == 0, "count %g %g", get(c.count, 3), get(c.count, 0));
    }
    num_clear();
}

static double loss_of_logits(void *arg)          /* with a fixed selection: F is constant */
{
    Case     *c = arg;
    ArenaMark m = arena_mark(&num_.a);
    Tensor    idx = num_poison(I32, c->L * c->T, c->K), w = num_poison(F32, c->L * c->T, c->K);
    op_router_fwd(BE, idx, w, c->lse, c->logits, true);
    stats(c);
    loss(c);
    arena_reset(&num_.a, m);
    return get(c->out, 2);
}

static void gradient(void)
{
    for (int form = AUX_POOLED; form <= AUX_DOCUMENT_TOKENS; form++) {
        Case   c = case_new(2, 9, 6, 2, 3, form == AUX_LAYER);
        Tensor d = num_poison(F32, c.L * c.T, c.E);
        c.form = (AuxForm)form;
        loss_of_logits(&c);
        for (int64_t l = 0; l < c.L; l++) {
            int64_t from = l * c.T, T = c.T;
            op_router_bwd(BE, t_rows(d, from, T), none, t_rows(c.weight, from, T), t_rows(c.idx, from, T),
                          t_rows(c.logits, from, T), t_rows(c.lse, from, T), t_at(c.coef, l), c.group,
                          factor(0), true);
        }
        EXPECT_GRADIENT(loss_of_logits, &c, c.logits, d, 0.05f, 5e-3);
        num_clear();
    }
}

static void nothing_to_count(void)
{
    for (int form = AUX_NONE; form <= AUX_DOCUMENT_TOKENS; form++) {
        Case c = case_new(2, 10, 7, 3, 2, true);
        c.form = (AuxForm)form;
        for (int64_t t = 0; t < c.T; t++) ((int32_t *)c.group.data)[t] = -1;
        for (int64_t g = 0; g < c.G; g++) put(c.len, g, 0);
        stats(&c);
        loss(&c);
        for (int i = 0; i < 3; i++) EXPECT(get(c.out, i) == 0, "form %d: out %g", form, get(c.out, i));
        for (int64_t i = 0; i < t_count(c.coef); i++)
            EXPECT(get(c.coef, i) == 0 && get(c.count, i) == 0 && get(c.prob, i) == 0, "form %d", form);
        num_clear();
    }
}

static void form_none(void)
{
    Case c = case_new(2, 10, 7, 3, 2, true);
    c.form = AUX_NONE;
    stats(&c);
    op_aux_loss(BE, c.out, c.coef, none, none, c.zsum, c.len, c.form, c.K, factor(c.coeff));
    EXPECT(get(c.out, 0) == 0 && get(c.out, 2) == 0, "loss %g %g", get(c.out, 0), get(c.out, 2));
    EXPECT(get(c.out, 1) > 0, "z-loss %g", get(c.out, 1));
    for (int64_t i = 0; i < t_count(c.coef); i++) EXPECT(get(c.coef, i) == 0, "coef %g", get(c.coef, i));
    op_aux_loss(BE, c.out, none, c.count, c.prob, c.zsum, c.len, AUX_POOLED, c.K, factor(c.coeff));
    EXPECT(get(c.out, 0) > 0, "without coef: %g", get(c.out, 0));
    num_clear();
}

static void threads_do_not_matter(void)
{
    int    many = omp_get_max_threads();
    Case   c = case_new(1, 2000, 72, 6, 9, false);
    Tensor keep[2];
    for (int i = 0; i < 2; i++) {
        omp_set_num_threads(i ? many : 1);
        stats(&c);
        keep[i] = num_copy(c.prob, F32);
    }
    EXPECT(!memcmp(keep[0].data, keep[1].data, (size_t)t_bytes(keep[0])), "prob");
    num_clear();
}

int main(void)
{
    numlab_open();
    RUN(stats_agree_with_naive);
    RUN(losses_agree_with_naive);
    RUN(balanced_values);
    RUN(collapsed_values);
    RUN(gradient);
    RUN(nothing_to_count);
    RUN(form_none);
    RUN(threads_do_not_matter);
    return numlab_report();
}
