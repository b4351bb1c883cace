/* tests/test_profile.c -- arithmetic on intervals, the causes of gaps, the profile of a small run,
 * and profile.json. */
#include "base/folder.h"
#include "runlab.h"
#include "base/graph_scopes.h"
#include "ops/ops.h"
#include "profile/analyze.h"
#include "profile/measure.h"
#include "profile/predict.h"

/* ---- intervals ---- */

enum { MOST = 64, GRID = 200 };

static size_t draw(Interval *x, unsigned *seed, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double a = rand_r(seed) % GRID, b = rand_r(seed) % GRID;
        x[i] = (Interval){ a, b }; /* half of them end before they begin */
    }
    return intervals_union(x, n);
}

/* Cells [i, i + 1) of the grid that a set covers. */
static void paint(bool *cell, const Interval *x, size_t n)
{
    memset(cell, 0, GRID);
    for (size_t i = 0; i < n; i++)
        for (int c = (int)x[i].from; c < (int)x[i].to; c++) cell[c] = true;
}

static bool is_set(const Interval *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(x[i].from < x[i].to) || (i && x[i].from < x[i - 1].to)) return false;
    return true;
}

static void unions_are_sets(void)
{
    Interval x[] = { { 5, 7 }, { 0, 2 }, { 1, 3 }, { 3, 4 }, { 9, 9 }, { 8, 6 } };
    size_t   n   = intervals_union(x, 6);
    EXPECT(n == 2 && x[0].from == 0 && x[0].to == 4 && x[1].from == 5 && x[1].to == 7, "%zu", n);
    EXPECT(intervals_length(x, n) == 6, "%g", intervals_length(x, n));
    EXPECT(intervals_union(x, 0) == 0 && intervals_length(x, 0) == 0, "empty");
}

/* Random sets against a grid of cells. */
static void sets_agree_with_cells(void)
{
    unsigned seed = 17;
    for (int round = 0; round < 2000; round++) {
        Interval a[MOST], b[MOST], out[2 * MOST + 1];
        Interval window = { rand_r(&seed) % 50, 100 + rand_r(&seed) % 100 };
        bool     ca[GRID], cb[GRID], co[5][GRID];
        size_t   n = draw(a, &seed, (size_t)(rand_r(&seed) % MOST));
        size_t   m = draw(b, &seed, (size_t)(rand_r(&seed) % 9)), k[5];
        paint(ca, a, n), paint(cb, b, m);
        for (int op = 0; op < 5; op++) {
            memset(out, 0xff, sizeof out);
            k[op] = op == 0   ? intervals_intersect(out, a, n, b, m)
                    : op == 1 ? intervals_subtract(out, a, n, b, m)
                    : op == 2 ? intervals_merge(out, a, n, b, m)
                    : op == 3 ? intervals_clip(out, a, n, window)
                              : intervals_gaps(out, a, n, window);
            EXPECT(is_set(out, k[op]), "round %d op %d", round, op);
            paint(co[op], out, k[op]);
        }
        for (int c = 0; c < GRID; c++) {
            bool in      = c >= (int)window.from && c < (int)window.to;
            bool want[5] = { ca[c] && cb[c], ca[c] && !cb[c], ca[c] || cb[c], ca[c] && in, !ca[c] && in };
            for (int op = 0; op < 5; op++)
                if (want[op] != co[op][c]) EXPECT(false, "round %d op %d cell %d", round, op, c);
        }
    }
}

/* ---- analysis ---- */

#define HOST(k, i, a, b, ...)                                                                                \
    {                                                                                                        \
        .kind = HOST_##k, .id = i, .from = a, .to = b, __VA_ARGS__                                           \
    }
#define KERNEL(a, b, l, s)                                                                                   \
    {                                                                                                        \
        .from = a, .to = b, .launched = l, .stream = s, .name = "kernel"                                     \
    }

static bool near(double a, double b) { return fabs(a - b) < 1e-4; }

/* One step of 100 s after one that ends at 10, on a device with three streams:
 *   compute 10-30, gap 30-35 (launched late, at 34), 35-50, gap 50-60 (launched; communication 45-58), 60-90
 *   but for a short drain, gap 90-92 (launched), 92-110; a copy 20-40; a second group 85-105.
 * Of the gap 50-60 nothing explains the last 2 s, and the host sees the end half a second late. */
