/* tensor/safetensors.c -- the reader. It refuses what the reference implementation refuses (holes, overlaps,
 * bytes of no tensor); messages name the tensor, the file and what to do. */
#include "tensor/safetensors.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define AGAIN "download or copy the file again"

typedef struct Range { int64_t begin, end; int tensor; } Range;       /* of the data section */

static Status no_memory(const char *what) { return fail(E_FIT, "%s: no memory for its header", what); }

/* Names and paths are printed and used as keys; a control character in one is an accident or an attack. */
static bool printable(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) return false;
    return true;
}

static const char *shown(const char *s) { return s && printable(s) ? s : "?"; }

const char *st_shape_text(char out[ST_SHAPE_TEXT], int rank, const int64_t *shape)
{
    size_t at = (size_t)snprintf(out, ST_SHAPE_TEXT, "[");
    for (int i = 0; i < rank && at < ST_SHAPE_TEXT; i++)
        at += (size_t)snprintf(out + at, ST_SHAPE_TEXT - at, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (at < ST_SHAPE_TEXT) snprintf(out + at, ST_SHAPE_TEXT - at, "]");
    return out;
}

static Status dtype_read(StTensor *t, const Json *v)
{
    const char *s = json_string_value(v);
    if (!s) return fail(E_DATA, "dtype is missing or not a string; " AGAIN);
    for (int d = 0; d < DTYPE_N; d++)
        if (!strcmp(s, dtype_file_name((DType)d))) return t->dtype = (DType)d, OK;
    return fail(E_DATA, "dtype '%.40s' is not supported; convert it to BF16, F16 or F32 first", shown(s));
}

static Status shape_read(StTensor *t, const Json *v)
{
    int64_t bytes = (int64_t)dtype_size(t->dtype);
    bool    empty = false;
    if (!json_is_array(v)) return fail(E_DATA, "shape is missing or not a list; " AGAIN);
    if (json_array_size(v) > ST_MAXDIM)
        return fail(E_DATA, "%zu dimensions; at most %d are supported", json_array_size(v), ST_MAXDIM);
    t->rank = (int)json_array_size(v);
    for (int i = 0; i < t->rank; i++) {
        const Json *n = json_array_get(v, (size_t)i);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return fail(E_DATA, "dimension %d is not a number of elements; " AGAIN, i);
        t->shape[i] = json_integer_value(n);
        empty |= t->shape[i] == 0;
        if (__builtin_mul_overflow(bytes, t->shape[i] ? t->shape[i] : 1, &bytes))
            return fail(E_DATA, "dimension %d = %" PRId64 ": no file is that large; " AGAIN, i, t->shape[i]);
    }
    t->bytes = empty ? 0 : (size_t)bytes;
    return OK;
}

static Status offsets_read(Range *r, const StTensor *t, const Json *v)
{
    const Json *b = json_array_get(v, 0), *e = json_array_get(v, 1);
    char        shape[ST_SHAPE_TEXT];
    if (json_array_size(v) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return fail(E_DATA, "data_offsets is not a pair of numbers; " AGAIN);
    r->begin = json_integer_value(b), r->end = json_integer_value(e);
    if (r->begin < 0 || r->end < r->begin)
        return fail(E_DATA, "data_offsets [%" PRId64 ", %" PRId64 "]: not a range; " AGAIN, r->begin, r->end);
    if ((size_t)(r->end - r->begin) != t->bytes)
        return fail(E_DATA, "data_offsets cover %" PRId64 " bytes, %s %s takes %zu; " AGAIN,
                    r->end - r->begin, dtype_file_name(t->dtype), st_shape_text(shape, t->rank, t->shape),
                    t->bytes);
    return OK;
}

/* ranges_tile sets t->data, once all ranges are checked. */
static Status tensor_read(StTensor *t, Range *r, const char *name, const Json *v)
{
    if (!printable(name)) return fail(E_DATA, "a tensor's name contains control characters; " AGAIN);
    if (!json_is_object(v)) return fail(E_DATA, "tensor %.200s: not described by an object; " AGAIN, name);
    TRY_CTX(dtype_read(t, json_object_get(v, "dtype")), "tensor %.200s", name);
    TRY_CTX(shape_read(t, json_object_get(v, "shape")), "tensor %.200s", name);
    TRY_CTX(offsets_read(r, t, json_object_get(v, "data_offsets")), "tensor %.200s", name);
    t->name = strdup(name);
    return t->name ? OK : no_memory(name);
}

static int range_order(const void *a, const void *b)
{
    const Range *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Sorted, the ranges must follow one another from 0 to the end of the file. */
static Status ranges_tile(const StTensor *t, Range *r, int n, const StFile *f, size_t size)
{
    int64_t at = 0;
    qsort(r, (size_t)n, sizeof *r, range_order);
    for (int i = 0; i < n; i++) {
        const char *name = t[r[i].tensor].name;
        if (r[i].begin < at)
            return fail(E_DATA, "tensors %.200s and %.200s share bytes from %" PRId64 " on; " AGAIN,
                        t[r[i - 1].tensor].name, name, r[i].begin);
        if (r[i].begin > at)
            return fail(E_DATA, "%" PRId64 " bytes before tensor %.200s belong to no tensor; " AGAIN,
                        r[i].begin - at, name);
        at = r[i].end;
    }
    if ((uint64_t)at > size)
        return fail(E_DATA, "the file is truncated: %zu bytes, its header promises %" PRIu64 "; " AGAIN,
                    f->len, (uint64_t)at + (f->len - size));
    if ((uint64_t)at < size)
        return fail(E_DATA, "%zu bytes follow the last tensor; " AGAIN, size - (size_t)at);
    return OK;
}

static Status meta_read(SafeTensors *s, Json *meta)
{
    const char *key;
    Json       *v;
    if (!meta || json_is_null(meta)) return OK;
    if (!json_is_object(meta)) return fail(E_DATA, "__metadata__ is not an object; " AGAIN);
    StMeta *grown = realloc(s->meta, ((size_t)s->metas + json_object_size(meta) + 1) * sizeof *grown);
    if (!grown) return no_memory("__metadata__");
    s->meta = grown;
    json_object_foreach(meta, key, v) {
        if (!json_is_string(v)) return fail(E_DATA, "__metadata__.%.99s is no string; " AGAIN, shown(key));
        StMeta *m = &s->meta[s->metas++];
        *m = (StMeta){ strdup(key), strdup(json_string_value(v)) };
        if (!m->key || !m->value) return no_memory("__metadata__");
    }
    return OK;
}

/* Appends the tensors of a header. A tensor counts as soon as it owns memory, for st_close. */
static Status header_read(SafeTensors *s, Json *root, int file, const char *data, size_t size)
{
    const char *name;
    Json       *v;
    int         n = 0, first = s->count;
    size_t      most = json_object_size(root);
    Range      *r = calloc(most + 1, sizeof *r);
    StTensor   *grown = realloc(s->tensor, ((size_t)first + most + 1) * sizeof *grown);
    Status      st = r && grown ? OK : no_memory(s->file[file].path);
    if (grown) s->tensor = grown;
    if (!st) st = meta_read(s, json_object_get(root, "__metadata__"));
    json_object_foreach(root, name, v) {
        if (st) break;
        if (!strcmp(name, "__metadata__")) continue;
        StTensor *t = &s->tensor[first + n];
        *t = (StTensor){ .file = file };
        r[n].tensor = first + n;
        st = tensor_read(t, &r[n++], name, v);
        s->count += !st;
    }
    if (!st) st = ranges_tile(s->tensor, r, n, &s->file[file], size);
    for (int i = 0; !st && i < n; i++) s->tensor[r[i].tensor].data = data + r[i].begin;
    free(r);
    return st;
}

static Status file_read(SafeTensors *s, int file)
{
    const StFile *f = &s->file[file];
    uint64_t      len = 0;
    Json         *root = NULL;
    if (f->len < 8) return fail(E_DATA, "%s: the file is truncated: %zu bytes; " AGAIN, f->path, f->len);
    for (int i = 7; i >= 0; i--) len = len << 8 | (unsigned char)f->bytes[i];
    if (len > ST_MAX_HEADER)
        return fail(E_DATA, "%s: not a safetensors file (a header of %" PRIu64 " bytes)", f->path, len);
    if (len > f->len - 8)
        return fail(E_DATA, "%s: the file is truncated: %zu bytes, its header alone has %" PRIu64 "; " AGAIN,
                    f->path, f->len, len);
    if (len == 0 || f->bytes[8] != '{')
        return fail(E_DATA, "%s: not a safetensors file (its header does not begin with '{')", f->path);
    TRY_CTX(json_parse(&root, f->bytes + 8, len, "header"), "%s", f->path);
    Status st = header_read(s, root, file, f->bytes + 8 + len, f->len - 8 - len);
    json_decref(root);
    return st ? wrap(st, "%s", f->path) : OK;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(((const StTensor *)a)->name, ((const StTensor *)b)->name);
}

static Status names_sort(SafeTensors *s)
{
    qsort(s->tensor, (size_t)s->count, sizeof *s->tensor, name_order);
    for (int i = 1; i < s->count; i++) {
        const StTensor *a = &s->tensor[i - 1], *b = &s->tensor[i];
        if (!strcmp(a->name, b->name))
            return fail(E_DATA, "tensor %.200s is in two files, %s and %s; remove those of another download",
                        a->name, s->file[a->file].path, s->file[b->file].path);
    }
    st_link_scales(s);
    return OK;
}

/* Maps a file without parsing it. O_NONBLOCK: opening a pipe of that name must not block. */
static Status file_map(SafeTensors *s, const char *path)
{
    StFile     *f = &s->file[s->files];
    struct stat info;
    Status      st = OK;
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) < 0) st = fail(E_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))    st = fail(E_IO, "%s: not a regular file", path);
    if (!st) {
        *f = (StFile){ .path = strdup(path), .bytes = "", .len = (size_t)info.st_size };
        s->files++;
        if (!f->path) st = no_memory(path);
    }
    if (!st && f->len) {                                    /* an empty file cannot be mapped */
        void *p = mmap(NULL, f->len, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) st = fail(E_IO, "%s: cannot map it: %s", path, strerror(errno));
        else                 f->bytes = p, f->mapped = true;
    }
    if (fd >= 0) close(fd);
    return st;
}

