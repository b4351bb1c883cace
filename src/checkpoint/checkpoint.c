/* checkpoint/checkpoint.c -- see checkpoint.h: names of folders, links, what is kept and what is found. */
#define _GNU_SOURCE
#include "checkpoint/checkpoint_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void name_of(char out[64], int64_t step, const char *tail)
{
    snprintf(out, 64, "checkpoint-%" PRId64 "%s", step, tail);
}

/* The step that a folder's name says; -1: another kind of name. */
static int64_t step_of(const char *name)
{
    char *end;
    if (strncmp(name, "checkpoint-", 11) || name[11] < '0' || name[11] > '9') return -1;
    int64_t n = strtoll(name + 11, &end, 10);
    return *end ? -1 : n;
}

/* Takes its name in one move, also from an older checkpoint of the same step, which then goes. */
static Status take_name(const char *from, const char *to)
{
    if (!renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE)) return OK;
    if (errno == EEXIST && !renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE)) {
        folder_remove(from);
        return OK;
    }
    if (errno == EINVAL || errno == ENOSYS) {                /* a file system without either */
        folder_remove(to);
        if (!rename(from, to)) return OK;
    }
    return fail(E_IO, "%s: cannot take its name: %s", to, strerror(errno));
}

static Status set_link(const char *dir, const char *link, const char *target)
{
    Path path, fresh;
    char tmp[64];
    snprintf(tmp, sizeof tmp, "%s.tmp", link);
    TRY(path_join(path, dir, link));
    TRY(path_join(fresh, dir, tmp));
    unlink(fresh);
    if (symlink(target, fresh) || rename(fresh, path)) return fail(E_IO, "%s: %s", path, strerror(errno));
    return OK;
}

/* The step that a link names; -1: none. */
static int64_t link_step(const char *dir, const char *link)
{
    Path path, target;
    if (path_join(path, dir, link)) return -1;
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0) return -1;
    target[n] = 0;
    return step_of(target);
}

static int is_checkpoint(const struct dirent *e) { return step_of(e->d_name) >= 0; }

static int newest_first(const struct dirent **a, const struct dirent **b)
{
    int64_t x = step_of((*a)->d_name), y = step_of((*b)->d_name);
    return (x < y) - (x > y);
}

/* A folder that is to go is a .tmp before its first file goes. */
static void discard(const char *dir, const char *name)
{
    Path from, to;
    char tmp[300];
    snprintf(tmp, sizeof tmp, "%s.tmp", name);
    if (path_join(from, dir, name) || path_join(to, dir, tmp)) return;
    if (!rename(from, to)) folder_remove(to);
}

/* Steps beyond `step` are of a branch that was left: they count for nothing and are overwritten when
 * reached. */
static void prune(const char *dir, int64_t step, int64_t keep)
{
    struct dirent **entry;
    int64_t best = link_step(dir, "best"), seen = 0;
    int n = keep > 0 ? scandir(dir, &entry, is_checkpoint, newest_first) : -1;
    for (int i = 0; i < n; i++) {
        int64_t at = step_of(entry[i]->d_name);
        if (at <= step && ++seen > keep && at != best) discard(dir, entry[i]->d_name);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
}

Status checkpoint_tmp_path(Path out, const char *dir, int64_t step)
{
    char name[64];
    name_of(name, step, ".tmp");
    return path_join(out, dir, name);
}

Status checkpoint_commit(const char *dir, int64_t step, bool best, int64_t keep)
{
    Path tmp, path;
    char name[64];
    name_of(name, step, "");
    TRY(checkpoint_tmp_path(tmp, dir, step));
    TRY(path_join(path, dir, name));
    TRY(take_name(tmp, path));
    folder_sync(dir);
    TRY(set_link(dir, "last", name));
    if (best) TRY(set_link(dir, "best", name));
    folder_sync(dir);
    prune(dir, step, keep);
    return OK;
}

static int is_leftover(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return (!strncmp(e->d_name, "checkpoint-", 11) || !strcmp(e->d_name, "last.tmp") ||
            !strcmp(e->d_name, "best.tmp")) &&
           n > 4 && !strcmp(e->d_name + n - 4, ".tmp");
}

void checkpoint_remove_tmp(const char *dir)
{
    struct dirent **entry;
    Path path;
    int n = scandir(dir, &entry, is_leftover, NULL);
    for (int i = 0; i < n; i++) {
        if (!path_join(path, dir, entry[i]->d_name)) folder_remove(path);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
}

static bool whole(Path path, const char *dir, const char *name, const Log *log)
{
    if (!path_join(path, dir, name) && !checkpoint_verify(path)) return true;
    log_warn(log, "%s; it is passed over", status_text());
    return false;
}

Status checkpoint_find(Path path, const char *dir, const Log *log)
{
    char name[64];
    struct dirent **entry;
    int64_t last = link_step(dir, "last");
    bool found = false;
    name_of(name, last, "");
    if (last >= 0 && whole(path, dir, name, log)) return OK;
    int n = scandir(dir, &entry, is_checkpoint, newest_first);
    if (n < 0 && errno != ENOENT) return fail(E_IO, "%s: %s", dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (!found && step_of(entry[i]->d_name) != last) found = whole(path, dir, entry[i]->d_name, log);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
    if (!found) path[0] = 0;
    return OK;
}

bool checkpoint_is(const char *path)
{
    Path state;
    return !path_join(state, path, "state") && file_is(state);
}

Status checkpoint_refuse_run_folder(const char *path)
{
    Path last;
    if (path_join(last, path, "last") || !checkpoint_is(last)) return OK;
    return fail(E_CONFIG, "%s is the folder of a run; name a checkpoint in it: %s", path, last);
}

Status checkpoint_read_state(const char *path, Json **state)
{
    Path file;
    TRY(path_join(file, path, "trainer_state.json"));
    return json_load(state, file);
}
