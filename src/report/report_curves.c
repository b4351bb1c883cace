/* report/report_curves.c -- which curves a page has, as tables. Two runs share a chart where it shows one
 * quantity, and stand side by side with the same axes where it shows several. */
#include "report/report_chart.h"

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
    { "Auxiliary loss", "balance of experts", 0, false, { { "moe/aux_loss", "auxiliary", CURVE_SMOOTH } } },
    { "Visual tokens", "% of all tokens", CHART_ZERO | CHART_PERCENT, false,
      { { "data/visual_token_share", "share", CURVE_SMOOTH } } },
};

static const ChartRow speed[] = {
    { "Throughput", "tokens/s per device", CHART_ZERO, false,
      { { "perf/tokens_per_second_per_gpu", "tokens/s", CURVE_SMOOTH } } },
    { "Step time", "seconds", CHART_LOG, false, { { "perf/step_time", "step", CURVE_SMOOTH } } },
    { "Utilisation", "% of peak; hfu adds recomputation and padding", CHART_ZERO | CHART_PERCENT, true,
      { { "perf/mfu", "mfu", CURVE_SMOOTH }, { "perf/hfu", "hfu", CURVE_SMOOTH } } },
    { "Utilisation by part", "mfu, %", CHART_ZERO | CHART_PERCENT, true,
      { { "perf/mfu_vision", "vision", CURVE_SMOOTH }, { "perf/mfu_merger", "merger", CURVE_SMOOTH },
        { "perf/mfu_decoder", "decoder", CURVE_SMOOTH }, { "perf/mfu_head", "head", CURVE_SMOOTH } } },
    { "Waiting", "% of the step", CHART_ZERO | CHART_PERCENT, true,
      { { "perf/data_wait", "for data", CURVE_SMOOTH },
        { "perf/exposed_comm", "for other ranks", CURVE_SMOOTH } } },
    { "Useful tokens", "% of the room for them", CHART_ZERO | CHART_FULL | CHART_PERCENT, false,
      { { "perf/useful_tokens", "useful", CURVE_SMOOTH } } },
    { "Memory", "GiB", CHART_ZERO, false,
      { { "mem/measured_gib", "measured", CURVE_LINE }, { "mem/planned_gib", "planned", CURVE_LINE } } },
};

static const ChartRow balance[] = {
    { "Busiest expert over the mean", "1 = all alike", CHART_WIDE, true,
      { { KEY_WORST, "worst layer", CURVE_SMOOTH }, { KEY_MEAN, "mean of layers", CURVE_SMOOTH } } },
};

static const Series *take(Run *run, const char *key)
{
    Series *s = series_find(&run->metrics, key);
    if (s) s->drawn = true;
    return s;
}

/* "A train": the letter that the top of the page gives the run. */
static const char *lettered(Run *run, int which, const char *name)
{
    char text[600];
    snprintf(text, sizeof text, "%c %.590s", 'A' + which, name);
    return keep_text(&run->keep, text, strlen(text));
}

static Chart chart_of(const ChartRow *row, const char *of)
{
    return (Chart){ .title = row->title, .unit = row->unit, .flags = row->flags, .of = of };
}

static void put_pair(Html *h, const Runs *r, Chart c[REPORT_RUNS])
{
    if (two(r)) c[0].flags |= CHART_LEFT;
    charts_fit(c, r->n);
    for (int i = 0; i < r->n; i++) chart_put(h, &c[i]);
}

static void draw_apart(Html *h, const Runs *r, const ChartRow *row)
{
    Chart c[REPORT_RUNS];
    for (int i = 0; i < r->n; i++) {
        c[i] = chart_of(row, two(r) ? lettered(r->at[i], i, r->at[i]->name) : NULL);
        if (two(r)) c[i].flags &= ~(unsigned)CHART_WIDE;
        for (int k = 0; k < ROW_CURVES && row->curve[k].key; k++)
            chart_add(&c[i], row->curve[k].name, take(r->at[i], row->curve[k].key), row->curve[k].style, k);
    }
    put_pair(h, r, c);
}

static void draw_together(Html *h, const Runs *r, const ChartRow *row)
{
    Chart c = chart_of(row, NULL);
    for (int k = 0; k < ROW_CURVES && row->curve[k].key; k++)
        for (int i = 0; i < r->n; i++) {
            const CurveRow *row_k = &row->curve[k];
            const char *name = two(r) ? lettered(r->at[i], i, row_k->name) : row_k->name;
            const Series *s = take(r->at[i], row_k->key);
            chart_add(&c, name, s, row_k->style, two(r) ? i : k);
            if (s && two(r)) c.curve[c.curves - 1].dashed = k > 0;       /* the colour says whose it is */
        }
    charts_fit(&c, 1);
    chart_put(h, &c);
}

