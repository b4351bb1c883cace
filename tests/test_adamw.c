/* tests/test_adamw.c -- the gradient norm and the optimizer's step against the same arithmetic in double. */
#include "numlab.h"

#include "engine/optim.h"

#include <omp.h>

static const Tensor none;

static Tensor tally(double v)
{
    Tensor t = t1(&num_.a, "lab", F64, 1);
    *(double *)t.data = v;
    return t;
}
static double value(Tensor t) { return *(double *)t.data; }

static bool same_bits(Tensor a, Tensor b) { return !memcmp(a.data, b.data, (size_t)t_bytes(a)); }

static double square_sum(Tensor x)
{
    double sum = 0;
    for (int64_t i = 0; i < t_count(x); i++) sum += (double)get(x, i) * get(x, i);
    return sum;
}

static void known_squares(void)
{
    float  v[] = { 1, -2, 3, 10 };
    Tensor x = num_vals(F32, 1, 4, v), out = tally(0.5), each = t1(&num_.a, "lab", F64, 4);
    double *cell = each.data;
    x = t_wrap(x.data, F32, 1, &(int64_t){ 4 });
    for (int i = 0; i < 4; i++) cell[i] = -1;
    op_squares(BE, out, each, &(Addends){ 0 });
    EXPECT(value(out) == 0.5, "an empty list adds %g", value(out) - 0.5);
    op_squares(BE, out, each, &(Addends){ 3, { { t_rows(x, 0, 3), 2, false }, { t_rows(x, 3, 0), 3, false },
                                                 { t_rows(x, 3, 1), 0, false } } });
    EXPECT(value(out) == 114.5 && cell[2] == 14 && cell[0] == 100 && cell[3] == 0 && cell[1] == -1,
           "%g; cells %g %g %g %g", value(out), cell[0], cell[1], cell[2], cell[3]);
    op_squares(BE, out, none, &(Addends){ 1, { { t_rows(x, 1, 1), 99, false } } });
    EXPECT(value(out) == 118.5, "%g", value(out));
    op_squares(BE, out, each, &(Addends){ 2, { { t_rows(x, 2, 2), 1, true },
                                               { t_rows(x, 0, 2), 2, false } } });
    EXPECT(value(out) == 136.5 && cell[1] == 13 && cell[2] == 5, "squares among others: %g", value(out));
    num_clear();
}

/* Lists of every length, of tensors that begin anywhere. */
static void squares_of_lists(void)
{
    int many = omp_get_max_threads();
    for (int n = 1; n <= ADDENDS; n = n == 85 ? ADDENDS : 4 * n + 1) {
        Addends list = { .n = n };
        Tensor    got[2], each[2];
        double    want = 0;
        for (int i = 0; i < n; i++) {
            int64_t size = num_below(i % 9 ? 90 : 150000), shift = num_below(4);
            Tensor  x = num_randn(num_below(3) ? F32 : BF16, 1, size + shift);
            x = t_wrap(x.data, (DType)x.dtype, 1, &x.n[1]);
            list.at[i] = (Addend){ t_rows(x, shift, size), n - 1 - i, false };
            want += square_sum(list.at[i].x);
        }
        for (int i = 0; i < 2; i++) {
            omp_set_num_threads(i ? many : 1);
            got[i] = tally(0), each[i] = num_poison(F64, 1, n);
            each[i] = t_wrap(each[i].data, F64, 1, &each[i].n[1]);
            op_squares(BE, got[i], each[i], &list);
        }
        EXPECT(fabs(value(got[0]) - want) <= 1e-12 * want, "%d tensors: %.15g", n, value(got[0]));
        for (int i = 0; i < n; i++) {
            double own = square_sum(list.at[i].x), cell = ((double *)each[0].data)[n - 1 - i];
            EXPECT(fabs(cell - own) <= 1e-12 * own, "tensor %d of %d: %.15g, not %.15g", i, n, cell, own);
        }
        EXPECT(value(got[0]) == value(got[1]) && same_bits(each[0], each[1]), "threads change %d sums", n);
        num_clear();
    }
}

