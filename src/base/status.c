/* base/status.c -- the text behind a Status, and the exit codes. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char text[4096];

Status fail(Status s, const char *fmt, ...)
{
    char    fresh[sizeof text];         /* the message may quote the previous one */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(fresh, sizeof fresh, fmt, ap);
    va_end(ap);
    memcpy(text, fresh, sizeof text);
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
    memcpy(text, whole, sizeof text - 1);
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
