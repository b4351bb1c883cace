/* tests/test_router.c -- expert selection: order, ties, weights, NaN, and every part of its gradient. */
#include "numlab.h"

#include <omp.h>

static const Tensor none;

typedef struct Routed { Tensor idx, weight, lse; } Routed;

static Routed route(Tensor logits, int64_t K, bool renorm)
{
    int64_t T = logits.n[0];
    Routed  r = { num_poison(I32, T, K), num_poison(F32, T, K), num_poison(F32, T, 1) };
    op_router_fwd(BE, r.idx, r.weight, r.lse, logits, renorm);
    return r;
}

static int32_t at(Tensor idx, int64_t i) { return ((const int32_t *)idx.data)[i]; }

static void known_values(void)
{
    float  l2 = logf(2.0f), z[] = { 0, l2, 2 * l2, 0,    l2, 0, 0, 2 * l2 };    /* p = (1 2 4 1) / 8 */
    Tensor x = num_vals(F32, 2, 4, z);
    Routed a = route(x, 2, false), b = route(x, 2, true);
    float  p[] = { 0.5f, 0.25f, 0.5f, 0.25f }, r[] = { 2 / 3.0f, 1 / 3.0f, 2 / 3.0f, 1 / 3.0f };
    float  lse[] = { logf(8.0f), logf(8.0f) };
    EXPECT(at(a.idx, 0) == 2 && at(a.idx, 1) == 1 && at(a.idx, 2) == 3 && at(a.idx, 3) == 0, "order");
    EXPECT_CLOSE(a.weight, num_vals(F32, 2, 2, p), 3e-7);
    EXPECT_CLOSE(b.weight, num_vals(F32, 2, 2, r), 3e-7);
    EXPECT_CLOSE(b.lse, num_vals(F32, 2, 1, lse), 3e-7);
    num_clear();
}

/* The naive selection: K times the largest not yet taken, the first of equals. */
static void check_against_naive(Tensor x, int64_t K, bool renorm)
{
    int64_t T = x.n[0], E = x.n[1];
    Routed  r = route(x, K, renorm);
    Tensor  w = num_poison(F32, T, K), lse = num_poison(F32, T, 1);
    bool    order = true;
    for (int64_t t = 0; t < T; t++) {
        bool   taken[1024] = { false };
        double sum = 0, chosen = 0;
        for (int64_t e = 0; e < E; e++) sum += exp(get(x, t * E + e));
        for (int64_t k = 0; k < K; k++) {
            int64_t best = -1;
            for (int64_t e = 0; e < E; e++)
                if (!taken[e] && (best < 0 || get(x, t * E + e) > get(x, t * E + best))) best = e;
            taken[best] = true;
            chosen += exp(get(x, t * E + best));
            order &= at(r.idx, t * K + k) == best;
            put(w, t * K + k, (float)(exp(get(x, t * E + best)) / sum));
        }
        for (int64_t i = t * K; renorm && i < t * K + K; i++) put(w, i, (float)(get(w, i) * sum / chosen));
        put(lse, t, (float)log(sum));
    }
    EXPECT(order, "order differs: E %lld K %lld", (long long)E, (long long)K);
    EXPECT_CLOSE(r.weight, w, 2e-6);                         /* lse near 6, rounded: 5e-7 of its exp */
    EXPECT_CLOSE(r.lse, lse, 1e-6);
}

static void agrees_with_naive(void)
{
    static const int64_t Es[] = { 1, 2, 3, 7, 15, 16, 17, 33, 64, 128, 130, 257 };
    static const int64_t Ks[] = { 1, 2, 5, 8, 16, 17, 40 };
    for (int i = 0; i < 12; i++)
        for (int j = 0; j < 8; j++) {
            int64_t E = Es[i], K = j < 7 ? Ks[j] : E;
            if (K > E) continue;
            Tensor x = num_randn(F32, 19, E);
            check_against_naive(x, K, j % 2);
            for (int64_t n = 0; n < t_count(x); n++) put(x, n, rintf(2 * get(x, n)) / 2);  /* ties abound */
            check_against_naive(x, K, j % 2 == 0);
            num_clear();
        }
}

static void ties_take_the_lowest(void)
{
    Tensor x = num_zeros(F32, 3, 128);
    for (int e = 0; e < 128; e += 2) put(x, 128 + e, -0.0f);        /* minus zero equals zero */
    put(x, 256 + 100, 1.0f);
    Routed r = route(x, 8, true);
    for (int k = 0; k < 8; k++) {
        int32_t a = at(r.idx, k), b = at(r.idx, 8 + k), c = at(r.idx, 16 + k);
        EXPECT(a == k && b == k && c == (k ? k - 1 : 100), "slot %d: %d, %d, %d", k, a, b, c);
        EXPECT(fabsf(get(r.weight, k) - 0.125f) < 1e-7f, "weight %g", get(r.weight, k));
    }
    num_clear();
}

