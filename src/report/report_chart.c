/* report/report_chart.c -- see report_chart.h. Inside the SVG both axes run from 0 to 1000, y downwards. */
#include "report/report_chart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 320, SMOOTH_POINTS = 400, SMOOTH_LEAST = 120, DOTS_MOST = 80, TICKS_MOST = 12 };

/* --- axes -------------------------------------------------------------------------------------------- */

/* 1, 2 or 5 times a power of ten, at least as large as x. */
static double nice(double x)
{
    double p = pow(10, floor(log10(x)));
    return x <= p ? p : x <= 2 * p ? 2 * p : x <= 5 * p ? 5 * p : 10 * p;
}

/* A range of no width, or one below what doubles can tell apart, is opened a little. */
static void axis_open(Axis *a, double least)
{
    double size = fmax(fabs(a->lo), fabs(a->hi));
    if (a->hi - a->lo > 1e-6 * size && a->hi > a->lo) return;
    double by = size > 0 ? fmax(0.05 * size, least) : fmax(least, 0.5);
    a->lo -= by, a->hi += by;
}

static void axis_y(Axis *a, unsigned flags)
{
    if ((flags & CHART_LOG) && a->lo > 0 && a->hi / a->lo > 8) {
        double air = pow(a->hi / a->lo, 0.04);
        *a = (Axis){ a->lo / air, a->hi * air, 0, true };
        return;
    }
    bool positive = a->lo >= 0;
    if (flags & CHART_ZERO) a->lo = fmin(a->lo, 0), a->hi = fmax(a->hi, a->lo);
    if (flags & CHART_FULL) a->hi = fmax(a->hi, 1);
    if (a->hi <= 0 && (flags & CHART_ZERO)) a->hi = flags & CHART_PERCENT ? 0.05 : 1;
    axis_open(a, 0);
    if (positive && a->lo < 0) a->lo = 0;
    a->tick = nice((a->hi - a->lo) / 5);
    a->lo = floor(a->lo / a->tick + 1e-9) * a->tick;
    a->hi = ceil(a->hi / a->tick - 1e-9) * a->tick;
}

static void axis_x(Axis *a)
{
    axis_open(a, 1);
    a->tick = fmax(1, nice((a->hi - a->lo) / 6));
}

void chart_add(Chart *c, const char *name, const Series *s, CurveStyle style, int color)
{
    if (!s || !s->n || c->curves == CHART_CURVES) return;
    c->curve[c->curves++] = (Curve){ name, s, style, color % COLORS, false };
}

void charts_fit(Chart *c, int n)
{
    Axis x = { INFINITY, -INFINITY, 0, false }, y = x;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < c[i].curves; k++) {
            const Series *s = c[i].curve[k].s;
            x.lo = fmin(x.lo, s->at[0].step), x.hi = fmax(x.hi, s->at[s->n - 1].step);
            y.lo = fmin(y.lo, series_extreme(s, false).value);
            y.hi = fmax(y.hi, series_extreme(s, true).value);
        }
    if (x.lo > x.hi) return;                                         /* no curves at all */
    axis_x(&x);
    axis_y(&y, c[0].flags);
    for (int i = 0; i < n; i++) c[i].x = x, c[i].y = y;
}

static double place(const Axis *a, double v)                          /* 0 … 1 */
{
    double f = a->log ? log(v / a->lo) / log(a->hi / a->lo) : (v - a->lo) / (a->hi - a->lo);
    return fmin(fmax(f, 0), 1);
}

static int linear_ticks(double out[TICKS_MOST], const Axis *a)
{
    int n = 0;
    double first = ceil(a->lo / a->tick - 1e-9) * a->tick;
    while (n < TICKS_MOST && first + n * a->tick <= a->hi + 1e-9 * a->tick) out[n] = first + n * a->tick, n++;
    return n;
}

