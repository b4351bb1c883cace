/* tests/test_pack.c -- random orders, packing documents into bins and bins into steps: nothing is lost,
 * doubled or over budget. */
#include "lab.h"

#include "base/rng.h"
#include "data/order.h"
#include "data/step_packer.h"

static const Budget budget = { .tokens = 1000, .patches = 4096, .docs = 12, .supervised = 800 };

static void order_is_a_permutation(void)
{
    for (int64_t n = 1; n < 3000; n = n * 2 + (n % 3)) {
        char *seen = calloc((size_t)n, 1);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = order_at(n, 7, 3, i);
            EXPECT(at >= 0 && at < n && !seen[at], "%lld of %lld", (long long)at, (long long)n);
            if (at >= 0 && at < n) seen[at] = 1;
        }
        free(seen);
    }
}

/* Each of n elements gets each position about equally often: chi-squared with (n - 1)^2 degrees of
 * freedom. */
static void chi_squared(int n, double *chi, double *freedom)
{
    enum { DRAWS = 20000 };
    int *count = calloc((size_t)(n * n), sizeof *count);
    double even = (double)DRAWS / n;
    for (int s = 0; s < DRAWS; s++)
        for (int i = 0; i < n; i++) count[i * n + order_at(n, (uint64_t)s, 11, i)]++;
    *chi = 0, *freedom = (n - 1.0) * (n - 1.0);
    for (int i = 0; i < n * n; i++) *chi += (count[i] - even) * (count[i] - even) / even;
    free(count);
}

static void order_is_even(void)
{
    static const int sizes[] = { 2, 3, 5, 16, 31 };
    for (int k = 0; k < 5; k++) {
        double chi, f;
        chi_squared(sizes[k], &chi, &f);
        EXPECT(fabs(chi - f) < 5 * sqrt(2 * f), "n %d: chi^2 %.1f with %.0f degrees of freedom", sizes[k],
               chi, f);
    }
}

/* All 24 orders of four elements occur, and neighbours in a long order do not stay neighbours. */
static void order_is_mixed(void)
{
    int seen[256] = { 0 }, kinds = 0, least = 1 << 30, close = 0;
    for (int s = 0; s < 24000; s++) {
        int code = 0;
        for (int i = 0; i < 4; i++) code = code * 4 + (int)order_at(4, 99, (uint64_t)s, i);
        seen[code]++;
    }
    for (int i = 0; i < 256; i++)
        if (seen[i]) kinds++, least = seen[i] < least ? seen[i] : least;
    EXPECT(kinds == 24 && least > 850, "%d orders, the rarest %d times of about 1000", kinds, least);
    for (int64_t i = 0; i + 1 < 100000; i++)
        close += llabs(order_at(100000, 5, 5, i) - order_at(100000, 5, 5, i + 1)) < 100;
    EXPECT(close > 120 && close < 280, "%d pairs within 100 of 100000, about 200 wanted", close);
}

/* Realistic lengths: many short, few long, some with pictures. */
static DocSize size_of(uint64_t seed, int64_t i)
{
    double  u = rng_uniform(seed, 1, (uint64_t)i), p = rng_uniform(seed, 2, (uint64_t)i);
    int64_t patches = p < 0.5 ? 0 : 4 * (int64_t)(p * p * 1000);
    int64_t tokens = 1 + (int64_t)(900 * u * u * u) + patches / 40;
    return (DocSize){ tokens, patches, tokens / 2 };
}

static void check_bin(const PackBin *b, char *seen)
{
    DocSize sum = { 0 };
    for (int64_t i = 0; i < b->docs; i++) {
        const PackDoc *d = &b->doc[i];
        EXPECT(!seen[d->at], "document %lld comes twice", (long long)d->at);
        seen[d->at] = 1;
        sum.tokens += d->size.tokens, sum.patches += d->size.patches, sum.supervised += d->size.supervised;
    }
    EXPECT(sum.tokens == b->used.tokens && sum.patches == b->used.patches, "sums");
    EXPECT(sum.tokens <= budget.tokens && sum.patches <= budget.patches &&
               sum.supervised <= budget.supervised && b->docs <= budget.docs,
           "over budget: %lld tokens", (long long)sum.tokens);
}