/* Of two runs the pairs come last: each takes a row of its own. */
static void draw_rows(Html *h, const Runs *r, const ChartRow *row, size_t rows)
{
    for (size_t i = 0; i < rows; i++) {
        if (!row[i].apart)   draw_together(h, r, &row[i]);
        else if (!two(r))    draw_apart(h, r, &row[i]);
    }
    for (size_t i = 0; i < rows && two(r); i++)
        if (row[i].apart) draw_apart(h, r, &row[i]);
}

/* A curve for each channel of the data; a channel has the same colour in both runs. */
static void draw_sources(Html *h, const Runs *r)
{
    static const char prefix[] = "loss_by_source/";
    static const ChartRow row = { "Loss by source", NULL, CHART_LOG, true, { { 0 } } };
    const char *seen[CHART_CURVES];
    int n = 0;
    Chart c[REPORT_RUNS];
    for (int i = 0; i < r->n; i++) {
        c[i] = chart_of(&row, two(r) ? lettered(r->at[i], i, r->at[i]->name) : NULL);
        for (int k = 0; k < r->at[i]->metrics.n; k++) {
            const char *key = r->at[i]->metrics.series[k].key;
            int color = 0;
            if (strncmp(key, prefix, sizeof prefix - 1)) continue;
            while (color < n && strcmp(seen[color], key)) color++;
            if (color == CHART_CURVES) continue;              /* the rest is drawn at the end of the page */
            seen[color] = key, n += color == n;
            chart_add(&c[i], key + sizeof prefix - 1, take(r->at[i], key), CURVE_SMOOTH, color);
        }
    }
    put_pair(h, r, c);
}

static void open_section(Html *h, const char *id, const char *title)
{
    html_fmt(h, "<section id='%s'><h2>%s</h2><div class='grid'>\n", id, title);
}

/* Says so where a section came out empty. */
static void close_section(Html *h, int charts, const char *without)
{
    html_put(h, "</div>");
    if (h->counts.charts == charts) html_fmt(h, "<p class='empty'>%s</p>", without);
    html_put(h, "</section>\n");
}

#define DRAW(h, r, rows) draw_rows(h, r, rows, sizeof rows / sizeof *rows)

void part_learning(Html *h, const Runs *r)
{
    int charts = h->counts.charts;
    open_section(h, "learning", "Learning");
    DRAW(h, r, learning);
    draw_sources(h, r);
    close_section(h, charts, "No curves: metrics.jsonl has no losses.");
}

void part_speed(Html *h, const Runs *r)
{
    int charts = h->counts.charts;
    open_section(h, "speed", "Speed and peak memory");
    DRAW(h, r, speed);
    close_section(h, charts, "No curves: metrics.jsonl has no perf/ values.");
}

void part_balance(Html *h, const Runs *r) { DRAW(h, r, balance); }

/* Counts of what did not happen would crowd out what did. */
static bool leftover(const Series *s)
{
    if (!s->n || s->drawn || !strcmp(s->key, "train/epoch")) return false;
    return series_extreme(s, true).value != 0 || series_extreme(s, false).value != 0;
}

void part_rest(Html *h, const Runs *r)
{
    int left = 0, drawn = 0;
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < r->at[i]->metrics.n; k++) left += leftover(&r->at[i]->metrics.series[k]);
    if (!left) return;
    open_section(h, "rest", "Other metrics");
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < r->at[i]->metrics.n && drawn < REST_CHARTS; k++) {
            Series *s = &r->at[i]->metrics.series[k];
            if (!leftover(s)) continue;
            Chart c = { .title = s->key, .flags = CHART_LOG };
            const char *key = s->key;
            for (int j = i; j < r->n; j++)
                chart_add(&c, two(r) ? (j ? "B" : "A") : "value", take(r->at[j], key), CURVE_SMOOTH, j);
            charts_fit(&c, 1);
            chart_put(h, &c);
            drawn++;
        }
    html_put(h, "</div>");
    if (left > drawn) html_fmt(h, "<p class='note'>%d of %d are drawn.</p>", drawn, left);
    html_put(h, "</section>\n");
}
