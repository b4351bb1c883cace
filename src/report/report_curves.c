/* report/report_curves.c -- the charts of a page, as tables. Two runs share a chart where it shows one
 * quantity, and have a chart each, with the same axes, where it shows several. */
#include "report/report_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_CURVES = 4, CHART_CURVES = 12, REST_CHARTS = 48, COLORS = 8 };
enum { BUCKETS = 320, SMOOTH_POINTS = 400, SMOOTH_LEAST = 120, DOTS_MOST = 80 };

typedef enum {
    CURVE_LINE,
    CURVE_SMOOTH,                     /* the values faintly, a smooth curve through them */
    CURVE_DOTS                        /* few values, each with a dot */
} CurveStyle;

typedef enum {
    CHART_ZERO = 1,                   /* the axis begins at zero */
    CHART_LOG  = 2,                   /* logarithmic where the values span much */
    CHART_FULL = 4,                   /* and ends at one: a share of all */
    CHART_WIDE = 8,                   /* takes the whole width of the page */
    CHART_PERCENT = 16,               /* values are shares; shown in percent */
    CHART_LEFT = 32                   /* begins a row of the page */
} ChartFlags;

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

/* --- one chart ---------------------------------------------------------------------------------------- */

typedef struct Chart {
    Json    *block, *curves;
    unsigned flags;
    double   x0, x1, y0, y1;          /* over its curves */
    bool     smooth;                  /* has a smooth curve */
} Chart;

/* `of`: the run, or NULL. */
static Chart chart_open(const char *title, const char *unit, unsigned flags, const char *of)
{
    static const char *const names[] = { "zero", "log", "full", "wide", "percent", "left" };
    Json *b = json_pack("{s:s, s:o, s:[], s:[]}", "kind", "chart", "label", page_string(title), "title",
                        "curves");
    Json *rich = json_object_get(b, "title");
    page_say(rich, "b", "%s", title), page_say(rich, NULL, " ");
    if (unit) page_say(rich, "small", "%s", unit);
    if (of) page_say(rich, "small of", "%s", of);
    for (int i = 0; i < 6; i++)
        if (flags >> i & 1) json_object_set_new(b, names[i], json_true());
    return (Chart){ b, json_object_get(b, "curves"), flags, INFINITY, -INFINITY, INFINITY, -INFINITY, false };
}

static Json *points_json(const Point *p, int64_t n)
{
    Json *list = json_array();
    for (int64_t i = 0; i < n; i++) {
        json_array_append_new(list, json_integer((json_int_t)p[i].step));
        json_array_append_new(list, json_real(p[i].value));
    }
    return list;
}

static Json *value_text(const Chart *c, double v)
{
    return page_string(c->flags & CHART_PERCENT ? PERCENT(v) : NUM(v));
}

static void chart_range(Chart *c, const Series *s)
{
    c->x0 = fmin(c->x0, s->at[0].step), c->x1 = fmax(c->x1, s->at[s->n - 1].step);
    c->y0 = fmin(c->y0, series_extreme(s, false).value), c->y1 = fmax(c->y1, series_extreme(s, true).value);
}

/* Adds a curve; s NULL: none. */
static void chart_add(Chart *c, const char *name, const Series *s, CurveStyle style, int color, bool dashed)
{
    if (!s || !s->n || json_array_size(c->curves) == CHART_CURVES) return;
    Point *p = malloc((4 * (BUCKETS + 1) + SMOOTH_POINTS) * sizeof *p);
    if (!p) return;
    bool smooth = style == CURVE_SMOOTH && s->n >= SMOOTH_LEAST;
    bool dots = s->n == 1 || (style == CURVE_DOTS && s->n <= DOTS_MOST);
    int64_t n = points_thin(p, s->at, s->n, s->at[0].step, s->at[s->n - 1].step, BUCKETS);
    Json *k = json_pack("{s:o, s:i, s:o, s:o, s:b, s:b, s:o}", "name", page_string(name), "color",
                        color % COLORS, "first", value_text(c, s->at[0].value), "last",
                        value_text(c, style == CURVE_SMOOTH ? series_tail(s) : series_last(s)), "dashed",
                        (int)dashed, "dots", (int)dots, "points", points_json(p, n));
    if (smooth)
        json_object_set_new(k, "smooth", points_json(p, points_smooth(p, s->at, s->n, SMOOTH_POINTS)));
    json_array_append_new(c->curves, k);
    c->smooth |= smooth;
    chart_range(c, s);
    free(p);
}

/* Adds n charts, all with the range of the first; a chart without curves is left out. */
static void add_charts(Report *r, Chart *c, int n)
{
    for (int i = 1; i < n; i++) {
        c->x0 = fmin(c->x0, c[i].x0), c->x1 = fmax(c->x1, c[i].x1);
        c->y0 = fmin(c->y0, c[i].y0), c->y1 = fmax(c->y1, c[i].y1);
    }
    for (int i = 0; i < n; i++) {
        if (!json_array_size(c[i].curves)) { json_decref(c[i].block); continue; }
        if (c[i].smooth && (c[i].flags & CHART_WIDE))
            page_say(json_object_get(c[i].block, "title"), "small",
                     "faint: as logged, bold: median of 3\xc2\xa0%%");
        json_object_set_new(c[i].block, "range", json_pack("[I, I, f, f]", (json_int_t)c->x0,
                                                           (json_int_t)c->x1, c->y0, c->y1));
        page_add(&r->page, NULL, c[i].block);
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

/* Of the groups of ranks (comm/mesh.h). */
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
