/* checkpoint/hub_cache.c -- see hub_cache.h. */
#include "checkpoint/hub_cache.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Status copy_path(Path out, const char *path)
{
    int n = snprintf(out, PATH_MAX, "%s", path);
    return n >= 0 && n < PATH_MAX ? OK : fail(E_IO, "%.200s: the path is too long", path);
}

/* "owner/name" of letters, digits, '-', '_' and '.', not a path that begins with '.' or '/'. */
static bool is_hub_id(const char *s)
{
    int slashes = 0;
    if (!isalnum((unsigned char)*s)) return false;
    for (const char *p = s; *p; p++) {
        slashes += *p == '/';
        if (!isalnum((unsigned char)*p) && !strchr("-_./", *p)) return false;
    }
    return slashes == 1 && s[strlen(s) - 1] != '/';
}

static Status cache_folder(Path out)
{
    const char *hub = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME"), *cache = getenv("XDG_CACHE_HOME");
    if (hub && *hub) return copy_path(out, hub);
    if (home && *home) return path_join(out, home, "hub");
    if (cache && *cache) return path_join(out, cache, "huggingface/hub");
    home = getenv("HOME");
    return path_join(out, home ? home : "", ".cache/huggingface/hub");
}

/* "models--owner--name" of an id. */
static Status model_folder(Path out, const char *cache, const char *id)
{
    char        name[512];
    const char *slash = strchr(id, '/');
    int         n     = snprintf(name, sizeof name, "models--%.*s--%s", (int)(slash - id), id, slash + 1);
    if (n >= (int)sizeof name) return fail(E_IO, "%.200s: the name is too long", id);
    return path_join(out, cache, name);
}

/* The snapshot that refs/main names, or the only one. */
static Status snapshot_name(char name[256], const char *folder)
{
    Path   path;
    char  *text;
    size_t len;
    int    found = 0;
    *name        = 0;
    TRY(path_join(path, folder, "refs/main"));
    if (file_is(path) && !file_load(&text, &len, path, 4096)) {
        snprintf(name, 256, "%.*s", (int)strcspn(text, "\r\n"), text);
        return free(text), OK;
    }
    TRY(path_join(path, folder, "snapshots"));
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') snprintf(name, 256, "%s", e->d_name), found++;
    if (d) closedir(d);
    if (found != 1) *name = 0;
    return OK;
}

static Status find_snapshot(Path out, const char *id)
{
    Path cache, folder, snapshots;
    char name[256];
    TRY(cache_folder(cache));
    TRY(model_folder(folder, cache, id));
    TRY(snapshot_name(name, folder));
    TRY(path_join(snapshots, folder, "snapshots"));
    TRY(path_join(out, snapshots, name));
    if (*name && !strchr(name, '/') && folder_is(out)) return OK;
    return fail(E_CONFIG,
                "model.path = %s: there is no such folder, and the Hugging Face cache %s has no such model; "
                "download it with `hf download %s`, or set model.path to its folder",
                id, cache, id);
}

Status hub_cache_find(Path out, const char *path)
{
    if (file_is(path) || !is_hub_id(path)) return copy_path(out, path);
    return find_snapshot(out, path);
}
