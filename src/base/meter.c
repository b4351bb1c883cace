/* base/meter.c -- see meter.h. */
#include "base/meter.h"

#include "base/clock.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_MS = 1000, TERMINAL_MS = 500, LINES_MS = 10000 };

void meter_open(Meter *m, const Log *log, const char *what, MeterUnit unit, double total)
{
    *m     = (Meter){ .log = log, .what = what, .unit = unit, .total = total, .began = clock_now() };
    m->own = (Log){ .world = 1, .least = LOG_INFO, .live = isatty(STDERR_FILENO) };
}

static const char *amount_text(char out[STR_BYTES], MeterUnit unit, double n)
{
    if (unit == METER_BYTES) return str_bytes(out, n);
    if (n >= 999500) snprintf(out, STR_BYTES, "%.2f M", n / 1e6);
    else if (n >= 1e4) snprintf(out, STR_BYTES, "%.1f k", n / 1e3);
    else snprintf(out, STR_BYTES, "%.0f", n);
    return out;
}

const char *meter_text(char out[METER_TEXT], const Meter *m, double seconds)
{
    char   done[STR_BYTES], total[STR_BYTES + 4] = "", rate[STR_BYTES], left[40] = "", all[STR_BYTES];
    double n = (double)__atomic_load_n(&m->done, __ATOMIC_RELAXED), per = n / (seconds > 0 ? seconds : 1);
    double rest = per > 0 ? (m->total - n) / per : 0;
    if (m->total > 0) snprintf(total, sizeof total, " of %s", amount_text(all, m->unit, m->total));
    if (m->total > 0 && rest >= 60) snprintf(left, sizeof left, ", %.0f min left", rest / 60);
    else if (m->total > 0 && rest > 0) snprintf(left, sizeof left, ", %.0f s left", rest);
    snprintf(out, METER_TEXT, "%s: %s%s, %s/s%s", m->what, amount_text(done, m->unit, n), total,
             amount_text(rate, m->unit, per), left);
    return out;
}

static const Log *log_of(const Meter *m) { return m->log ? m->log : &m->own; }

static void show(const Meter *m, double seconds)
{
    char text[METER_TEXT];
    meter_text(text, m, seconds);
    if (log_of(m)->live) log_transient(log_of(m), text);
    else log_info(log_of(m), "%s", text);
}

/* When several threads find that a line is due, one of them writes it. */
void meter_add(Meter *m, int64_t n)
{
    if (!m) return;
    __atomic_add_fetch(&m->done, n, __ATOMIC_RELAXED);
    double  seconds = clock_now() - m->began;
    int64_t now = (int64_t)(1e3 * seconds), was = __atomic_load_n(&m->shown, __ATOMIC_RELAXED);
    int64_t wait = log_of(m)->live ? TERMINAL_MS : LINES_MS;
    if (now < FIRST_MS || now - was < wait) return;
    if (__atomic_compare_exchange_n(&m->shown, &was, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        show(m, seconds);
}

/* Work that took long is reported in one line with its rate. */
void meter_close(Meter *m)
{
    double seconds = clock_now() - m->began;
    char   done[STR_BYTES], rate[STR_BYTES];
    if (!m->shown || !m->done) return;
    log_info(log_of(m), "%s: %s in %.1f s, %s/s", m->what, amount_text(done, m->unit, (double)m->done),
             seconds, amount_text(rate, m->unit, (double)m->done / seconds));
}
