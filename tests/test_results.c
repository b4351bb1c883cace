/* tests/test_results.c -- results of a step that are gathered on the device: losses, choices of experts, the
 * verdict and what AdamW makes of it. */
#include "numlab.h"

#include "engine/step_results.h"

static const Tensor absent;

static Tensor doubles(int64_t n, const double *v)
{
    Tensor t = t1(&num_.a, "lab", F64, n);
    memcpy(t.data, v, (size_t)n * sizeof *v);
    return t;
}

static Tensor ints(int64_t rows, int64_t cols, const int32_t *v)
{
    Tensor t = cols ? t2(&num_.a, "lab", I32, rows, cols) : t1(&num_.a, "lab", I32, rows);
    if (v) memcpy(t.data, v, (size_t)t_bytes(t));
    else   memset(t.data, 0, (size_t)t_bytes(t));
    return t;
}

static void losses_add_up(void)
{
    Tensor  sums = doubles(SUMS, (double[]){ 1, 2, 3, 4 }), ce = doubles(2, (double[]){ 0.5, 0.25 });
    Tensor  aux = num_vals(F32, 1, 3, (float[]){ 4, 8, NAN });
    double *s = sums.data;
    op_add_losses(BE, sums, ce, aux, factor(0.25f), factor(0.5f));
    EXPECT(s[SUM_CE] == 1.5 && s[SUM_AUX] == 3 && s[SUM_Z] == 7 && s[SUM_MTP] == 4.25, "%g %g %g %g",
           s[0], s[1], s[2], s[3]);
    op_add_losses(BE, sums, ce, absent, factor(0.25f), factor(0.5f));
    EXPECT(s[SUM_CE] == 2 && s[SUM_AUX] == 3 && s[SUM_Z] == 7, "without routers: %g %g %g", s[0], s[1], s[2]);
    num_clear();
}

static void known_counts(void)
{
    Tensor idx = ints(4, 2, (int32_t[]){ 0, 2, 2, 1, 2, 0, 1, 2 }), count = ints(3, 0, NULL);
    Tensor group = ints(4, 0, (int32_t[]){ 0, 3, -1, 0 }), rows = ints(3, 0, (int32_t[]){ 3, -1, 1 });
    int32_t *n = count.data;
    op_count_experts(BE, count, idx, group, absent);
    EXPECT(n[0] == 1 && n[1] == 2 && n[2] == 3, "%d %d %d", n[0], n[1], n[2]);
    op_count_experts(BE, count, idx, group, rows);
    EXPECT(n[0] == 1 && n[1] == 4 && n[2] == 5, "added to: %d %d %d", n[0], n[1], n[2]);
    op_count_experts(BE, count, ints(0, 2, NULL), ints(0, 0, NULL), absent);
    EXPECT(n[0] == 1 && n[1] == 4 && n[2] == 5, "no tokens: %d %d %d", n[0], n[1], n[2]);
    num_clear();
}

static void random_counts(void)
{
    for (int k = 0; k < 20; k++) {
        int64_t T = num_below(300), K = 1 + num_below(8), E = 1 + num_below(130), wrong = 0;
        Tensor  idx = ints(T, K, NULL), group = ints(T, 0, NULL), count = ints(E, 0, NULL);
        int32_t want[130] = { 0 }, *e = idx.data, *g = group.data;
        for (int64_t t = 0; t < T; t++) {
            g[t] = (int32_t)num_below(4) - 1;
            for (int64_t i = t * K; i < (t + 1) * K; i++) {
                e[i] = (int32_t)num_below(E + 3) - 1;        /* also experts that there are not */
                if (g[t] >= 0 && e[i] >= 0 && e[i] < E) want[e[i]]++;
            }
        }
        op_count_experts(BE, count, idx, group, absent);
        for (int64_t i = 0; i < E; i++) wrong += want[i] != ((int32_t *)count.data)[i];
        EXPECT(!wrong, "%lld of %lld counts", (long long)wrong, (long long)E);
        num_clear();
    }
}

/* Below the mean up, above it down, at it nothing; a step that is not good changes nothing. */
static void biases_step(void)
{
    Tensor bias = num_vals(F32, 1, 4, (float[]){ 0, 1, -1, 0.5f });
    Tensor count = ints(4, 0, (int32_t[]){ 3, 5, 4, 4 }), verdict = doubles(1, (double[]){ STEP_SPIKE });
    const float *b = bias.data;
    op_bias_step(BE, bias, count, verdict, 0.25f);
    EXPECT(b[0] == 0 && b[1] == 1, "a spike moved biases: %g %g", b[0], b[1]);
    *(double *)verdict.data = STEP_GOOD;
    op_bias_step(BE, bias, count, verdict, 0.25f);
    EXPECT(b[0] == 0.25f && b[1] == 0.75f && b[2] == -1 && b[3] == 0.5f, "%g %g %g %g", b[0],
           b[1], b[2], b[3]);
    op_bias_step(BE, bias, ints(4, 0, (int32_t[]){ INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX - 1 }), absent,
                 0.25f);
    EXPECT(b[0] == 0 && b[3] == 0.75f, "large counts: %g %g", b[0], b[3]);
    op_bias_step(BE, bias, ints(4, 0, NULL), absent, 0.25f);
    EXPECT(b[0] == 0 && b[3] == 0.75f, "no token: %g %g", b[0], b[3]);
    num_clear();
}

