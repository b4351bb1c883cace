/* base/folder.c -- see folder.h. */
#define _GNU_SOURCE                      /* nftw */
#include "base/folder.h"
#include "base/activity.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Status path_join(Path out, const char *folder, const char *name)
{
    size_t len = strlen(folder);
    bool   joined = !*name || (len && folder[len - 1] == '/');
    int n = snprintf(out, PATH_MAX, "%s%s%s", folder, joined ? "" : "/", name);
    return n > 0 && n < PATH_MAX ? OK : fail(E_IO, "%.200s/%.200s: the path is too long", folder, name);
}

bool folder_is(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

bool file_is(const char *path)
{
    struct stat st;
    return !lstat(path, &st);
}

Status folder_make(const char *path)
{
    Path at;
    int  n = snprintf(at, sizeof at, "%s", path);
    if (n <= 0 || n >= (int)sizeof at) return fail(E_IO, "'%.200s': the path is empty or too long", path);
    for (char *p = at + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        if (mkdir(at, 0777) && errno != EEXIST) return fail(E_IO, "%s: %s", at, strerror(errno));
        *p = '/';
    }
    if (mkdir(at, 0777) && errno != EEXIST) return fail(E_IO, "%s: %s", at, strerror(errno));
    struct stat st;
    return !stat(at, &st) && S_ISDIR(st.st_mode) ? OK : fail(E_IO, "%s: exists and is not a folder", at);
}

Status folder_cache(Path out)
{
    const char *given = getenv("TREB_CACHE_DIR"), *home = getenv("HOME");
    bool has = given && *given;
    if (!has && !(home && *home)) return fail(E_IO, "neither TREB_CACHE_DIR nor HOME is set; set one");
    int n = has ? snprintf(out, PATH_MAX, "%s", given) : snprintf(out, PATH_MAX, "%s/.cache/treb", home);
    return n > 0 && n < PATH_MAX ? OK : fail(E_IO, "TREB_CACHE_DIR: the path is too long");
}

Status folder_is_empty(const char *path, bool *empty)
{
    DIR *d = opendir(path);
    *empty = true;
    if (!d) return errno == ENOENT ? OK : fail(E_IO, "%s: %s", path, strerror(errno));
    for (struct dirent *e; *empty && (e = readdir(d));)
        *empty = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
    closedir(d);
    return OK;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    activity_mark();
    return remove(path);
}

bool folder_remove(const char *path)
{
    activity_slow_begin();
    bool removed = !nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    activity_slow_end();
    return removed;
}

ssize_t file_read_fd(int fd, void *buf, size_t n)
{
    activity_slow_begin();
    ssize_t got = read(fd, buf, n);
    int     why = errno;
    activity_slow_end();
    errno = why;
    return got;
}

/* O_NONBLOCK: opening a pipe must not wait for its writer. /dev/null is an empty file: a recipe of overrides
 * alone. */
Status file_open_regular(int *fd, size_t *len, const char *path)
{
    struct stat info;
    Status      st = OK;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 || fstat(*fd, &info) < 0)     st = fail(E_IO, "%s: %s", path, strerror(errno));
    else if (S_ISDIR(info.st_mode))           st = fail(E_IO, "%s: a folder; a file is expected", path);
    else if (!S_ISREG(info.st_mode) && strcmp(path, "/dev/null"))
        st = fail(E_IO, "%s: not a regular file", path);
    else *len = (size_t)info.st_size;
    if (st && *fd >= 0) close(*fd);
    return st;
}

/* A file that is truncated meanwhile gives what is left of it. */
static Status read_all(int fd, char *bytes, size_t *len, const char *path)
{
    size_t got = 0;
    while (got < *len) {
        ssize_t n = file_read_fd(fd, bytes + got, *len - got < FILE_CHUNK ? *len - got : FILE_CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
        if (n == 0) break;
        got += (size_t)n;
    }
    return *len = got, OK;
}

Status file_load(char **bytes, size_t *len, const char *path, size_t most)
{
    int fd;
    *bytes = NULL;
    TRY(file_open_regular(&fd, len, path));
    Status st = *len > most ? fail(E_DATA, "%s: %zu bytes; the limit is %zu", path, *len, most) : OK;
    if (!st && !(*bytes = malloc(*len + 1))) st = fail(E_FIT, "%s: no memory for %zu bytes", path, *len);
    if (!st) st = read_all(fd, *bytes, len, path);
    close(fd);
    if (!st) return (*bytes)[*len] = 0, OK;
    free(*bytes);
    return *bytes = NULL, st;
}

int file_sync_fd(int fd)
{
    activity_slow_begin();
    int bad = fsync(fd), why = errno;
    activity_slow_end();
    errno = why;
    return bad;
}

/* A folder that cannot be synced (some network file systems) is not an error: the files in it were. */
void folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)file_sync_fd(fd);
    close(fd);
}