static void odd_logits_are_survived(void)
{
    enum { E = 40, K = 8, T = 6 };
    Tensor x = num_randn(F32, T, E);
    put(x, 5, NAN);
    for (int e = 0; e < E; e++) put(x, E + e, NAN), put(x, 2 * E + e, -INFINITY);
    for (int e = 3; e < E; e++) put(x, 3 * E + e, -INFINITY);       /* three finite logits, eight slots */
    put(x, 4 * E + 7, INFINITY);
    Routed r = route(x, K, true);
    for (int t = 0; t < T; t++) {
        uint64_t seen = 0;
        for (int k = 0; k < K; k++) {
            int32_t e = at(r.idx, t * K + k);
            EXPECT(e >= 0 && e < E && !(seen >> e & 1), "token %d slot %d: expert %d", t, k, e);
            if (e >= 0 && e < E) seen |= (uint64_t)1 << e;
            EXPECT(isfinite(get(r.weight, t * K + k)) == (t == 3 || t == 5), "weight of token %d", t);
        }
    }
    EXPECT(isnan(get(r.lse, 0)) && isnan(get(r.lse, 1)) && isfinite(get(r.lse, 3)), "lse");
    EXPECT(get(r.weight, 3 * K + 3) < 1e-30f, "a logit of -inf weighs %g", get(r.weight, 3 * K + 3));
    num_clear();
}

/* One call of the whole backward against the formulas in double. */
static void check_backward(int64_t E, int64_t K, bool renorm, bool main_part, bool aux, float zcoef,
                           bool groups)
{
    enum { T = 11, G = 3 };
    Tensor x = num_randn(F32, T, E), g = main_part ? num_randn(F32, T, K) : none;
    Tensor coef = aux ? num_randn(F32, groups ? G : 1, E) : none, group = groups ? num_i32(T, NULL) : none;
    Routed r = route(x, K, renorm);
    Tensor d = num_poison(F32, T, E), d16 = num_poison(BF16, T, E), ref = num_zeros(F32, T, E);
    for (int64_t t = 0; groups && t < T; t++) ((int32_t *)group.data)[t] = (int32_t)num_below(G + 1) - 1;
    op_router_bwd(BE, d, g, r.weight, r.idx, x, r.lse, coef, group, factor(zcoef), renorm);
    op_router_bwd(BE, d16, g, r.weight, r.idx, x, r.lse, coef, group, factor(zcoef), renorm);
    for (int64_t t = 0; t < T; t++) {
        double dz[1024], p[1024], sum = 0, mean = 0, cmean = 0, lse;
        int64_t where = groups ? at(group, t) : 0;
        for (int64_t e = 0; e < E; e++) sum += p[e] = exp(get(x, t * E + e));
        lse = log(sum);
        for (int64_t e = 0; e < E; e++) p[e] /= sum, dz[e] = 0;
        for (int64_t i = t * K; main_part && i < t * K + K; i++) mean += (double)get(r.weight, i) * get(g, i);
        for (int64_t e = 0; main_part && !renorm && e < E; e++) dz[e] = -p[e] * mean;
        for (int64_t i = t * K; main_part && i < t * K + K; i++)
            dz[at(r.idx, i)] += get(r.weight, i) * (get(g, i) - (renorm ? mean : 0));
        for (int64_t e = 0; aux && where >= 0 && e < E; e++) cmean += p[e] * get(coef, where * E + e);
        for (int64_t e = 0; where >= 0 && e < E; e++)
            dz[e] += p[e] * ((aux ? get(coef, where * E + e) - cmean : 0) + 2 * zcoef * lse);
        for (int64_t e = 0; e < E; e++) put(ref, t * E + e, (float)dz[e]);
    }
    EXPECT_CLOSE_AT(1, d, ref, 2e-6);                  /* coefficients of two experts may be nearly alike */
    EXPECT_CLOSE(d16, ref, 5e-3);
}

static void backward_agrees_with_naive(void)
{
    for (int i = 0; i < 32; i++) {
        static const int64_t Es[] = { 1, 2, 6, 17, 128 };
        int64_t E = Es[i % 5], K = i % 3 ? (E + 3) / 4 : E;
        check_backward(E, K, i & 1, i & 2, i & 4, i & 8 ? 0.3f : 0.0f, i & 16);
        num_clear();
    }
}