static Status one_open(SafeTensors *s, const char *path)
{
    s->file = calloc(1, sizeof *s->file);
    if (!s->file) return no_memory(path);
    TRY(file_map(s, path));
    TRY(file_read(s, 0));
    return names_sort(s);
}

/* A shard must be a plain file name in the folder of the index: with a path an index could read any file. */
static Status shard_name_check(const char *tensor, const Json *v)
{
    const char *f = json_string_value(v);
    size_t      n = f ? strlen(f) : 0;
    bool        ends = n > 12 && !strcmp(f + n - 12, ".safetensors");
    if (!printable(tensor)) return fail(E_DATA, "weight_map: a tensor's name contains control characters");
    if (!f || !printable(f) || strchr(f, '/') || f[0] == '.' || n > 255 || !ends)
        return fail(E_DATA, "weight_map: tensor %.200s: '%.200s' is not a .safetensors file of this folder",
                    tensor, shown(f));
    return OK;
}

static int text_order(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The distinct files of a weight_map, sorted; the strings stay with the Json. */
static Status shards_list(Json *map, const char ***out, int *n)
{
    const char *name;
    Json       *v;
    size_t      count = 0, kept = 0;
    const char **list = *out = calloc(json_object_size(map) + 1, sizeof *list);
    if (!list) return no_memory("weight_map");
    json_object_foreach(map, name, v) {
        TRY(shard_name_check(name, v));
        list[count++] = json_string_value(v);
    }
    qsort(list, count, sizeof *list, text_order);
    for (size_t i = 0; i < count; i++)
        if (!kept || strcmp(list[kept - 1], list[i])) list[kept++] = list[i];
    *n = (int)kept;
    return OK;
}

/* Names the files of an index that are not in its folder, the first few of many. */
static Status shards_check(const char *dir, const char **list, int n)
{
    char   path[PATH_MAX], names[400] = "";
    int    missing = 0;
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, list[i]);
        if (access(path, F_OK) == 0) continue;
        if (missing++ < 4 && at < sizeof names)
            at +=
                (size_t)snprintf(names + at, sizeof names - at, "%s%.80s", missing > 1 ? ", " : "", list[i]);
    }
    if (!missing) return OK;
    return fail(E_IO, "%d of %d files of the model are missing: %s%s; " AGAIN, missing, n, names,
                missing > 4 ? ", …" : "");
}

