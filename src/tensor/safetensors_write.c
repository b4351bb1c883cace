/* tensor/safetensors_write.c -- the writer. All sizes are known before the first byte, so a shard's header is
 * written first and the data goes to its final place, once.
 *
 * Inside a shard wider elements come first, as in files of the reference implementation: offsets are then
 * multiples of the element size, which some readers need. Shards are filled greedily in order of declaration,
 * so that one is open at a time.
 *
 * The target is unchanged until every shard is complete and synced. Then an old index is removed first, so
 * that a crash between two renames leaves an incomplete folder, never a mixture of two models. */
#include "tensor/safetensors.h"

#include "base/activity.h"
#include "base/folder.h"
#include "base/grow.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX "model.safetensors.index.json"
#define FRESH (O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC)

typedef struct StSlot {
    char   *name;
    DType   dtype;
    int     rank;
    int64_t shape[ST_MAXDIM], bytes;
    int     shard;
    int64_t offset;                   /* in the shard's data section */
} StSlot;


/* Every failure goes through here, so that a failed writer is always closed. */
static Status give_up(StWriter *w, Status st)
{
    st_writer_close(w);
    return st;
}

static Status no_memory(void) { return fail(E_FIT, "no memory for the list of tensors to write"); }

/* One file keeps its name; a folder's single shard has no number. */
static void shard_name(const StWriter *w, int shard, char out[NAME_MAX])
{
    if (w->name)             snprintf(out, NAME_MAX, "%s", w->name);
    else if (w->shards == 1) snprintf(out, NAME_MAX, "model.safetensors");
    else                     snprintf(out, NAME_MAX, "model-%05d-of-%05d.safetensors", shard + 1, w->shards);
}

/* st_writer_open has checked that every such path fits into PATH_MAX. */
static const char *final_path(const StWriter *w, const char *name, Path out)
{
    snprintf(out, PATH_MAX, "%s/%s", w->dir, name);
    return out;
}

/* Hidden, so that a pattern like *.safetensors skips it; with our pid, so that two runs do not meet. */
static const char *temp_path(const StWriter *w, const char *name, Path out)
{
    snprintf(out, PATH_MAX, "%s/.%s.%ld.tmp", w->dir, name, (long)getpid());
    return out;
}

