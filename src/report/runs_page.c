/* report/runs_page.c -- see runs_page.h. */
#include "report/runs_page.h"

#include "report/report_chart.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct Quantity {
    const char *title, *unit, *key;
    unsigned    flags;
    CurveStyle  style;
} Quantity;

static const Quantity quantities[] = {
    { "Loss", NULL, "train/loss", CHART_LOG | CHART_WIDE, CURVE_SMOOTH },
    { "Held-out loss", NULL, "eval/loss", CHART_LOG, CURVE_DOTS },
    { "Held-out accuracy", "%", "eval/accuracy", CHART_ZERO | CHART_FULL | CHART_PERCENT, CURVE_DOTS },
    { "Throughput", "tokens/s per GPU", "perf/tokens_per_second_per_gpu", CHART_ZERO, CURVE_SMOOTH },
    { "Utilisation", "MFU, %", "perf/mfu", CHART_ZERO | CHART_PERCENT, CURVE_SMOOTH },
    { "Gradient norm", "before clipping", "train/grad_norm", CHART_LOG, CURVE_SMOOTH },
};

static void say_value(Json *lines, const char *name, const Series *s, bool share)
{
    if (!s) return;
    Json *line = page_rich(NULL, "%s ", name);
    page_say(line, "b", "%s", share ? PERCENT(series_tail(s)) : NUM(series_tail(s)));
    json_array_append_new(lines, line);
}

static void say_steps(Json *lines, const ReportRun *run)
{
    const MetricsFile *m = &run->metrics;
    const char *goal = keys_find(&run->recipe, "train.max_steps");
    double steps = goal ? atof(goal) : 0;
    Json  *line = page_rich(NULL, m->lines ? "step " : "no step yet");
    if (m->lines) page_say(line, "b", "%s", WHOLE(m->last_step));
    if (m->lines && steps > m->last_step && steps < 1e15) page_say(line, NULL, " of %s", WHOLE(steps));
    json_array_append_new(lines, line);
}

static void say_run(Json *tile, const ReportRun *run)
{
    const MetricsFile *m = &run->metrics;
    Json *lines = block_list(tile, "lines");
    say_steps(lines, run);
    say_value(lines, "loss", series_find(m, "train/loss"), false);
    say_value(lines, "held-out accuracy", series_find(m, "eval/accuracy"), true);
    say_value(lines, "tokens/s", series_find(m, "perf/tokens_per_second_per_gpu"), false);
    say_value(lines, "MFU", series_find(m, "perf/mfu"), true);
    if (m->last_time > 0) json_object_set_new(tile, "time", json_real(m->last_time));
}

static Json *tile_of(const ReportRun *run, int i, Status st)
{
    char  at[32];
    snprintf(at, sizeof at, "/run/%d", i);
    Json *tile = json_pack("{s:s, s:o, s:i}", "href", at, "name", page_string(run->name), "color", i % 8);
    if (st) json_array_append_new(block_list(tile, "lines"), page_rich("wrong-ink", "%s", status_text()));
    else    say_run(tile, run);
    return tile;
}

static void add_tiles(Page *p, ReportRun *run, const char *const *dir, int n)
{
    Json *tiles = block_open("runs"), *items = block_list(tiles, "items");
    for (int i = 0; i < n; i++) {
        Status st = run_open(&run[i], dir[i]);
        page_add(p, items, tile_of(&run[i], i, st));
    }
    page_add(p, NULL, tiles);
}

static void add_chart(Page *p, const Quantity *q, const ReportRun *run, int n)
{
    Chart c = chart_open(q->title, q->unit, q->flags, NULL);
    for (int i = 0; i < n; i++)
        chart_add(&c, run[i].name, series_find(&run[i].metrics, q->key), q->style, i, i >= 8);
    Json *block = chart_close(&c, &c);
    if (block) page_add(p, NULL, block);
}

void runs_page(Page *p, const char *const *dir, int n)
{
    ReportRun *run = calloc((size_t)n, sizeof *run);
    page_open(p, "treb watch", n == 1 ? "1 run" : "runs");
    if (!run) {
        p->status = E_FIT;
        return;
    }
    page_say(json_object_get(p->root, "heading"), NULL, "%d run%s", n, n == 1 ? "" : "s");
    page_section(p, "runs", "");
    add_tiles(p, run, dir, n);
    page_section(p, "curves", "Side by side");
    for (size_t i = 0; i < sizeof quantities / sizeof *quantities; i++) add_chart(p, &quantities[i], run, n);
    for (int i = 0; i < n; i++) run_close(&run[i]);
    free(run);
}