static Status shards_open(SafeTensors *s, const char *dir, const char **list, int n)
{
    char path[PATH_MAX];
    s->file = calloc((size_t)n + 1, sizeof *s->file);
    if (!s->file) return no_memory(dir);
    for (int i = 0; i < n; i++) {
        if (snprintf(path, sizeof path, "%s/%s", dir, list[i]) >= (int)sizeof path)
            return fail(E_IO, "%s/%s: the path is too long", dir, list[i]);
        TRY_CTX(file_map(s, path), "shard %d of %d cannot be opened; download it again", i + 1, n);
    }
    for (int i = 0; i < n; i++) TRY(file_read(s, i));
    return names_sort(s);
}

/* Checks that the index and the shards agree; list[] and file[] are in the same order. */
static Status index_agrees(const SafeTensors *s, Json *map, const char **list)
{
    const char *name;
    Json       *v;
    json_object_foreach(map, name, v) {
        const StTensor *t = st_find(s, name);
        if (!t || strcmp(list[t->file], json_string_value(v)))
            return fail(E_DATA, "tensor %.200s is not in %s%s%s: the files are not of one download", name,
                        json_string_value(v), t ? " but in " : "", t ? list[t->file] : "");
    }
    return OK;
}

static Status index_open(SafeTensors *s, const char *dir, const char *path)
{
    Json        *root = NULL;
    const char **list = NULL;
    int          n = 0;
    Status       st = json_load(&root, path);
    Json        *map = json_object_get(root, "weight_map");
    if (!st && !json_object_size(map)) st = fail(E_DATA, "no weight_map in it; " AGAIN);
    if (!st) st = shards_list(map, &list, &n);
    if (!st) st = shards_check(dir, list, n);
    if (!st) st = shards_open(s, dir, list, n);
    if (!st) st = index_agrees(s, map, list);
    free(list);
    json_decref(root);
    return st ? wrap(st, "%s", path) : OK;
}

