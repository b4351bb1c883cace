/* report/report_chart.h -- curves over steps as inline SVG, with axes that several charts may share.
 *
 * The drawing is stretched to the width at hand while texts are plain HTML beside it, so a chart is as
 * readable on a telephone as on a wall. The script reads values back from the paths: no number is on the page
 * twice. */
#ifndef REPORT_REPORT_CHART_H
#define REPORT_REPORT_CHART_H

#include "report/report_html.h"

enum { CHART_CURVES = 12, COLORS = 8 };

typedef enum {
    CURVE_LINE,
    CURVE_SMOOTH,                     /* the values faintly, a smooth curve through them */
    CURVE_DOTS                        /* few values, each with a dot */
} CurveStyle;

typedef struct Curve { const char *name; const Series *s; CurveStyle style; int color; bool dashed; } Curve;

typedef enum {
    CHART_ZERO = 1,                   /* the axis begins at zero */
    CHART_LOG  = 2,                   /* logarithmic where the values span much */
    CHART_FULL = 4,                   /* and ends at one: a share of all */
    CHART_WIDE = 8,                   /* takes the whole width of the page */
    CHART_PERCENT = 16,               /* values are shares; shown in percent */
    CHART_LEFT = 32                   /* begins a row of the page */
} ChartFlags;

typedef struct Axis { double lo, hi, tick; bool log; } Axis;

typedef struct Chart {
    const char *title, *unit, *of;    /* title and `of` (whose run, or NULL) may be text of the outside */
    unsigned    flags;
    Curve       curve[CHART_CURVES];
    int         curves;
    Axis        x, y;
} Chart;

void chart_add(Chart *c, const char *name, const Series *s, CurveStyle style, int color);   /* s NULL: none */
void charts_fit(Chart *c, int n);                 /* the same axes for all n */
void chart_put(Html *h, const Chart *c);          /* nothing for a chart without curves */

#endif