static Status finish(int fd, const char *path, Status st)
{
    if (!st && file_sync_fd(fd)) st = fail(E_IO, "%s: %s", path, strerror(errno));
    if (close(fd) && !st) st = fail(E_IO, "%s: %s", path, strerror(errno));
    return st;
}

static Status write_all(int fd, const char *path, const char *p, size_t n)
{
    while (n > 0) {
        activity_slow_begin();
        ssize_t k = write(fd, p, n < FILE_CHUNK ? n : FILE_CHUNK);
        activity_slow_end();
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return fail(E_IO, "%s: writing %zu bytes: %s", path, n, strerror(k ? errno : ENOSPC));
        p += k, n -= (size_t)k;
    }
    return OK;
}

static int open_new(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

Status file_append(FILE **out, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0 && errno == ELOOP)
        return fail(E_IO, "%s is a symbolic link, through which nothing is written; remove it", path);
    if (fd < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    *out = fdopen(fd, "a");
    return *out ? OK : (close(fd), fail(E_FIT, "%s: no memory", path));
}

Status file_read(const char *path, size_t most, char **text, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (!f) return fail(E_IO, "%s: %s", path, strerror(errno));
    *text = malloc(most + 2);
    REQUIRE(*text, "out of host memory");
    *len = fread(*text, 1, most + 1, f);
    (*text)[*len] = 0;
    Status st = ferror(f) ? fail(E_IO, "%s: %s", path, strerror(errno)) : OK;
    fclose(f);
    if (st) free(*text);
    return st;
}

Status file_redirect(FILE *f, const char *path)
{
    FILE *other = NULL;
    TRY(file_append(&other, path));
    Status st =
        dup3(fileno(other), fileno(f), O_CLOEXEC) < 0 ? fail(E_IO, "%s: %s", path, strerror(errno)) : OK;
    fclose(other);
    return st;
}

static Status write_synced(int fd, const char *path, const void *bytes, size_t n)
{
    if (fd < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    return finish(fd, path, write_all(fd, path, bytes, n));
}

Status file_write(const char *path, const void *bytes, size_t n)
{
    return write_synced(open_new(path), path, bytes, n);
}

/* A file or a link of that name, left by an interrupted write or another program, is removed first. */
static Status write_fresh(const char *path, const void *bytes, size_t n)
{
    unlink(path);
    return write_synced(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), path, bytes, n);
}

Status file_write_atomic(const char *folder, const char *name, const void *bytes, size_t n)
{
    Path path, tmp;
    char hidden[NAME_MAX + 8];
    snprintf(hidden, sizeof hidden, ".%s.tmp", name);
    TRY(path_join(path, folder, name));
    TRY(path_join(tmp, folder, hidden));
    TRY(write_fresh(tmp, bytes, n));
    if (rename(tmp, path)) return fail(E_IO, "%s: %s", path, strerror(errno));
    folder_sync(folder);
    return OK;
}

bool folder_has(const char *folder, const char *name)
{
    Path path;
    return !path_join(path, folder, name) && file_is(path);
}

Status file_replace(const char *path, const void *bytes, size_t n)
{
    Path part;
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part)
        return fail(E_IO, "%s: the name is too long", path);
    FILE *f = fopen(part, "wb");
    if (!f) return fail(E_IO, "%s: %s", part, strerror(errno));
    bool good = fwrite(bytes, 1, n, f) == n;
    good = !fclose(f) && good;
    if (good && !rename(part, path)) return OK;
    Status st = fail(E_IO, "%s: %s", path, strerror(errno));
    unlink(part);
    return st;
}

Status file_copy(const char *from, const char *to)
{
    char    buf[1 << 16];
    ssize_t n = 0;
    Status  st = OK;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = in < 0 ? -1 : open_new(to);
    if (in < 0 || out < 0) st = fail(E_IO, "%s: %s", in < 0 ? from : to, strerror(errno));
    while (!st && (n = file_read_fd(in, buf, sizeof buf)) > 0) st = write_all(out, to, buf, (size_t)n);
    if (!st && n < 0) st = fail(E_IO, "%s: %s", from, strerror(errno));
    if (out >= 0) st = finish(out, to, st);
    if (in >= 0) close(in);
    return st;
}

Status file_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    return finish(fd, path, OK);
}