static void verdicts(void)
{
    static const struct { double ce, aux, sumsq, highest, held; bool empty; StepVerdict want; double after;
    } rows[] = {
        { 5, 1, 4, 0, 0, false, STEP_GOOD, 5.5 },        { 49, 1, 4, 5, 0, false, STEP_GOOD, 49.5 },
        { 49.5, 1, 4, 5, 0, false, STEP_GOOD, 50 },      { 50, 1, 4, 5, 0, false, STEP_SPIKE, 5 },
        { NAN, 1, 4, 5, 0, false, STEP_NOT_FINITE, 5 },  { 1, INFINITY, 4, 5, 0, true, STEP_NOT_FINITE, 5 },
        { 1, 1, NAN, 5, 0, false, STEP_NOT_FINITE, 5 },  { 1, 1, INFINITY, 5, 0, false, STEP_NOT_FINITE, 5 },
        { 0, 0, 0, 5, 0, true, STEP_EMPTY, 5 },          { 9, 1, 4, 5, 1, false, STEP_HELD, 5 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Tensor  guard = doubles(GUARD_CELLS, (double[]){ -1, rows[i].highest, rows[i].held });
        Tensor  sums = doubles(SUMS, (double[]){ rows[i].ce, rows[i].aux, 0, 0 });
        double *g = guard.data;
        StepLimits limits = { .aux_coeff = 0.5, .spike = 10, .supervised = !rows[i].empty };
        op_step_verdict(BE, guard, sums, doubles(1, &rows[i].sumsq), limits);
        bool bad = rows[i].want == STEP_SPIKE || rows[i].want == STEP_NOT_FINITE || rows[i].held > 0;
        EXPECT(g[GUARD_VERDICT] == rows[i].want && g[GUARD_HIGHEST] == rows[i].after && g[GUARD_HELD] == bad,
               "row %zu: %g %g %g", i, g[0], g[1], g[2]);
        limits.spike = 0;
        if (rows[i].want == STEP_SPIKE) {
            g[GUARD_HELD] = 0;
            op_step_verdict(BE, guard, sums, doubles(1, &rows[i].sumsq), limits);
            EXPECT(g[GUARD_VERDICT] == STEP_GOOD, "the check is switched off");
        }
        num_clear();
    }
}

static void adamw_obeys(void)
{
    AdamW h = { .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .step = 1 };
    for (int v = STEP_GOOD; v <= STEP_HELD; v++) {
        Tensor w = num_randn(F32, 1, 3000), m = num_randn(F32, 1, 3000), s = num_randn(F32, 1, 3000);
        Tensor g = num_randn(F32, 1, 3000), before = num_randn(F32, 1, 3000);
        memcpy(before.data, w.data, (size_t)t_bytes(w));
        h.verdict = doubles(1, (double[]){ v });
        op_adamw(BE, w, absent, m, s, g, absent, h);
        EXPECT((memcmp(before.data, w.data, (size_t)t_bytes(w)) == 0) == (v != STEP_GOOD), "verdict %d", v);
        num_clear();
    }
}

/* The slots have the same layout as the block, and keep what was posted. */
static void results_are_posted(void)
{
    StepResults r;
    Arena       a;
    double      seconds[PART_TIMES] = { 0 };
    StepResultsConf conf = { .tensors = 3, .layers = 2, .experts = 5, .micros = 2, .rows = 7 };
    EXPECT_OK(backend_arena_open(BE, &a, "lab", 1 << 16));
    EXPECT_OK(step_results_open(&r, BE, &a, &conf));
    step_results_set_guard(&r, BE, 4.5);
    for (int slot = 0; slot < POST_SLOTS; slot++) {
        step_results_begin(&r, BE);
        op_fill(BE, r.device.squares, (float)slot);
        op_fill(BE, step_results_counts(&r.device, 1, COUNT_VISUAL), (float)(7 + slot));
        op_fill(BE, step_results_row_loss(&r, &r.device, 1), (float)(3 + slot));
        step_results_post(&r, BE, slot);
    }
    for (int slot = 0; slot < POST_SLOTS; slot++) {
        const ResultBlock *b = &r.slot[slot];
        EXPECT_OK(step_results_wait(&r, BE, slot, seconds));
        EXPECT(((double *)b->guard.data)[GUARD_HIGHEST] == 4.5 && !((double *)b->sums.data)[SUM_CE], "guard");
        EXPECT(((double *)b->squares.data)[2] == slot, "squares of slot %d", slot);
        EXPECT(((int32_t *)step_results_counts(b, 1, COUNT_VISUAL).data)[4] == 7 + slot &&
               ((int32_t *)step_results_counts(b, 1, COUNT_ALL).data)[4] == 0, "counts of slot %d", slot);
        EXPECT(((float *)step_results_row_loss(&r, b, 1).data)[6] == (float)(3 + slot), "row losses");
    }
    step_results_close(&r, BE);
    backend_arena_close(BE, &a);
}

int main(void)
{
    numlab_open();
    RUN(losses_add_up);
    RUN(known_counts);
    RUN(random_counts);
    RUN(biases_step);
    RUN(verdicts);
    RUN(adamw_obeys);
    RUN(results_are_posted);
    return numlab_report();
}