/* 1, 2 and 5 of each power of ten while they are few, then the powers, then every so many of them. */
static int log_ticks(double out[TICKS_MOST], const Axis *a)
{
    static const double of[] = { 1, 2, 5 };
    double decades = log10(a->hi / a->lo);
    int n = 0, every = decades > 6 ? (int)ceil(decades / 6) : 1;
    int first = (int)floor(log10(a->lo)), last = (int)ceil(log10(a->hi));
    for (int e = first; e <= last; e++)
        for (int i = 0; i < (decades <= 2.2 ? 3 : 1); i++) {
            double v = of[i] * pow(10, e);
            if (e % every == 0 && v >= a->lo && v <= a->hi && n < TICKS_MOST) out[n++] = v;
        }
    return n;
}

static int ticks(double out[TICKS_MOST], const Axis *a)
{
    return a->log ? log_ticks(out, a) : linear_ticks(out, a);
}

/* As many places as the distance of two ticks asks for. */
static const char *tick_text(char buf[NUM_ROOM], double v, double tick)
{
    int places = tick > 0 ? (int)ceil(-log10(tick) - 1e-9) : 9;
    if (fabs(v) < 1e-9 * tick) return snprintf(buf, NUM_ROOM, "0"), buf;
    if (places <= 0 && fabs(v) < 1e4) return whole_text(buf, v);
    if (places > 0 && places <= 4 && fabs(v) < 1e4) return snprintf(buf, NUM_ROOM, "%.*f", places, v), buf;
    return tick > 0 && places > 4 ? exponent_text(buf, v) : num_text(buf, v);
}

static void put_axes(Html *h, const Chart *c)
{
    double at[TICKS_MOST], scale = c->flags & CHART_PERCENT ? 100 : 1;
    char buf[NUM_ROOM];
    int n = ticks(at, &c->y);
    for (int i = 0; i < n; i++)
        html_fmt(h, "<span class='yl' style='--f:%.4f'>%s</span>", 1 - place(&c->y, at[i]),
                 tick_text(buf, at[i] * scale, c->y.tick * scale));
    n = ticks(at, &c->x);
    for (int i = 0; i < n; i++)
        html_fmt(h, "<span class='xl' style='--f:%.4f'>%s</span>", place(&c->x, at[i]), WHOLE(at[i]));
    html_put(h, "<span class='xs'>step</span>");
}

static void put_grid(Html *h, const Chart *c)
{
    double at[TICKS_MOST];
    int n = ticks(at, &c->y);
    html_put(h, "<path class='grid' d='");
    for (int i = 0; i < n; i++) html_fmt(h, "M0 %.1fH1000", 1000 * (1 - place(&c->y, at[i])));
    html_put(h, "'/>");
}

/* --- curves ------------------------------------------------------------------------------------------ */

static void put_points(Html *h, const Chart *c, const Point *p, int64_t n, bool dots)
{
    for (int64_t i = 0; i < n; i++) {
        double x = 1000 * place(&c->x, p[i].step), y = 1000 * (1 - place(&c->y, p[i].value));
        if (dots) html_fmt(h, "M%.1f %.1fh0", x, y);              /* of no length, with round ends: a dot */
        else      html_fmt(h, "%s%.1f %.1f", i ? " " : "M", x, y);
    }
}

/* read: the script takes values from it. */
static void put_path(Html *h, const Chart *c, const Curve *k, const char *class, const Point *p, int64_t n,
                     bool read)
{
    bool dots = !strcmp(class, "dots");
    html_fmt(h, "<path class='curve %s k%d'", class, k->color + 1);
    if (read) html_around(h, " data-name='", k->name, "'");
    html_put(h, " d='");
    put_points(h, c, p, n, dots);
    html_put(h, "'/>");
}

static bool smooth(const Curve *k) { return k->style == CURVE_SMOOTH && k->s->n >= SMOOTH_LEAST; }

static bool dotted(const Curve *k)
{
    return k->s->n == 1 || (k->style == CURVE_DOTS && k->s->n <= DOTS_MOST);
}