/* More tensors than an op takes, of which every fifth got no gradient and one is a copy of a neighbour's. */
static void norm_of_many_tensors(void)
{
    enum { MANY = 3 * ADDENDS + 5 };
    Model   m = { 0 };
    Tensor  sum = tally(NAN), each = t1(&num_.a, "lab", F64, 2 * MANY);
    double *cell = each.data, want = 0;
    for (int i = 0; i < MANY; i++) {
        int64_t rows = 1 + num_below(9), cols = 1 + num_below(30);
        Param  *p = param_matrix(&m.params, G_LLM, rows, cols, "a.%d", i);
        param_piece(p, 1, "b.%d", i);
        p->shard.g = num_randn(F32, rows + 1, cols), p->step.has_grad = i % 5 != 3;
        if (i == 7) p->shard.unique = rows * cols;
        cell[2 * i] = cell[2 * i + 1] = -1;
    }
    optim_grad_norm(&m, BE, sum, each);
    for (int i = 0; i < 2 * MANY; i++) {
        const Param *p = m.params.p[i / 2];
        int64_t above = p->shard.g.n[0] - 1;
        double  own = square_sum(i % 2 ? t_rows(p->shard.g, above, 1) : t_rows(p->shard.g, 0, above));
        bool    counts = p->step.has_grad && i != 15;
        EXPECT(counts == optim_owns_piece(p, i % 2), "tensor %d", i);
        EXPECT(counts ? fabs(cell[i] - own) <= 1e-12 * own : cell[i] == -1, "tensor %d: %g", i, cell[i]);
        if (counts) want += own;
    }
    EXPECT(fabs(value(sum) - want) <= 1e-12 * want, "%.15g, not %.15g", value(sum), want);
    optim_grad_norm(&m, BE, sum, none);
    EXPECT(fabs(value(sum) - want) <= 1e-12 * want, "by itself %.15g, not %.15g", value(sum), want);
    params_close(&m.params);
    num_clear();
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

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
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

/* Five steps; dw, ds and dg are the types of the weight, of its moments and of the gradient. */
static void check_steps(int64_t n, DType dw, DType ds, DType dg, bool master, float max_norm)
{
    AdamW  h = { .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .decay = 0.1f,
                 .max_norm = max_norm };
    Tensor w = num_randn(dw, 1, n), p = master ? num_copy(w, F32) : none, ref = num_poison(F32, 1, n);
    Tensor m = num_zeros(ds, 1, n), v = num_zeros(ds, 1, n);
    State *s = arena_push(&num_.a, "lab", (size_t)n * sizeof *s);
    for (int64_t i = 0; i < n; i++) s[i] = (State){ get(w, i), 0, 0 };
    for (h.step = 1; h.step <= 5; h.step++) {
        Tensor g = num_randn(dg, 1, n), norm = tally(0);
        op_squares(BE, norm, none, &(Addends){ 1, { { g, 0, false } } });
        op_adamw(BE, w, p, m, v, g, norm, h);
        for (int64_t i = 0; i < n; i++) step_double(&s[i], get(g, i), value(norm), h);
    }
    for (int64_t i = 0; i < n; i++) put(ref, i, (float)s[i].p);
    EXPECT_CLOSE(master ? p : w, ref, ds == F32 ? 3e-6 : 1e-2);
    for (int64_t i = 0; master && i < n; i++)
        EXPECT(dw == F32 ? get(w, i) == get(p, i) : ((uint16_t *)w.data)[i] == bits_near(bits(get(p, i))),
               "w is not master, rounded");
    for (int64_t i = 0; i < n; i++) put(ref, i, (float)s[i].m);
    EXPECT_CLOSE(m, ref, ds == F32 ? 3e-6 : 2e-2);
    for (int64_t i = 0; i < n; i++) put(ref, i, (float)s[i].v);
    EXPECT_CLOSE(v, ref, ds == F32 ? 3e-6 : 3e-2);
}

static void agrees_with_double(void)
{
    static const int64_t ns[] = { 3, 6, 17, 2047, 2049, 9001 };
    for (int i = 0; i < 6; i++) {
        check_steps(ns[i], F32, F32, F32, false, 0);
        check_steps(ns[i], BF16, F32, BF16, true, 1.0f);
        check_steps(ns[i], F32, F32, F32, true, 1e9f);           /* a limit far above the norm does nothing */
        check_steps(ns[i], BF16, BF16, i % 2 ? BF16 : F32, true, 0.1f);
        num_clear();
    }
}

static const uint32_t edges[] = {
    0, 0x80000000, 1, 0x80000001, 0x7fff, 0x8000, 0x8001, 0x80008000, 0x007fffff, 0x807fffff, /* denormals */
    0x3f807fff, 0x3f808000, 0xbf808000, 0x3f818000, 0xbf818000, 0x3f808001,                        /* ties */
    0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,       /* rounded up to infinity */
    0x7f800001, 0x7fffffff, 0xffffffff, 0xffc00000, 0xff808000,                                    /* NaN */
};
enum { EDGES = sizeof edges / sizeof *edges };

static bool is_nan(uint32_t u) { return (u & 0x7fffffff) > 0x7f800000; }

/* Every number comes back from a bf16 and its rest; the bf16 is the nearest, ties go away from zero. */
static void halves_say_all(void)
{
    for (int64_t i = 0; i < 2000000; i++) {
        uint32_t u = i < EDGES ? edges[i] : rng_u32(num_.seed, 3, (uint64_t)i), q = bits_quiet(u);
        uint16_t near = bits_near(q), want = (uint16_t)((u >> 16) + ((u & 0xffff) >= 0x8000));
        bool     back = bits_join(near, bits_rest(q)) == q && (is_nan(u) || q == u);
        if (back && (is_nan(u) ? is_nan((uint32_t)near << 16) : near == want)) continue;
        EXPECT(false, "%08x: %04x and %04x", u, near, bits_rest(q));
        return;
    }
}

/* Weights and moments of 50 steps with an f32 master and with the rest alone, from every kind of number and
 * with gradients of every kind: the same bits at every step. */
static void a_split_master_takes_the_same_steps(DType moments, int64_t n)
{
    Tensor p = num_randn(F32, 1, n), rest = t2(&num_.a, "lab", I16, 1, n), w[2], m[2], v[2];
    AdamW  h = { .lr = 0.03f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .max_norm = 30.0f };
    for (int64_t i = 0; i < EDGES && i < n; i++) ((uint32_t *)p.data)[i] = edges[i];
    for (int k = 0; k < 2; k++)
        w[k] = num_poison(BF16, 1, n), m[k] = num_zeros(moments, 1, n), v[k] = num_zeros(moments, 1, n);
    op_set_weight(BE, w[1], rest, p);
    op_set_weight(BE, w[0], p, p);
    for (h.step = 1; h.step <= 50; h.step++) {
        Tensor g = num_randn(F32, 1, n), norm = tally(0);
        for (int64_t i = 0; i < n; i += 3) put(g, i, 0);          /* decay alone */
        for (int64_t i = 1; i < n; i += 7) put(g, i, get(g, i) * 1e-30f);
        op_squares(BE, norm, none, &(Addends){ 1, { { g, 0, false } } });
        op_adamw(BE, w[0], p, m[0], v[0], g, norm, h);
        op_adamw(BE, w[1], rest, m[1], v[1], g, norm, h);
        int64_t lost = 0;
        for (int64_t i = 0; i < n; i++) {
            uint32_t u = bits_join(((uint16_t *)w[1].data)[i], ((uint16_t *)rest.data)[i]);
            lost += u != ((uint32_t *)p.data)[i];
        }
        EXPECT(!lost && same_bits(w[0], w[1]) && same_bits(m[0], m[1]) && same_bits(v[0], v[1]),
               "step %lld: %lld of %lld masters differ", (long long)h.step, (long long)lost, (long long)n);
        if (lost) break;
    }
    num_clear();
}

static void split_masters(void)
{
    static const int64_t ns[] = { 1, 40, 2047, 2049, 40001 };
    for (int i = 0; i < 5; i++)
        a_split_master_takes_the_same_steps(F32, ns[i]), a_split_master_takes_the_same_steps(BF16, ns[i]);
}

/* What is set is what a step would have left: into f32, beside an f32 master, or split. */
static void weights_are_set(void)
{
    int64_t n = 5000;
    Tensor  x = num_randn(F32, 1, n), wide = num_poison(F32, 1, n), p = num_poison(F32, 1, n);
    Tensor  w[2] = { num_poison(BF16, 1, n), num_poison(BF16, 1, n) }, rest = t2(&num_.a, "lab", I16, 1, n);
    for (int64_t i = 0; i < EDGES; i++) ((uint32_t *)x.data)[i] = bits_quiet(edges[i]);
    op_set_weight(BE, wide, none, x);
    op_set_weight(BE, w[0], p, x);
    op_set_weight(BE, w[1], rest, x);
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += ((uint16_t *)w[0].data)[i] != bits_near(((uint32_t *)x.data)[i]);
    EXPECT(!bad && same_bits(wide, x) && same_bits(p, x) && same_bits(w[0], w[1]), "%lld", (long long)bad);
    num_clear();
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
        AdamStep now = adam_step(&h);
        AdamW    by_address = h;
        by_address.now = &now, by_address.lr = NAN, by_address.step = 99;
        op_adamw(BE, w[i], p, m, v, g, none, i ? by_address : h);
    }
    EXPECT(!memcmp(w[0].data, w[1].data, (size_t)t_bytes(w[0])), "threads change the step");
    num_clear();
}

int main(void)
{
    numlab_open();
    RUN(known_squares);
    RUN(squares_of_lists);
    RUN(norm_of_many_tensors);
    RUN(first_step_known);
    RUN(agrees_with_double);
    RUN(halves_say_all);
    RUN(split_masters);
    RUN(weights_are_set);
    RUN(clipping);
    RUN(any_rank_and_threads);
    return numlab_report();
}