/* The steps of one pass as "position position | position ...", with their budgets checked. */
static int64_t run_pass(StepPacker *p, uint64_t seed, char *text, size_t cap)
{
    int     n = p->ranks * p->micro;
    PackBin bins[64];
    int64_t epoch = p->epoch, steps = 0;
    char   *seen = calloc((size_t)p->pass, 1);
    size_t  at = 0;
    while (p->epoch == epoch) {
        if (!step_packer_has_step(p)) {
            DocSize size = size_of(seed, p->position);
            EXPECT_OK(step_packer_put(p, p->position % 97 == 13 ? NULL : &size));
            if (p->position % 97 == 14) seen[p->position - 1] = 1;
            continue;
        }
        EXPECT_OK(step_packer_take(p, bins));
        for (int i = 0; i < n; i++) {
            check_bin(&bins[i], seen);
            for (int64_t d = 0; text && d < bins[i].docs && at + 16 < cap; d++)
                at += (size_t)snprintf(text + at, cap - at, "%lld%s", (long long)bins[i].doc[d].at,
                                       d + 1 < bins[i].docs ? " " : "|");
            pack_bin_close(&bins[i]);
        }
        steps++;
    }
    int64_t lost = 0;
    for (int64_t i = 0; i < p->pass; i++) lost += !seen[i];
    EXPECT(lost == 0, "%lld samples lost", (long long)lost);
    free(seen);
    return steps;
}

static void nothing_lost_or_doubled(void)
{
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int micro = 1; micro <= 3; micro++) {
            StepPacker p;
            step_packer_open(&p, &budget, 700, ranks, micro);
            for (uint64_t e = 0; e < 3; e++) run_pass(&p, e, NULL, 0);
            step_packer_close(&p);
        }
}

/* 1 x 4 and 4 x 1 get the same documents in each step; packing twice gives the same steps. */
static void steps_are_reproducible(void)
{
    enum { BYTES = 1 << 16 };
    char *a = malloc(BYTES), *b = malloc(BYTES);
    StepPacker p, q;
    step_packer_open(&p, &budget, 900, 2, 2);
    step_packer_open(&q, &budget, 900, 2, 2);
    int64_t n = run_pass(&p, 5, a, BYTES), m = run_pass(&q, 5, b, BYTES);
    EXPECT(n == m && !strcmp(a, b), "two equal packers differ");
    step_packer_close(&p), step_packer_close(&q);
    step_packer_open(&q, &budget, 900, 4, 1);
    EXPECT(run_pass(&q, 5, b, BYTES) == n, "the steps depend on the number of ranks");
    step_packer_close(&q);
    free(a), free(b);
}

static void fills_well(void)
{
    Packer  p;
    PackBin bin;
    bool    full;
    int64_t bins = 0, tokens = 0, docs = 0;
    Budget  b = { .tokens = 1000, .patches = 1 << 20, .docs = 1000, .supervised = 1000 };
    packer_open(&p, &b);
    for (int64_t i = 0; i < 20000; i++) {
        PackDoc d = { i, size_of(3, i) };
        EXPECT_OK(packer_add(&p, &d, &bin, &full));
        if (full) bins++, tokens += bin.used.tokens, docs += bin.docs, pack_bin_close(&bin);
    }
    double share = (double)tokens / (double)(bins * b.tokens);
    EXPECT(share > 0.985, "bins are %.1f %% full with %.1f documents each", 100 * share,
           (double)docs / (double)bins);
    packer_close(&p);
    packer_close(&p);
}

static void deals_like_with_like(void)
{
    enum { RANKS = 8, MICRO = 4 };
    PackBin bins[RANKS * MICRO] = { 0 };
    int     place[RANKS * MICRO], used[RANKS * MICRO] = { 0 };
    double  least = 1e30, most = 0;
    for (int i = 0; i < RANKS * MICRO; i++) {
        PackDoc d = { i, { 900, 1000 * (i % 9), 100 } };
        EXPECT_OK(pack_bin_push(&bins[i], &d));
    }
    EXPECT_OK(pack_bins_assign(place, bins, RANKS, MICRO));
    for (int r = 0; r < RANKS; r++) {
        double sum = 0;
        for (int k = 0; k < MICRO; k++)
            used[place[r * MICRO + k]]++, sum += pack_bin_cost(&bins[place[r * MICRO + k]]);
        least = sum < least ? sum : least, most = sum > most ? sum : most;
    }
    for (int i = 0; i < RANKS * MICRO; i++) {
        EXPECT(used[i] == 1, "bin %d is assigned %d times", i, used[i]);
        pack_bin_close(&bins[i]);
    }
    EXPECT(most / least < 1.08, "the rank with most work has %.2f times the least work", most / least);
}

