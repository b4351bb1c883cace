/* report/report_summary.c -- a run in a few numbers: the tiles at the top, and for two runs a table. */
#include "report/report_html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum { AS_NUM, AS_PERCENT, AS_SPAN, AS_GIB } Form;
typedef enum { LAST, TAIL, MEDIAN, MEAN, MOST } How;

typedef struct Figure {
    const char *name, *key, *unit;
    How         how;
    Form        form;
    int         better;               /* 1: more is better, -1: less is, 0: neither */
    bool        tile;
} Figure;

static const Figure figures[] = {
    { "Training loss",     "train/loss",                     "",         TAIL,   AS_NUM,     -1, true  },
    { "Held-out loss",     "eval/loss",                      "",         LAST,   AS_NUM,     -1, true  },
    { "Held-out accuracy", "eval/accuracy",                  "",         LAST,   AS_PERCENT,  1, true  },
    { "Throughput",        "perf/tokens_per_second_per_gpu", "tokens/s", MEDIAN, AS_NUM,      1, true  },
    { "Utilisation (mfu)", "perf/mfu",                       "",         MEDIAN, AS_PERCENT,  1, true  },
    { "mfu, vision",       "perf/mfu_vision",                "",         MEDIAN, AS_PERCENT,  1, false },
    { "mfu, merger",       "perf/mfu_merger",                "",         MEDIAN, AS_PERCENT,  1, false },
    { "mfu, decoder",      "perf/mfu_decoder",               "",         MEDIAN, AS_PERCENT,  1, false },
    { "mfu, head",         "perf/mfu_head",                  "",         MEDIAN, AS_PERCENT,  1, false },
    { "Step time",         "perf/step_time",                 "",         MEDIAN, AS_SPAN,    -1, true  },
    { "Waiting for data",  "perf/data_wait",                 "",         MEAN,   AS_PERCENT, -1, true  },
    { "Waiting for ranks", "perf/exposed_comm",              "",         MEAN,   AS_PERCENT, -1, false },
    { "Measured memory",   "mem/measured_gib",               "GiB",      MOST,   AS_GIB,     -1, true  },
    { "Gradient norm",     "train/grad_norm",                "",         MEDIAN, AS_NUM,      0, false },
    { "Auxiliary loss",    "moe/aux_loss",                   "",         TAIL,   AS_NUM,      0, false },
    { "Busiest expert",    KEY_WORST,                        "of the mean", TAIL, AS_NUM,    -1, false },
    { "Visual tokens",     "data/visual_token_share",        "",         MEAN,   AS_PERCENT,  0, false },
};

enum { FIGURES = sizeof figures / sizeof *figures };

static const char *const how_text[] = {
    [LAST] = "last", [TAIL] = "mean of the last 5 %", [MEDIAN] = "median", [MEAN] = "mean", [MOST] = "most"
};

static double series_mean(const Series *s)
{
    double sum = 0;
    for (int64_t i = 0; s && i < s->n; i++) sum += s->at[i].value;
    return s && s->n ? sum / (double)s->n : NAN;
}

static double figure_value(const Figure *f, const Run *run)
{
    const Series *s = series_find(&run->metrics, f->key);
    switch (f->how) {
    case LAST:   return series_last(s);
    case TAIL:   return series_tail(s);
    case MEDIAN: return series_median(s);
    case MEAN:   return series_mean(s);
    default:     return series_extreme(s, true).value;
    }
}

static const char *figure_text(char buf[NUM_ROOM], const Figure *f, double v)
{
    switch (f->form) {
    case AS_PERCENT: return percent_text(buf, v);
    case AS_SPAN:    return span_text(buf, v);
    default:         return num_text(buf, v);
    }
}

/* --- tiles ------------------------------------------------------------------------------------------- */

static void put_parts(Html *h, const Run *run)
{
    const char *between = "";
    for (int i = 0; i < PARTS; i++) {
        char key[32];
        snprintf(key, sizeof key, "perf/mfu_%s", part_names[i]);
        double v = series_median(series_find(&run->metrics, key));
        if (!isfinite(v)) continue;
        html_fmt(h, "%s%s %.0f", between, part_names[i], fmin(100 * v, 1e6));
        between = " \xc2\xb7 ";
    }
    if (!*between) html_put(h, "median");
}

