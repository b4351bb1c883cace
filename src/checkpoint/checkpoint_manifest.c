/* checkpoint/checkpoint_manifest.c -- MANIFEST.json: every file of a checkpoint with its size and hash.
 *
 * Before the manifest is written all files are read back and synced, so a checkpoint that has a manifest is
 * complete. A subfolder with its own manifest, as each rank's has, is listed by that file alone, so that
 * every rank hashes what it wrote. The hash is 128-bit XXH3, as `xxh128sum` prints it; it detects damage, not
 * tampering. */
#include "checkpoint/checkpoint_private.h"

#include "base/file_version.h"
#include "base/folder.h"
#include "base/thread_pool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>


typedef struct Digest { int64_t bytes; char hash[33]; } Digest;

static Status digest_fd(Digest *d, int fd, const char *path, XXH3_state_t *x, void *buf, size_t size,
                        Meter *meter)
{
    ssize_t n;
    XXH3_128bits_reset(x);
    for (d->bytes = 0; (n = file_read_fd(fd, buf, size)) > 0; d->bytes += n)
        XXH3_128bits_update(x, buf, (size_t)n), meter_add(meter, n);
    if (n < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    XXH128_hash_t h = XXH3_128bits_digest(x);
    snprintf(d->hash, sizeof d->hash, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    return OK;
}

static Status digest_file(Digest *d, const char *path, Meter *meter)
{
    enum { BUFFER = 1 << 20 };
    size_t size;
    int    fd;
    TRY(file_open_regular(&fd, &size, path));
    XXH3_state_t *x = XXH3_createState();
    void *buf = malloc(BUFFER);
    Status        st  = x && buf ? digest_fd(d, fd, path, x, buf, BUFFER, meter)
                                 : fail(E_FIT, "%s: no memory to hash it", path);
    XXH3_freeState(x);
    free(buf);
    close(fd);
    return st;
}

/* ---- all files of a checkpoint ---- */

/* Calls visit for every file by its name below the folder; a subfolder with a manifest is that file. */
typedef struct Walk {
    const char *folder;
    Json       *files;                   /* rows of the manifest */
    Status    (*visit)(Json *files, const char *name, const char *path);
    bool        sync;                    /* folders reach the disk */
} Walk;

static int is_listed(const struct dirent *e)
{
    return e->d_name[0] != '.' && strcmp(e->d_name, CHECKPOINT_MANIFEST);
}

static Status walk_folder(const Walk *w, const char *below);

static Status walk_entry(const Walk *w, Path name, Path path)
{
    struct stat info;
    size_t n = strlen(name);
    if (stat(path, &info) || !S_ISDIR(info.st_mode)) return w->visit(w->files, name, path);
    if (n + sizeof CHECKPOINT_MANIFEST + 1 > sizeof(Path))
        return fail(E_IO, "%.200s: the path is too long", name);
    strcpy(name + n, "/" CHECKPOINT_MANIFEST);
    TRY(path_join(path, w->folder, name));
    if (file_is(path)) return w->visit(w->files, name, path);
    name[n + 1] = 0;
    return walk_folder(w, name);
}

/* below is "" or ends in a slash. */
static Status walk_folder(const Walk *w, const char *below)
{
    Path at, path, name;
    struct dirent **entry;
    Status st = OK;
    TRY(path_join(at, w->folder, below));
    int n = scandir(at, &entry, is_listed, alphasort);
    if (n < 0) return fail(E_IO, "%s: %s", at, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (!st) st = path_join(path, at, entry[i]->d_name);
        if (!st && snprintf(name, sizeof name, "%s%s", below, entry[i]->d_name) >= (int)sizeof name)
            st = fail(E_IO, "%.200s: the path is too long", path);
        if (!st) st = walk_entry(w, name, path);
        free(entry[i]);
    }
    free(entry);
    if (w->sync) folder_sync(at);
    return st;
}

/* ---- writing ---- */

static Status collect_file(Json *files, const char *name, const char *path)
{
    Digest d;
    TRY(file_sync(path));
    TRY(digest_file(&d, path, NULL));
    json_object_set_new(files, name, json_pack("{s:I, s:s}", "bytes", (json_int_t)d.bytes, "hash", d.hash));
    return OK;
}

/* The file appears atomically, because rank 0 polls for it. */
Status checkpoint_manifest_write(const char *folder, int64_t step)
{
    Json *files = json_object();
    Walk   all = { folder, files, collect_file, .sync = true };
    Status st = walk_folder(&all, "");
    Json *o = json_pack("{s:i, s:I, s:s, s:o}", "format", MANIFEST_VERSION, "step", (json_int_t)step, "hash",
                        "xxh128", "files", files);
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    if (!st && !text) st = fail(E_FIT, "no memory for %s", CHECKPOINT_MANIFEST);
    if (!st) st = file_write_atomic(folder, CHECKPOINT_MANIFEST, text, strlen(text));
    free(text);
    json_decref(o);
    return st;
}

/* ---- checking ---- */

typedef struct ManifestCheck {
    const char  *folder;
    const char **name;                   /* of each listed file, with its row */
    const Json **row;
    ThreadPool        *pool;
    Meter             *meter;
} ManifestCheck;

static Status check_folder(const char *folder, ThreadPool *pool, Meter *meter);

/* If the listed file is a manifest of a subfolder, checks that subfolder by it. */
static Status check_subfolder(const ManifestCheck *c, const char *name)
{
    Path sub;
    const char *slash = strrchr(name, '/');
    if (!slash || strcmp(slash + 1, CHECKPOINT_MANIFEST)) return OK;
    TRY(path_join(sub, c->folder, name));
    *strrchr(sub, '/') = 0;
    return check_folder(sub, c->pool, c->meter);
}

static Status check_file(void *arg, int64_t i)
{
    const ManifestCheck *c = arg;
    const char *name = c->name[i], *hash;
    Path path;
    Digest d;
    int64_t bytes;
    if (name[0] == '/' || strstr(name, ".."))
        return fail(E_DATA, "%s lists %s, which is outside the checkpoint", CHECKPOINT_MANIFEST, name);
    TRY(path_join(path, c->folder, name));
    TRY_CTX(json_int(c->row[i], "bytes", -1, &bytes), "%s: %s", CHECKPOINT_MANIFEST, name);
    TRY_CTX(json_str(c->row[i], "hash", "", &hash), "%s: %s", CHECKPOINT_MANIFEST, name);
    TRY(digest_file(&d, path, c->meter));
    if (d.bytes != bytes)
        return fail(E_DATA, "%s is damaged: it has %lld bytes, %s says %lld", name, (long long)d.bytes,
                    CHECKPOINT_MANIFEST, (long long)bytes);
    if (strcmp(d.hash, hash))
        return fail(E_DATA, "%s is damaged: its hash differs from %s", name, CHECKPOINT_MANIFEST);
    return check_subfolder(c, name);
}

static Status check_files(const char *folder, Json *files, ThreadPool *pool, Meter *meter)
{
    ManifestCheck c    = { .folder = folder, .pool = pool, .meter = meter };
    size_t size = json_object_size(files) + 1;
    int64_t n = 0;
    const char *name;
    Json *row;
    c.name = malloc(size * sizeof *c.name), c.row = malloc(size * sizeof *c.row);
    Status st = c.name && c.row ? OK : fail(E_FIT, "no memory to read %s", CHECKPOINT_MANIFEST);
    json_object_foreach(files, name, row)
        if (!st) c.name[n] = name, c.row[n++] = row;
    if (!st) st = thread_pool_run(pool, n, check_file, &c);
    free(c.name), free(c.row);
    return st;
}

/* Every file that is loaded has a hash: a file without a row is not part of the checkpoint. */
static Status check_listed(Json *files, const char *name, const char *path)
{
    (void)path;
    return json_object_get(files, name) ? OK
               : fail(E_DATA, "%s is not listed in %s", name, CHECKPOINT_MANIFEST);
}

static Status check_folder(const char *folder, ThreadPool *pool, Meter *meter)
{
    Path path;
    Json *o;
    const char *hash;
    int64_t format;
    TRY(path_join(path, folder, CHECKPOINT_MANIFEST));
    TRY_CTX(json_load(&o, path), "not a complete checkpoint");
    Json *files = json_object_get(o, "files");
    Status st = json_int(o, "format", -1, &format);
    if (!st) st = json_str(o, "hash", "", &hash);
    if (!st && (format != MANIFEST_VERSION || strcmp(hash, "xxh128") || !json_is_object(files)))
        st = fail(E_DATA, "%s: not a manifest that this build reads (format %lld)", path, (long long)format);
    if (!st) st = check_files(folder, files, pool, meter);
    if (!st) st = walk_folder(&(Walk){ folder, files, check_listed, .sync = false }, "");
    json_decref(o);
    return st;
}

Status checkpoint_verify(const char *folder)
{
    ThreadPool pool;
    Meter      meter;
    TRY(thread_pool_open(&pool, cpu_count() - 1));
    meter_open(&meter, NULL, "checking the hashes of a checkpoint", METER_BYTES, 0);
    Status st = check_folder(folder, &pool, &meter);
    meter_close(&meter);
    thread_pool_close(&pool);
    return st ? wrap(st, "%s", folder) : OK;
}
