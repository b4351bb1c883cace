/* base/log.h -- log lines for people, metrics for programs.
 *
 * A line goes to stderr and, when there is one, to the run's train.log, which also gets the time. With
 * several ranks each line carries its rank; ranks other than 0 write LOG_WARN and above alone.
 * A terminal has one more line below the others that is overwritten: the progress line (log_live).
 * Metrics are one JSON object a line in metrics.jsonl, written by one rank. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } LogLevel;

typedef struct Log {
    int      rank, world;
    LogLevel least;                 /* lines below it are not written */
    FILE    *file;                  /* NULL: stderr only */
    bool     live;                  /* stderr is a terminal, which shows the progress line */
} Log;

/* path NULL: stderr only. A file that exists is continued. */
MUST Status log_open(Log *log, const char *path, int rank, int world, LogLevel least);
void        log_close(Log *log);                                   /* twice is fine */

/* One line; safe from several threads. log NULL: nothing is written. */
void log_line(const Log *log, LogLevel level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The latest failure into the file alone: the program prints it. */
void log_failure(const Log *log);

/* A line that a terminal shows in the place of the last such line, `brief` where it is too narrow for `text`;
 * files get every text. */
void log_live(const Log *log, const char *text, const char *brief);

/* The same for a terminal alone: neither a pipe nor the file gets it. */
void log_transient(const Log *log, const char *text);

#define log_debug(log, ...) log_line(log, LOG_DEBUG, __VA_ARGS__)
#define log_info(log, ...)  log_line(log, LOG_INFO,  __VA_ARGS__)
#define log_warn(log, ...)  log_line(log, LOG_WARN,  __VA_ARGS__)
#define log_error(log, ...) log_line(log, LOG_ERROR, __VA_ARGS__)

typedef struct Metrics {
    FILE       *file;               /* NULL: this rank writes none, and every call is a no-op */
    const char *path, *label;       /* "training-equivalent" or "benchmark-only"; both outlive the Metrics */
} Metrics;

/* Continues a file that exists: a resumed run continues its files. path NULL: this rank writes none. */
MUST Status metrics_open(Metrics *m, const char *path, const char *label);
void        metrics_close(Metrics *m);                             /* twice is fine */

/* A line: begin, any number of values, end. The line is on its way to the disk when end returns. A value that
 * is not finite becomes null, which is what JSON has for it. */
void        metrics_begin(Metrics *m, int64_t step);
void        metrics_put(Metrics *m, const char *name, double value);     /* name as in "train/loss" */
MUST Status metrics_end(Metrics *m);

#ifdef __cplusplus
}
#endif
#endif
