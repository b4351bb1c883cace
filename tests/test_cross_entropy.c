/* tests/test_cross_entropy.c -- softmax cross entropy: values, masked rows, extremes, slices, gradient. */
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

static Tensor random_labels(int64_t n, int64_t V)                /* about one row in four has none */
{
    Tensor t = num_i32(n, NULL);
    for (int64_t i = 0; i < n; i++) ((int32_t *)t.data)[i] = num_below(4) ? (int32_t)num_below(V) : -100;
    return t;
}
static int32_t label(Tensor t, int64_t i) { return ((const int32_t *)t.data)[i]; }

/* The whole vocabulary at once. */
static void forward(Tensor loss, Tensor lse, Tensor each, Tensor x, Tensor labels, float scale)
{
    Tensor part = t2(&num_.a, "lab", F64, x.n[0], 3);
    op_ce_part(BE, part, x, labels, 0);
    op_ce_join(BE, loss, lse, each, part, labels, factor(scale));
}

static void known_values(void)
{
    float   z[] = { 0, 0, 0, 0,    logf(5), 0, 0, 0,    1, 2, 3, 4 };        /* p = 1/4; 5/8; masked */
    int32_t want[] = { 2, 0, -100 };
    Tensor  x = num_vals(F32, 3, 4, z), labels = num_i32(3, want);
    Tensor  lse = num_poison(F32, 3, 1), loss = tally(10), d = num_poison(F32, 3, 4);
    float   grad[] = { .125f, .125f, -.375f, .125f,    -.1875f, .0625f, .0625f, .0625f,    0, 0, 0, 0 };
    forward(loss, lse, none, x, labels, 0.5f);
    EXPECT(fabs(value(loss) - 10 - 0.5 * (log(4) + log(8.0 / 5))) < 2e-7, "loss %.9g", value(loss));
    double masked = log(exp(1) + exp(2) + exp(3) + exp(4));
    EXPECT(fabs(get(lse, 2) - masked) < 1e-6, "a masked row has an lse too: %g", get(lse, 2));
    op_ce_bwd(BE, d, x, lse, labels, 0, factor(0.5f));
    EXPECT_CLOSE(d, num_vals(F32, 3, 4, grad), 3e-7);
    for (int i = 8; i < 12; i++) EXPECT(get(d, i) == 0, "masked: %g", get(d, i));
    num_clear();
}

/* Not relative: where all rows are sure of their label, the gradient is what rounding leaves of p - 1. */
static float farthest(Tensor a, Tensor b)
{
    float worst = 0;
    for (int64_t i = 0; i < t_count(b); i++) {
        if (!isfinite(get(a, i))) return INFINITY;
        worst = fmaxf(worst, fabsf(get(a, i) - get(b, i)));
    }
    return worst;
}

static bool equal(Tensor a, Tensor b) { return !memcmp(a.data, b.data, (size_t)t_bytes(a)); }

/* Parts and gradient of ce_grad, also in place, are those of ce_part and ce_bwd to the bit. */
static void in_one_pass(Tensor want, Tensor x, Tensor labels)
{
    int64_t n = x.n[0];
    Tensor  part = num_poison(F64, n, 3), again = num_poison(F64, n, 3), want_part = num_poison(F64, n, 3);
    Tensor  d = num_poison((DType)x.dtype, n, x.n[1]), copy = num_poison((DType)x.dtype, n, x.n[1]);
    op_ce_part(BE, want_part, x, labels, 0);
    op_ce_grad(BE, part, d, x, labels, factor(0.25f));
    op_copy(BE, copy, x);
    op_ce_grad(BE, again, copy, copy, labels, factor(0.25f));
    EXPECT(equal(part, want_part) && equal(again, want_part), "parts of ce_grad");
    EXPECT(equal(d, want) && equal(copy, want), "gradient of ce_grad");
}

