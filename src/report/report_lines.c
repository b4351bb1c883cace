/* report/report_lines.c -- reads a file line by line through one buffer: memory does not grow with the file
 * or with the length of a line. */
#include "report/report_run.h"

#include "base/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct LineReader { LineFn *fn; void *arg; char *buf; size_t n; bool skipping; } LineReader;

static bool blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r", s[i]) || !s[i]) return false;
    return true;
}

static Status pass_line(LineReader *r, char *line, size_t len, LineKind kind)
{
    bool rest = r->skipping;                           /* the end of a line that was too long */
    if (kind != LINE_LONG) r->skipping = false;
    if (rest || (kind != LINE_LONG && blank(line, len))) return OK;
    line[len] = 0;
    return r->fn(r->arg, line, len, kind);
}

/* Passes on the whole lines of the buffer and moves the rest to its start. */
static Status drain(LineReader *r)
{
    char *at = r->buf, *end = r->buf + r->n, *nl;
    for (; (nl = memchr(at, '\n', (size_t)(end - at))); at = nl + 1)
        TRY(pass_line(r, at, (size_t)(nl - at), LINE_WHOLE));
    r->n = (size_t)(end - at);
    memmove(r->buf, at, r->n);
    if (r->n < LINE_BYTES) return OK;
    r->n = 0;
    if (!r->skipping) TRY(pass_line(r, r->buf, 0, LINE_LONG));
    r->skipping = true;
    return OK;
}

static Status read_all(LineReader *r, int fd, const char *path)
{
    for (;;) {
        ssize_t got = file_read_fd(fd, r->buf + r->n, LINE_BYTES - r->n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
        if (got == 0) break;
        r->n += (size_t)got;
        TRY(drain(r));
    }
    return r->n ? pass_line(r, r->buf, r->n, LINE_OPEN) : OK;
}

Status lines_read(const char *path, LineFn *fn, void *arg)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);        /* opening a pipe must not block */
    if (fd < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    LineReader r = { fn, arg, malloc(LINE_BYTES + 1), 0, false };
    Status st = OK;
    if (!r.buf)                                          st = fail(E_FIT, "%s: no memory for lines", path);
    else if (fstat(fd, &info) || !S_ISREG(info.st_mode)) st = fail(E_DATA, "%s: not a file", path);
    else                                                 st = read_all(&r, fd, path);
    free(r.buf);
    close(fd);
    return st;
}
