/* report/report_lines.c -- files of lines, read in pieces: memory does not grow with the file, nor with a line
 * that never ends. */
#include "report/report_run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Reader { LineFn *fn; void *arg; char *buf; size_t n; bool skipping; } Reader;

static bool blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r", s[i]) || !s[i]) return false;
    return true;
}

static Status give(Reader *r, char *line, size_t len, LineKind kind)
{
    bool rest = r->skipping;                           /* the end of a line that was too long */
    if (kind != LINE_LONG) r->skipping = false;
    if (rest || (kind != LINE_LONG && blank(line, len))) return OK;
    line[len] = 0;
    return r->fn(r->arg, line, len, kind);
}

/* Hands out the whole lines in the buffer and keeps what is left of it. */
static Status drain(Reader *r)
{
    char *at = r->buf, *end = r->buf + r->n, *nl;
    for (; (nl = memchr(at, '\n', (size_t)(end - at))); at = nl + 1)
        TRY(give(r, at, (size_t)(nl - at), LINE_WHOLE));
    r->n = (size_t)(end - at);
    memmove(r->buf, at, r->n);
    if (r->n < LINE_ROOM) return OK;
    r->n = 0;
    if (!r->skipping) TRY(give(r, r->buf, 0, LINE_LONG));
    r->skipping = true;
    return OK;
}

static Status read_all(Reader *r, int fd, const char *path)
{
    for (;;) {
        ssize_t got = read(fd, r->buf + r->n, LINE_ROOM - r->n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
        if (got == 0) break;
        r->n += (size_t)got;
        TRY(drain(r));
    }
    return r->n ? give(r, r->buf, r->n, LINE_OPEN) : OK;
}

Status lines_read(const char *path, LineFn *fn, void *arg)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);        /* a pipe of that name must not hang us */
    if (fd < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    Reader r = { fn, arg, malloc(LINE_ROOM + 1), 0, false };
    Status st = OK;
    if (!r.buf)                                          st = fail(E_FIT, "%s: no memory for lines", path);
    else if (fstat(fd, &info) || !S_ISREG(info.st_mode)) st = fail(E_DATA, "%s: not a file", path);
    else                                                 st = read_all(&r, fd, path);
    free(r.buf);
    close(fd);
    return st;
}
