/* data/formats.c -- the table of dataset formats, and what they share: mapping, choosing by suffix,
 * offsets. */
#include "data/format.h"

#include "base/activity.h"
#include "base/grow.h"
#include "base/str.h"
#include "data/image.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Every dataset format there is; row x is `const Format format_x`. Suffixes and messages derive from it. */
#define FORMAT_TABLE(ROW) ROW(jsonl) ROW(json) ROW(parquet) ROW(tar) ROW(text) ROW(bin)

#define ROW(x) extern const Format format_##x;
FORMAT_TABLE(ROW)
#undef ROW
#define ROW(x) &format_##x,
static const Format *const formats[] = { FORMAT_TABLE(ROW) };
#undef ROW

enum { FORMATS = sizeof formats / sizeof *formats };

static bool ends_with(const char *path, const char *suffix, size_t len)
{
    size_t n = strlen(path);
    return n > len && !strncasecmp(path + n - len, suffix, len);
}

static const Format *by_suffix(const char *path)
{
    for (int i = 0; i < FORMATS; i++) {
        size_t      len;
        const char *rest = formats[i]->suffixes;
        for (const char *s; (s = str_item(&rest, ',', &len));)
            if (ends_with(path, s, len)) return formats[i];
    }
    return NULL;
}

bool format_has_suffix(const char *path) { return by_suffix(path) != NULL; }

static Status fail_unknown(const char *path)
{
    char known[256] = "";
    for (int i = 0; i < FORMATS; i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", i ? "," : "", formats[i]->suffixes);
    }
    return fail(E_CONFIG, "%s: no dataset format has this suffix; the name must end in one of %s", path,
                known);
}

/* An empty file cannot be mapped and needs no mapping. */
static Status map_file(FormatFile *f, const char *path)
{
    struct stat info;
    int         fd = open(path, O_RDONLY | O_CLOEXEC);
    Status      st = OK;
    if (fd < 0 || fstat(fd, &info) < 0) st = fail(E_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))    st = fail(E_IO, "%s: not a regular file", path);
    else if (info.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED)
            st = fail(E_IO, "%s: cannot map %lld bytes: %s", path, (long long)info.st_size, strerror(errno));
        else f->bytes = bytes, f->len = (size_t)info.st_size, f->mapped = true;
    }
    if (fd >= 0) close(fd);
    return st;
}

static Status index_file(FormatFile *f, const FormatConf *conf)
{
    Status st = f->format->index(f, conf);
    if (st) format_close(f);
    return st;
}

Status format_open(FormatFile *f, const char *path, const FormatConf *conf)
{
    *f = (FormatFile){ .path = path, .bytes = "" };
    const Format *format = by_suffix(path);
    if (!format) return fail_unknown(path);
    TRY(map_file(f, path));
    f->format = format;
    return index_file(f, conf);
}

Status format_open_memory(FormatFile *f, const char *name, const void *bytes, size_t len, const char *path,
                          const FormatConf *conf)
{
    *f = (FormatFile){ .path = path, .bytes = len ? bytes : "", .len = len };
    for (int i = 0; i < FORMATS && !f->format; i++)
        if (!strcmp(formats[i]->name, name)) f->format = formats[i];
    REQUIRE(f->format, "no format is called %s", name);
    return index_file(f, conf);
}

void format_close(FormatFile *f)
{
    if (f->format && f->format->close) f->format->close(f);
    if (f->mapped) munmap((void *)f->bytes, f->len);
    mem_pool_close(&f->keep);
    *f = (FormatFile){ 0 };
}

Status format_read(const FormatFile *f, int64_t i, Record *r)
{
    *r = (Record){ 0 };
    REQUIRE(i >= 0 && i < f->samples, "%s: sample %lld of %lld", f->path, (long long)i,
            (long long)f->samples);
    Status st = f->format->read(f, i, r);
    if (st) mem_pool_close(&r->keep);
    return st;
}

void record_close(Record *r)
{
    mem_pool_close(&r->keep);
    *r = (Record){ 0 };
}

bool record_file_is_picture(const RecordFile *f)
{
    return image_has_suffix(f->name, f->name_len);
}

Status offsets_push(Offsets *o, uint64_t v)
{
    if (!GROW(o->v, o->cap, o->n + 1))
        return fail(E_FIT, "no memory for an index of %lld samples", (long long)o->n);
    o->v[o->n++] = v;
    activity_mark();
    return OK;
}

void offsets_close(Offsets *o)
{
    free(o->v);
    *o = (Offsets){ 0 };
}