static void gaps_have_causes(void)
{
    HostEvent  host[]   = { HOST(OP, OP_gemm, 0, 1),
                            HOST(OP, OP_gemm, 11, 12),
                            HOST(CALL, GR_tp, 12, 13, .intra_node = 64),
                            HOST(COPY, COPY_H2D, 13, 14),
                            HOST(OP, OP_adamw, 34, 34.5, .place.part = PART_OPTIM, .place.pass = PASS_UPDATE),
                            HOST(OP, OP_attention_fwd, 40, 41, .place = { PART_DECODER, GRAPH_ATTN }),
                            HOST(CALL, GR_dp, 41, 42),
                            HOST(OP, OP_grouped_gemm, 42, 43, .place = { PART_DECODER }),
                            HOST(SYNC, 0, 50, 110.5),
                            HOST(DATA, 0, 30, 33) };
    DeviceSpan device[] = {
        KERNEL(5, 10, 0.5, 7),
        KERNEL(10, 30, 11.5, 7),
        KERNEL(45, 58, 12.5, 8),
        { .from = 20, .to = 40, .launched = 13.5, .kind = SPAN_H2D, .bytes = 99, .stream = 9 },
        KERNEL(35, 50, 34.2, 7),
        KERNEL(60, 70, 40.5, 7),
        KERNEL(70.00001, 90, 40.6, 7),
        KERNEL(85, 105, 41.5, 8),
        KERNEL(92, 110, 42.5, 7)
    };
    StepMark    mark[] = { { 0, 10, 0 }, { 10.5, 110, 0 } };
    Recorder    r = { .event = host, .n = sizeof host / sizeof *host, .calls = { [GR_tp] = 1, [GR_dp] = 1 } };
    SpanList    s;
    StepProfile p;
    step_profile_clear(&p);
    EXPECT_OK(spans_open(&s, &r, device, sizeof device / sizeof *device, mark, 2));
    EXPECT_OK(analyze(&p, &s, &r));
    EXPECT(near(p.step, 100) && near(p.compute, 83) && near(p.busy, 98) && near(p.idle, 2), "%g %g %g %g",
           p.step, p.compute, p.busy, p.idle);
    EXPECT(near(p.launch_starved, 4.2) && near(p.blocking, 8 + 2 + 0.8) && near(1e5 * p.dependency, 1),
           "%g %g %g", p.launch_starved, p.blocking, p.dependency);
    EXPECT(near(p.comm, 33) && near(p.exposed, 8 + 2) && near(p.hidden, 23) && near(p.copies, 5),
           "%g %g %g %g", p.comm, p.exposed, p.hidden, p.copies);
    EXPECT(near(p.group[GR_tp].exposed, 8) && near(p.group[GR_tp].blocking, 8) && p.group[GR_tp].calls == 1 &&
               p.group[GR_tp].intra_node == 64 && near(p.group[GR_dp].exposed, 2),
           "groups");
    EXPECT(near(p.category[CAT_GROUPED_GEMM], 18) && near(p.category[CAT_ATTENTION], 30) &&
               near(p.category[CAT_OPTIMIZER], 15) && near(p.category[CAT_COPY_H2D], 20) && p.copy_in == 99,
           "categories");
    EXPECT(near(p.layer[LAYER_ATTENTION], 30) && near(p.layer[LAYER_MOE], 18) && near(p.optimizer, 15),
           "layers");
    EXPECT(near(p.data_wait, 3) && near(p.residual, 2 + 0.5), "%g %g", p.data_wait, p.residual);
    spans_close(&s);
}

