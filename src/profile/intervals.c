/* profile/intervals.c -- see intervals.h. */
#include "profile/intervals.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static int by_start(const void *a, const void *b)
{
    const Interval *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* Appends to a set an interval that begins no earlier than its last one. */
static size_t append_interval(Interval *out, size_t n, Interval x)
{
    if (!(x.to > x.from)) return n;
    if (n && x.from <= out[n - 1].to) {
        out[n - 1].to = fmax(out[n - 1].to, x.to);
        return n;
    }
    out[n] = x;
    return n + 1;
}

size_t intervals_union(Interval *x, size_t n)
{
    size_t k = 0;
    if (n) qsort(x, n, sizeof *x, by_start);
    for (size_t i = 0; i < n; i++) k = append_interval(x, k, x[i]);
    return k;
}

double intervals_length(const Interval *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i].to - x[i].from;
    return sum;
}

size_t intervals_clip(Interval *out, const Interval *x, size_t n, Interval w)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        k = append_interval(out, k, (Interval){ fmax(x[i].from, w.from), fmin(x[i].to, w.to) });
    return k;
}

size_t intervals_intersect(Interval *out, const Interval *a, size_t n, const Interval *b, size_t m)
{
    size_t k = 0;
    for (size_t i = 0, j = 0; i < n && j < m; a[i].to < b[j].to ? i++ : j++) {
        Interval both = { fmax(a[i].from, b[j].from), fmin(a[i].to, b[j].to) };
        if (both.to > both.from) out[k++] = both;
    }
    return k;
}

size_t intervals_subtract(Interval *out, const Interval *a, size_t n, const Interval *b, size_t m)
{
    size_t k = 0, j = 0;
    for (size_t i = 0; i < n; i++) {
        double from = a[i].from;
        while (j < m && b[j].to <= from) j++;
        for (size_t l = j; l < m && b[l].from < a[i].to; l++) {
            if (b[l].from > from) out[k++] = (Interval){ from, b[l].from };
            from = fmax(from, b[l].to);
        }
        if (from < a[i].to) out[k++] = (Interval){ from, a[i].to };
    }
    return k;
}

size_t intervals_merge(Interval *out, const Interval *a, size_t n, const Interval *b, size_t m)
{
    size_t k = 0, i = 0, j = 0;
    while (i < n || j < m) {
        bool first = j == m || (i < n && a[i].from <= b[j].from);
        k = append_interval(out, k, first ? a[i++] : b[j++]);
    }
    return k;
}

size_t intervals_gaps(Interval *out, const Interval *x, size_t n, Interval window)
{
    return window.to > window.from ? intervals_subtract(out, &window, 1, x, n) : 0;
}
