/* report/report_curves.c -- the charts of a page, as tables. Two runs share a chart where it shows one
 * quantity, and have a chart each, with the same axes, where it shows several. */
#include "report/report_chart.h"
#include "report/report_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROW_CURVES = 4, REST_CHARTS = 48 };

typedef struct CurveRow { const char *key, *name; CurveStyle style; } CurveRow;

typedef struct ChartRow {
    const char *title, *unit;
    unsigned    flags;
    bool        apart;                /* two runs: a chart each */
    CurveRow    curve[ROW_CURVES];
} ChartRow;

static const ChartRow learning[] = {
    { "Loss", NULL, CHART_LOG | CHART_WIDE, false,
      { { "train/loss", "train", CURVE_SMOOTH }, { "eval/loss", "held-out", CURVE_DOTS } } },
    { "Held-out accuracy", "%", CHART_ZERO | CHART_FULL | CHART_PERCENT, false,
      { { "eval/accuracy", "accuracy", CURVE_DOTS } } },
    { "Learning rate", NULL, CHART_ZERO, false, { { "train/learning_rate", "rate", CURVE_LINE } } },
    { "Gradient norm", "before clipping", CHART_LOG, false, { { "train/grad_norm", "norm", CURVE_SMOOTH } } },
    { "Auxiliary loss", "load balancing of experts", 0, false,
      { { "moe/aux_loss", "auxiliary", CURVE_SMOOTH } } },
    { "Visual tokens", "% of all tokens", CHART_ZERO | CHART_PERCENT, false,
      { { "data/visual_token_share", "share", CURVE_SMOOTH } } },
};

static const ChartRow speed[] = {
    { "Throughput",
      "tokens/s per GPU",
      CHART_ZERO,
      false,
      { { "perf/tokens_per_second_per_gpu", "tokens/s", CURVE_SMOOTH } } },
    { "Achieved",
      "model TFLOP/s per GPU",
      CHART_ZERO,
      false,
      { { "perf/tflops", "TFLOP/s", CURVE_SMOOTH } } },
    { "Step time", "seconds", CHART_LOG, false, { { "perf/step_time", "step", CURVE_SMOOTH } } },
    { "Utilisation",
      "% of peak FLOP/s (a GPU's data sheet, else measured); HFU adds recomputation and padding rows",
      CHART_ZERO | CHART_PERCENT,
      true,
      { { "perf/mfu", "MFU", CURVE_SMOOTH }, { "perf/hfu", "HFU", CURVE_SMOOTH } } },
    { "Utilisation by part",
      "MFU, %",
      CHART_ZERO | CHART_PERCENT,
      true,
      { { "perf/mfu_vision", "vision", CURVE_SMOOTH },
        { "perf/mfu_merger", "merger", CURVE_SMOOTH },
        { "perf/mfu_decoder", "decoder", CURVE_SMOOTH },
        { "perf/mfu_head", "head", CURVE_SMOOTH } } },
    { "Waiting",
      "% of the step",
      CHART_ZERO | CHART_PERCENT,
      true,
      { { "perf/data_wait", "for data", CURVE_SMOOTH },
        { "perf/exposed_comm", "for other ranks", CURVE_SMOOTH } } },
    { "Useful tokens",
      "% of the tokens a step can take",
      CHART_ZERO | CHART_FULL | CHART_PERCENT,
      false,
      { { "perf/useful_tokens", "useful", CURVE_SMOOTH } } },
    { "Peak memory",
      "GiB",
      CHART_ZERO,
      true,
      { { KEY_PLANNED, "planned", CURVE_LINE }, { KEY_MEASURED, "measured", CURVE_LINE } } },
};

static const ChartRow balance[] = {
    { "Busiest expert over the mean", "1 = perfectly balanced", CHART_WIDE, true,
      { { KEY_WORST, "worst layer", CURVE_SMOOTH }, { KEY_MEAN, "mean of layers", CURVE_SMOOTH } } },
};

