/* report/report_chart.c -- see report_chart.h. */
#include "report/report_chart.h"

#include <math.h>
#include <stdlib.h>

enum { COLORS = 8, BUCKETS = 320, SMOOTH_POINTS = 400, SMOOTH_LEAST = 120, DOTS_MOST = 80 };

Chart chart_open(const char *title, const char *unit, unsigned flags, const char *of)
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

void chart_add(Chart *c, const char *name, const Series *s, CurveStyle style, int color, bool dashed)
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

void chart_join_range(Chart *c, const Chart *other)
{
    c->x0 = fmin(c->x0, other->x0), c->x1 = fmax(c->x1, other->x1);
    c->y0 = fmin(c->y0, other->y0), c->y1 = fmax(c->y1, other->y1);
}

Json *chart_close(Chart *c, const Chart *range)
{
    if (!json_array_size(c->curves)) {
        json_decref(c->block);
        return NULL;
    }
    if (c->smooth && (c->flags & CHART_WIDE))
        page_say(json_object_get(c->block, "title"), "small",
                 "faint: as logged, bold: median of 3\xc2\xa0%%");
    json_object_set_new(c->block, "range", json_pack("[I, I, f, f]", (json_int_t)range->x0,
                                                     (json_int_t)range->x1, range->y0, range->y1));
    return c->block;
}