static void put_curve(Html *h, const Chart *c, const Curve *k)
{
    Point *p = malloc((4 * (BUCKETS + 1) + SMOOTH_POINTS) * sizeof *p);
    if (!p) { h->status = E_FIT; return; }
    int64_t n = points_thin(p, k->s->at, k->s->n, c->x.lo, c->x.hi, BUCKETS);
    put_path(h, c, k, smooth(k) ? "raw" : k->dashed ? "dash" : "line", p, n, !smooth(k));
    if (smooth(k)) {
        n = points_smooth(p, k->s->at, k->s->n, SMOOTH_POINTS);
        put_path(h, c, k, k->dashed ? "dash" : "line", p, n, true);
    }
    if (dotted(k)) put_path(h, c, k, "dots", k->s->at, k->s->n, false);
    free(p);
}

/* --- around them --------------------------------------------------------------------------------------- */

static double shown_last(const Curve *k)
{
    return k->style == CURVE_SMOOTH ? series_tail(k->s) : series_last(k->s);
}

static const char *value_text(char buf[NUM_ROOM], const Chart *c, double v)
{
    return c->flags & CHART_PERCENT ? percent_text(buf, v) : num_text(buf, v);
}

/* Said once on a page, where there is room for it. */
static bool explains(const Chart *c)
{
    for (int i = 0; i < c->curves; i++)
        if ((c->flags & CHART_WIDE) && smooth(&c->curve[i])) return true;
    return false;
}

static void put_caption(Html *h, const Chart *c)
{
    char buf[NUM_ROOM];
    html_around(h, "<figcaption><span class='title'><b>", c->title, "</b>");
    if (c->unit) html_fmt(h, " <small>%s</small>", c->unit);
    if (explains(c)) html_put(h, " <small>faint: as logged, bold: median of 3\xc2\xa0%</small>");
    if (c->y.log) html_put(h, " <small>log axis</small>");
    if (c->of) html_around(h, " <small class='of'>", c->of, "</small>");
    html_put(h, "</span><span class='legend'>");
    for (int i = 0; i < c->curves; i++) {
        const Curve *k = &c->curve[i];
        html_fmt(h, "<span class='k%d'><i></i>", k->color + 1);
        html_text(h, k->name);
        html_fmt(h, " <b>%s</b></span>", value_text(buf, c, shown_last(k)));
    }
    html_put(h, "</span></figcaption>");
}

/* What a reader who does not see the curve would want to hear. */
static void put_label(Html *h, const Chart *c)
{
    char buf[NUM_ROOM];
    html_text(h, c->title);
    html_fmt(h, " over steps %s to %s", WHOLE(c->x.lo), WHOLE(c->x.hi));
    for (int i = 0; i < c->curves; i++) {
        html_put(h, "; "), html_text(h, c->curve[i].name);
        html_fmt(h, " from %s", value_text(buf, c, c->curve[i].s->at[0].value));
        html_fmt(h, " to %s", value_text(buf, c, shown_last(&c->curve[i])));
    }
}

void chart_put(Html *h, const Chart *c)
{
    if (!c->curves) return;
    html_fmt(h, "<figure class='card chart%s%s%s' ", c->flags & CHART_WIDE ? " wide" : "",
             c->flags & CHART_LEFT ? " left" : "", c->curves > 2 ? " busy" : "");
    html_fmt(h, "data-x0='%.10g' data-x1='%.10g' ", c->x.lo, c->x.hi);
    html_fmt(h, "data-y0='%.10g' data-y1='%.10g' data-log='%d' data-percent='%d'>", c->y.lo, c->y.hi,
             c->y.log, !!(c->flags & CHART_PERCENT));
    put_caption(h, c);
    html_put(h, "<div class='plot'><svg viewBox='0 0 1000 1000' preserveAspectRatio='none' role='img' "
                "aria-label='");
    put_label(h, c);
    html_put(h, "'>");
    put_grid(h, c);
    for (int i = 0; i < c->curves; i++) put_curve(h, c, &c->curve[i]);
    html_put(h, "</svg>");
    put_axes(h, c);
    html_put(h, "</div></figure>\n");
    h->counts.charts++;
}
