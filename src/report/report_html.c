/* report/report_html.c -- see report_html.h. */
#include "report/report_html.h"

#include "base/str.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void push(Html *h, const char *s, size_t n)
{
    if (!h->status) h->status = text_push(&h->t, s, n);
}

void html_put(Html *h, const char *markup) { push(h, markup, strlen(markup)); }

void html_fmt(Html *h, const char *fmt, ...)
{
    char buf[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    REQUIRE(n >= 0 && n < (int)sizeof buf, "markup of %d bytes", n);
    push(h, buf, (size_t)n);
}

static const char *entity(char c)
{
    switch (c) {
    case '&':  return "&amp;";
    case '<':  return "&lt;";
    case '>':  return "&gt;";
    case '"':  return "&quot;";
    case '\'': return "&#39;";
    default:   return NULL;
    }
}

/* Bytes that are not UTF-8, and controls other than tab and newline, become U+FFFD. */
void html_text(Html *h, const char *text)
{
    const char *from = text;
    while (*text) {
        uint32_t code = 0;
        int n = str_utf8(text, &code);
        bool control = (code < 32 && code != '\n' && code != '\t') || (code >= 127 && code < 160);
        const char *instead = n == 0 || control ? "\xef\xbf\xbd" : entity(*text);
        if (instead) {
            push(h, from, (size_t)(text - from));
            html_put(h, instead);
            from = text + (n ? n : 1);
        }
        text += n ? n : 1;
    }
    push(h, from, (size_t)(text - from));
}

void html_around(Html *h, const char *before, const char *text, const char *after)
{
    html_put(h, before);
    html_text(h, text);
    html_put(h, after);
}

void html_letter(Html *h, int run) { html_fmt(h, "<span class='run k%d'>%c</span> ", run + 1, 'A' + run); }

void html_base64(Html *h, const void *bytes, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *b = bytes;
    char buf[4096];
    size_t used = 0;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)b[i] << 16;
        if (i + 1 < n) v |= (uint32_t)b[i + 1] << 8;
        if (i + 2 < n) v |= b[i + 2];
        for (int d = 0; d < 4; d++) buf[used++] = i + (size_t)d > n ? '=' : digit[v >> (18 - 6 * d) & 63];
        if (used == sizeof buf) push(h, buf, used), used = 0;
    }
    push(h, buf, used);
}

Status html_status(const Html *h)
{
    return h->status ? fail(h->status, "no memory for a page of %zu bytes", h->t.n) : OK;
}

void html_close(Html *h)
{
    text_close(&h->t);
    *h = (Html){ 0 };
}

/* --- numbers for people --------------------------------------------------------------------------------- */

static const char *dash(char buf[NUM_ROOM]) { return snprintf(buf, NUM_ROOM, "\xe2\x80\x93"), buf; }

/* Zeros after the point say nothing. */
static void trim(char *s)
{
    char *end = s + strlen(s);
    if (!strchr(s, '.') || strchr(s, 'e')) return;
    while (end[-1] == '0') *--end = 0;
    if (end[-1] == '.') end[-1] = 0;
}

/* 1.3e-5 rather than 1.30e-05. */
const char *exponent_text(char buf[NUM_ROOM], double v)
{
    int e = v != 0 ? (int)floor(log10(fabs(v) / 0.9995)) : 0; /* what rounds to 10 is 1 of the next power */
    snprintf(buf, NUM_ROOM - 8, "%.2f", v / pow(10, e));
    trim(buf);
    snprintf(buf + strlen(buf), 8, "e%d", e);
    return buf;
}

const char *num_text(char buf[NUM_ROOM], double v)
{
    static const char suffix[] = "kMGTP";
    double a = fabs(v);
    if (!isfinite(v)) return dash(buf);
    if (v == 0) return snprintf(buf, NUM_ROOM, "0"), buf;
    if (a < 1e-3 || a >= 1e18) return exponent_text(buf, v);
    if (a >= 1e4) {
        int s = 0;
        for (v /= 1000; fabs(v) >= 999.95 && s < 4; s++) v /= 1000;
        int places = fabs(v) >= 100 ? 1 : 2;
        snprintf(buf, NUM_ROOM - 2, "%.*f", places, v);
        trim(buf);
        size_t n = strlen(buf);
        buf[n] = suffix[s], buf[n + 1] = 0;
        return buf;
    }
    int places = a >= 1000 ? 0 : a >= 100 ? 1 : a >= 10 ? 2 : a >= 1 ? 3 : 4;
    if (places == 0) return whole_text(buf, v);
    snprintf(buf, NUM_ROOM, "%.*f", places, v);
    trim(buf);
    return buf;
}

const char *whole_text(char buf[NUM_ROOM], double v)
{
    char digits[NUM_ROOM];
    if (!isfinite(v) || fabs(v) >= 1e18) return dash(buf);
    int n = snprintf(digits, sizeof digits, "%lld", llabs(llround(v))), at = 0;
    if (llround(v) < 0) buf[at++] = '-';
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    return buf[at] = 0, buf;
}

const char *percent_text(char buf[NUM_ROOM], double v)
{
    if (!isfinite(v)) return dash(buf);
    snprintf(buf, NUM_ROOM, "%.*f\xc2\xa0%%", fabs(v) < 0.1 ? 2 : 1, fmax(fmin(100 * v, 1e9), -1e9));
    return buf;
}

const char *bytes_text(char buf[NUM_ROOM], double v)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    int u = 0;
    if (!isfinite(v) || v < 0 || v > 1e30) return dash(buf);
    for (; v >= 1000 && u < 5; u++) v /= 1024;
    snprintf(buf, NUM_ROOM, "%.*f\xc2\xa0%s", u == 0 || v >= 99.5 ? 0 : v >= 9.95 ? 1 : 2, v, unit[u]);
    return buf;
}

const char *span_text(char buf[NUM_ROOM], double s)
{
    if (!isfinite(s) || s < 0 || s > 1e12) return dash(buf);
    long long t = llround(s);
    if (s < 0.9995)      snprintf(buf, NUM_ROOM, "%.0f ms", s * 1000);
    else if (s < 59.5)   snprintf(buf, NUM_ROOM, s < 10 ? "%.2f s" : "%.0f s", s);
    else if (t < 3600)   snprintf(buf, NUM_ROOM, "%lld min %lld s", t / 60, t % 60);
    else if (t < 172800) snprintf(buf, NUM_ROOM, "%lld h %lld min", t / 3600, t / 60 % 60);
    else                 snprintf(buf, NUM_ROOM, "%lld days %lld h", t / 86400, t / 3600 % 24);
    return buf;
}
