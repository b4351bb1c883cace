/* launch/output.c -- see output.h. */
#define _GNU_SOURCE                      /* strndup */
#include "launch/output.h"

#include "base/clock.h"
#include "base/status.h"
#include "launch/rank.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { NOISE_MOST = 1 << 16 };
static const double HELD_SECONDS = 1;
static const char ERROR[] = "treb: ";

/* ---- kinds of lines ---- */

/* "treb: rank N exits: …; this rank waits …" */
static bool follows_another(const char *line, int *body)
{
    return *body = 0, sscanf(line, "treb: rank %*d exits: %n", body) == 0 && *body > 0;
}

/* The text of an error without what differs between the ranks that print it, in memory of its own. */
static char *error_body(const char *line)
{
    int         at;
    bool        follows = follows_another(line, &at);
    const char *body = line + (follows ? (size_t)at : strlen(ERROR)), *end = strstr(body, "; this rank ");
    return strndup(body, follows && end ? (size_t)(end - body) : strlen(body));
}

static bool is_dashes(const char *line) { return strlen(line) > 40 && !line[strspn(line, "-")]; }

/* "[host:1234] …" and "mpirun: …", as Open MPI marks its lines. */
static bool is_from_mpi(const char *line)
{
    if (!strncmp(line, "mpirun: ", 8) || !strncmp(line, "prterun: ", 9)) return true;
    const char *colon = strchr(line, ':'), *end = strchr(line, ']');
    if (line[0] != '[' || !colon || !end || colon > end || colon == line + 1) return false;
    for (const char *c = colon + 1; c < end; c++) if (!isdigit((unsigned char)*c)) return false;
    return end > colon + 1;
}

static void take_exit(Output *o, const char *text)
{
    int rank, code;
    if (sscanf(text, "%d code %d", &rank, &code) != 2 || code < 0 || code > 7) return;
    o->reported++, o->codes[code]++;
    if (!o->cause && code && code != status_exit_code(E_COMM)) o->cause = code;
}

/* ---- errors ---- */

/* An error that another line quotes ("rank 1 aborted: …", cut at some length) is the same error. */
static bool is_shown(const Output *o, const char *body)
{
    const char *quoted = strstr(body, "aborted: ");
    if (quoted) quoted += strlen("aborted: ");
    for (int i = 0; i < o->shown_n; i++)
        if (strstr(o->shown[i], body) || (quoted && *quoted && strstr(o->shown[i], quoted))) return true;
    return false;
}

static void show_error(Output *o, const char *line)
{
    char *body = error_body(line);
    bool  known = body && is_shown(o, body);
    if (!known) fprintf(o->out, "%s\n", line);
    if (!known && body && o->shown_n < OUTPUT_ERRORS) o->shown[o->shown_n++] = body;
    else free(body);
}

static void release_held(Output *o)
{
    for (int i = 0; i < o->held_n; i++) {
        show_error(o, o->held[i]);
        free(o->held[i]);
    }
    o->held_n = 0;
}

static void take_error(Output *o, const char *line)
{
    int at;
    o->errors++;
    if (!follows_another(line, &at) || o->held_n == OUTPUT_ERRORS) { show_error(o, line); return; }
    if (!o->held_n) o->held_since = clock_now();
    o->held[o->held_n++] = strdup(line);
}

/* A warning or an error of the log that another rank has printed already. */
static bool is_logged(Output *o, const char *line)
{
    int rank, at = 0;
    if (sscanf(line, "[%d] %n", &rank, &at) != 1 || !at) return false;
    if (strncmp(line + at, "error: ", 7) && strncmp(line + at, "warning: ", 9)) return false;
    uint64_t hash = 14695981039346656037u;                   /* FNV-1a */
    for (const char *c = line + at; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    for (int i = 0; i < OUTPUT_LOGGED && i < o->logged_n; i++)
        if (o->logged[i].hash == hash && o->logged[i].rank != rank) return true;
    o->logged[o->logged_n++ % OUTPUT_LOGGED] = (LoggedLine){ rank, hash };
    return false;
}

static void keep_noise(Output *o, const char *line)
{
    size_t n = strlen(line);
    char  *more = o->noise_n + n + 2 < NOISE_MOST ? realloc(o->noise, o->noise_n + n + 2) : NULL;
    if (!more) return;
    o->noise = more;
    o->noise_n += (size_t)sprintf(more + o->noise_n, "%s\n", line);
}

static void take_line(Output *o, const char *line)
{
    bool dashes = is_dashes(line);
    if (!strncmp(line, LAUNCH_EXIT, strlen(LAUNCH_EXIT))) take_exit(o, line + strlen(LAUNCH_EXIT));
    else if (!strncmp(line, ERROR, strlen(ERROR))) take_error(o, line);
    else if (dashes || o->in_block || is_from_mpi(line)) keep_noise(o, line);
    else if (!is_logged(o, line)) fprintf(o->out, "%s\n", line);
    if (dashes) o->in_block = !o->in_block;
}

/* ---- bytes ---- */

static void end_line(Output *o)
{
    o->line[o->n] = 0, o->n = 0;
    take_line(o, o->line);
}

void output_open(Output *o, FILE *out) { *o = (Output){ .out = out }; }

void output_take(Output *o, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\n') end_line(o);
        else if (bytes[i] && bytes[i] != '\r') o->line[o->n++] = bytes[i];    /* Open MPI 5 adds NUL bytes */
        if (o->n == OUTPUT_LINE - 1) end_line(o);
    }
    fflush(o->out);
}

void output_tick(Output *o)
{
    if (o->held_n && clock_now() - o->held_since > HELD_SECONDS) release_held(o);
}

void output_finish(Output *o, bool failed)
{
    if (o->n) end_line(o);
    release_held(o);
    if (failed && !o->shown_n && o->noise) fputs(o->noise, o->out);
    fflush(o->out);
}

void output_close(Output *o)
{
    for (int i = 0; i < o->shown_n; i++) free(o->shown[i]);
    for (int i = 0; i < o->held_n; i++) free(o->held[i]);
    free(o->noise);
    *o = (Output){ 0 };
}
