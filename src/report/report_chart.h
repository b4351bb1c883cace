/* report/report_chart.h -- one chart: curves of metrics over steps. page.js draws it and sets its axes.
 *
 *   Chart c = chart_open("Loss", NULL, CHART_LOG, NULL);
 *   chart_add(&c, "train", series_find(&run->metrics, "train/loss"), CURVE_SMOOTH, 0, false);
 *   Json *block = chart_close(&c, &c);
 *   if (block) page_add(&page, NULL, block); */
#ifndef REPORT_REPORT_CHART_H
#define REPORT_REPORT_CHART_H

#include "report/page.h"
#include "report/report_run.h"

enum { CHART_CURVES = 12 };

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

typedef struct Chart {
    Json    *block, *curves;
    unsigned flags;
    double   x0, x1, y0, y1;          /* over its curves */
    bool     smooth;                  /* has a smooth curve */
} Chart;

Chart chart_open(const char *title, const char *unit, unsigned flags, const char *of);   /* of: run or NULL */
/* Adds a curve; s NULL: none. */
void  chart_add(Chart *c, const char *name, const Series *s, CurveStyle style, int color, bool dashed);
void  chart_join_range(Chart *c, const Chart *other);         /* axes of c that show the values of both */
/* The block, with the axes of `range`; NULL: it has no curves. */
Json *chart_close(Chart *c, const Chart *range);

#endif
