/* data/media.c -- see media.h. */
#include "data/media.h"

#include "base/folder.h"
#include "data/image.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

Status media_path(char *out, size_t cap, const char *path, const char *media_dir, const char *beside)
{
    const char *slash = strrchr(beside, '/');
    int         n;
    if (*path == '/' || (!*media_dir && !slash)) n = snprintf(out, cap, "%s", path);
    else if (*media_dir) n = snprintf(out, cap, "%s/%s", media_dir, path);
    else                 n = snprintf(out, cap, "%.*s/%s", (int)(slash - beside), beside, path);
    return n >= 0 && (size_t)n < cap ? OK : fail(E_DATA, "%.80s…: the path is too long", path);
}

/* O_NONBLOCK: opening a pipe must not block the run. */
Status media_open(int *fd, size_t *len, const char *file, uint64_t most)
{
    struct stat info;
    Status      st = OK;
    *fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 || fstat(*fd, &info) < 0)                st = fail(E_IO, "%s: %s", file, strerror(errno));
    else if (!S_ISREG(info.st_mode))                     st = fail(E_IO, "%s: not a regular file", file);
    else if (info.st_size == 0)                          st = fail(E_DATA, "%s: the file is empty", file);
    else if ((uint64_t)info.st_size > most)
        st = fail(E_DATA, "%s: %lld bytes; the limit is %llu", file, (long long)info.st_size,
                  (unsigned long long)most);
    if (st && *fd >= 0) close(*fd), *fd = -1;
    if (!st) *len = (size_t)info.st_size;
    return st;
}

Status media_map(MediaMap *m, const char *file)
{
    int fd;
    *m = (MediaMap){ 0 };
    TRY(media_open(&fd, &m->len, file, IMAGE_MAX_BYTES));
    void *bytes = mmap(NULL, m->len, PROT_READ, MAP_PRIVATE, fd, 0);
    int   err   = errno;
    close(fd);
    if (bytes == MAP_FAILED) return fail(E_IO, "%s: %s", file, strerror(err));
    m->bytes = bytes;
    return OK;
}

void media_unmap(MediaMap *m)
{
    if (m->bytes) munmap((void *)m->bytes, m->len);
    *m = (MediaMap){ 0 };
}

static Status buffer_cap(char **buf, size_t *cap, size_t len)
{
    if (len <= *cap) return OK;
    char *more = realloc(*buf, len);
    if (!more) return fail(E_FIT, "no memory for a picture file of %zu bytes", len);
    *buf = more, *cap = len;
    return OK;
}

Status media_read(const char *file, char **buf, size_t *cap, size_t *len)
{
    int    fd;
    size_t got = 0, want;
    TRY(media_open(&fd, &want, file, IMAGE_MAX_BYTES));
    Status st = buffer_cap(buf, cap, want);
    while (!st && got < want) {
        ssize_t n = file_read_fd(fd, *buf + got, want - got < FILE_CHUNK ? want - got : FILE_CHUNK);
        if (n < 0 && errno != EINTR) st = fail(E_IO, "%s: %s", file, strerror(errno));
        else if (n == 0) want = got; /* truncated meanwhile; the decoder reports it */
        else if (n > 0)              got += (size_t)n;
    }
    close(fd);
    *len = got;
    return st;
}