static void check(DType d, int64_t n, int64_t V, float spread, float offset)
{
    Tensor x = num_randn(d, n, V), labels = random_labels(n, V), loss = tally(0), scale_free = tally(0);
    Tensor lse = num_poison(F32, n, 1), grad = num_poison(d, n, V), wide = num_poison(F32, n, V);
    Tensor lse_ref = num_poison(F32, n, 1), ref = num_zeros(F32, n, V);
    double want = 0;
    for (int64_t i = 0; i < n * V; i++) put(x, i, spread * get(x, i) + offset);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0, l;
        for (int64_t j = 0; j < V; j++) sum += exp(get(x, i * V + j) - offset);
        put(lse_ref, i, (float)(l = offset + log(sum)));
        if (label(labels, i) < 0) continue;
        want += l - get(x, i * V + label(labels, i));
        for (int64_t j = 0; j < V; j++)
            put(ref, i * V + j, (float)(0.25 * (exp(get(x, i * V + j) - l) - (j == label(labels, i)))));
    }
    forward(loss, lse, none, x, labels, 0.25f);
    forward(scale_free, lse, none, x, labels, 1.0f);
    EXPECT(farthest(lse, lse_ref) <= 1.5e-6f + 1e-7f * fabsf(offset), "lse: %g", farthest(lse, lse_ref));
    EXPECT(fabs(value(scale_free) - want) <= 1.5e-6 * (double)n * (1 + fabsf(offset)), "%.9g, want %.9g",
           value(scale_free), want);
    EXPECT(fabs(value(loss) - 0.25 * value(scale_free)) <= 1e-12 * fabs(want), "scale: %.9g", value(loss));
    Tensor each = num_poison(F32, n, 1);
    double sum = 0;
    forward(none, lse, each, x, labels, 1.0f);
    for (int64_t i = 0; i < n; i++) {
        sum += get(each, i);
        EXPECT(label(labels, i) >= 0 || get(each, i) == 0, "row %d has no label and a loss", (int)i);
    }
    EXPECT(fabs(sum - value(scale_free)) <= 1e-6 * (double)n * (1 + fabsf(offset)), "rows add up to %.9g",
           sum);
    op_ce_bwd(BE, wide, x, lse, labels, 0, factor(0.25f));
    op_ce_bwd(BE, grad, x, lse, labels, 0, factor(0.25f));
    in_one_pass(grad, x, labels);
    op_ce_bwd(BE, x, x, lse, labels, 0, factor(0.25f));                  /* in place */
    float tol = offset == 0 ? 6e-7f : 2e-6f;      /* an lse of 13 is known to 1e-6, one of 100 to 4e-6 */
    EXPECT(farthest(wide, ref) <= tol, "f32: %g", farthest(wide, ref));
    EXPECT(farthest(grad, ref) <= (d == F32 ? tol : 1e-3f), "%s: %g", dtype_name(d), farthest(grad, ref));
    EXPECT(!memcmp(x.data, grad.data, (size_t)t_bytes(x)), "in place differs");
}

static void agrees_with_naive(void)
{
    static const int64_t Vs[] = { 1, 2, 7, 64, 1000, 2047, 2048, 2049, 6001 };
    for (int i = 0; i < 18; i++) {
        check(i & 1 ? BF16 : F32, 1 + i % 6, Vs[i / 2], i % 3 ? 3 : 0.1f, i % 4 < 2 ? 0 : -100);
        num_clear();
    }
}

static void long_rows_are_summed_well(void)
{
    enum { V = 151936 };
    Tensor x = num_zeros(F32, 2, V), lse = num_poison(F32, 2, 1), loss = tally(0);
    int32_t masked[] = { -1, -1 };
    for (int j = 0; j < V; j++) put(x, V + j, (float)j * (20.0f / V));      /* the maximum keeps rising */
    double sum = 0;
    for (int j = 0; j < V; j++) sum += exp(get(x, V + j) - 20);
    forward(loss, lse, none, x, num_i32(2, masked), 1);
    EXPECT(fabs(get(lse, 0) / log(V) - 1) < 1e-7, "%.9g, want %.9g", get(lse, 0), log(V));
    EXPECT(fabs(get(lse, 1) / (20 + log(sum)) - 1) < 1e-7, "%.9g, want %.9g", get(lse, 1), 20 + log(sum));
    EXPECT(value(loss) == 0, "masked rows cost %g", value(loss));
    num_clear();
}

static void extremes(void)
{
    float   z[] = { 3e4f, -3e4f, 0,    -INFINITY, 2, 2,    -1e30f, -1e30f, -1e30f };
    int32_t want[] = { 1, 1, 0 };
    Tensor  x = num_vals(F32, 3, 3, z), labels = num_i32(3, want);
    Tensor  lse = num_poison(F32, 3, 1), loss = tally(0), d = num_poison(F32, 3, 3);
    float   grad[] = { 1, -1, 0,    0, -.5f, .5f };
    forward(loss, lse, none, x, labels, 1);
    op_ce_bwd(BE, d, x, lse, labels, 0, factor(1));
    EXPECT(get(lse, 0) == 3e4f && fabsf(get(lse, 1) - 2 - logf(2)) < 1e-6f && get(lse, 2) == -1e30f, "lse");
    EXPECT(fabs(value(loss) - 6e4 - log(2)) < 1e-2, "loss %g", value(loss));
    EXPECT_CLOSE(t_rows(d, 0, 2), num_vals(F32, 2, 3, grad), 1e-6);
    num_clear();
}