static Status folder_open(SafeTensors *s, const char *dir)
{
    char index[PATH_MAX], single[PATH_MAX];
    if (snprintf(index, sizeof index, "%s/model.safetensors.index.json", dir) >= (int)sizeof index)
        return fail(E_IO, "%s: the path is too long", dir);
    snprintf(single, sizeof single, "%s/model.safetensors", dir);
    if (access(index, F_OK) == 0)  return index_open(s, dir, index);
    if (access(single, F_OK) == 0) return one_open(s, single);
    return fail(E_IO, "%s: this folder has neither model.safetensors.index.json nor model.safetensors", dir);
}

Status st_open(SafeTensors *s, const char *path)
{
    struct stat info;
    *s = (SafeTensors){ 0 };
    if (stat(path, &info) < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    Status st = S_ISDIR(info.st_mode) ? folder_open(s, path) : one_open(s, path);
    if (st) st_close(s);
    return st;
}

Status st_open_memory(SafeTensors *s, const void *bytes, size_t len, const char *what)
{
    *s = (SafeTensors){ .file = calloc(1, sizeof(StFile)) };
    char  *path = strdup(what);
    Status st = s->file && path ? OK : no_memory(what);
    if (s->file) s->file[s->files++] = (StFile){ .path = path, .bytes = bytes, .len = len };
    if (!st) st = file_read(s, 0);
    if (!st) st = names_sort(s);
    if (st) st_close(s);
    return st;
}

void st_close(SafeTensors *s)
{
    for (int i = 0; i < s->count; i++) free((char *)s->tensor[i].name);
    for (int i = 0; i < s->metas; i++) free(s->meta[i].key), free(s->meta[i].value);
    for (int i = 0; i < s->files; i++) {
        if (s->file[i].mapped) munmap((void *)s->file[i].bytes, s->file[i].len);
        free(s->file[i].path);
    }
    free(s->tensor);
    free(s->meta);
    free(s->file);
    *s = (SafeTensors){ 0 };
}

const StTensor *st_find(const SafeTensors *s, const char *name)
{
    StTensor key = { .name = name };
    return s->count ? bsearch(&key, s->tensor, (size_t)s->count, sizeof key, name_order) : NULL;
}

Status st_get(const SafeTensors *s, const char *name, const StTensor **t)
{
    *t = st_find(s, name);
    return *t ? OK : fail(E_DATA, "no tensor %s in %s%s", name, s->files ? s->file[0].path : "an empty list",
                          s->files > 1 ? " and the files beside it" : "");
}

const char *st_meta(const SafeTensors *s, const char *key)
{
    for (int i = 0; i < s->metas; i++)
        if (!strcmp(s->meta[i].key, key)) return s->meta[i].value;
    return NULL;
}