/* In a last step of few documents every micro-batch gets one before any gets a second. */
static void spreads_the_rest(void)
{
    StepPacker p;
    PackBin bins[8];
    DocSize size = { 100, 40, 50 };
    step_packer_open(&p, &budget, 9, 4, 2);
    for (int i = 0; i < 9; i++) EXPECT_OK(step_packer_put(&p, &size));
    EXPECT(step_packer_has_step(&p), "the end of a pass makes a step");
    EXPECT_OK(step_packer_take(&p, bins));
    int twos = 0;
    for (int i = 0; i < 8; i++) {
        EXPECT(bins[i].docs >= 1, "bin %d is empty", i);
        twos += bins[i].docs == 2;
        pack_bin_close(&bins[i]);
    }
    EXPECT(twos == 1 && p.epoch == 1 && p.position == 0, "%d bins of two", twos);
    step_packer_close(&p);
}

/* Saving and restoring after every step does not change the steps. */
static void resumes_anywhere(void)
{
    enum { BYTES = 1 << 16 };
    char *whole = malloc(BYTES), *pieces = malloc(BYTES);
    StepPacker p;
    PackBin bins[6];
    size_t  at = 0;
    step_packer_open(&p, &budget, 400, 3, 2);
    run_pass(&p, 8, whole, BYTES);
    step_packer_close(&p);
    step_packer_open(&p, &budget, 400, 3, 2);
    while (p.epoch == 0) {
        if (!step_packer_has_step(&p)) {
            DocSize size = size_of(8, p.position);
            EXPECT_OK(step_packer_put(&p, p.position % 97 == 13 ? NULL : &size));
            continue;
        }
        EXPECT_OK(step_packer_take(&p, bins));
        for (int i = 0; i < 6; i++) {
            for (int64_t d = 0; d < bins[i].docs; d++)
                at += (size_t)snprintf(pieces + at, BYTES - at, "%lld%s", (long long)bins[i].doc[d].at,
                                       d + 1 < bins[i].docs ? " " : "|");
            pack_bin_close(&bins[i]);
        }
        Json *state;
        EXPECT_OK(step_packer_state(&p, &state));
        step_packer_close(&p);
        step_packer_open(&p, &budget, 400, 3, 2);
        EXPECT_OK(step_packer_restore(&p, state));
        json_decref(state);
    }
    EXPECT(!strcmp(whole, pieces), "the steps changed");
    step_packer_close(&p);
    free(whole), free(pieces);
}

static void refuses(void)
{
    StepPacker p;
    Json   *state;
    DocSize size = { 1001, 0, 0 }, wide = { 1, 5000, 0 }, fits = { 1000, 4096, 800 };
    EXPECT(!strcmp(pack_over_budget(&budget, &size), "tokens") &&
               !strcmp(pack_over_budget(&budget, &wide), "patches"),
           "reasons");
    EXPECT(!pack_over_budget(&budget, &fits), "a document of exactly the budget");
    step_packer_open(&p, &budget, 3, 1, 1);
    EXPECT_OK(step_packer_put(&p, NULL));
    EXPECT_OK(step_packer_put(&p, NULL));
    EXPECT_FAIL(step_packer_put(&p, NULL), E_DATA, "none of the 3");
    step_packer_close(&p);
    step_packer_open(&p, &budget, 300, 1, 1);
    EXPECT_OK(step_packer_put(&p, &fits));
    EXPECT_OK(step_packer_state(&p, &state));
    step_packer_close(&p);
    step_packer_open(&p, &budget, 301, 1, 1);
    EXPECT_FAIL(step_packer_restore(&p, state), E_CONFIG, "pass was 300");
    step_packer_close(&p);
    json_object_set_new(state, "open", json_pack("[[i,i,i,i]]", 999, 1, 1, 1));
    step_packer_open(&p, &budget, 300, 1, 1);
    EXPECT_FAIL(step_packer_restore(&p, state), E_DATA, "impossible");
    step_packer_close(&p);
    json_decref(state);
}

int main(void)
{
    RUN(order_is_a_permutation);
    RUN(order_is_even);
    RUN(order_is_mixed);
    RUN(nothing_lost_or_doubled);
    RUN(steps_are_reproducible);
    RUN(fills_well);
    RUN(deals_like_with_like);
    RUN(spreads_the_rest);
    RUN(resumes_anywhere);
    RUN(refuses);
    return lab_report();
}
