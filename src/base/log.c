/* base/log.c -- see log.h. */
#include "base/log.h"

#include "base/activity.h"
#include "base/clock.h"
#include "base/folder.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static const char *const marks[] = {
    [LOG_DEBUG] = "debug: ", [LOG_INFO] = "", [LOG_WARN] = "warning: ", [LOG_ERROR] = "error: "
};

Status log_open(Log *log, const char *path, int rank, int world, LogLevel least)
{
    *log = (Log){ .rank = rank, .world = world, .least = least, .live = !rank && isatty(STDERR_FILENO) };
    if (!path) return OK;
    return file_append(&log->file, path);
}

void log_close(Log *log)
{
    if (log->live) fputs("\r\033[K", stderr);
    if (log->file) fclose(log->file);
    log->file = NULL, log->live = false;
}

static void stamp(char *buf, size_t size)
{
    time_t now = (time_t)clock_wall();
    struct tm t;
    gmtime_r(&now, &t);
    strftime(buf, size, "%Y-%m-%dT%H:%M:%SZ ", &t);
}

/* The disk of the file, or who reads stderr, may be slow. */
static void put_file(const Log *log, const char *tag, const char *mark, const char *text)
{
    char when[32];
    if (!log->file) return;
    stamp(when, sizeof when);
    activity_slow_begin();
    fprintf(log->file, "%s%s%s%s\n", when, tag, mark, text);
    fflush(log->file);
    activity_slow_end();
}

/* Whole lines in one call each: stdio's lock then keeps those of several threads apart. */
void log_line(const Log *log, LogLevel level, const char *fmt, ...)
{
    char text[2048], tag[32] = "";
    va_list ap;
    if (!log || level < log->least || (log->rank && level < LOG_WARN)) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (log->world > 1) snprintf(tag, sizeof tag, "[%d] ", log->rank);
    activity_slow_begin();
    fprintf(stderr, "%s%s%s%s\n", log->live ? "\r\033[K" : "", tag, marks[level], text);
    activity_slow_end();
    put_file(log, tag, marks[level], text);
}

void log_failure(const Log *log)
{
    char tag[32] = "";
    if (log->world > 1) snprintf(tag, sizeof tag, "[%d] ", log->rank);
    put_file(log, tag, marks[LOG_ERROR], status_text());
}

static int terminal_width(void)
{
    struct winsize w = { 0 };
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) || w.ws_col < 20 ? 80 : w.ws_col;
}

void log_live(const Log *log, const char *text, const char *brief)
{
    if (!log || LOG_INFO < log->least || log->rank) return;
    int  width = terminal_width() - 1;                       /* a full line would go on to the next */
    bool fits = strlen(text) <= (size_t)width;
    activity_slow_begin();
    if (log->live) fprintf(stderr, "\r%.*s\033[K", width, fits ? text : brief);
    else           fprintf(stderr, "%s\n", text);
    activity_slow_end();
    put_file(log, "", "", text);
}

void log_transient(const Log *log, const char *text)
{
    if (!log || !log->live || LOG_INFO < log->least) return;
    activity_slow_begin();
    fprintf(stderr, "\r%.*s\033[K", terminal_width() - 1, text);
    activity_slow_end();
}

Status metrics_open(Metrics *m, const char *path, const char *label)
{
    *m = (Metrics){ .path = path, .label = label };
    if (!path) return OK;
    return file_append(&m->file, path);
}

void metrics_close(Metrics *m)
{
    if (m->file) fclose(m->file);
    m->file = NULL;
}

void metrics_begin(Metrics *m, int64_t step)
{
    if (!m->file) return;
    fprintf(m->file, "{\"step\": %" PRId64 ", \"time\": %.3f, \"label\": \"%s\"", step, clock_wall(),
            m->label);
}

/* A channel of the data may be called anything. */
static void put_quoted(FILE *out, const char *text)
{
    putc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')     fprintf(out, "\\%c", *text);
        else if ((unsigned char)*text < 0x20) fprintf(out, "\\u%04x", (unsigned)*text);
        else                                  putc(*text, out);
    }
    putc('"', out);
}

void metrics_put(Metrics *m, const char *name, double value)
{
    if (!m->file) return;
    fputs(", ", m->file);
    put_quoted(m->file, name);
    fputs(": ", m->file);
    if (isfinite(value)) fprintf(m->file, "%.9g", value);
    else                 fputs("null", m->file);
}

Status metrics_end(Metrics *m)
{
    if (!m->file) return OK;
    fputs("}\n", m->file);
    activity_slow_begin();
    bool bad = fflush(m->file) || ferror(m->file);
    activity_slow_end();
    if (bad) return fail(E_IO, "%s: %s", m->path, strerror(errno));
    return OK;
}