/* The line below a number: where it came from. */
static void put_origin(Html *h, const Figure *f, const Run *run)
{
    char buf[NUM_ROOM];
    const Series *s = series_find(&run->metrics, f->key);
    Point best = series_extreme(s, f->better > 0), worst = series_extreme(s, f->better < 0);
    Point at = f->how == TAIL ? s->at[0] : f->how == LAST ? best : worst;
    if (!strcmp(f->key, "perf/mfu"))                 put_parts(h, run);
    else if (f->how == MOST || f->how == MEDIAN)     html_fmt(h, "%s of all steps", how_text[f->how]);
    else html_fmt(h, "%s %s at step %s", f->how == TAIL ? "from" : f->how == LAST ? "best" : "at most",
                  figure_text(buf, f, at.value), WHOLE(at.step));
}

static void put_tile(Html *h, const Runs *r, const Figure *f)
{
    char buf[NUM_ROOM];
    bool any = false;
    for (int i = 0; i < r->n; i++) any |= isfinite(figure_value(f, r->at[i]));
    if (!any) return;
    html_fmt(h, "<div class='card tile'><div class='name'>%s</div>", f->name);
    for (int i = 0; i < r->n; i++) {
        html_fmt(h, "<div class='value%s'>", two(r) ? " two" : "");
        if (two(r)) html_letter(h, i);
        html_fmt(h, "%s <small>%s</small></div>", figure_text(buf, f, figure_value(f, r->at[i])), f->unit);
    }
    html_put(h, "<div class='sub'>");
    if (two(r)) html_put(h, how_text[f->how]);
    else        put_origin(h, f, r->at[0]);
    html_put(h, "</div></div>\n");
}

void part_summary(Html *h, const Runs *r)
{
    html_put(h, "<div class='tiles'>\n");
    for (int i = 0; i < FIGURES; i++)
        if (figures[i].tile) put_tile(h, r, &figures[i]);
    html_put(h, "</div>\n");
}

/* --- two runs ---------------------------------------------------------------------------------------- */

/* B against A, in the figure's own terms: points for shares, percent for the rest. */
static void put_change(Html *h, const Figure *f, double a, double b)
{
    char buf[NUM_ROOM];
    double d = b - a;
    bool much = fabs(d) >= (f->form == AS_PERCENT ? 0.002 : 0.005 * fabs(a)) && d != 0;    /* less is noise */
    bool good = (d > 0) == (f->better > 0), judged = f->better && much;
    if (!isfinite(d)) { html_put(h, "<td class='num'>\xe2\x80\x93</td>"); return; }
    html_fmt(h, "<td class='num%s'>", !judged ? "" : good ? " right-ink" : " wrong-ink");
    if (f->form == AS_PERCENT) html_fmt(h, "%+.2f points", fmax(fmin(100 * d, 1e9), -1e9));
    else html_fmt(h, "%s%s%s", d > 0 ? "+" : "", num_text(buf, d), f->form == AS_SPAN ? " s" : "");
    if (f->form != AS_PERCENT && fabs(d) < 1e4 * fabs(a))
        html_fmt(h, " (%+.1f\xc2\xa0%%)", 100 * d / fabs(a));
    html_fmt(h, "%s</td>", !judged ? "" : good ? " better" : " worse");
}

void figures_table(Html *h, const Runs *r)
{
    html_put(h, "<h3>Final metrics</h3><div class='card scroll'><table><tr><th>metric</th>"
                "<th class='num'>A</th><th class='num'>B</th><th class='num'>B against A</th></tr>\n");
    for (int i = 0; i < FIGURES; i++) {
        const Figure *f = &figures[i];
        char buf[NUM_ROOM];
        double v[2] = { figure_value(f, r->at[0]), figure_value(f, r->at[1]) };
        if (!isfinite(v[0]) && !isfinite(v[1])) continue;
        html_fmt(h, "<tr><td>%s <small class='note'>%s</small></td>", f->name, how_text[f->how]);
        for (int k = 0; k < 2; k++)
            html_fmt(h, "<td class='num'>%s %s</td>", figure_text(buf, f, v[k]), f->unit);
        put_change(h, f, v[0], v[1]);
        html_put(h, "</tr>\n");
    }
    html_put(h, "</table></div>\n");
}
