/* tests/test_adamw.c -- the gradient norm and the optimizer's step against the same arithmetic in double. */
#include "numlab.h"

#include <omp.h>

static const Tensor none;

static Tensor tally(double v)
{
    Tensor t = t1(&num_.a, "lab", F64, 1);
    *(double *)t.data = v;
    return t;
}
static double value(Tensor t) { return *(double *)t.data; }

static void sumsq_values(void)
{
    float  v[] = { 1, -2, 3 };
    Tensor out = tally(0.5);
    op_sumsq(BE, out, num_vals(F32, 1, 3, v));
    EXPECT(value(out) == 14.5, "%g", value(out));
    for (int64_t n = 1; n < 300000; n = 5 * n + 2) {
        Tensor x = num_randn(F32, 1, n), got[2] = { tally(0), tally(0) };
        int    many = omp_get_max_threads();
        double want = 0;
        for (int64_t i = 0; i < n; i++) want += (double)get(x, i) * get(x, i);
        for (int i = 0; i < 2; i++) omp_set_num_threads(i ? many : 1), op_sumsq(BE, got[i], x);
        EXPECT(fabs(value(got[0]) / want - 1) < 1e-12, "n %lld: %.15g", (long long)n, value(got[0]));
        EXPECT(value(got[0]) == value(got[1]), "threads change the sum of %lld", (long long)n);
        num_clear();
    }
}

static void first_step_known(void)
{
    /* step 1 from rest moves by lr g / (|g| + eps), whatever the betas, after the decay */
    float  p0[] = { 1, -2, 0.5f, 3 }, g0[] = { 0.25f, -8, 0, 1e-4f };
    Tensor w = num_vals(F32, 2, 2, p0), g = num_vals(F32, 2, 2, g0);
    Tensor m = num_zeros(F32, 2, 2), v = num_zeros(F32, 2, 2);
    AdamW  h = { .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-4f, .decay = 0.5f, .step = 1 };
    op_adamw(BE, w, none, m, v, g, none, h);
    float  p1[] = { 0.95f - 0.1f * 0.25f / 0.2501f, -1.9f + 0.1f * 8 / 8.0001f, 0.475f, 2.85f - 0.05f };
    float  m1[] = { 0.025f, -0.8f, 0, 1e-5f }, v1[] = { 0.003125f, 3.2f, 0, 5e-10f };
    EXPECT_CLOSE(w, num_vals(F32, 2, 2, p1), 2e-7);
    EXPECT_CLOSE(m, num_vals(F32, 2, 2, m1), 1e-6);
    EXPECT_CLOSE(v, num_vals(F32, 2, 2, v1), 1e-6);
    num_clear();
}

typedef struct State { double p, m, v; } State;

static void step_double(State *s, double g, double sumsq, AdamW h)
{
    double b1 = h.beta1, b2 = h.beta2, clip = h.max_norm > 0 ? h.max_norm / (sqrt(sumsq) + 1e-6) : 1;
    double rest1 = 1 - pow(b1, (double)h.step), rest2 = 1 - pow(b2, (double)h.step);
    if (clip < 1) g *= clip;
    s->p *= 1 - (double)h.lr * h.decay;
    s->m = b1 * s->m + (1 - b1) * g;
    s->v = b2 * s->v + (1 - b2) * g * g;
    s->p -= h.lr * (s->m / rest1) / (sqrt(s->v / rest2) + h.eps);
}