/* Parts of columns [cut[i], cut[i+1]) behind each other; some are empty. */
static void in_slices(DType d, int64_t n, int64_t V, int slices)
{
    int64_t cut[9] = { 0 };
    Tensor  x = num_randn(d, n, V), labels = random_labels(n, V), loss = tally(1), want_loss = tally(1);
    Tensor  parts = t2(&num_.a, "lab", F64, slices * n, 3);
    Tensor  lse = num_poison(F32, n, 1), want_lse = num_poison(F32, n, 1);
    Tensor  each = num_poison(F32, n, 1), want_each = num_poison(F32, n, 1);
    Tensor  grad = num_poison(F32, n, V), want = num_poison(F32, n, V);
    cut[slices] = V;
    for (int i = 1; i < slices; i++) cut[i] = cut[i - 1] + num_below(V - cut[i - 1] + 1);
    forward(want_loss, want_lse, want_each, x, labels, 0.5f);
    op_ce_bwd(BE, want, x, want_lse, labels, 0, factor(0.5f));
    for (int i = 0; i < slices; i++)
        op_ce_part(BE, t_rows(parts, i * n, n), t_cols(x, cut[i], cut[i + 1] - cut[i]), labels, cut[i]);
    op_ce_join(BE, loss, lse, each, parts, labels, factor(0.5f));
    for (int i = 0; i < slices; i++)
        op_ce_bwd(BE, t_cols(grad, cut[i], cut[i + 1] - cut[i]), t_cols(x, cut[i], cut[i + 1] - cut[i]), lse,
                  labels, cut[i], factor(0.5f));
    /* Not relative either, as an lse may be near 0; one of 9 is stored in steps of 1e-6, and so is a loss. */
    EXPECT(fabs(value(loss) - value(want_loss)) <= 1e-6 * (double)n, "%.9g, want %.9g", value(loss),
           value(want_loss));
    EXPECT(farthest(lse, want_lse) <= 2e-6f, "lse: %g", farthest(lse, want_lse));
    EXPECT(farthest(each, want_each) <= 4e-6f, "%g", farthest(each, want_each));
    EXPECT(farthest(grad, want) <= 3e-7f, "%g", farthest(grad, want));
    num_clear();
}

static void slices_agree_with_the_whole(void)
{
    for (int i = 0; i < 40; i++)
        in_slices(i & 1 ? BF16 : F32, 1 + num_below(6), 1 + num_below(300), 1 + i % 8);
    in_slices(F32, 3, 5000, 4);
}

static void a_label_of_no_slice_is_nan(void)
{
    int32_t want[] = { 1, 7, -1 };
    Tensor  x = num_randn(F32, 3, 4), loss = tally(0);
    Tensor  lse = num_poison(F32, 3, 1), each = num_poison(F32, 3, 1);
    forward(loss, lse, each, x, num_i32(3, want), 1);
    EXPECT(isnan(value(loss)) && isnan(get(each, 1)) && isfinite(get(each, 0)) && get(each, 2) == 0, "%g %g",
           value(loss), get(each, 1));
    num_clear();
}

typedef struct Case { Tensor x, labels; } Case;

static double total_loss(void *arg)
{
    Case     *c = arg;
    ArenaMark m = arena_mark(&num_.a);
    Tensor    loss = tally(0), lse = num_poison(F32, c->x.n[0], 1);
    forward(loss, lse, none, c->x, c->labels, 0.3f);
    double v = value(loss);
    arena_reset(&num_.a, m);
    return v;
}

static void gradient(void)
{
    for (int64_t V = 2; V < 200; V = 3 * V + 1) {
        Case   c = { num_randn(F32, 6, V), random_labels(6, V) };
        Tensor d = num_poison(F32, 6, V), lse = num_poison(F32, 6, 1), loss = tally(0);
        int64_t half = V / 2;
        forward(loss, lse, none, c.x, c.labels, 0.3f);
        op_ce_bwd(BE, d, c.x, lse, c.labels, 0, factor(0.3f));
        EXPECT_GRADIENT(total_loss, &c, c.x, d, 0.02f, 1e-3);
        op_ce_bwd(BE, t_cols(d, 0, half), t_cols(c.x, 0, half), lse, c.labels, 0, factor(0.3f));
        op_ce_bwd(BE, t_cols(d, half, V - half), t_cols(c.x, half, V - half), lse, c.labels, half,
                  factor(0.3f));
        EXPECT_GRADIENT(total_loss, &c, c.x, d, 0.02f, 1e-3);
        num_clear();
    }
}

static void threads_do_not_matter(void)
{
    int    many = omp_get_max_threads();
    Tensor x = num_randn(BF16, 33, 4001), labels = random_labels(33, 4001), d[2], loss[2];
    for (int i = 0; i < 2; i++) {
        Tensor lse = num_poison(F32, 33, 1);
        omp_set_num_threads(i ? many : 1);
        d[i] = num_poison(BF16, 33, 4001), loss[i] = tally(0);
        forward(loss[i], lse, none, x, labels, 0.1f);
        op_ce_bwd(BE, d[i], x, lse, labels, 0, factor(0.1f));
    }
    EXPECT(value(loss[0]) == value(loss[1]), "loss %.17g, %.17g", value(loss[0]), value(loss[1]));
    EXPECT(!memcmp(d[0].data, d[1].data, (size_t)t_bytes(d[0])), "dlogits");
    num_clear();
}

int main(void)
{
    numlab_open();
    RUN(known_values);
    RUN(agrees_with_naive);
    RUN(long_rows_are_summed_well);
    RUN(extremes);
    RUN(slices_agree_with_the_whole);
    RUN(a_label_of_no_slice_is_nan);
    RUN(gradient);
    RUN(threads_do_not_matter);
    return numlab_report();
}
