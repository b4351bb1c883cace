/* train/checkpoint_manifest.c -- MANIFEST.json: every file of a checkpoint with its size and hash.
 *
 * Writing it reads all files back and syncs them: when it is there, so are they. The hash is XXH3's 128-bit
 * form, which `xxh128sum` prints too; it finds damage, it does not prove who wrote the file. */
#include "train/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MANIFEST "MANIFEST.json"

typedef struct Digest { int64_t bytes; char hash[33]; } Digest;

static Status digest_fd(Digest *d, int fd, const char *path, XXH3_state_t *x, void *buf, size_t room)
{
    ssize_t n;
    XXH3_128bits_reset(x);
    for (d->bytes = 0; (n = read(fd, buf, room)) > 0; d->bytes += n) XXH3_128bits_update(x, buf, (size_t)n);
    if (n < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    XXH128_hash_t h = XXH3_128bits_digest(x);
    snprintf(d->hash, sizeof d->hash, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    return OK;
}

static Status digest_of(Digest *d, const char *path)
{
    enum { ROOM = 1 << 20 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(E_IO, "%s: %s", path, strerror(errno));
    XXH3_state_t *x = XXH3_createState();
    void *buf = malloc(ROOM);
    Status st = x && buf ? digest_fd(d, fd, path, x, buf, ROOM)
                         : fail(E_FIT, "%s: no memory to hash it", path);
    XXH3_freeState(x);
    free(buf);
    close(fd);
    return st;
}

static int wanted(const struct dirent *e) { return e->d_name[0] != '.' && strcmp(e->d_name, MANIFEST); }

/* Adds the files of folder/below to `files`; below is "" or ends in a slash. */
static Status collect(Json *files, const char *folder, const char *below)
{
    Path at, path, name;
    struct dirent **entry;
    struct stat info;
    Status st = OK;
    TRY(path_join(at, folder, below));
    int n = scandir(at, &entry, wanted, alphasort);
    if (n < 0) return fail(E_IO, "%s: %s", at, strerror(errno));
    for (int i = 0; i < n; i++) {
        Digest d;
        if (!st) st = path_join(path, at, entry[i]->d_name);
        if (!st &&
            (stat(path, &info) ||
             snprintf(name, sizeof name, "%s%s", below, entry[i]->d_name) >= PATH_MAX - 1))
            st = fail(E_IO, "%s: %s", path, strerror(errno));
        if (!st && S_ISDIR(info.st_mode)) {
            strcat(name, "/");
            st = collect(files, folder, name);
        } else if (!st) {
            st = file_sync(path);
            if (!st) st = digest_of(&d, path);
            if (!st)
                json_object_set_new(files, name,
                                    json_pack("{s:I, s:s}", "bytes", (json_int_t)d.bytes, "hash", d.hash));
        }
        free(entry[i]);
    }
    free(entry);
    folder_sync(at);
    return st;
}

Status manifest_write(const char *folder, int64_t step)
{
    Path path;
    Json *files = json_object();
    Status st = collect(files, folder, "");
    Json *o = json_pack("{s:i, s:I, s:s, s:o}", "format", 1, "step", (json_int_t)step, "hash", "xxh128",
                        "files", files);
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    if (!st) st = text ? path_join(path, folder, MANIFEST) : fail(E_FIT, "no memory for a manifest");
    if (!st) st = file_write(path, text, strlen(text));
    if (!st) folder_sync(folder);
    free(text);
    json_decref(o);
    return st;
}

static Status check_file(const char *folder, const char *name, const Json *row)
{
    Path path;
    Digest d;
    int64_t bytes;
    const char *hash;
    if (name[0] == '/' || strstr(name, "..")) return fail(E_DATA, "%s: names a file outside of it", MANIFEST);
    TRY(path_join(path, folder, name));
    TRY_CTX(json_int(row, "bytes", -1, &bytes), "%s: %s", MANIFEST, name);
    TRY_CTX(json_str(row, "hash", "", &hash), "%s: %s", MANIFEST, name);
    TRY(digest_of(&d, path));
    if (d.bytes != bytes)
        return fail(E_DATA, "%s: %lld bytes, the manifest says %lld", name, (long long)d.bytes,
                    (long long)bytes);
    return strcmp(d.hash, hash) ? fail(E_DATA, "%s: damaged: its hash is not the manifest's", name) : OK;
}

Status checkpoint_check(const char *folder)
{
    Path path;
    Json *o, *row;
    const char *name, *hash;
    int64_t format;
    TRY(path_join(path, folder, MANIFEST));
    TRY_CTX(json_load(&o, path), "not a whole checkpoint");
    const Json *files = json_object_get(o, "files");
    Status st = json_int(o, "format", -1, &format);
    if (!st) st = json_str(o, "hash", "", &hash);
    if (!st && (format != 1 || strcmp(hash, "xxh128") || !json_is_object(files)))
        st = fail(E_DATA, "%s: not a manifest that this build reads", path);
    json_object_foreach((Json *)files, name, row)
        if (!st) st = check_file(folder, name, row);
    json_decref(o);
    return st ? wrap(st, "%s", folder) : OK;
}