static Status open_folder(StWriter *w, const char *path)
{
    struct stat info;
    w->dir = strdup(path);
    if (!w->dir) return no_memory();
    if (mkdir(path, 0777) < 0 && errno != EEXIST) return fail(E_IO, "%s: %s", path, strerror(errno));
    if (stat(path, &info) < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    return S_ISDIR(info.st_mode) ? OK : fail(E_IO, "%s: exists and is not a folder", path);
}

static Status open_single(StWriter *w, const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t      lead  = slash ? (size_t)(slash - path) : 0;
    w->name = strdup(slash ? slash + 1 : path);
    w->dir  = slash == path ? strdup("/") : slash ? strndup(path, lead) : strdup(".");
    return w->name && w->dir ? OK : no_memory();
}

static Status writer_open(StWriter *w, const char *path, int64_t max_shard, bool single)
{
    size_t n = strlen(path);
    *w = (StWriter){ .open = true, .fd = -1, .max_shard = max_shard };
    if (n == 0 || n > PATH_MAX - 2 * NAME_MAX)
        return give_up(w, fail(E_IO, "'%.200s': the path is empty or too long", path));
    Status st = single ? open_single(w, path) : open_folder(w, path);
    if (!st && single && strlen(w->name) > NAME_MAX - 32) st = fail(E_IO, "%s: the name is too long", path);
    return st ? give_up(w, st) : OK;
}

Status st_writer_open(StWriter *w, const char *path, int64_t max_shard)
{
    size_t n = strlen(path);
    return writer_open(w, path, max_shard, n > 12 && !strcmp(path + n - 12, ".safetensors"));
}

/* The caller is our own code, so an invalid shape is our bug. */
Status st_writer_declare(StWriter *w, const char *name, DType d, int rank, const int64_t *shape)
{
    REQUIRE(w->open && !w->begun && rank >= 0 && rank <= ST_MAXDIM, "tensor %s, rank %d", name, rank);
    if (!GROW(w->slot, w->cap, w->count + 1)) return give_up(w, no_memory());
    StSlot *s = &w->slot[w->count];
    *s = (StSlot){ .name = strdup(name), .dtype = d, .rank = rank, .bytes = (int64_t)dtype_size(d) };
    if (!s->name) return give_up(w, no_memory());
    w->count++;
    for (int i = 0; i < rank; i++) {
        s->shape[i] = shape[i];
        REQUIRE(shape[i] >= 0 && !__builtin_mul_overflow(s->bytes, shape[i], &s->bytes),
                "tensor %s, dimension %d", name, i);
    }
    return OK;
}

static int name_order(const void *a, const void *b)
{
    return strcmp((*(StSlot *const *)a)->name, (*(StSlot *const *)b)->name);
}

/* The slots by name: for finding duplicates and for the index. NULL when there is no memory. */
static StSlot **by_name(const StWriter *w)
{
    StSlot **list = calloc((size_t)w->count + 1, sizeof *list);
    for (int i = 0; list && i < w->count; i++) list[i] = &w->slot[i];
    if (list) qsort(list, (size_t)w->count, sizeof *list, name_order);
    return list;
}

static void shards_assign(StWriter *w)
{
    int64_t used = 0;
    w->shards = 1;
    for (int i = 0; i < w->count; i++) {
        StSlot *s = &w->slot[i];
        if (!w->name && w->max_shard > 0 && used > 0 && s->bytes > w->max_shard - used) w->shards++, used = 0;
        s->shard = w->shards - 1;
        used += s->bytes;
    }
}

/* Writes all bytes or fails: a short write is retried, which then returns the error. */
static Status write_at(int fd, const char *path, const void *data, size_t bytes, int64_t offset)
{
    const char *p = data;
    while (bytes > 0) {
        activity_slow_begin();
        ssize_t n = pwrite(fd, p, bytes < FILE_CHUNK ? bytes : FILE_CHUNK, offset);
        activity_slow_end();
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail(E_IO, "%s: writing %zu bytes: %s", path, bytes, strerror(n ? errno : ENOSPC));
        p += n, bytes -= (size_t)n, offset += n;
    }
    return OK;
}

static void json_text(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')            fprintf(f, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)      fprintf(f, "\\u%04x", *s);
        else                                    fputc(*s, f);
    }
    fputc('"', f);
}

