/* base/status.c -- the text behind a Status, and the exit codes. */
#include "base/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char text[16384];

/* Messages quote names and texts of files: their control characters must not reach a terminal. Line breaks
 * and tabs stay. */
static void escape_control(char *out, size_t cap, const char *in)
{
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)in; *p && n + 5 < cap; p++) {
        bool c1 = p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0;
        if (c1) p++;
        if (c1 || (*p < 32 && *p != '\n' && *p != '\t') || *p == 127)
            n += (size_t)sprintf(out + n, "\\x%02x", *p);
        else out[n++] = (char)*p;
    }
    out[n] = 0;
}

Status fail(Status s, const char *fmt, ...)
{
    char    fresh[sizeof text];         /* the message may quote the previous one */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(fresh, sizeof fresh, fmt, ap);
    va_end(ap);
    escape_control(text, sizeof text, fresh);
    return s;
}

Status wrap(Status s, const char *fmt, ...)
{
    char    head[512], whole[sizeof text + sizeof head + 4];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    snprintf(whole, sizeof whole, "%s: %s", head, text);
    escape_control(text, sizeof text, whole);
    return s;
}

const char *status_text(void) { return text; }

int status_exit_code(Status s)
{
    switch (s) {
    case OK:       return 0;
    case E_CONFIG: return 2;
    case E_FIT:    return 3;
    case E_IO:
    case E_DATA:   return 4;
    case E_DEVICE: return 5;
    case E_COMM:   return 6;
    case E_CHECK:  return 7;
    default:       return 1;
    }
}

void bug(const char *file, int line, const char *cond, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "treb: bug at %s:%d: %s: ", file, line, cond);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}
