/* data/formats.c -- the table of dataset formats, and what they share: mapping, choosing by suffix,
 * offsets. */
#define _GNU_SOURCE /* process_vm_readv */
#include "data/format.h"

#include "base/activity.h"
#include "base/folder.h"
#include "base/grow.h"
#include "base/str.h"
#include "data/image.h"
#include "data/video_file.h"
#include "data/inflate.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Every dataset format there is; row x is `const Format format_x`. Suffixes and messages derive from it. */
#define FORMAT_TABLE(ROW) ROW(jsonl) ROW(json) ROW(parquet) ROW(csv) ROW(tar) ROW(text) ROW(bin)

#define ROW(x) extern const Format format_##x;
FORMAT_TABLE(ROW)
#undef ROW
#define ROW(x) &format_##x,
static const Format *const formats[] = { FORMAT_TABLE(ROW) };
#undef ROW

enum { FORMATS = sizeof formats / sizeof *formats };

/* A file that is compressed as a whole has the suffix of its format before .gz or .zst. */
static bool ends_with(const char *path, const char *suffix, size_t len)
{
    size_t n = inflate_stem(path) ? inflate_stem(path) : strlen(path);
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
    return fail(E_CONFIG,
                "%s: no dataset format has this suffix; the name must end in one of %s, or in one of these "
                "and .gz or .zst; decompress what is compressed in another way",
                path, known);
}

/* An empty file cannot be mapped and needs no mapping. */
static Status map_file(FormatFile *f, const char *path)
{
    size_t size;
    int    fd;
    Status st = OK;
    f->inflated = inflate_stem(path) > 0;
    TRY(f->inflated ? inflate_open(&fd, &size, path) : file_open_regular(&fd, &size, path));
    if (size > 0) {
        void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) st = fail(E_IO, "%s: cannot map %zu bytes: %s", path, size, strerror(errno));
        else f->bytes = bytes, f->len = size, f->mapped = true;
    }
    close(fd);
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

/* Reading pages of a mapping behind the end of its file ends the process, so a file that became shorter since
 * it was opened is found before its pages are touched. */
static Status check_size(const FormatFile *f, Record *r)
{
    struct stat info;
    if (!f->mapped || f->inflated || stat(f->path, &info) < 0 || (uint64_t)info.st_size >= f->len) return OK;
    snprintf(r->where, sizeof r->where, "%s", f->path);
    return fail(E_IO,
                "%s: the file became shorter while it was read: %lld bytes, it had %zu; start again with the "
                "whole file",
                f->path, (long long)info.st_size, f->len);
}

/* A record's text is copied out of the mapping by the kernel, which reports pages that are gone: the file may
 * be cut at any moment. Where that call is not allowed, the text stays in the mapping. */
static Status copy_text(const FormatFile *f, Record *r)
{
    if (!f->mapped || r->kind == RECORD_TOKENS || !r->len || r->text < f->bytes ||
        r->text >= f->bytes + f->len)
        return OK;
    char        *copy = mem_pool_alloc(&r->keep, r->len + 1);
    struct iovec to = { copy, r->len }, from = { (void *)r->text, r->len };
    ssize_t      n = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
    if (n < 0 && errno != EFAULT) return OK;
    if (n != (ssize_t)r->len) return fail(E_IO, "%s: the file became shorter while it was read", f->path);
    return r->text = copy, OK;
}

Status format_read(const FormatFile *f, int64_t i, Record *r)
{
    *r = (Record){ 0 };
    REQUIRE(i >= 0 && i < f->samples, "%s: sample %lld of %lld", f->path, (long long)i,
            (long long)f->samples);
    TRY(check_size(f, r));
    Status st = f->format->read(f, i, r);
    if (!st) st = copy_text(f, r);
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

bool record_file_is_video(const RecordFile *f)
{
    return video_file_has_suffix(f->name, f->name_len);
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