/* Logits 0.2 apart within a token, in random order: a small step cannot change the choice. */
static Tensor spaced(int64_t T, int64_t E)
{
    Tensor x = num_poison(F32, T, E);
    for (int64_t t = 0; t < T; t++)
        for (int64_t e = 0; e < E; e++) {
            int64_t with = num_below(e + 1);
            put(x, t * E + e, get(x, t * E + with));
            put(x, t * E + with, 0.2f * (float)(e - E / 2));
        }
    return x;
}

typedef struct Case { Tensor x, g, group; int64_t K; float zcoef; bool renorm; } Case;

static double weight_loss(void *arg)
{
    Case     *c = arg;
    ArenaMark m = arena_mark(&num_.a);
    double    s = num_dot(route(c->x, c->K, c->renorm).weight, c->g);
    arena_reset(&num_.a, m);
    return s;
}

static void weight_gradient(void)
{
    for (int i = 0; i < 8; i++) {
        int64_t E = i < 4 ? 9 : 24, K = i < 2 ? 1 : i < 6 ? 4 : E;
        Case    c = { .x = spaced(5, E), .g = num_randn(F32, 5, K), .K = K, .renorm = i & 1 };
        Routed  r = route(c.x, K, c.renorm);
        Tensor  d = num_poison(F32, 5, E);
        op_router_bwd(BE, d, c.g, r.weight, r.idx, c.x, r.lse, none, none, factor(0), c.renorm);
        EXPECT_GRADIENT(weight_loss, &c, c.x, d, 0.02f, 1e-3);
        num_clear();
    }
}

static double z_loss(void *arg)
{
    Case     *c = arg;
    ArenaMark m = arena_mark(&num_.a);
    Tensor    lse = route(c->x, c->K, true).lse;
    double    s = 0;
    for (int64_t t = 0; t < c->x.n[0]; t++)
        if (at(c->group, t) >= 0) s += (double)c->zcoef * get(lse, t) * get(lse, t);
    arena_reset(&num_.a, m);
    return s;
}

static void z_loss_gradient(void)
{
    int32_t group[] = { 0, -1, 2, 0, -1, 1, 1 };
    Case    c = { .x = num_randn(F32, 7, 12), .group = num_i32(7, group), .K = 3, .zcoef = 0.7f };
    Routed  r = route(c.x, 3, true);
    Tensor  d = num_poison(F32, 7, 12);
    op_router_bwd(BE, d, none, r.weight, r.idx, c.x, r.lse, none, c.group, factor(c.zcoef), true);
    EXPECT_GRADIENT(z_loss, &c, c.x, d, 0.02f, 1e-3);
    for (int e = 0; e < 12; e++) EXPECT(get(d, 12 + e) == 0 && get(d, 48 + e) == 0, "masked tokens move");
    num_clear();
}

static void threads_do_not_matter(void)
{
    int     many = omp_get_max_threads();
    int64_t T = 999, E = 128, K = 8;
    Tensor  x = num_randn(F32, T, E), g = num_randn(F32, T, K), coef = num_randn(F32, 1, E), d[2];
    Routed  r[2];
    for (int i = 0; i < 2; i++) {
        omp_set_num_threads(i ? many : 1);
        r[i] = route(x, K, true);
        d[i] = num_poison(F32, T, E);
        op_router_bwd(BE, d[i], g, r[i].weight, r[i].idx, x, r[i].lse, coef, none, factor(0.1f), true);
    }
    EXPECT(!memcmp(r[0].idx.data, r[1].idx.data, (size_t)t_bytes(r[0].idx)), "idx");
    EXPECT(!memcmp(r[0].weight.data, r[1].weight.data, (size_t)t_bytes(r[0].weight)), "weight");
    EXPECT(!memcmp(r[0].lse.data, r[1].lse.data, (size_t)t_bytes(r[0].lse)), "lse");
    EXPECT(!memcmp(d[0].data, d[1].data, (size_t)t_bytes(d[0])), "dlogits");
    num_clear();
}

static void no_tokens(void)
{
    Tensor x = num_zeros(F32, 0, 8), d = num_zeros(F32, 0, 8);
    Routed r = route(x, 2, true);
    op_router_bwd(BE, d, none, r.weight, r.idx, x, r.lse, none, none, factor(0.1f), true);
    num_clear();
}

int main(void)
{
    numlab_open();
    RUN(known_values);
    RUN(agrees_with_naive);
    RUN(ties_take_the_lowest);
    RUN(odd_logits_are_survived);
    RUN(backward_agrees_with_naive);
    RUN(weight_gradient);
    RUN(z_loss_gradient);
    RUN(threads_do_not_matter);
    RUN(no_tokens);
    return numlab_report();
}