/* Where ops are done when they return: a join is blocking, host code between ops starves. */
static void hosts_are_devices(void)
{
    HostEvent   host[] = { HOST(OP, OP_gemm, 0, 10),  HOST(CALL, GR_tp, 10, 11, .slot = 3),
                           HOST(OP, OP_gemm, 11, 20), HOST(JOIN, GR_tp, 20, 26, .slot = 3),
                           HOST(OP, OP_gemm, 30, 50), HOST(GATHER, GR_world, 50, 54) };
    StepMark    mark[] = { { -9, 0, 0 }, { 0, 60, 0 } };
    Recorder    r      = { .event = host, .n = sizeof host / sizeof *host };
    SpanList    s;
    StepProfile p;
    step_profile_clear(&p);
    EXPECT_OK(spans_open(&s, &r, NULL, 0, mark, 2));
    EXPECT_OK(analyze(&p, &s, &r));
    EXPECT(near(p.step, 60) && near(p.compute, 39) && near(p.blocking, 1 + 6 + 4) &&
           near(p.launch_starved, 10), "%g %g %g %g", p.step, p.compute, p.blocking, p.launch_starved);
    EXPECT(near(p.comm, 16 + 4) && near(p.exposed, 1 + 6 + 4) && near(p.dependency, 0), "%g %g", p.comm,
           p.exposed);
    spans_close(&s);
}

static void tags_keep_places(void)
{
    HostPlace p = { PART_HEAD, GRAPH_MOE, PASS_UPDATE, true, 93, 7 }, q = { .micro = 7 };
    EXPECT(host_untag(host_tag(LEDGER_OPS - 1, &p), &q) == LEDGER_OPS - 1, "op");
    EXPECT(p.part == q.part && p.scope == q.scope && p.pass == q.pass && p.replay == q.replay &&
           p.layer == q.layer && q.micro == 7, "place");
    EXPECT(PART_N < 8 && GRAPH_SCOPES <= 8 && PASS_N <= 4 && LEDGER_OPS <= 128, "a field is too narrow");
}

/* ---- a run ---- */

static double sum(const double *x, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++) s += isfinite(x[i]) ? x[i] : 0;
    return s;
}

/* Parts, layers and categories are all of compute; memory and bytes are the plan's. */
static void small_runs_are_explained(void)
{
    RunLab   l;
    Config   recipe, c;
    Profile  p;
    Hardware hw;
    char     run[300];
    runlab_open(&l, 40);
    runlab_recipe(&recipe, &l, "run", "memory.recompute=[moe_act]");
    snprintf(run, sizeof run, "%s/profiled", lab_tmp());
    c = measure_recipe(&recipe, run, 2, 1);
    EXPECT_OK(
        profile_measure(&p, &(MeasureConf){ .recipe = &c, .steps = 2, .warmup = 1, .folder = lab_tmp() }));
    EXPECT_OK(profile_predict(&p, &recipe, 1, 1, NULL));
    const StepProfile *m = &p.measured, *q = &p.predicted;
    double             all = m->compute + m->launch_starved + m->blocking + m->dependency;
    EXPECT(m->step > 0 && fabs(all - m->step) < 1e-9 && m->residual < 0.01 * m->step, "%g of %g", all,
           m->step);
    EXPECT(fabs(sum(m->part, PART_N) - m->compute) < 1e-6 && m->part[PART_VISION] > 0 &&
               m->part[PART_HEAD] > 0 && fabs(sum(m->layer, LAYER_N) - m->compute) < 1e-6 &&
               m->layer[LAYER_MOE] > 0 && fabs(sum(m->category, CAT_COMM) - m->compute) < 1e-6,
           "%g", m->compute);
    EXPECT(m->recompute > 0 && m->forward > 0 && m->backward > 0 && m->optimizer > 0 && m->exposed == 0,
           "passes");
    EXPECT(m->memory_peak <= q->memory_peak && m->memory_peak > 0.8 * q->memory_peak, "%g %g", m->memory_peak,
           q->memory_peak);
    EXPECT(m->tokens > 0 && m->patches > 0 && m->expert_max >= 1 && p.plain > 0 && p.ranks == 1, "counts");
    EXPECT_OK(hardware_find(&hw, "cpu-node"));
    EXPECT_OK(profile_predict(&p, &recipe, 1, 1, &hw));
    EXPECT(m->document > 1 && m->document < 400 && m->picture > 0 && m->picture < m->patches &&
           m->supervised > 0 && m->supervised < m->tokens, "%g tokens, %g patches", m->document, m->picture);
    EXPECT(fabs(q->document - m->document) < 1e-9 && fabs(q->supervised - m->supervised) < 2 &&
           fabs(q->tokens - m->tokens) < 2 && q->token_budget > q->tokens, "%g of %g tokens", q->tokens,
           m->tokens);
    profile_close(&p), config_close(&recipe), runlab_close(&l);
}

