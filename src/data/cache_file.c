/* data/cache_file.c -- see cache_file.h. */
#include "data/cache_file.h"

#include "base/file_version.h"
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { KEPT = 32 }; /* files; older ones are removed */

typedef struct Header {
    char     magic[8];
    int64_t  version, bytes;
    uint64_t hash;
} Header;

static const char magic[8] = "trebdata";

/* ---- keys ---- */

Status cache_key_add_file(void *xxh3, const char *path)
{
    struct stat st;
    if (stat(path, &st)) return fail(E_IO, "%s: %s", path, strerror(errno));
    char         *real    = realpath(path, NULL);
    const char   *name    = real ? real : path;
    const int64_t facts[] = { st.st_size, (int64_t)st.st_ino, st.st_mtim.tv_sec, st.st_mtim.tv_nsec };
    XXH3_128bits_update(xxh3, name, strlen(name) + 1);
    XXH3_128bits_update(xxh3, facts, sizeof facts);
    free(real);
    return OK;
}

void cache_key_text(char key[CACHE_KEY], void *xxh3)
{
    XXH128_hash_t h = XXH3_128bits_digest(xxh3);
    snprintf(key, CACHE_KEY, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    XXH3_freeState(xxh3);
}

/* ---- files ---- */

static Status cache_path(Path out, const char *name)
{
    Path folder, cache;
    TRY(folder_cache(cache));
    TRY(path_join(folder, cache, "index"));
    return path_join(out, folder, name);
}

static bool is_whole(const char *bytes, size_t len)
{
    Header h;
    if (len < sizeof h) return false;
    memcpy(&h, bytes, sizeof h);
    return !memcmp(h.magic, magic, sizeof magic) && h.version == INDEX_CACHE_VERSION && h.bytes >= 0 &&
           (size_t)h.bytes == len - sizeof h && h.hash == XXH3_64bits(bytes + sizeof h, (size_t)h.bytes);
}

bool cache_file_load(char **bytes, size_t *n, const char *name, size_t most)
{
    Path   path;
    size_t len = 0;
    *bytes = NULL;
    if (cache_path(path, name) || !file_is(path) || file_load(bytes, &len, path, sizeof(Header) + most))
        return false;
    if (!is_whole(*bytes, len)) return free(*bytes), *bytes = NULL, false;
    *n = len - sizeof(Header);
    memmove(*bytes, *bytes + sizeof(Header), *n);
    (*bytes)[*n] = 0;
    utimensat(AT_FDCWD, path, NULL, 0); /* used now: removed last */
    return true;
}

static int is_kept(const struct dirent *e) { return e->d_name[0] != '.' && !strstr(e->d_name, ".part"); }

/* Removes the file that was used longest ago while there are more than KEPT. */
static void remove_old(const char *folder)
{
    struct dirent **entry;
    struct stat     st;
    Path            path, oldest = "";
    time_t          least = 0;
    int             n     = scandir(folder, &entry, is_kept, NULL);
    for (int i = 0; i < n; i++) {
        bool there = !path_join(path, folder, entry[i]->d_name) && !stat(path, &st);
        if (there && (!*oldest || st.st_mtime < least))
            least = st.st_mtime, memcpy(oldest, path, sizeof path);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
    if (n > KEPT) unlink(oldest);
}

static Header describe(const CachePart *part, int parts)
{
    Header        h = { .version = INDEX_CACHE_VERSION };
    XXH3_state_t *x = XXH3_createState();
    REQUIRE(x, "out of host memory");
    XXH3_64bits_reset(x);
    memcpy(h.magic, magic, sizeof magic);
    for (int i = 0; i < parts; i++) {
        h.bytes += (int64_t)part[i].n;
        XXH3_64bits_update(x, part[i].bytes, part[i].n);
    }
    h.hash = XXH3_64bits_digest(x);
    XXH3_freeState(x);
    return h;
}

/* Under a name of this process first: ranks may save at the same time. */
static Status write_parts(const char *path, const CachePart *part, int parts)
{
    Header h = describe(part, parts);
    Path   tmp;
    if (snprintf(tmp, sizeof tmp, "%s.%ld.part", path, (long)getpid()) >= (int)sizeof tmp)
        return fail(E_IO, "%s: the name is too long", path);
    FILE *f = fopen(tmp, "wbe");
    if (!f) return fail(E_IO, "%s: %s", tmp, strerror(errno));
    bool good = fwrite(&h, sizeof h, 1, f) == 1;
    for (int i = 0; i < parts && good; i++)
        good = !part[i].n || fwrite(part[i].bytes, 1, part[i].n, f) == part[i].n;
    good = !fclose(f) && good;
    if (good && !rename(tmp, path)) return OK;
    Status st = fail(E_IO, "%s: %s", path, strerror(errno));
    unlink(tmp);
    return st;
}

Status cache_file_save(const char *name, const CachePart *part, int parts)
{
    Path path, folder;
    TRY(cache_path(folder, ""));
    TRY(cache_path(path, name));
    TRY(folder_make(folder));
    TRY(write_parts(path, part, parts));
    return remove_old(folder), OK;
}
