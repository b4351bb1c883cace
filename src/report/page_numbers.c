/* report/page_numbers.c -- numbers as text for readers: see page.h. */
#include "report/page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *dash(char buf[NUM_BYTES]) { return snprintf(buf, NUM_BYTES, "\xe2\x80\x93"), buf; }

/* Removes zeros at the end of a decimal fraction. */
static void trim(char *s)
{
    char *end = s + strlen(s);
    if (!strchr(s, '.') || strchr(s, 'e')) return;
    while (end[-1] == '0') *--end = 0;
    if (end[-1] == '.') end[-1] = 0;
}

/* 1.3e-5 rather than 1.30e-05. */
static const char *exponent_text(char buf[NUM_BYTES], double v)
{
    int e = v != 0 ? (int)floor(log10(fabs(v) / 0.9995)) : 0; /* 9.996 rounds to 10: the next power */
    snprintf(buf, NUM_BYTES - 8, "%.2f", v / pow(10, e));
    trim(buf);
    snprintf(buf + strlen(buf), 8, "e%d", e);
    return buf;
}

const char *num_text(char buf[NUM_BYTES], double v)
{
    static const char suffix[] = "kMGTP";
    double a = fabs(v);
    if (!isfinite(v)) return dash(buf);
    if (v == 0) return snprintf(buf, NUM_BYTES, "0"), buf;
    if (a < 1e-3 || a >= 1e18) return exponent_text(buf, v);
    if (a >= 1e4) {
        int s = 0;
        for (v /= 1000; fabs(v) >= 999.95 && s < 4; s++) v /= 1000;
        int places = fabs(v) >= 100 ? 1 : 2;
        snprintf(buf, NUM_BYTES - 2, "%.*f", places, v);
        trim(buf);
        size_t n = strlen(buf);
        buf[n] = suffix[s], buf[n + 1] = 0;
        return buf;
    }
    int places = a >= 1000 ? 0 : a >= 100 ? 1 : a >= 10 ? 2 : a >= 1 ? 3 : 4;
    if (places == 0) return whole_text(buf, v);
    snprintf(buf, NUM_BYTES, "%.*f", places, v);
    trim(buf);
    return buf;
}

const char *whole_text(char buf[NUM_BYTES], double v)
{
    char digits[NUM_BYTES];
    if (!isfinite(v) || fabs(v) >= 1e18) return dash(buf);
    int n = snprintf(digits, sizeof digits, "%lld", llabs(llround(v))), at = 0;
    if (llround(v) < 0) buf[at++] = '-';
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    return buf[at] = 0, buf;
}

const char *percent_text(char buf[NUM_BYTES], double v)
{
    if (!isfinite(v)) return dash(buf);
    snprintf(buf, NUM_BYTES, "%.*f\xc2\xa0%%", fabs(v) < 0.1 ? 2 : 1, fmax(fmin(100 * v, 1e9), -1e9));
    return buf;
}

const char *bytes_text(char buf[NUM_BYTES], double v)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    int u = 0;
    if (!isfinite(v) || v < 0 || v > 1e30) return dash(buf);
    for (; v >= 1000 && u < 5; u++) v /= 1024;
    snprintf(buf, NUM_BYTES, "%.*f\xc2\xa0%s", u == 0 || v >= 99.5 ? 0 : v >= 9.95 ? 1 : 2, v, unit[u]);
    return buf;
}

const char *span_text(char buf[NUM_BYTES], double s)
{
    if (!isfinite(s) || s < 0 || s > 1e12) return dash(buf);
    long long t = llround(s);
    if (s < 0.9995)      snprintf(buf, NUM_BYTES, "%.0f ms", s * 1000);
    else if (s < 59.5)   snprintf(buf, NUM_BYTES, s < 10 ? "%.2f s" : "%.0f s", s);
    else if (t < 3600)   snprintf(buf, NUM_BYTES, "%lld min %lld s", t / 60, t % 60);
    else if (t < 172800) snprintf(buf, NUM_BYTES, "%lld h %lld min", t / 3600, t / 60 % 60);
    else                 snprintf(buf, NUM_BYTES, "%lld days %lld h", t / 86400, t / 3600 % 24);
    return buf;
}