static void header_entry(FILE *f, const StSlot *s)
{
    fputc(',', f);
    json_text(f, s->name);
    fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", dtype_file_name(s->dtype));
    for (int i = 0; i < s->rank; i++) fprintf(f, "%s%" PRId64, i ? "," : "", s->shape[i]);
    fprintf(f, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", s->offset, s->offset + s->bytes);
}

/* Lays the shard out while writing its header: length, JSON, spaces up to a multiple of 8. */
static Status header_make(StWriter *w, int shard, char **text, size_t *len)
{
    int64_t offset = 0;
    FILE   *f = open_memstream(text, len);
    if (!f) return no_memory();
    fwrite("\0\0\0\0\0\0\0\0", 1, 8, f);
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", f);
    for (size_t size = 8; size >= 1; size /= 2)
        for (int i = 0; i < w->count; i++) {
            StSlot *s = &w->slot[i];
            if (s->shard != shard || dtype_size(s->dtype) != size) continue;
            s->offset = offset;
            offset += s->bytes;
            header_entry(f, s);
        }
    fputc('}', f);
    while (!ferror(f) && ftell(f) % 8) fputc(' ', f);
    bool bad = ferror(f);
    if (fclose(f) || bad) return no_memory();
    if (*len - 8 > ST_MAX_HEADER)
        return fail(E_DATA, "%zu bytes of header, readers allow %d; use smaller shards", *len, ST_MAX_HEADER);
    for (int i = 0; i < 8; i++) (*text)[i] = (char)((*len - 8) >> (8 * i));
    return OK;
}

static Status shard_begin(StWriter *w)
{
    char   name[NAME_MAX], *text = NULL;
    Path   path;
    size_t len = 0;
    shard_name(w, w->made, name);
    temp_path(w, name, path);
    w->fd = open(path, FRESH, 0666);
    if (w->fd < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    w->made++;
    Status st = header_make(w, w->made - 1, &text, &len);
    if (!st) st = write_at(w->fd, final_path(w, name, path), text, len, 0);
    w->base = (int64_t)len;
    free(text);
    return st;
}

static Status shard_end(StWriter *w)
{
    char name[NAME_MAX];
    Path path;
    shard_name(w, w->made - 1, name);
    int bad = file_sync_fd(w->fd), why = errno, fd = w->fd;
    w->fd = -1;
    if (close(fd) < 0 && !bad) bad = -1, why = errno;
    return bad ? fail(E_IO, "%s: %s", final_path(w, name, path), strerror(why)) : OK;
}

/* Passes over finished and empty tensors, and from shard to shard. */
static Status advance(StWriter *w)
{
    while (w->at < w->count && w->done == w->slot[w->at].bytes) w->at++, w->done = 0;
    int want = w->at < w->count ? w->slot[w->at].shard : w->shards - 1;
    while (w->made <= want) {
        if (w->made > 0) TRY(shard_end(w));
        TRY(shard_begin(w));
    }
    return OK;
}

Status st_writer_begin(StWriter *w)
{
    REQUIRE(w->open && !w->begun, "begin once, after open");
    StSlot **list = by_name(w);
    Status   st = list ? OK : no_memory();
    for (int i = 1; !st && i < w->count; i++)
        REQUIRE(strcmp(list[i - 1]->name, list[i]->name), "tensor %s is declared twice", list[i]->name);
    free(list);
    shards_assign(w);
    w->begun = true;
    if (!st) st = advance(w);
    return st ? give_up(w, st) : OK;
}

const char *st_writer_next(const StWriter *w) { return w->at < w->count ? w->slot[w->at].name : NULL; }

/* Adds the final name of the file being written to the error. */
static Status name_file(const StWriter *w, Status st)
{
    char name[NAME_MAX];
    Path path;
    shard_name(w, w->made - 1, name);
    return wrap(st, "%s", final_path(w, name, path));
}

Status st_writer_write(StWriter *w, const void *data, size_t bytes)
{
    const char *p = data;
    Status      st = OK;
    REQUIRE(w->open && w->begun, "write after begin");
    while (bytes > 0 && !st) {
        REQUIRE(w->at < w->count, "%zu bytes more than were declared", bytes);
        const StSlot *s = &w->slot[w->at];
        size_t n = bytes < (size_t)(s->bytes - w->done) ? bytes : (size_t)(s->bytes - w->done);
        st = write_at(w->fd, s->name, p, n, w->base + s->offset + w->done);
        if (st) return give_up(w, name_file(w, st));
        p += n, bytes -= n, w->done += (int64_t)n;
        st = advance(w);
    }
    return st ? give_up(w, st) : OK;
}

static Status place(const StWriter *w, const char *name)
{
    Path from, to;
    temp_path(w, name, from), final_path(w, name, to);
    return rename(from, to) ? fail(E_IO, "%s: cannot rename to it: %s", to, strerror(errno)) : OK;
}

static Status index_make(const StWriter *w, char **text, size_t *len)
{
    int64_t  total = 0;
    StSlot **list = by_name(w);
    FILE    *f = list ? open_memstream(text, len) : NULL;
    for (int i = 0; i < w->count; i++) total += w->slot[i].bytes;
    if (f) fprintf(f, "{\n  \"metadata\": { \"total_size\": %" PRId64 " },\n  \"weight_map\": {", total);
    for (int i = 0; f && i < w->count; i++) {
        char name[NAME_MAX];
        shard_name(w, list[i]->shard, name);
        fputs(i ? ",\n    " : "\n    ", f);
        json_text(f, list[i]->name);
        fprintf(f, ": \"%s\"", name);
    }
    if (f) fputs("\n  }\n}\n", f);
    free(list);
    bool bad = !f || ferror(f);
    return (f && fclose(f)) || bad ? no_memory() : OK;
}

static Status index_write(const StWriter *w)
{
    char  *text = NULL;
    size_t len = 0;
    Path   path;
    Status st = index_make(w, &text, &len);
    int    fd = st ? -1 : open(temp_path(w, INDEX, path), FRESH, 0666);
    if (!st && fd < 0) st = fail(E_IO, "%s: %s", path, strerror(errno));
    if (!st) st = write_at(fd, path, text, len, 0);
    if (!st && file_sync_fd(fd) < 0) st = fail(E_IO, "%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    free(text);
    return st;
}

static Status index_remove(const StWriter *w)
{
    Path path;
    if (unlink(final_path(w, INDEX, path)) < 0 && errno != ENOENT)
        return fail(E_IO, "%s: cannot replace it: %s", path, strerror(errno));
    return OK;
}

/* A single file appears at once with its rename; an older index, which readers prefer, is removed
 * afterwards. */
static Status place_all(StWriter *w)
{
    bool set = !w->name && w->shards > 1;
    char name[NAME_MAX];
    if (set) TRY(index_write(w));
    if (set) TRY(index_remove(w));
    for (; w->placed < w->made; w->placed++) {
        shard_name(w, w->placed, name);
        TRY(place(w, name));
    }
    folder_sync(w->dir);
    if (set) TRY(place(w, INDEX));
    else if (!w->name) TRY(index_remove(w));
    folder_sync(w->dir);
    return OK;
}

Status st_writer_finish(StWriter *w)
{
    REQUIRE(w->open && w->begun, "finish after begin");
    REQUIRE(w->at == w->count, "tensor %s is not complete", st_writer_next(w));
    Status st = shard_end(w);
    if (!st) st = place_all(w);
    st_writer_close(w);
    return st;
}

void st_writer_close(StWriter *w)
{
    char name[NAME_MAX];
    Path path;
    if (!w->open) return;
    if (w->fd >= 0) close(w->fd);
    for (; w->placed < w->made; w->placed++) {
        shard_name(w, w->placed, name);
        unlink(temp_path(w, name, path));
    }
    if (w->begun && !w->name) unlink(temp_path(w, INDEX, path));
    for (int i = 0; i < w->count; i++) free(w->slot[i].name);
    free(w->slot);
    free(w->dir);
    free(w->name);
    *w = (StWriter){ .fd = -1 };
}

StTensor st_of(const char *name, Tensor t)
{
    StTensor out = { .name = name, .dtype = (DType)t.dtype, .rank = t.rank, .data = t.data };
    REQUIRE(t_has(t) && t_dense(t), "tensor %s: %s", name, t_fmt(t));
    out.bytes = (size_t)t_bytes(t);
    memcpy(out.shape, t.n, sizeof t.n);
    return out;
}

Status st_save(const char *path, const StTensor *t, int n)
{
    StWriter w;
    TRY(writer_open(&w, path, 0, true));
    for (int i = 0; i < n; i++) TRY(st_writer_declare(&w, t[i].name, t[i].dtype, t[i].rank, t[i].shape));
    TRY(st_writer_begin(&w));
    for (int i = 0; i < n; i++) TRY(st_writer_write(&w, t[i].data, t[i].bytes));
    return st_writer_finish(&w);
}
