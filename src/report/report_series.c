/* report/report_series.c -- statistics of a series: last value, median, a smooth curve, a thinned one. */
#include "report/report_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Series *series_find(const MetricsFile *m, const char *key)
{
    Series *s = (Series *)m->series;         /* as strchr: the result is as writable as m */
    for (int i = 0; i < m->n; i++)
        if (!strcmp(s[i].key, key)) return s[i].n ? &s[i] : NULL;
    return NULL;
}

double series_last(const Series *s) { return s && s->n ? s->at[s->n - 1].value : NAN; }

double series_tail(const Series *s)
{
    double sum = 0;
    if (!s || !s->n) return NAN;
    int64_t n = s->n / 20 ? s->n / 20 : 1;
    for (int64_t i = s->n - n; i < s->n; i++) sum += s->at[i].value;
    return sum / (double)n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts v. */
static double middle(double *v, int64_t n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* The first steps allocate memory, tune kernels and fill caches: they say little about the rest. */
int64_t series_warm_up(const Series *s)
{
    enum { WARM_UP = 10 };
    return s->n / 4 < WARM_UP ? s->n / 4 : WARM_UP;
}

double series_median(const Series *s)
{
    if (!s || !s->n) return NAN;
    int64_t skip = series_warm_up(s), n = s->n - skip;
    double *v = malloc((size_t)n * sizeof *v);
    if (!v) return NAN;
    for (int64_t i = 0; i < n; i++) v[i] = s->at[skip + i].value;
    double mid = middle(v, n);
    free(v);
    return mid;
}

Point series_extreme(const Series *s, bool largest)
{
    Point best = { 0, NAN };
    for (int64_t i = 0; s && i < s->n; i++) {
        double v = s->at[i].value;
        if (i == 0 || (largest ? v > best.value : v < best.value)) best = s->at[i];
    }
    return best;
}

/* The median of a window around each place, some 3 % of the run wide: a spike stays out of it, and unlike a
 * running average it does not lag. Towards the start, where runs fall steeply, it narrows; at the end it is
 * cut. Wide windows are scored by WINDOW of their points. */
int64_t points_smooth(Point *to, const Point *from, int64_t n, int64_t most)
{
    enum { WINDOW = 129 };
    int64_t half = n / 60, out = n < most ? n : most;
    double v[WINDOW];
    for (int64_t k = 0; k < out; k++) {
        int64_t i = out > 1 ? k * (n - 1) / (out - 1) : 0, h = i < half ? i : half;
        int64_t lo = i - h, len = (i + h < n ? i + h : n - 1) - lo + 1, take = len < WINDOW ? len : WINDOW;
        for (int64_t j = 0; j < take; j++) v[j] = from[lo + j * (len - 1) / (take > 1 ? take - 1 : 1)].value;
        to[k] = (Point){ from[i].step, middle(v, take) };
    }
    return out;
}

static int64_t thin_bucket(Point *to, const Point *from, int64_t n)
{
    int64_t lo = 0, hi = 0, out = 0;
    for (int64_t i = 1; i < n; i++) {
        if (from[i].value < from[lo].value) lo = i;
        if (from[i].value > from[hi].value) hi = i;
    }
    int64_t pick[4] = { 0, lo < hi ? lo : hi, lo < hi ? hi : lo, n - 1 };
    for (int i = 0; i < 4; i++)
        if (i == 0 || pick[i] != pick[i - 1]) to[out++] = from[pick[i]];
    return out;
}

int64_t points_thin(Point *to, const Point *from, int64_t n, double lo, double hi, int64_t buckets)
{
    int64_t out = 0;
    double per = hi > lo ? (double)buckets / (hi - lo) : 0;
    for (int64_t i = 0; i < n;) {
        int64_t j = i + 1;
        double bucket = floor((from[i].step - lo) * per);
        while (j < n && floor((from[j].step - lo) * per) == bucket) j++;
        out += thin_bucket(to + out, from + i, j - i);
        i = j;
    }
    return out;
}