/* Adds n charts, all with the range of the first; a chart without curves is left out. */
static void add_charts(Report *r, Chart *c, int n)
{
    for (int i = 1; i < n; i++) chart_join_range(c, &c[i]);
    for (int i = 0; i < n; i++) {
        Json *block = chart_close(&c[i], c);
        if (!block) continue;
        page_add(&r->page, NULL, block);
        r->counts.charts++;
    }
}

/* --- the charts of a section --------------------------------------------------------------------------- */

static const Series *take(ReportRun *run, const char *key)
{
    Series *s = series_find(&run->metrics, key);
    if (s) s->drawn = true;
    return s;
}

/* "A train": the run's letter in front, where there are two. */
static const char *lettered(const Report *r, int run, const char *name)
{
    char text[600];
    if (!two(r)) return name;
    snprintf(text, sizeof text, "%c %.590s", 'A' + run, name);
    return mem_pool_copy(&r->run[run]->keep, text, strlen(text));
}

static Chart open_apart(const Report *r, const ChartRow *row, int run)
{
    unsigned flags = row->flags;
    if (two(r)) flags = (flags & ~(unsigned)CHART_WIDE) | (run ? 0 : CHART_LEFT);
    return chart_open(row->title, row->unit, flags, two(r) ? lettered(r, run, r->run[run]->name) : NULL);
}

static void draw_apart(Report *r, const ChartRow *row)
{
    Chart c[REPORT_RUNS];
    for (int i = 0; i < r->n; i++) {
        c[i] = open_apart(r, row, i);
        for (int k = 0; k < ROW_CURVES && row->curve[k].key; k++)
            chart_add(&c[i], row->curve[k].name, take(r->run[i], row->curve[k].key), row->curve[k].style, k,
                      false);
    }
    add_charts(r, c, r->n);
}

/* With two runs the colour tells the run, and a dashed line the second quantity. */
static void draw_together(Report *r, const ChartRow *row)
{
    Chart c = chart_open(row->title, row->unit, row->flags, NULL);
    for (int k = 0; k < ROW_CURVES && row->curve[k].key; k++)
        for (int i = 0; i < r->n; i++)
            chart_add(&c, lettered(r, i, row->curve[k].name), take(r->run[i], row->curve[k].key),
                      row->curve[k].style, two(r) ? i : k, two(r) && k > 0);
    add_charts(r, &c, 1);
}

/* With two runs the pairs of charts come last: each pair takes a row of its own. */
static void draw_rows(Report *r, const ChartRow *row, size_t rows)
{
    for (size_t i = 0; i < rows; i++) {
        if (!row[i].apart) draw_together(r, &row[i]);
        else if (!two(r))  draw_apart(r, &row[i]);
    }
    for (size_t i = 0; i < rows && two(r); i++)
        if (row[i].apart) draw_apart(r, &row[i]);
}

/* A curve for each series whose key begins with the prefix; a key has the same colour in both runs. */
static void draw_prefixed(Report *r, const ChartRow *row, const char *prefix, CurveStyle style)
{
    const char *seen[CHART_CURVES];
    size_t length = strlen(prefix);
    int n = 0;
    Chart c[REPORT_RUNS];
    for (int i = 0; i < r->n; i++) {
        c[i] = open_apart(r, row, i);
        for (int k = 0; k < r->run[i]->metrics.n; k++) {
            const char *key = r->run[i]->metrics.series[k].key;
            int color = 0;
            if (strncmp(key, prefix, length)) continue;
            while (color < n && strcmp(seen[color], key)) color++;
            if (color == CHART_CURVES) continue;              /* further series: see part_rest */
            seen[color] = key, n += color == n;
            chart_add(&c[i], key + length, take(r->run[i], key), style, color, false);
        }
    }
    add_charts(r, c, r->n);
}

