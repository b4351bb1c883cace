/* report/report_summary.c -- a run in a few numbers: the tiles at the top, and for two runs a table. */
#include "report/report_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum { AS_NUM, AS_PERCENT, AS_SPAN } Form;
typedef enum { LAST, TAIL, MEDIAN, MEAN, MOST } How;

typedef struct SummaryFigure {
    const char *name, *key, *unit;
    How         how;
    Form        form;
    int         better;               /* 1: more is better, -1: less is, 0: neither */
    bool        tile;
} SummaryFigure;

static const SummaryFigure figures[] = {
    { "Training loss",     "train/loss",                     "",         TAIL,   AS_NUM,     -1, true  },
    { "Held-out loss",     "eval/loss",                      "",         LAST,   AS_NUM,     -1, true  },
    { "Held-out accuracy", "eval/accuracy",                  "",         LAST,   AS_PERCENT,  1, true  },
    { "Throughput per GPU", "perf/tokens_per_second_per_gpu", "tokens/s", MEDIAN, AS_NUM,     1, true  },
    { "Utilisation (MFU)", "perf/mfu",                       "",         MEDIAN, AS_PERCENT,  1, true  },
    { "MFU, vision",       "perf/mfu_vision",                "",         MEDIAN, AS_PERCENT,  1, false },
    { "MFU, merger",       "perf/mfu_merger",                "",         MEDIAN, AS_PERCENT,  1, false },
    { "MFU, decoder",      "perf/mfu_decoder",               "",         MEDIAN, AS_PERCENT,  1, false },
    { "MFU, head",         "perf/mfu_head",                  "",         MEDIAN, AS_PERCENT,  1, false },
    { "HFU",               "perf/hfu",                       "",         MEDIAN, AS_PERCENT,  0, false },
    { "Achieved",          "perf/tflops",                    "TFLOP/s",  MEDIAN, AS_NUM,      1, false },
    { "Step time",         "perf/step_time",                 "",         MEDIAN, AS_SPAN,    -1, true  },
    { "Waiting for data",  "perf/data_wait",                 "",         MEAN,   AS_PERCENT, -1, true  },
    { "Waiting for ranks", "perf/exposed_comm",              "",         MEAN,   AS_PERCENT, -1, false },
    { "Hidden communication", "perf/hidden_comm",            "",         MEAN,   AS_PERCENT,  1, false },
    { "Planned memory",    KEY_PLANNED,                      "GiB",      MOST,   AS_NUM,     -1, true  },
    { "Measured memory",   KEY_MEASURED,                     "GiB",      MOST,   AS_NUM,     -1, true  },
    { "Gradient norm",     "train/grad_norm",                "",         MEDIAN, AS_NUM,      0, false },
    { "Auxiliary loss",    "moe/aux_loss",                   "",         TAIL,   AS_NUM,      0, false },
    { "Busiest expert",    KEY_WORST,                        "of the mean", TAIL, AS_NUM,    -1, false },
    { "Visual tokens",     "data/visual_token_share",        "",         MEAN,   AS_PERCENT,  0, false },
};

enum { FIGURES = sizeof figures / sizeof *figures };

static const char *const how_text[] = {
    [LAST] = "last", [TAIL] = "mean of the last 5 %", [MEDIAN] = "median", [MEAN] = "mean", [MOST] = "largest"
};

static double series_mean(const Series *s)
{
    double sum = 0;
    for (int64_t i = 0; s && i < s->n; i++) sum += s->at[i].value;
    return s && s->n ? sum / (double)s->n : NAN;
}

static double figure_value(const SummaryFigure *f, const ReportRun *run)
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

static const char *figure_text(char buf[NUM_BYTES], const SummaryFigure *f, double v)
{
    switch (f->form) {
    case AS_PERCENT: return percent_text(buf, v);
    case AS_SPAN:    return span_text(buf, v);
    default:         return num_text(buf, v);
    }
}

/* How a figure comes from its series: a median says over how many steps. */
static const char *origin(char *text, size_t n, const SummaryFigure *f, const ReportRun *run)
{
    const Series *s = series_find(&run->metrics, f->key);
    long long skipped = s ? (long long)series_warm_up(s) : 0, steps = s ? (long long)s->n - skipped : 0;
    if (f->how != MEDIAN) snprintf(text, n, "%s", how_text[f->how]);
    else if (!skipped)    snprintf(text, n, "median of %lld steps", steps);
    else snprintf(text, n, "median of %lld steps, without %lld of warm-up", steps, skipped);
    return text;
}

/* --- tiles ------------------------------------------------------------------------------------------- */

static size_t mfu_parts(char *text, size_t n, const ReportRun *run)
{
    size_t at = 0;
    for (int i = 0; i < PARTS; i++) {
        char key[32];
        snprintf(key, sizeof key, "perf/mfu_%s", part_names[i]);
        double v = series_median(series_find(&run->metrics, key));
        if (isfinite(v))
            at += (size_t)snprintf(text + at, n - at, "%s%s %.0f", at ? " \xc2\xb7 " : "", part_names[i],
                                   fmin(100 * v, 1e6));
    }
    return at;
}