/* ---- profile.json ---- */

static void fill(StepProfile *s, double from)
{
    double *x = (double *)s;
    for (size_t i = 0; i < sizeof *s / sizeof *x; i++) x[i] = from + (double)i / 3;
    s->bubble = NAN, s->category[CAT_MEMSET] = NAN;
    s->group[GR_tp] = (GroupProfile){ 0 }; /* no call: not written */
}

static bool same(const StepProfile *a, const StepProfile *b)
{
    const double *x = (const double *)a, *y = (const double *)b;
    for (size_t i = 0; i < sizeof *a / sizeof *x; i++)
        if (isnan(x[i]) != isnan(y[i]) || fabs(x[i] - y[i]) > 1e-7 * fabs(x[i])) return false;
    return true;
}

static void profiles_are_read_back(void)
{
    Path    path;
    Profile p = { .recipe          = "a.yaml",
                  .source          = "host",
                  .recipe_yaml     = "train:\n  max_steps: 3\n",
                  .per_node        = 2,
                  .stages          = 2,
                  .warmup          = 3,
                  .steps           = 8,
                  .plain           = 1.0,
                  .profiled        = 1.05,
                  .has_measured    = true,
                  .has_predicted   = true,
                  .predicted_error = 0.25 },
            q;
    EXPECT_OK(profile_ranks(&p, 4));
    for (int r = 0; r < 4; r++) fill(&p.rank[r], r == 2 ? 40 : r + 3), p.stage[r] = r / 2;
    for (int r = 0; r < 4; r++) p.rank[r].exposed = 0;
    fill(&p.predicted, 7);
    profile_summarize(&p);
    EXPECT(p.slowest == 2 && fabs(p.spread - 34.0 / 40) < 1e-9, "%d %g", p.slowest, p.spread);
    EXPECT(fabs(p.overhead - 0.05) < 1e-9, "%g", p.overhead);
    EXPECT_OK(path_join(path, lab_tmp(), "profile.json"));
    EXPECT_OK(profile_save(&p, path));
    EXPECT_OK(profile_load(&q, path));
    EXPECT(same(&p.measured, &q.measured) && same(&p.predicted, &q.predicted), "steps differ");
    for (int r = 0; q.ranks == 4 && r < 4; r++)
        EXPECT(same(&p.rank[r], &q.rank[r]) && p.stage[r] == q.stage[r], "rank %d differs", r);
    EXPECT(!strcmp(q.recipe, "a.yaml") && !strcmp(q.recipe_yaml, p.recipe_yaml) && q.slowest == 2,
           "head differs");
    profile_close(&p), profile_close(&q);
}

static void hostile_files_are_refused(void)
{
    static const char *const bad[] = {
        "{}",
        "{\"format\": 99}",
        "{\"format\": 1}",
        "{\"format\": 1, \"measured\": {\"step\": \"long\"}}",
        "{\"format\": 1, \"measured\": {}, \"ranks\": 2, \"rank\": [{}]}",
        "{\"format\": 1, \"measured\": {}, \"ranks\": -1}",
        "{\"format\": 1, \"measured\": {}, \"rank\": []}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Json   *o = NULL;
        Profile p;
        EXPECT_OK(json_parse(&o, bad[i], strlen(bad[i]), "bad"));
        EXPECT(profile_parse(&p, o, "bad.json") == E_DATA, "%s", bad[i]);
        json_decref(o);
    }
}

int main(void)
{
    RUN(unions_are_sets);
    RUN(sets_agree_with_cells);
    RUN(gaps_have_causes);
    RUN(hosts_are_devices);
    RUN(tags_keep_places);
    RUN(profiles_are_read_back);
    RUN(hostile_files_are_refused);
    RUN(small_runs_are_explained);                           /* removes the folder */
    return lab_report();
}