/* Five steps; dw and ds are the types of the weight and of its moments. */
static void check_steps(int64_t n, DType dw, DType ds, bool master, float max_norm)
{
    AdamW  h = { .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .decay = 0.1f,
                 .max_norm = max_norm };
    Tensor w = num_randn(dw, 1, n), p = master ? num_copy(w, F32) : none, ref = num_poison(F32, 1, n);
    Tensor m = num_zeros(ds, 1, n), v = num_zeros(ds, 1, n);
    State *s = arena_push(&num_.a, "lab", (size_t)n * sizeof *s);
    for (int64_t i = 0; i < n; i++) s[i] = (State){ get(w, i), 0, 0 };
    for (h.step = 1; h.step <= 5; h.step++) {
        Tensor g = num_randn(F32, 1, n), norm = tally(0);
        op_sumsq(BE, norm, g);
        op_adamw(BE, w, p, m, v, g, norm, h);
        for (int64_t i = 0; i < n; i++) step_double(&s[i], get(g, i), value(norm), h);
    }
    for (int64_t i = 0; i < n; i++) put(ref, i, (float)s[i].p);
    EXPECT_CLOSE(master ? p : w, ref, ds == F32 ? 3e-6 : 1e-2);
    if (master) EXPECT(!memcmp(w.data, num_copy(p, dw).data, (size_t)t_bytes(w)), "w is not master, rounded");
    for (int64_t i = 0; i < n; i++) put(ref, i, (float)s[i].m);
    EXPECT_CLOSE(m, ref, ds == F32 ? 3e-6 : 2e-2);
    for (int64_t i = 0; i < n; i++) put(ref, i, (float)s[i].v);
    EXPECT_CLOSE(v, ref, ds == F32 ? 3e-6 : 3e-2);
}

static void agrees_with_double(void)
{
    static const int64_t ns[] = { 3, 6, 17, 2047, 2049, 9001 };
    for (int i = 0; i < 6; i++) {
        check_steps(ns[i], F32, F32, false, 0);
        check_steps(ns[i], BF16, F32, true, 1.0f);
        check_steps(ns[i], F32, F32, true, 1e9f);                /* a limit far above the norm does nothing */
        check_steps(ns[i], BF16, BF16, true, 0.1f);
        num_clear();
    }
}

static void clipping(void)
{
    float  g0[] = { 3, 4 };                                      /* norm 5 */
    AdamW  h = { .lr = 0, .beta1 = 0, .beta2 = 0.5f, .eps = 1, .max_norm = 2.5f, .step = 1 };
    Tensor w = num_zeros(F32, 1, 2), m = num_zeros(F32, 1, 2), v = num_zeros(F32, 1, 2);
    Tensor g = num_vals(F32, 1, 2, g0);
    op_adamw(BE, w, none, m, v, g, tally(25), h);
    EXPECT(fabsf(get(m, 0) - 1.5f) < 1e-6f && fabsf(get(m, 1) - 2) < 1e-6f, "%g %g", get(m, 0), get(m, 1));
    h.max_norm = 6;
    op_adamw(BE, w, none, m, v, g, tally(25), h);
    EXPECT(get(m, 0) == 3 && get(m, 1) == 4, "below the limit: %g %g", get(m, 0), get(m, 1));
    h.max_norm = 2.5f;
    op_adamw(BE, w, none, m, v, g, none, h);
    EXPECT(get(m, 0) == 3 && get(m, 1) == 4, "no norm given: %g %g", get(m, 0), get(m, 1));
    op_adamw(BE, w, none, m, v, g, tally(INFINITY), h);          /* the trainer's business; must return */
    op_adamw(BE, w, none, m, v, g, tally(NAN), h);
    num_clear();
}

static void any_rank_and_threads(void)
{
    int     many = omp_get_max_threads();
    int64_t n[] = { 3, 7, 41, 61 };
    AdamW   h = { .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .step = 3 };
    Tensor  g = num_randn(F32, 1, 3 * 7 * 41 * 61), w[2];
    g = t_wrap(g.data, F32, 4, n);
    for (int i = 0; i < 2; i++) {
        Tensor p = num_copy(g, F32), m = num_copy(g, F32), v = num_copy(g, F32);
        omp_set_num_threads(i ? many : 1);
        for (int64_t j = 0; j < t_count(v); j++) put(v, j, fabsf(get(v, j)));
        w[i] = num_copy(g, BF16);
        op_adamw(BE, w[i], p, m, v, g, none, h);
    }
    EXPECT(!memcmp(w[0].data, w[1].data, (size_t)t_bytes(w[0])), "threads change the step");
    num_clear();
}

int main(void)
{
    numlab_open();
    RUN(sumsq_values);
    RUN(first_step_known);
    RUN(agrees_with_double);
    RUN(clipping);
    RUN(any_rank_and_threads);
    return numlab_report();
}