/* The line below a number. A tile of two runs says only how the number is taken. */
static Json *tile_note(const Report *r, const SummaryFigure *f)
{
    char buf[NUM_BYTES], text[400];
    const Series *s = series_find(&r->run[0]->metrics, f->key);
    if (two(r)) return page_string(f->how == MEDIAN ? "median, without warm-up" : how_text[f->how]);
    Point best = series_extreme(s, f->better > 0), worst = series_extreme(s, f->better < 0);
    Point at = f->how == TAIL ? s->at[0] : f->how == LAST ? best : worst;
    const char *word = f->how == TAIL ? "from" : f->how == LAST ? "best" : "at most";
    size_t parts = strcmp(f->key, "perf/mfu") ? 0 : mfu_parts(text, sizeof text, r->run[0]);
    if (parts) snprintf(text + parts, sizeof text - parts, "; "), parts += 2;
    if (f->how == MOST || f->how == MEDIAN) origin(text + parts, sizeof text - parts, f, r->run[0]);
    else snprintf(text, sizeof text, "%s %s at step %s", word, figure_text(buf, f, at.value), WHOLE(at.step));
    return page_string(text);
}

static void add_tile(Report *r, Json *tiles, const SummaryFigure *f)
{
    char buf[NUM_BYTES];
    bool any = false;
    Json *values = json_array();
    for (int i = 0; i < r->n; i++) {
        Json *value = json_array();
        any |= isfinite(figure_value(f, r->run[i]));
        say_letter(r, value, i);
        page_say(value, NULL, "%s ", figure_text(buf, f, figure_value(f, r->run[i])));
        page_say(value, "small", "%s", f->unit);
        json_array_append_new(values, value);
    }
    if (!any) { json_decref(values); return; }
    page_add(&r->page, tiles, json_pack("{s:s, s:o, s:o}", "name", f->name, "values", values, "note",
                                        tile_note(r, f)));
}

void part_summary(Report *r)
{
    Json *b = block_open("tiles");
    for (int i = 0; i < FIGURES; i++)
        if (figures[i].tile) add_tile(r, block_list(b, "tiles"), &figures[i]);
    block_list(b, "tiles");
    page_add(&r->page, NULL, b);
}

/* --- two runs ---------------------------------------------------------------------------------------- */

/* B against A: points for shares, percent for the rest. Below these thresholds a change is noise. rates:
 * whether one may be called better. */
static Json *change_cell(const SummaryFigure *f, double a, double b, bool rates)
{
    char buf[NUM_BYTES], text[160];
    double d = b - a;
    bool much = fabs(d) >= (f->form == AS_PERCENT ? 0.002 : 0.005 * fabs(a)) && d != 0;
    bool good = (d > 0) == (f->better > 0), rated = f->better && much && rates;
    if (!isfinite(d)) return page_string("\xe2\x80\x93");
    size_t at = f->form == AS_PERCENT
              ? (size_t)snprintf(text, sizeof text, "%+.2f points", fmax(fmin(100 * d, 1e9), -1e9))
              : (size_t)snprintf(text, sizeof text, "%s%s%s", d > 0 ? "+" : "", num_text(buf, d),
                                 f->form == AS_SPAN ? " s" : "");
    if (f->form != AS_PERCENT && fabs(d) < 1e4 * fabs(a))
        snprintf(text + at, sizeof text - at, " (%+.1f\xc2\xa0%%)", 100 * d / fabs(a));
    return page_rich(!rated ? NULL : good ? "right-ink" : "wrong-ink", "%s%s", text,
                     !rated ? "" : good ? " better" : " worse");
}

static void add_figure(Report *r, Json *table, const SummaryFigure *f)
{
    char buf[NUM_BYTES], from[2][80];
    double v[2] = { figure_value(f, r->run[0]), figure_value(f, r->run[1]) };
    if (!isfinite(v[0]) && !isfinite(v[1])) return;
    Json *row = table_row(table), *name = page_rich(NULL, "%s ", f->name);
    for (int k = 0; k < 2; k++) origin(from[k], sizeof from[k], f, r->run[k]);
    bool alike = !strcmp(from[0], from[1]);
    page_say(name, "small", "%s%s%s", from[0], alike ? "" : "; B: ", alike ? "" : from[1]);
    json_array_append_new(row, name);
    for (int k = 0; k < 2; k++)
        json_array_append_new(row, page_rich(NULL, "%s %s", figure_text(buf, f, v[k]), f->unit));
    json_array_append_new(row, change_cell(f, v[0], v[1], r->pair.comparable));
}

void figures_table(Report *r)
{
    static const char *const columns[] = { "- metric", "num A", "num B", "num B against A" };
    Json *panel = page_panel(&r->page, true), *table = block_table(columns, 4, NULL);
    page_say(block_list(panel, "title"), "b", "Final metrics");
    for (int i = 0; i < FIGURES; i++) add_figure(r, table, &figures[i]);
    page_add(&r->page, block_list(panel, "blocks"), table);
}
