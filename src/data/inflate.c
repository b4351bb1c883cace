/* data/inflate.c -- see inflate.h. */
#include "data/inflate.h"

#include "base/folder.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <zlib.h>

enum { BLOCK = 1 << 18 };

static bool ends_with(const char *path, const char *suffix)
{
    size_t n = strlen(path), k = strlen(suffix);
    return n > k && !strcasecmp(path + n - k, suffix);
}

size_t inflate_stem(const char *path)
{
    if (ends_with(path, ".gz")) return strlen(path) - 3;
    return ends_with(path, ".zst") ? strlen(path) - 4 : 0;
}

static Status open_unnamed(int *fd)
{
    Path        path;
    const char *tmp = getenv("TMPDIR");
    TRY(path_join(path, tmp && *tmp ? tmp : "/tmp", "treb-inflate-XXXXXX"));
    *fd = mkstemp(path);
    if (*fd < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    unlink(path);
    return OK;
}

static Status put(int fd, const char *bytes, size_t n, const char *path)
{
    while (n) {
        ssize_t k = write(fd, bytes, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return fail(
                E_IO,
                "%s: cannot be decompressed: %s; TMPDIR names the folder for it, or decompress the file",
                path, strerror(k ? errno : ENOSPC));
        bytes += k, n -= (size_t)k;
    }
    return OK;
}

static Status damaged(const char *path)
{
    return fail(E_DATA, "%s: the compressed file is damaged or cut", path);
}

/* Takes fd over. */
static Status inflate_gzip(int in, int out, char *block, const char *path)
{
    gzFile g  = gzdopen(in, "rb");
    Status st = OK;
    int    n;
    if (!g) return close(in), fail(E_FIT, "%s: no memory to decompress it", path);
    while (!st && (n = gzread(g, block, BLOCK)) > 0) st = put(out, block, (size_t)n, path);
    if (!st && n < 0) st = damaged(path);
    if (gzclose_r(g) != Z_OK && !st) st = damaged(path);
    return st;
}

typedef struct ZstdBuffer {
    void  *v;
    size_t size, at;
} ZstdBuffer; /* ZSTD_inBuffer and ZSTD_outBuffer */
typedef struct Zstd {
    void *(*create)(void);
    size_t (*release)(void *);
    size_t (*decode)(void *, ZstdBuffer *, ZstdBuffer *);
    unsigned (*is_error)(size_t);
} Zstd;

static Status zstd_load(Zstd *z)
{
    static const char *const names[] = { "ZSTD_createDStream", "ZSTD_freeDStream", "ZSTD_decompressStream",
                                         "ZSTD_isError" };
    void                    *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL), *f[4] = { 0 };
    for (int i = 0; i < 4; i++)
        if (!library || !(f[i] = dlsym(library, names[i])))
            return fail(E_CONFIG,
                        "the file needs libzstd.so.1, which is not on this machine; install libzstd1");
    memcpy(z, f, sizeof f);
    return OK;
}

static Status zstd_block(const Zstd *z, void *stream, ZstdBuffer *in, int out, char *made, const char *path,
                         size_t *rest)
{
    do {
        ZstdBuffer to = { made, BLOCK, 0 };
        *rest         = z->decode(stream, &to, in);
        if (z->is_error(*rest)) return damaged(path);
        TRY(put(out, made, to.at, path));
        if (to.at < BLOCK && in->at == in->size) break;
    } while (true);
    return OK;
}

static Status inflate_zstd(int in, int out, char *block, const char *path)
{
    Zstd    z      = { 0 };
    Status  st     = zstd_load(&z);
    void   *stream = st ? NULL : z.create();
    char   *read_  = malloc(BLOCK);
    size_t  rest   = 0;
    ssize_t n      = 0;
    if (!st && (!stream || !read_)) st = fail(E_FIT, "%s: no memory to decompress it", path);
    while (!st && (n = file_read_fd(in, read_, BLOCK)) > 0) {
        ZstdBuffer from = { read_, (size_t)n, 0 };
        st              = zstd_block(&z, stream, &from, out, block, path, &rest);
    }
    if (!st && n < 0) st = fail(E_IO, "%s: %s", path, strerror(errno));
    if (!st && rest) st = damaged(path);
    if (stream) z.release(stream);
    free(read_), close(in);
    return st;
}

Status inflate_open(int *fd, size_t *len, const char *path)
{
    int   in;
    char *block = malloc(BLOCK);
    *fd         = -1;
    if (!block) return fail(E_FIT, "%s: no memory to decompress it", path);
    Status st = file_open_regular(&in, len, path);
    if (!st && (st = open_unnamed(fd))) close(in);
    if (!st)
        st = ends_with(path, ".gz") ? inflate_gzip(in, *fd, block, path) : inflate_zstd(in, *fd, block, path);
    off_t size = st ? 0 : lseek(*fd, 0, SEEK_END);
    if (!st && size < 0) st = fail(E_IO, "%s: %s", path, strerror(errno));
    *len = (size_t)size;
    free(block);
    if (st && *fd >= 0) close(*fd);
    return st;
}