static void draw_sources(Report *r)
{
    static const ChartRow row = { "Loss by source", NULL, CHART_LOG, true, { { 0 } } };
    static const ChartRow held_out = { "Held-out loss by source", NULL, CHART_LOG, true, { { 0 } } };
    static const ChartRow right = { "Held-out accuracy by source", "%",
                                    CHART_ZERO | CHART_FULL | CHART_PERCENT, true, { { 0 } } };
    draw_prefixed(r, &row, "loss_by_source/", CURVE_SMOOTH);
    draw_prefixed(r, &held_out, "eval/loss_by_source/", CURVE_DOTS);
    draw_prefixed(r, &right, "eval/accuracy_by_source/", CURVE_DOTS);
}

/* By words of train.fp8_products, of rows x and dy. */
static void draw_codes(Report *r)
{
    static const ChartRow amax = { "Largest values in 8 bits", "of the rows that products read", CHART_LOG,
                                   true, { { 0 } } };
    static const ChartRow flushed = { "Values that 8 bits make zero", "% of the rows that products read",
                                      CHART_ZERO | CHART_PERCENT, true, { { 0 } } };
    draw_prefixed(r, &amax, "fp8/amax/", CURVE_LINE);
    draw_prefixed(r, &flushed, "fp8/flushed/", CURVE_LINE);
}

/* Draws the communication of each group of ranks (comm/mesh.h). */
static void draw_communication(Report *r)
{
    static const ChartRow exposed = { "Waiting for other ranks by group", "% of the step",
                                      CHART_ZERO | CHART_PERCENT, true, { { 0 } } };
    static const ChartRow hidden = { "Hidden communication by group", "% of the time in calls",
                                     CHART_ZERO | CHART_FULL | CHART_PERCENT, true, { { 0 } } };
    draw_prefixed(r, &exposed, "perf/exposed_comm/", CURVE_SMOOTH);
    draw_prefixed(r, &hidden, "perf/hidden_comm/", CURVE_SMOOTH);
}

#define DRAW(r, rows) draw_rows(r, rows, sizeof rows / sizeof *rows)

void part_learning(Report *r)
{
    int charts = r->counts.charts;
    page_section(&r->page, "learning", "Learning");
    DRAW(r, learning);
    draw_sources(r);
    draw_codes(r);
    if (r->counts.charts == charts)
        page_add(&r->page, NULL, block_text("empty wide", "No curves: metrics.jsonl has no losses."));
}

void part_speed(Report *r)
{
    int charts = r->counts.charts;
    page_section(&r->page, "speed", "Speed and peak memory");
    DRAW(r, speed);
    draw_communication(r);
    if (r->counts.charts == charts)
        page_add(&r->page, NULL, block_text("empty wide", "No curves: metrics.jsonl has no perf/ values."));
}

void balance_charts(Report *r) { DRAW(r, balance); }

/* A series that is zero throughout is not shown. */
static bool leftover(const Series *s)
{
    if (!s->n || s->drawn || !strcmp(s->key, "train/epoch")) return false;
    return series_extreme(s, true).value != 0 || series_extreme(s, false).value != 0;
}

void part_rest(Report *r)
{
    int left = 0, drawn = 0;
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < r->run[i]->metrics.n; k++) left += leftover(&r->run[i]->metrics.series[k]);
    if (!left) return;
    page_section(&r->page, "other", "Other metrics");
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < r->run[i]->metrics.n && drawn < REST_CHARTS; k++) {
            Series *s = &r->run[i]->metrics.series[k];
            if (!leftover(s)) continue;
            Chart c = chart_open(s->key, NULL, CHART_LOG, NULL);
            for (int j = i; j < r->n; j++)
                chart_add(&c, two(r) ? (j ? "B" : "A") : "value", take(r->run[j], s->key), CURVE_SMOOTH, j,
                          false);
            add_charts(r, &c, 1);
            drawn++;
        }
    if (left > drawn) page_add(&r->page, NULL, block_text("note wide", "%d of %d are shown.", drawn, left));
}
